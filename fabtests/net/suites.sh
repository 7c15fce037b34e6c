#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Conformance cases whose ranks are on two hosts, the even ones on the first and the odd ones on the
# second, those of collectives also on three hosts, and libfabric's own suite with servers and
# clients on two hosts. The hosts are namespaces of this machine (hosts.sh). Needs root or user
# namespaces. The provider and the programs are built before.
#   suites.sh           all of AREAS and SETS
#   suites.sh CASE...   these conformance cases, over tcp
#   suites.sh upstream  libfabric's own suite alone
# UPSTREAM is the prefix of an installed fabtests of libfabric 1.18 or later (../upstream/run.sh),
# UPSTREAM_NET of one of 1.17. That may be built for Debian's libfabric and have no own one.
set -u -o pipefail
. "$(dirname "$0")/../mpi/setup.sh"
. "$(dirname "$0")/../mpi/stacks.sh"
. "$(dirname "$0")/../gates.sh"
. "$(dirname "$0")/hosts.sh"

# Areas of messages and one-sided operations, of their order and objects, of flow control and
# sleep. Operations to a dead peer of another host wait for the network, so few cases test death.
AREAS=(msg/ tagged/ peek/ match/ any_source/ multi_recv/ rma/ coop_rma/ large_rma/ bad_rma/ atomic/
    atomic_shared/ order/ cntr/ fence/ av/ ep/ mr/ peer/ leaks/ flow/ sleepers/ wait/ waitobj/
    progress_auto/ restart/ death_time/ death/sending_64k death/asleep_in_the_queue coll/
    coll_death/ hosts/ scalable/ fork/ closing/ transient_peers/ cm/ connected/
    shared/connected_ kinds/connected_)
# Areas for libfabric 1.17, whose processes start more slowly.
AREAS_NET=(msg/ tagged/ peek/ any_source/ rma/ large_rma/ atomic/ atomic_shared/ order/ coll/
    coll_death/ hosts/ fork/ cm/)
# Areas for a job with a key, whose connections open in another way.
AREAS_KEY=(msg/ any_source/ order/ coll/ coll_death/ restart/after_closing death/sending_64k
    progress_auto/ sleepers/ connected/ kinds/connected_ closing/ fork/)
# Cases of peers that are silent for a minute.
SILENT=(death_time/computing death_time/stopped)
# Areas of collectives, for three hosts.
COLLECTIVES=(coll/ coll_death/)
# Cases of a receiver and four senders, each on a host of its own, and two ranks on the receiver's.
FIVE_HOSTS=(five_hosts/)
FIVE_HOSTS_PLACES="1 2 3 4 5 1 1"
# Cases of idle peers, and the number of these in each of three processes: a thousand.
IDLE=(many_peers/idle)
IDLE_EACH=334
# Cases under memcheck.
MEMCHECKED=(hosts/names hosts/equal_hashes)
# Sets of libfabric's suite.
SETS=(unit functional short multinode)

hosts_as_root "$0" "$@"
trap hosts_down EXIT
gate "suites between two hosts"
if ! hosts_possible; then
    failed "needs root and namespaces"
    gate_end
    verdict
    exit
fi
hosts_up 5 || die "suites.sh: the hosts cannot be set up"
export HOSTS_RUN

# conformance LIBRARY_DIRECTORY NET [CASES...]: HOSTS_COUNT is the number of hosts.
conformance() {
    FI_PROVIDER_PATH=$PROVIDER_DIR FI_SCIF_NET=$2 SCIF_DOMAIN=hosts \
        timeout -k 10 3000 "$TARGET/release/conformance" --lib "$1/libfabric.so.1" \
        --prov "$PROVIDER" --over-network --wrap "$ROOT/fabtests/net/rank.sh" "${@:3}"
}

# under_memcheck CASES...: with Debian's libfabric.
under_memcheck() {
    local memcheck=(valgrind -q --error-exitcode=99 "--suppressions=$ROOT/fabtests/valgrind.supp"
        --vgdb=no --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite)
    HOSTS_UNDER=${memcheck[*]} conformance "$(debian_libfabric)" net "$@"
}

# finds_a_lost_block: the control of that.
finds_a_lost_block() {
    local out
    out=$(under_memcheck --harness-cases harness/loses_memory) && return 1
    printf '%s\n' "$out"
    grep -q 'definitely lost' <<<"$out"
}

# upstream PREFIX NET OPTIONS SET...: the programs of fabtests with these options.
upstream() {
    FI_PROVIDER_PATH=$PROVIDER_DIR FT_NET=$2 FT_ARGS=$3 FT_LOG=$LOGS/net-upstream-$2$3.records \
        "$ROOT/fabtests/upstream/run.sh" "$1" "${@:4}"
}

# upstream_suites VARIABLE NET: all of SETS, and those with addresses exchanged out of band.
upstream_suites() {
    local prefix=${!1:-/usr/local}
    if [ ! -x "$prefix/bin/runfabtests.sh" ]; then
        echo "not tried here: libfabric's own suite over $2 (no fabtests in $prefix; set $1)"
        return
    fi
    cases_of "fabtests over $2" "net-upstream-$2" upstream "$prefix" "$2" "" "${SETS[@]}"
    cases_of "fabtests over $2, addresses exchanged out of band" "net-upstream-$2-E" \
        upstream "$prefix" "$2" -E functional short
}

if [ "${1:-}" = upstream ]; then
    upstream_suites UPSTREAM tcp
    upstream_suites UPSTREAM_NET net
elif [ $# != 0 ]; then
    cases_of "conformance over tcp" net-conformance-sample \
        conformance "$(wheel_libfabric)" tcp "$@"
else
    cases_of "conformance over tcp" net-conformance-tcp \
        conformance "$(wheel_libfabric)" tcp "${AREAS[@]}"
    cases_of "conformance over net of Debian" net-conformance-net \
        conformance "$(debian_libfabric)" net "${AREAS_NET[@]}"
    FI_SCIF_NET_KEY=conformance cases_of "conformance over tcp, with a key" net-conformance-key \
        conformance "$(wheel_libfabric)" tcp "${AREAS_KEY[@]}"
    CONFORMANCE_SILENCE=60 cases_of "peers that are silent for a minute, over tcp" net-silent \
        conformance "$(wheel_libfabric)" tcp "${SILENT[@]}"
    HOSTS_COUNT=3 cases_of "collectives of three hosts over tcp" net-collectives-tcp \
        conformance "$(wheel_libfabric)" tcp "${COLLECTIVES[@]}"
    HOSTS_COUNT=3 cases_of "collectives of three hosts over net of Debian" net-collectives-net \
        conformance "$(debian_libfabric)" net "${COLLECTIVES[@]}"
    HOSTS_PLACES=$FIVE_HOSTS_PLACES cases_of "a stopped receiver and four hosts over tcp" \
        net-five-hosts-tcp conformance "$(wheel_libfabric)" tcp "${FIVE_HOSTS[@]}"
    HOSTS_PLACES=$FIVE_HOSTS_PLACES cases_of "a stopped receiver and four hosts over net" \
        net-five-hosts-net conformance "$(debian_libfabric)" net "${FIVE_HOSTS[@]}"
    CONFORMANCE_PEERS=$IDLE_EACH cases_of "a thousand idle peers over tcp" net-idle-tcp \
        conformance "$(wheel_libfabric)" tcp "${IDLE[@]}"
    CONFORMANCE_PEERS=$IDLE_EACH cases_of "a thousand idle peers over net of Debian" net-idle-net \
        conformance "$(debian_libfabric)" net "${IDLE[@]}"
    # The directory decides the hash of a host.
    mkdir "$HOSTS_RUN/shared"
    SCIF_RUNTIME_DIR=$HOSTS_RUN/shared cases_of "hosts of equal hashes over tcp" net-equal-hashes \
        conformance "$(wheel_libfabric)" tcp hosts/ msg/send
    cases_of "conformance over net of Debian, memcheck" net-memcheck \
        under_memcheck "${MEMCHECKED[@]}"
    case_of "memcheck finds a lost block there" net-memcheck-loses finds_a_lost_block
    upstream_suites UPSTREAM tcp
    upstream_suites UPSTREAM_NET net
fi
gate_end
verdict
