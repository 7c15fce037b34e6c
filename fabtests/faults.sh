#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Kill, stop and fuzz runs. FAULTS: seconds for all of them (120); KILLS: kills of the first storm, however long they take;
# FAULTS_SEED: the seed (drawn, and printed). `faults.sh LIBRARY` takes what is built; without one it builds first.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1

if [ $# = 0 ]; then
    find_cargo
    need_build_packages
    need_stack mpich5
    build_release scif-fi scif-fabtests
fi
library=${1:-$(wheel_libfabric)/libfabric.so.1}
seconds=${FAULTS:-120}
export FAULTS_SEED=${FAULTS_SEED:-$((RANDOM * 32768 + RANDOM))} FI_PROVIDER_PATH=$PROVIDER_DIR
echo "FAULTS_SEED=$FAULTS_SEED, $seconds s"

storm() { # KIND PERCENT [OPTION...]
    timeout -k 10 $((seconds * 10 + 600)) "$TARGET/release/faults" --lib "$library" --prov "$PROVIDER" \
        --kind "$1" --seconds $((seconds * $2 / 100 + 1)) "${@:3}"
}

gate "faults: kill, stop, fuzz"
cases_of "kills among reliable endpoints" faults-rdm storm rdm 35 ${KILLS:+--kills "$KILLS"}
cases_of "kills among connected endpoints" faults-msg storm msg 20
cases_of "kills among datagram endpoints" faults-dgram storm dgram 10
grep -h '^     ' "$LOGS"/faults-{rdm,msg,dgram}.log
gate_end
verdict
