#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Measures providers with the benchmark programs of libfabric's fabtests, in turns (turns.sh).
#
#   bench.sh PREFIX [--quick] [--prov SUBJECT,...] [--tests TEST,...] [--sizes SIZE,...]
#            [--samples N] [--hosts]
#
# PREFIX is the prefix of the installed fabtests, 1.17 or later: PREFIX/bin/fi_rdm_pingpong and the
# programs beside it, PREFIX/lib of their libfabric. SUBJECT is [LABEL=]PROVIDER[@DIR], by default
# scif,shm. DIR is the prefix of another libfabric with its own fabtests, or the directory of
# another libscif-fi.so. The first subject is compared with each other one. TEST is a name in the
# list below, or a part of it. All figures are microseconds: half a round trip, or one message.
#
# With --hosts the two sides run on two hosts, namespaces of this machine (net/hosts.sh), and the
# default subjects are scif over tcp and tcp alone. Needs root.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../mpi/setup.sh"
. "$here/../turns.sh"
. "$here/../net/hosts.sh"

# Name, program, its arguments, largest size, factor of the iterations.
TESTS=(
    "tagged_pingpong fi_rdm_tagged_pingpong - 4194304 1"
    "pingpong fi_rdm_pingpong - 4194304 1"
    "tagged_bw fi_rdm_tagged_bw - 4194304 4"
    "msg_bw fi_rdm_bw - 4194304 4"
    "rma_bw_write fi_rma_bw -o,write 4194304 4"
    "rma_bw_read fi_rma_bw -o,read 4194304 4"
    "rma_pingpong_write fi_rma_pingpong -o,write 4194304 1"
    "atomic_sum fi_rdm_atomic -o,sum,-z,uint64 8 2"
    "atomic_read fi_rdm_atomic -o,read,-z,uint64 8 2"
    "atomic_cswap fi_rdm_atomic -o,cswap,-z,uint64 8 2"
)
SIZES=8,64,256,1K,4K,8K,16K,64K,256K,1M,4M
SAMPLES=5
SUBJECTS=
ONLY=
HOSTS=

usage="usage: make bench-upstream UPSTREAM=DIR [BENCH=OPTIONS], see the head of ${BASH_SOURCE[0]}"
[ $# -ge 1 ] || die "$usage"
PREFIX=$(realpath -e "$1" 2>/dev/null) && [ -x "$PREFIX/bin/fi_rdm_tagged_pingpong" ] ||
    die "No $1/bin/fi_rdm_tagged_pingpong: set UPSTREAM to the prefix of an installed fabtests."
shift
while [ $# -gt 0 ]; do
    case $1 in
    --quick) SIZES=8,64,4K,64K,1M ONLY=${ONLY:-tagged_pingpong,tagged_bw,rma_bw_write} SAMPLES=3 ;;
    --prov) SUBJECTS=${2:?$usage} && shift ;;
    --tests) ONLY=${2:?$usage} && shift ;;
    --sizes) SIZES=${2:?$usage} && shift ;;
    --samples) SAMPLES=${2:?$usage} && shift ;;
    --hosts) HOSTS=1 ;;
    *) die "$usage" ;;
    esac
    shift
done
SUBJECTS=${SUBJECTS:-scif,$([ -n "$HOSTS" ] && echo tcp || echo shm)}
declare -A MEANING=()
for word in ${SUBJECTS//,/ }; do MEANING[${word%%=*}]=${word#*=}; done
mapfile -t SUBJECTS < <(tr ',' '\n' <<<"$SUBJECTS" | sed 's/=.*//')

# Sets NAME, a subject's provider, PROGRAMS, the prefix of its fabtests, and PROVIDERS, the
# directory of scif.
resolve() { # LABEL
    local dir=${MEANING[$1]#*@}
    NAME=${MEANING[$1]%%@*} PROGRAMS=$PREFIX PROVIDERS=$PROVIDER_DIR
    [[ ${MEANING[$1]} == *@* ]] || return 0
    if [ -e "$dir/libscif-fi.so" ]; then PROVIDERS=$dir; else PROGRAMS=$dir; fi
}

# Untimed iterations are a tenth of this.
iterations() { # SIZE
    if (($1 <= 8192)); then echo 40000
    elif (($1 <= 65536)); then echo 8000
    elif (($1 <= 262144)); then echo 1500
    elif (($1 <= 1048576)); then echo 400
    else echo 100; fi
}

# on_side NUMBER COMMAND...: one side of a program, on its host.
on_side() {
    if [ -n "$HOSTS" ]; then
        on_host "$1" env FI_SCIF_NET=tcp SCIF_DOMAIN=hosts "${@:2}"
    else
        "${@:2}"
    fi
}

address_of() { # NUMBER
    if [ -n "$HOSTS" ]; then echo "$HOSTS_NET.$1"; else echo 127.0.0.1; fi
}

# Two sides of a program; a client that finds no server is started again, later after the server.
take() { # SUBJECT TEST SIZE PROGRAM ARGUMENTS FACTOR
    local size=$3 count port server delay rc=1 args=()
    resolve "$1"
    count=$(($(iterations "$size") * $6))
    [ "$5" = - ] || IFS=, read -ra args <<<"$5"
    local command=(env "LD_LIBRARY_PATH=$PROGRAMS/lib" "FI_PROVIDER_PATH=$PROVIDERS"
        timeout -k 5 60 "${PRIORITY[@]}")
    args+=(-p "$NAME" -S "$size" -I "$count" -w $((count / 10)) -m)
    for delay in 0.15 0.5 2; do
        port=$((10000 + RANDOM % 20000))
        on_side 1 "${command[@]}" taskset -c "$CPU0" "$PROGRAMS/bin/$4" "${args[@]}" \
            -s "$(address_of 1)" -B "$port" >"$LOGS/turns-server.log" 2>&1 &
        server=$!
        sleep "$delay"
        on_side 2 "${command[@]}" taskset -c "$CPU1" "$PROGRAMS/bin/$4" "${args[@]}" \
            -s "$(address_of 2)" -P "$port" "$(address_of 1)" >"$LOGS/turns-client.log" 2>&1
        rc=$?
        ((rc == 0)) || kill "$server" 2>/dev/null
        wait "$server" && ((rc == 0)) && break
    done
    ((rc == 0)) || return
    # fi_rdm_atomic prints the operation, then the same one with a fetch.
    sed -n "s,.*usec/xfer: \([0-9.]*\).*,$size \1,p" "$LOGS/turns-client.log" | head -n 1
}

if [ -n "$HOSTS" ]; then
    hosts_possible || die "--hosts needs root and namespaces: run as root, outside a container."
    trap hosts_down EXIT
    hosts_up 2 || die "The hosts cannot be set up."
fi
find_cargo
need_build_packages
build_release scif-fabtests
for subject in "${SUBJECTS[@]}"; do
    resolve "$subject"
    LD_LIBRARY_PATH=$PROGRAMS/lib FI_PROVIDER_PATH=$PROVIDERS \
        "$PROGRAMS/bin/fi_info" -p "$NAME" >"$LOGS/turns-info.log" 2>&1 ||
        die "$PROGRAMS/bin/fi_info lists no provider $NAME (see $LOGS/turns-info.log)." \
            "Install libfabric with it and fabtests below $PROGRAMS, or name others by --prov."
done
FIGURES=$RESULTS/bench-upstream-samples.csv
prepare_turns
echo "fabtests of $PREFIX${HOSTS:+, two hosts}, processors $CPU0 and $CPU1," \
    "round trip of a cache line $NS ns"
for line in "${TESTS[@]}"; do
    read -r name program arguments largest factor <<<"$line"
    wanted=${ONLY:+0}
    for part in ${ONLY//,/ }; do [[ $name != *$part* ]] || wanted=1; done
    ((${wanted:-1})) || continue
    if [ ! -x "$PREFIX/bin/$program" ]; then
        PROBLEMS+=("$name: $PREFIX/bin has no $program, use a newer fabtests")
        continue
    fi
    for size in ${SIZES//,/ }; do
        size=$(numfmt --from=iec "$size") || die "--sizes: $size is no size"
        ((size <= largest)) || continue
        echo "$name, $size bytes" >&2
        in_turns "$name" us "$size" "$program" "$arguments" "$factor"
    done
done
report bench-upstream
python3 "$ROOT/fabtests/plot.py" "$RESULTS/bench-upstream.csv" "$RESULTS/bench-upstream.svg" &&
    echo "written: $RESULTS/bench-upstream.svg"
