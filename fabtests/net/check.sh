#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Jobs that span two hosts, some of them three, over the networks of libfabric. The hosts are
# namespaces of this machine (hosts.sh). Needs root or user namespaces, and the provider.
#   check.sh         all jobs
#   check.sh quick   some of them, for every change
#   check.sh demonstration   only demo.sh
set -u -o pipefail
. "$(dirname "$0")/../mpi/setup.sh"
. "$(dirname "$0")/../mpi/stacks.sh"
. "$(dirname "$0")/../gates.sh"
. "$(dirname "$0")/hosts.sh"
. "$(dirname "$0")/jobs.sh"
. "$(dirname "$0")/seen.sh"

hosts_as_root "$0" "$@"
trap hosts_down EXIT
gate "two hosts"
if ! hosts_possible; then
    failed "needs root and namespaces"
    gate_end
    verdict
    exit
fi
hosts_up 3 || die "check.sh: the hosts cannot be set up"
VARIABLES=(FI_LOG_LEVEL=warn FI_SCIF_STATS=1)

# pingpong NET ARGUMENT...: Debian's fi_pingpong, a server on one host and a client on the other.
pingpong() {
    local net=$1 server rc variables
    shift
    mapfile -t variables < <(NET=$net way_variables debian scif)
    on_host 1 env "${variables[@]}" timeout 60 fi_pingpong -p scif "$@" &
    server=$!
    sleep 0.5
    on_host 2 env "${variables[@]}" timeout 60 fi_pingpong -p scif "$@" "$HOSTS_NET.1"
    rc=$?
    wait "$server" && ((rc == 0))
}

# listens STACK NET: on how many TCP sockets the ranks of a job within one host listen.
listens() {
    NET=$2 between_hosts "$1" scif 2 2 60 "$(stack_python "$1")" \
        "$ROOT/fabtests/mpi/jobs/sockets.py" 2>"$LOGS/net-sockets-$1-$2.log" |
        sed -n 's/^sockets: 2 ranks listen on //p'
}

# opens_none STACK NET: within one host, the default opens no socket more than none; NET does.
opens_none() {
    local none default opened
    none=$(listens "$1" none)
    default=$(listens "$1" "")
    opened=$(listens "$1" "$2")
    echo "sockets with none ${none:-?}, by default ${default:-?}, $2 ${opened:-?}"
    [[ -n $none && $default = "$none" ]] && ((opened >= none + 2))
}

# lists_scif_alone SELECTION: programs see no provider besides scif.
lists_scif_alone() {
    local variables
    mapfile -t variables < <(SELECTION=$1 NET='net;ofi_rxm' way_variables debian scif)
    env "${variables[@]}" fi_info | awk '/^provider:/ { n++; print; other = other || $2 != "scif" }
        END { exit !n || other }'
}

# spawns STACK NET: a job of two hosts that starts two ranks more on the second. The mpirun of
# Debian at times loses such a job, over any transport (../mpi/jobs.sh).
spawns() {
    local attempt file=$HOSTS_RUN/spawn
    for attempt in 1 2 3; do
        NET=$2 between_hosts "$1" scif 2 1 150 "$(stack_python "$1")" \
            "$ROOT/fabtests/mpi/jobs/spawn.py" "$HOSTS_NET.2" scif2 >"$file" 2>"$file.err"
        cat "$file" "$file.err"
        grep -q "Data unpack would read past end of buffer" "$file.err" || break
        echo "attempt $attempt was lost by mpirun"
    done
    grep -q "^spawn: 2 ranks on scif2, [1-9][0-9]* checks, errors 0" "$file"
}

# spawns_in_vain STACK NET: a job of one host that starts ranks on another one, without a network.
# It fails, with a line that names the host and the network to choose.
spawns_in_vain() {
    local file=$HOSTS_RUN/spawn-in-vain
    NET='' between_hosts "$1" scif 2 2 60 "$(stack_python "$1")" \
        "$ROOT/fabtests/mpi/jobs/spawn.py" "$HOSTS_NET.2" scif2 >"$file" 2>&1 && return 1
    cat "$file"
    grep -q "On scif[12] scif has opened no network to other hosts.* Set FI_SCIF_NET=$2 on all" \
        "$file"
}

# silent MODE SECONDS: a rank that computes, is stopped, dies, or vanishes with its host. The job's
# status is that of the killed rank, so the file that the other one writes decides. MPICH may end
# that rank before it can write, because of the error completion. Its standard error then tells.
silent() {
    local file=$HOSTS_RUN/silent-$1
    rm -f "$file" "$file.err"
    # A rank that dies does not end the others.
    HYDRA_OPTIONS=-disable-auto-cleanup NET=tcp between_hosts mpich5 scif 2 1 150 \
        "$(stack_python mpich5)" "$ROOT/fabtests/mpi/jobs/death.py" "$@" "$file"
    cat "$file" "$file.err"
    if [[ $1 = dies || $1 = vanishes ]] &&
        grep -q "handle_cq_error.*Connection reset by peer" "$file.err"; then
        return 0
    fi
    grep -q "^death: ok" "$file"
}

vanishes() {
    local rc=0
    FI_SCIF_NET_SILENCE=2s silent vanishes 20 || rc=$?
    on_host 2 ip link set eth0 up
    return $rc
}

# shows_all: the demonstration ends with figures of scif for both MPIs, all operations and sizes.
shows_all() {
    local dir=$RESULTS/demo-hosts-quick
    rm -f "$dir".*
    "$ROOT/fabtests/net/demo.sh" --quick >"$HOSTS_RUN/demo" 2>&1 || {
        cat "$HOSTS_RUN/demo"
        return 1
    }
    cat "$HOSTS_RUN/demo"
    [ "$(grep -cE ' scif( +[0-9.]+\*?){4}$' "$HOSTS_RUN/demo")" = 8 ] &&
        [ "$(grep -c ',scif,' "$dir.csv")" = 32 ] && grep -q '<polyline' "$dir.svg"
}

# ends_at_once SIGNAL: the demonstration leaves no process and no directory when it is stopped.
ends_at_once() {
    local temporary=$HOSTS_RUN/demo-$1 said=$HOSTS_RUN/demo-$1.said demo rc left
    mkdir "$temporary"
    # Background jobs of a script ignore SIGINT otherwise.
    TMPDIR=$temporary setsid env --default-signal=INT \
        "$ROOT/fabtests/net/demo.sh" --quick >"$said" 2>&1 &
    demo=$!
    until grep -q 'scif (at most' "$said"; do
        kill -0 "$demo" 2>/dev/null || { cat "$said"; return 1; }
        sleep 0.1
    done
    sleep 0.5
    kill -s "$1" -- "-$demo"
    wait "$demo"
    rc=$?
    cat "$said"
    sleep 0.5
    left=$(grep -lsz "^TMPDIR=$temporary$" /proc/[0-9]*/environ)
    echo "status $rc; processes left: ${left:-none}; files left: $(ls "$temporary")"
    [ "$rc" = 130 ] && [ -z "$left" ] && [ -z "$(ls "$temporary" | grep '^tmp\.')" ]
}

messages() {
    case_of "messages of all sizes between hosts, by fi_pingpong of Debian over net" net-pingpong \
        pingpong net -e rdm -I 10 -S all -c
    # Endpoints report in the form "NAME OPERATIONS/BYTES".
    if awk '/scif: endpoint/ {
            for (i = 1; i < NF; i++) { split($(i + 1), n, "/"); bytes[$i] += n[2] }
        }
        END { exit !(bytes["sent"] > 0 && bytes["ring"] < bytes["sent"] / 10) }' \
        "$LOGS/net-pingpong.log"; then
        passed "large messages are read by the network, not sent in fragments"
    else
        failed "large messages are sent in fragments ($LOGS/net-pingpong.log)"
    fi
}

other_endpoints() {
    case_of "datagrams of all sizes between hosts, by fi_pingpong of Debian over net" \
        net-datagrams pingpong net -e dgram -I 10 -S all -c
    case_of "connected endpoints, messages of all sizes, by fi_pingpong of Debian over net" \
        net-connected pingpong net -e msg -I 10 -S all -c
}

# exchange_case STACK NET RANKS RANKS_OF_A_HOST
exchange_case() {
    local log=net-exchange-$1-${2:-default}-$3
    case_of "exchange, $3 ranks, $4 on each host, $(stack_title "$1") over ${2:-the default}" \
        "$log" exchange "$@"
    case_of "its counters show which messages crossed the network" "$log-counted" \
        statistics "$( (($4 == 1)) && echo apart || echo mixed)" "$LOGS/$log.log"
}

# By libfabric 1.17 and 2.5.
exchanges() {
    local stack net
    for stack in mpich5 mpich4 openmpi5 openmpi5-btl intel debian debian-btl; do
        net=tcp
        [[ $stack != debian* ]] || net=net
        exchange_case $stack $net 2 1
        exchange_case $stack $net 4 2
        exchange_case $stack $net 6 2
    done
}

default_network() {
    local stack net
    for stack in "mpich5 tcp" "debian net"; do
        read -r stack net <<<"$stack"
        case_of "no socket is opened for a job within one host, $(stack_title "$stack")" \
            "net-auto-$stack" opens_none "$stack" "$net"
    done
    for stack in mpich5 openmpi5 intel debian; do exchange_case $stack "" 2 1; done
}

layers() {
    SELECTION='scif,tcp;scif' case_of "exchange, 2 hosts, over the layered provider tcp;ofi_rxm" \
        net-layered exchange mpich5 'tcp;ofi_rxm' 2 1
    case_of "programs see scif alone beside a layered provider" net-layered-list \
        lists_scif_alone 'scif,net;scif'
    if exchange mpich5 'tcp;ofi_rxm' 2 1 >"$LOGS/net-layered-alone.log" 2>&1; then
        failed "a layered provider without its core must fail ($LOGS/net-layered-alone.log)"
    elif grep -qF "set FI_PROVIDER='scif,tcp;scif'" "$LOGS/net-layered-alone.log"; then
        passed "a layered provider without its core fails, and the message has the selection to set"
    else
        failed "no message has the selection to set ($LOGS/net-layered-alone.log)"
    fi
}

spawned() {
    local stack net
    for stack in "mpich5 tcp" "debian net"; do
        read -r stack net <<<"$stack"
        case_of "ranks start others on the second host, $(stack_title "$stack") over $net" \
            "net-spawn-$stack" spawns "$stack" "$net"
    done
    case_of "without a network that fails, and a line names the host and the network" \
        net-spawn-none spawns_in_vain mpich5 tcp
}

deaths() {
    # Longer than refusals of a network last until a peer counts as dead.
    case_of "a rank of another host that computes is not dead" net-computes silent computes 6
    case_of "a rank of another host that is stopped is not dead" net-stops silent stops 6
    case_of "the death of a rank of another host ends the send to it" net-dies silent dies 0
    case_of "a host that vanishes ends the send to it, with a limit for its silence" net-vanishes \
        vanishes
}

# What a user sees of jobs between hosts, and what a network costs at their start.
seen() {
    local stack net
    case_of "scifctl shows host, transport, network and bytes of each peer" net-peers \
        peers_shown mpich5 tcp
    for stack in "mpich5 tcp" "debian net"; do
        read -r stack net <<<"$stack"
        case_of "a job within one host counts no message to others, $(stack_title "$stack")" \
            "net-here-$stack" no_foreign "$stack"
        case_of "within one host no megabyte more by default, $(stack_title "$stack")" \
            "net-costs-$stack" start_costs "$stack" "$net"
        sed -n 's/^resident/     resident/p' "$LOGS/net-costs-$stack.log"
    done
}

# A case: without a network, a job between hosts fails and names FI_SCIF_NET.
names_the_setting() {
    if exchange mpich5 none 2 1 >"$LOGS/net-none.log" 2>&1; then
        failed "without a network the job must fail ($LOGS/net-none.log)"
    elif grep -q FI_SCIF_NET "$LOGS/net-none.log"; then
        passed "without a network the job fails and names FI_SCIF_NET"
    else
        failed "without a network the message does not name FI_SCIF_NET ($LOGS/net-none.log)"
    fi
}

demonstration() {
    case_of "the demonstration has figures of scif for each row" net-demo shows_all
    case_of "the demonstration leaves nothing after Ctrl-C" net-demo-INT ends_at_once INT
    case_of "the demonstration leaves nothing after SIGTERM" net-demo-TERM ends_at_once TERM
}

case ${1:-all} in
    quick)
        need_stack mpich5 debian
        messages
        exchange_case mpich5 tcp 4 2
        exchange_case debian net 4 2
        case_of "no socket is opened for a job within one host, $(stack_title mpich5)" \
            net-auto-mpich5 opens_none mpich5 tcp
        case_of "a job within one host counts no message to others" net-here no_foreign mpich5
        names_the_setting
        ;;
    all)
        need_stack mpich5 debian openmpi5 mpich4 intel
        messages
        other_endpoints
        exchanges
        default_network
        layers
        spawned
        seen
        deaths
        demonstration
        names_the_setting
        ;;
    demonstration) demonstration ;;
    *) die "usage: check.sh [quick | demonstration]" ;;
esac
gate_end
verdict
