#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs fi_pingpong between two processes, with data verification, over the given endpoint types and
# sizes: pingpong.sh "TYPE..." ITERATIONS SIZE... Each pair of type and size is a case. The
# environment selects the provider's transport. With SHOW=1 the output of the client is shown. With
# OTHER=DIRECTORY the client loads the provider of another layout from there; then a case passes if
# the client ends with an error and each side logs the versions of both.
set -u -o pipefail

[ $# -ge 3 ] || { echo "usage: pingpong.sh 'TYPE...' ITERATIONS SIZE..." >&2; exit 2; }
types=$1 iterations=$2
shift 2
room=$(mktemp -d) || exit 1
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$room"' EXIT

# Whether a TCP port of this host has a listener, by the kernel's table.
listened_at() { # PORT
    grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$1") [0-9A-F]+:0000 0A " \
        /proc/net/tcp /proc/net/tcp6
}

# Prints a port below the ephemeral range of the kernel.
free_port() {
    local port
    for ((;;)); do
        port=$((10000 + RANDOM % 20000))
        listened_at "$port" || break
    done
    echo "$port"
}

# Ends the server, for which nobody is left, and judges the refusal. 124 is the status of `timeout`.
end_refused() {
    sleep 0.2
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
    server=
    ((rc != 0 && rc != 124 && rc != 137)) || return
    local side versions='refused: .*protocol [0-9]+, layout 0x[0-9a-f]+.* this process .*layout 0x'
    for side in server client; do
        grep -qE "$versions" "$room/$side" || return
    done
    # Each calls the other's version what the other calls its own.
    local layouts='s/.*layout \(0x[0-9a-f]*\).*layout \(0x[0-9a-f]*\).*/'
    [ "$(sed -n "$layouts\1 \2/p" "$room/server" | head -n 1)" = \
        "$(sed -n "$layouts\2 \1/p" "$room/client" | head -n 1)" ]
}

pingpong() { # TYPE SIZE
    local port tries rc
    port=$(free_port)
    local common=(timeout -k 5 60 fi_pingpong -p scif -e "$1" -S "$2" -I "$iterations" -c)
    "${common[@]}" -B "$port" >"$room/server" 2>&1 &
    server=$!
    for ((tries = 0; tries < 600; tries++)); do
        ! listened_at "$port" || break
        sleep 0.05
    done
    FI_PROVIDER_PATH=${OTHER:-${FI_PROVIDER_PATH:-}} \
        "${common[@]}" -P "$port" 127.0.0.1 >"$room/client" 2>&1
    rc=$?
    if [ -n "${OTHER:-}" ]; then
        end_refused
        return
    fi
    wait "$server" || rc=$?
    server=
    [ -z "${SHOW:-}" ] || cat "$room/client"
    # A line of figures: the size, with a unit from 1 KiB on, and the number of messages.
    ((rc == 0)) && grep -qE "^[0-9]+[km]? +$iterations " "$room/client"
}

good=0 bad=0
for type in $types; do
    for size in "$@"; do
        if pingpong "$type" "$size"; then
            good=$((good + 1))
        else
            bad=$((bad + 1))
            echo "FAIL $type, $size bytes"
            sed 's/^/     server: /' "$room/server"
            sed 's/^/     client: /' "$room/client"
        fi
    done
done
echo "$good passed, $bad failed"
((bad == 0 && good > 0))
