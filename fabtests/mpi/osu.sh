#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Measures an MPI over scif and over its own shared memory with OSU's micro-benchmarks, two ranks,
# in turns (../turns.sh).
#
#   osu.sh DIR [--mpi STACK] [--quick] [--tests TEST,...] [--samples N] [--hosts]
#
# DIR contains the benchmarks, built by the user for one MPI, at any depth. STACK is an MPI of
# stacks.sh; the default follows the library that the benchmarks need: mpich5 for libmpi.so.12
# (also intel, mpich4), openmpi5 for libmpi.so.40 (also debian). TEST is the name of a program
# without `osu_`. A sample takes seconds, so a change of placement within one can pass unnoticed:
# use more samples where least and most differ. Ranks have FIFO priority where permitted, their
# launchers do not.
#
# With --hosts the ranks are on two hosts, namespaces of this machine (../net/hosts.sh): two on
# each, or one for tests of two ranks. scif is then compared with libfabric's tcp alone, and with
# shared memory of the MPI beside tcp. A run without an end in 60 s has no figures. Ranks have no
# FIFO priority, with which polling ones would starve each other. Needs root.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/setup.sh"
. "$here/stacks.sh"
. "$here/../turns.sh"
. "$here/../net/hosts.sh"
. "$here/../net/jobs.sh"

TESTS=(latency bw bibw mbw_mr put_latency get_latency put_bw get_bw fop_latency cas_latency
    acc_latency barrier allreduce bcast reduce alltoall allgather)
TESTS_OF_HOSTS=(latency mbw_mr put_latency get_latency alltoall allreduce)
ONLY=
SAMPLES=5
STACK=
HOSTS=

usage="usage: make bench-mpi OSU=DIR [BENCH=OPTIONS], see the head of ${BASH_SOURCE[0]}"
[ $# -ge 1 ] && [ -n "$1" ] || die "$usage"
OSU=$(realpath -e "$1" 2>/dev/null) ||
    die "No directory $1: build OSU's micro-benchmarks there, or set OSU."
shift
while [ $# -gt 0 ]; do
    case $1 in
    --quick) ONLY=${ONLY:-latency,bw} SAMPLES=3 ;;
    --mpi) STACK=${2:?$usage} && shift ;;
    --tests) ONLY=${2:?$usage} && shift ;;
    --samples) SAMPLES=${2:?$usage} && shift ;;
    --hosts) HOSTS=1 ;;
    *) die "$usage" ;;
    esac
    shift
done

program_of() { find "$OSU" -type f -perm -u+x -name "osu_$1" | head -n 1; }

# Lines "SIZE VALUE" of one run; the barrier has no size.
take() { # SUBJECT TEST PROGRAM
    local args=()
    case $2 in put_* | get_* | *_latency) args=(-w create) ;; esac
    if [ -n "$HOSTS" ]; then
        take_of_hosts "$@" "${args[@]}"
        return
    fi
    run_mpi "$STACK" "$1" 2 120 "${PRIORITY[@]}" "$3" "${args[@]}" \
        >"$LOGS/turns-osu.log" 2>&1 || return
    awk '$1 ~ /^[0-9.]+$/ { print (NF > 1 ? $1 " " $2 : "0 " $1) }' "$LOGS/turns-osu.log"
}

# The same of a job on two hosts.
take_of_hosts() { # SUBJECT TEST PROGRAM ARGUMENT...
    local each=2 length=(-m 262144 -i 300 -x 30)
    case $2 in
    latency | put_latency | get_latency) each=1 length=(-i 400 -x 40) ;;
    mbw_mr) length=() ;;
    esac
    NET=$([[ $STACK == debian* ]] && echo net || echo tcp) between_hosts "$STACK" "$1" \
        $((2 * each)) $each 60 "$3" "${@:4}" "${length[@]}" \
        >"$LOGS/turns-osu.log" 2>&1 || return
    awk '$1 ~ /^[0-9.]+$/ { print $1, $2 }' "$LOGS/turns-osu.log"
}

first=$(program_of latency)
[ -n "$first" ] || die "No program osu_latency below $OSU: build OSU's micro-benchmarks there."
if [ -z "$STACK" ]; then
    case $(readelf -dW "$first") in
    *libmpi.so.12*) STACK=mpich5 ;;
    *libmpi.so.40*) STACK=openmpi5 ;;
    *) die "$first needs no known MPI (readelf -d): name one of stacks.sh by --mpi." ;;
    esac
fi
find_cargo
need_build_packages
# The wheel of MPICH contains the libfabric of Intel MPI.
need_stack mpich5 "$STACK"
build_release scif-fabtests
[[ $STACK == debian* || $STACK == intel ]] ||
    export LD_LIBRARY_PATH=$BUILD/venv-${STACK%-btl}/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[[ $STACK != mpich* ]] || LD_LIBRARY_PATH=$BUILD/venv-$STACK/lib/mpich:$LD_LIBRARY_PATH

SUBJECTS=("$PROVIDER" own)
name=bench-mpi-$STACK
if [ -n "$HOSTS" ]; then
    hosts_possible || die "--hosts needs root and namespaces: run as root, outside a container."
    trap hosts_down EXIT
    hosts_up 2 || die "The hosts cannot be set up."
    SUBJECTS=("$PROVIDER" "$([[ $STACK == debian* ]] && echo net || echo tcp)" own)
    TESTS=("${TESTS_OF_HOSTS[@]}")
    VARIABLES=(${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"})
    name+=-hosts
fi
FIGURES=$RESULTS/$name-samples.csv
prepare_turns
[ -z "$HOSTS" ] || PRIORITY=()
echo "$(stack_title "$STACK")${HOSTS:+, two hosts}, processors $CPU0 and $CPU1," \
    "round trip of a cache line $NS ns"
for test in "${TESTS[@]}"; do
    [ -z "$ONLY" ] || [[ ,$ONLY, == *,$test,* ]] || continue
    program=$(program_of "$test")
    if [ -z "$program" ]; then
        PROBLEMS+=("$test: no program osu_$test below $OSU")
        continue
    fi
    unit=us
    [[ $test != *bw* ]] || unit=MB/s
    echo "osu_$test" >&2
    in_turns "$test" "$unit" "$program"
done
report "$name"
