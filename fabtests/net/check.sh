#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Jobs that span two hosts, over the networks of libfabric. The hosts are namespaces of this machine
# (hosts.sh). Needs root. The provider and the programs are built before.
set -u -o pipefail
. "$(dirname "$0")/../mpi/setup.sh"
. "$(dirname "$0")/../mpi/stacks.sh"
. "$(dirname "$0")/../gates.sh"
. "$(dirname "$0")/hosts.sh"

trap hosts_down EXIT
gate "two hosts"
if ! hosts_possible; then
    failed "needs root and namespaces"
    gate_end
    verdict
    exit
fi
hosts_up 2 || die "check.sh: the hosts cannot be set up"

# settings NET: variables of a job over that network, or over the default one if it is empty.
# SELECTION replaces FI_PROVIDER=scif.
settings() {
    printf '%s\n' MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 PYTHONDONTWRITEBYTECODE=1 \
        "FI_PROVIDER=${SELECTION:-scif}" "FI_PROVIDER_PATH=$PROVIDER_DIR" \
        ${1:+"FI_SCIF_NET=$1"} FI_SCIF_STATS=1 \
        SCIF_DOMAIN=hosts FI_LOG_LEVEL=warn
}

# pingpong NET COMMAND...: a server on one host, a client on the other.
pingpong() {
    local net=$1 server rc vars
    shift
    mapfile -t vars < <(settings "$net")
    on_host 1 env "${vars[@]}" timeout 60 "$@" &
    server=$!
    sleep 0.5
    on_host 2 env "${vars[@]}" timeout 60 "$@" "$HOSTS_NET.1"
    rc=$?
    wait "$server" && ((rc == 0))
}

# mpich NET RANKS RANKS_OF_A_HOST SCRIPT ARG...: a job of mpi4py under MPICH. A rank that dies does
# not end the others.
mpich() {
    local vars ranks=$2 each=$3
    mapfile -t vars < <(settings "$1")
    shift 3
    nsenter -t "$HOSTS_SWITCH" -n env "${vars[@]}" timeout 150 \
        "$BUILD/venv-mpich5/bin/mpiexec.hydra" -disable-auto-cleanup -localhost "$HOSTS_NET.254" \
        -launcher ssh -launcher-exec "$HOSTS_RUN/start" \
        -hosts "$HOSTS_NET.1,$HOSTS_NET.2" -n "$ranks" -ppn "$each" \
        "$(stack_python mpich5)" "$ROOT/fabtests/mpi/jobs/$1" "${@:2}"
}

# open_mpi NET RANKS RANKS_OF_A_HOST SCRIPT ARG...: the same under Debian's Open MPI. Windows need
# BTL ofi besides the MTL.
open_mpi() {
    local vars ranks=$2 each=$3
    mapfile -t vars < <(settings "$1")
    shift 3
    nsenter -t "$HOSTS_SWITCH" -n env "${vars[@]}" OMPI_ALLOW_RUN_AS_ROOT=1 \
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "MPI4PY_LIBMPI=$(debian_openmpi)" timeout 150 \
        mpirun.openmpi -H "$HOSTS_NET.1:$each,$HOSTS_NET.2:$each" -n "$ranks" \
        --map-by "ppr:$each:node" --bind-to none --oversubscribe \
        --mca plm_rsh_agent "$HOSTS_RUN/start" --mca pml cm --mca mtl ofi --mca btl self,ofi \
        "$(stack_python mpich5)" "$ROOT/fabtests/mpi/jobs/$1" "${@:2}"
}

# exchange NET RANKS RANKS_OF_A_HOST: the job that checks its data.
exchange() {
    mpich "$@" exchange.py
}

# listens LAUNCHER NET: on how many TCP sockets the ranks of a job within one host listen.
listens() {
    "$1" "$2" 2 2 sockets.py 2>"$LOGS/net-sockets-$1-$2.log" |
        sed -n 's/^sockets: 2 ranks listen on //p'
}

# opens_none LAUNCHER NET: within one host, the default opens no socket more than none; NET does.
opens_none() {
    local none default opened
    none=$(listens "$1" none)
    default=$(listens "$1" "")
    opened=$(listens "$1" "$2")
    echo "sockets with none ${none:-?}, by default ${default:-?}, $2 ${opened:-?}"
    [[ -n $none && $default = "$none" ]] && ((opened >= none + 2))
}

# layered SELECTION: a job over a network of two providers.
layered() {
    SELECTION=$1 exchange 'tcp;ofi_rxm' 2 1
}

# lists_scif_alone SELECTION: programs see no provider besides scif.
lists_scif_alone() {
    local vars
    SELECTION=$1
    mapfile -t vars < <(settings 'net;ofi_rxm')
    unset SELECTION
    env "${vars[@]}" fi_info | awk '/^provider:/ { n++; print; other = other || $2 != "scif" }
        END { exit !n || other }'
}

# spawns LAUNCHER NET: a job of two hosts that starts two ranks more on the second. The mpirun of
# Debian at times loses such a job, over any transport (../mpi/jobs.sh).
spawns() {
    local attempt file=$HOSTS_RUN/spawn
    for attempt in 1 2 3; do
        "$1" "$2" 2 1 spawn.py "$HOSTS_NET.2" scif2 >"$file" 2>"$file.err"
        cat "$file" "$file.err"
        grep -q "Data unpack would read past end of buffer" "$file.err" || break
        echo "attempt $attempt was lost by mpirun"
    done
    grep -q "^spawn: 2 ranks on scif2, [1-9][0-9]* checks, errors 0" "$file"
}

# silent MODE SECONDS: a rank that computes, is stopped, dies, or vanishes with its host. The job's
# status is that of the killed rank, so the file that the other one writes decides. MPICH may end
# that rank before it can write, because of the error completion. Its standard error then tells.
silent() {
    local file=$HOSTS_RUN/silent-$1
    rm -f "$file" "$file.err"
    mpich tcp 2 1 death.py "$@" "$file"
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

case_of "messages of all sizes between hosts, by fi_pingpong of Debian over net" net-pingpong \
    pingpong net fi_pingpong -p scif -e rdm -I 10 -S all -c
case_of "datagrams of all sizes between hosts, by fi_pingpong of Debian over net" net-datagrams \
    pingpong net fi_pingpong -p scif -e dgram -I 10 -S all -c
case_of "connected endpoints, messages of all sizes, by fi_pingpong of Debian over net" \
    net-connected pingpong net fi_pingpong -p scif -e msg -I 10 -S all -c
# Endpoints report in the form "NAME OPERATIONS/BYTES".
if awk '/scif: endpoint/ { for (i = 1; i < NF; i++) { split($(i + 1), n, "/"); bytes[$i] += n[2] } }
    END { exit !(bytes["sent"] > 0 && bytes["ring"] < bytes["sent"] / 10) }' \
    "$LOGS/net-pingpong.log"; then
    passed "large messages are read by the network, not sent in fragments"
else
    failed "large messages are sent in fragments ($LOGS/net-pingpong.log)"
fi
for job in "2 1" "4 2"; do
    read -r ranks each <<<"$job"
    log=net-exchange-$ranks
    case_of "exchange, 2 hosts, $each ranks each, MPICH over tcp" "$log" \
        exchange tcp "$ranks" "$each"
    shows "^exchange: $ranks ranks, [1-9][0-9]* checks, errors 0" cat "$LOGS/$log.log" >/dev/null ||
        failed "the job has checked nothing ($LOGS/$log.log)"
done
case_of "exchange, 2 hosts, 2 ranks each, Debian's Open MPI over net" net-exchange-openmpi \
    open_mpi net 4 2 exchange.py
shows "^exchange: 4 ranks, [1-9][0-9]* checks, errors 0" \
    cat "$LOGS/net-exchange-openmpi.log" >/dev/null ||
    failed "the job has checked nothing ($LOGS/net-exchange-openmpi.log)"
case_of "no socket is opened for a job within one host, MPICH" net-auto-one opens_none mpich tcp
case_of "no socket is opened for a job within one host, Debian's Open MPI" net-auto-one-openmpi \
    opens_none open_mpi net
case_of "exchange, 2 hosts, the network chosen by default, MPICH" net-auto-exchange \
    exchange "" 2 1
case_of "exchange, 2 hosts, the network chosen by default, Debian's Open MPI" \
    net-auto-exchange-openmpi open_mpi "" 2 1 exchange.py
for log in net-auto-exchange net-auto-exchange-openmpi; do
    shows "^exchange: 2 ranks, [1-9][0-9]* checks, errors 0" cat "$LOGS/$log.log" >/dev/null ||
        failed "the job has checked nothing ($LOGS/$log.log)"
done
case_of "exchange, 2 hosts, over the layered provider tcp;ofi_rxm" net-layered \
    layered 'scif,tcp;scif'
shows "^exchange: 2 ranks, [1-9][0-9]* checks, errors 0" cat "$LOGS/net-layered.log" >/dev/null ||
    failed "the job has checked nothing ($LOGS/net-layered.log)"
case_of "programs see scif alone beside a layered provider" net-layered-list \
    lists_scif_alone 'scif,net;scif'
if layered scif >"$LOGS/net-layered-alone.log" 2>&1; then
    failed "a layered provider without its core must fail ($LOGS/net-layered-alone.log)"
elif grep -qF "set FI_PROVIDER='scif,tcp;scif'" "$LOGS/net-layered-alone.log"; then
    passed "a layered provider without its core fails, and the message has the selection to set"
else
    failed "no message has the selection to set ($LOGS/net-layered-alone.log)"
fi
for stack in mpich open_mpi; do
    read -r net title <<<"$([ $stack = mpich ] && echo tcp MPICH || echo net "Debian's Open MPI")"
    case_of "ranks start others on the second host, $title over $net" net-spawn-$stack \
        spawns "$stack" "$net"
done
# Longer than refusals of a network last until a peer counts as dead.
case_of "a rank of another host that computes is not dead" net-computes silent computes 6
case_of "a rank of another host that is stopped is not dead" net-stops silent stops 6
case_of "the death of a rank of another host ends the send to it" net-dies silent dies 0
case_of "a host that vanishes ends the send to it, with a limit for its silence" net-vanishes \
    vanishes
if exchange none 2 1 >"$LOGS/net-none.log" 2>&1; then
    failed "without a network the job must fail ($LOGS/net-none.log)"
elif grep -q FI_SCIF_NET "$LOGS/net-none.log"; then
    passed "without a network the job fails and names FI_SCIF_NET"
else
    failed "without a network the message does not name FI_SCIF_NET ($LOGS/net-none.log)"
fi
gate_end
verdict
