#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Kill, stop and fuzz runs. Variables: FAULTS, seconds for all of them (120); KILLS, number of kills
# of the first storm, however long it takes; FAULTS_SEED, the seed (random, and printed);
# FAULTS_STALL_MS, maximum wait of an honest client in milliseconds (1000); a newcomer may wait
# twice as long.
# `faults.sh LIBRARY` uses the existing build; without a library it builds first.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1

find_cargo
if [ $# = 0 ]; then
    need_build_packages
    need_stack mpich5
    build_release scif-fabtests scif-fuzz scifdev
    install -D -m 755 "$TARGET/release/libscifdev.so" "$ROOT/build/lib/libscifdev.so"
fi
library=${1:-$(wheel_libfabric)/libfabric.so.1}
seconds=${FAULTS:-120}
export FAULTS_SEED=${FAULTS_SEED:-$((RANDOM * 32768 + RANDOM))}
echo "FAULTS_SEED=$FAULTS_SEED, $seconds s"

# Prints a percentage of all seconds, at least one.
part() { echo $((seconds * $1 / 100 + 1)); }

storm() { # KIND PERCENT [OPTION...]
    FI_PROVIDER_PATH=$PROVIDER_DIR timeout -k 10 $((seconds * 10 + 900)) \
        "$TARGET/release/faults" --lib "$library" --prov "$PROVIDER" \
        --kind "$1" --seconds "$(part "$2")" "${@:3}"
}

# storm over the stand-in driver.
driver_storm() (
    export FI_SCIF_TRANSPORT=kernel SCIF_DEVICE=/dev/scif SCIF_DEVICE_TRAPS=1
    export LD_PRELOAD=$ROOT/build/lib/libscifdev.so
    storm "$@"
)

# Victims are built with debug assertions and overflow checks.
checked_build() {
    (cd "$ROOT" && "${CARGO[@]}" build --profile checked --locked -p scif-fi -p scif-fuzz) &&
        install -D -m 755 "$TARGET/checked/libscif_fi.so" "$BUILD/checked/libscif-fi.so"
}

fuzz() { # PERCENT [VARIABLE=VALUE...] [OPTION...]
    local percent=$1 settings=()
    shift
    while [[ ${1:-} == *=* ]]; do settings+=("$1") && shift; done
    FI_PROVIDER_PATH=$BUILD/checked timeout -k 10 $((seconds * 10 + 900)) \
        env "${settings[@]}" "$TARGET/checked/fuzz" --lib "$library" \
        --seconds "$(part "$percent")" --stall-ms "${FAULTS_STALL_MS:-1000}" \
        --newcomer-ms $((${FAULTS_STALL_MS:-1000} * 2)) "$@"
}

gate "faults: kill, stop, fuzz"
cases_of "kills among reliable endpoints" faults-rdm storm rdm 16 ${KILLS:+--kills "$KILLS"}
cases_of "kills among connected endpoints" faults-msg storm msg 9
cases_of "kills among datagram endpoints" faults-dgram storm dgram 5
cases_of "kills among reliable endpoints over the stand-in driver" faults-driver-rdm \
    driver_storm rdm 2
cases_of "kills among connected endpoints over the stand-in driver" faults-driver-msg \
    driver_storm msg 2
cases_of "kills among datagram endpoints over the stand-in driver" faults-driver-dgram \
    driver_storm dgram 2
cases_of "kills among endpoints of scif.h" faults-scif \
    storm scif 6 --rank-program "$TARGET/release/scif-rank"
cases_of "the same with low limits" faults-limits \
    storm scif 4 --rank-program "$TARGET/release/scif-rank" --limits
case_of "checked build" faults-build checked_build
cases_of "hostile peers of a reliable endpoint" faults-fuzz fuzz 7
cases_of "two at a time, of one that sleeps" faults-fuzz-sleep fuzz 7 --attackers 2 --sleep
cases_of "of one with automatic progress" faults-fuzz-auto fuzz 7 --auto
cases_of "of one whose memory moves" faults-fuzz-migrate fuzz 7 FI_SCIF_MR_MIGRATE=auto
cases_of "of one without process_vm" faults-fuzz-ring fuzz 6 FI_SCIF_PROCESS_VM=0
cases_of "callers without end" faults-fuzz-crowd fuzz 3 --attackers 2 --crowd 2000
cases_of "of connected endpoints" faults-fuzz-msg fuzz 8 --target msg
cases_of "of a datagram endpoint" faults-fuzz-dgram fuzz 6 --target dgram
cases_of "of scif.h" faults-fuzz-scif fuzz 8 --target scif
grep -h '^     ' "$LOGS"/faults-{rdm,msg,dgram,scif,limits,fuzz*}.log
gate_end
verdict
