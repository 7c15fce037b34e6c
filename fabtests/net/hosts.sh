# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced: hosts of a network, on this machine. Each host has its own network, ipc, uts, pid and
# mount namespaces, and a link to a switch, a network namespace too. hosts_down removes them.

HOSTS_NET=10.77.0
HOSTS_RUN=
HOSTS_PIDS=()
HOSTS_KEPT=()
# Options of nsenter for all namespaces of a host.
HOSTS_ENTER=(-m -u -i -n -p)

# hosts_as_root COMMAND...: an ordinary user is root in a user namespace. Starts COMMAND there in
# place of this shell, where the system permits it.
hosts_as_root() {
    [ "$(id -u)" = 0 ] || ! unshare --user --map-root-user true 2>/dev/null ||
        exec unshare --user --map-root-user "$@"
}

hosts_possible() {
    [ "$(id -u)" = 0 ] && command -v ip >/dev/null && command -v nsenter >/dev/null &&
        unshare --net --ipc --uts --pid --mount --fork --mount-proc true 2>/dev/null &&
        unshare --net ip link add type veth 2>/dev/null
}

# Starts a process in new namespaces; sets STARTED to its id here.
hosts_start() { # OPTION...
    local ready=$HOSTS_RUN/ready.${#HOSTS_KEPT[@]}
    unshare "$@" --fork --kill-child sh -c 'echo >"$0"; exec sleep 100000' "$ready" &
    HOSTS_KEPT+=($!)
    until [ -s "$ready" ]; do sleep 0.02; done
    STARTED=$(cat "/proc/$!/task/$!/children")
    STARTED=${STARTED%% *}
}

# hosts_up COUNT: host N has the address 10.77.0.N and the name scifN.
hosts_up() {
    local n
    HOSTS_RUN=$(mktemp -d)
    hosts_start --net
    HOSTS_SWITCH=$STARTED
    nsenter -t "$HOSTS_SWITCH" -n sh -ec "
        ip link set lo up
        ip link add name switch type bridge
        ip addr add $HOSTS_NET.254/24 dev switch
        ip link set switch up" || return
    for ((n = 1; n <= $1; n++)); do
        hosts_start --net --ipc --uts --pid --mount --mount-proc
        HOSTS_PIDS[n]=$STARTED
        echo "$STARTED" >"$HOSTS_RUN/$HOSTS_NET.$n"
        nsenter -t "$HOSTS_SWITCH" -n sh -ec "
            ip link add port$n type veth peer name eth0 netns $STARTED
            ip link set port$n master switch up" || return
        on_host "$n" sh -ec "
            hostname scif$n
            mount -t tmpfs tmpfs /dev/shm
            ip link set lo up
            ip addr add $HOSTS_NET.$n/24 dev eth0
            ip link set eth0 up" || return
    done
    # A launcher of MPI starts the part of a job that runs on a host by this command. As with ssh,
    # that part has no variables of the launcher.
    cat >"$HOSTS_RUN/start" <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1
shift
exec nsenter -t "\$(cat "$HOSTS_RUN/\$host")" ${HOSTS_ENTER[*]} \\
    env -i HOME="\$HOME" PATH="\$PATH" sh -c "\$*"
END
    chmod +x "$HOSTS_RUN/start"
}

on_host() { # HOST COMMAND...
    nsenter -t "${HOSTS_PIDS[$1]}" "${HOSTS_ENTER[@]}" "${@:2}"
}

hosts_down() {
    local pid
    for pid in "${HOSTS_KEPT[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    wait "${HOSTS_KEPT[@]}" 2>/dev/null
    [ -z "$HOSTS_RUN" ] || rm -rf "$HOSTS_RUN"
    HOSTS_KEPT=() HOSTS_PIDS=() HOSTS_RUN=
}
