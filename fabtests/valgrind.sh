#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# The conformance suite under valgrind's memcheck: each process of a case by itself, ten times as patient. The whole suite
# takes hours; name parts of it (valgrind.sh rma/ death/), or --quick for a few minutes' worth of everything that opens,
# talks and closes. --sample is what `make check-all` runs. The last line is the sum.
#
# The libfabric is LIBFABRIC, or else Debian's, which knows no peers of the provider's layout. So that the cases about them run
# too they are run on that of the mpich wheel then, where that is set up (`make check` does).
#
# valgrind.supp names what is not ours, with the reason. Memory is looked at while processes run, and at their end for blocks
# that nothing points to any more: buffers of the tests are leaked on purpose and stay reachable.
#
# Six cases are left out: in a child of a process with another thread, memcheck calls lost what only that thread's stack pointed
# to, for the fork did not bring the thread; where a process may map no more memory, memcheck itself may not; and it lets
# nobody lower the most descriptors a process may have. It knows no userfaultfd, so nothing moves under it (migrate/).
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1

SAMPLE=(ep/bind_rules leaks/objects leaks/connections msg/inject_complete slots/fabric)
QUICK=(ep/ av/ cq/ cntr/ eq/ cm/ mr/ slots/ leaks/ shared/ peek/ msg/send tagged/ rma/write atomic/fetch death/sending_64k
    death/writing_64k)
# What is not run on a libfabric before 2.3.
PEERS=(peer/ slots/what_a_peer_fills slots/busy_owners leaks/what_a_peer_fills)
MEMCHECK=(valgrind -q --error-exitcode=99 --suppressions=fabtests/valgrind.supp
    --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite)

case ${1:-} in
    --sample)
        chosen=("${SAMPLE[@]}")
        PEERS=(peer/sender_inserted_late)
        ;;
    --quick) chosen=("${QUICK[@]}") ;;
    *)
        chosen=("$@")
        # Parts of the suite are what they are called, and no more.
        [ $# = 0 ] || PEERS=()
        for part in "$@"; do
            [[ $part != peer/* ]] || PEERS+=("$part")
        done
        ;;
esac
[ -z "${LIBFABRIC:-}" ] || PEERS=()

# Cases of the suite under memcheck, on $libfabric. Arguments: those of the program conformance.
under_memcheck() {
    FI_PROVIDER_PATH=$PROVIDER_DIR "$TARGET/release/conformance" --lib "$libfabric" --prov "$PROVIDER" \
        --wrap "${MEMCHECK[*]}" --skip fork/child_is_refused_under_auto_progress --skip fork/child_closes \
        --skip meeting/no_memory_for_the_one_that_answers --skip meeting/no_descriptor_for_the_one_that_asks \
        --skip cm/port_is_not_lost "$@"
}

# Progress is worth more than a log where somebody waits for it.
told() { "$@" 2>&1 | tee /dev/stderr; }

# A check that finds nothing must be able to find something: these read freed memory, and lose a block.
finds() {
    local out
    out=$(under_memcheck --harness-cases "$1") && return 1
    printf '%s\n' "$out"
    grep -q "$2" <<<"$out"
}

command -v valgrind >/dev/null || need_packages valgrind
if [ "${1:-}" != --sample ]; then
    find_cargo
    need_build_packages
    build_release scif-fi scif-fabtests
fi
libfabric=${LIBFABRIC:-$(debian_libfabric)/libfabric.so.1}

gate "$(valgrind --version), memcheck"
case_of "it finds a read of freed memory" memcheck-reads finds harness/reads_freed_memory "free'd"
case_of "it finds a lost block" memcheck-loses finds harness/loses_memory 'definitely lost'
watched=()
[ ! -t 2 ] || [ "${1:-}" = --sample ] || watched=(told)
# All that was named may be about peers.
if [ $# = 0 ] || [ "${chosen[*]}" != "${PEERS[*]}" ]; then
    cases_of "conformance" memcheck "${watched[@]}" under_memcheck "${chosen[@]}"
fi
newer=$(wheel_libfabric)/libfabric.so.1
if [ ${#PEERS[@]} -gt 0 ]; then
    if [ -r "$newer" ]; then
        libfabric=$newer cases_of "conformance, peers" memcheck-peers "${watched[@]}" under_memcheck "${PEERS[@]}"
    else
        echo "     no peers: $newer is not there"
    fi
fi
gate_end
verdict
