#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs the conformance suite under valgrind's memcheck: each process of a case separately, with ten
# times the time limit. The whole suite takes hours. Name parts of it (valgrind.sh rma/ death/), or
# use --quick for a selection of a few minutes. --sample is the selection of `make check-all`. The
# last line is the sum.
#
# The libfabric is LIBFABRIC, or Debian's, which has no peer support in the layout of this provider.
# In that case the peer tests run on the libfabric of the mpich wheel, if it is installed (`make
# check` installs it).
#
# valgrind.supp lists foreign findings, with the reason. Accesses are checked at run time, and
# unreachable blocks at the end: buffers of the tests are leaked on purpose and stay reachable.
#
# Six cases are left out. In a child of a process with several threads, memcheck reports blocks as
# lost that only the stack of another thread referred to, because fork copies one thread. In a
# process that may map no more memory, memcheck itself cannot. Also, it lets no process lower its
# limit of descriptors. It does not know userfaultfd, so no memory migrates (migrate/).
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1

SAMPLE=(ep/bind_rules leaks/objects leaks/connections msg/inject_complete slots/fabric)
QUICK=(ep/ av/ cq/ cntr/ eq/ cm/ mr/ slots/ leaks/ shared/ peek/ msg/send tagged/ rma/write
    atomic/order death/sending_64k death/writing_64k)
# Cases that do not run on a libfabric before 2.3.
PEERS=(peer/ slots/objects_filled_by_a_peer slots/busy_owners leaks/buffers_filled_by_a_peer)
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
        # Given parts of the suite are run as named, without others.
        [ $# = 0 ] || PEERS=()
        for part in "$@"; do
            [[ $part != peer/* ]] || PEERS+=("$part")
        done
        ;;
esac
[ -z "${LIBFABRIC:-}" ] || PEERS=()

# Runs cases of the suite under memcheck, on $libfabric. Arguments: those of the program
# conformance.
under_memcheck() {
    FI_PROVIDER_PATH=$PROVIDER_DIR "$TARGET/release/conformance" \
        --lib "$libfabric" --prov "$PROVIDER" --wrap "${MEMCHECK[*]}" \
        --skip fork/child_is_refused_under_auto_progress --skip fork/child_closes \
        --skip absent_peers/no_memory_for_the_one_that_answers \
        --skip absent_peers/no_descriptor_for_the_opener \
        --skip cm/port_is_not_lost "$@"
}

# Shows progress as well as logging it.
told() { "$@" 2>&1 | tee /dev/stderr; }

# Checks that memcheck finds errors: these cases read freed memory and lose a block.
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
    build_release scif-fabtests
fi
libfabric=${LIBFABRIC:-$(debian_libfabric)/libfabric.so.1}

gate "$(valgrind --version), memcheck"
case_of "it finds a read of freed memory" memcheck-reads finds harness/reads_freed_memory "free'd"
case_of "it finds a lost block" memcheck-loses finds harness/loses_memory 'definitely lost'
watched=()
[ ! -t 2 ] || [ "${1:-}" = --sample ] || watched=(told)
# All named parts may be peer tests.
if [ $# = 0 ] || [ "${chosen[*]}" != "${PEERS[*]}" ]; then
    cases_of "conformance" memcheck "${watched[@]}" under_memcheck "${chosen[@]}"
fi
newer=$(wheel_libfabric)/libfabric.so.1
if [ ${#PEERS[@]} -gt 0 ]; then
    if [ -r "$newer" ]; then
        libfabric=$newer cases_of "conformance, peers" memcheck-peers "${watched[@]}" \
            under_memcheck "${PEERS[@]}"
    else
        echo "     no peers: $newer is not there"
    fi
fi
gate_end
verdict
