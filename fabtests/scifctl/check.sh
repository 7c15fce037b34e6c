#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Tests of scifctl from outside: its output, its exit status, and failing and restoring a node:
# check.sh SCIFCTL
# The last line counts.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
page=$here/../../man/scifctl.1
tool=$(readlink -f "$1")
room=$(mktemp -d)
. "$here/cases.sh"
export SCIF_DOMAIN="scifctl-$$"
unset SCIF_NODE

ends_with() { # STATUS COMMAND...
    local status=$1 rc
    shift
    "$@"
    rc=$?
    ((rc == status)) || { echo "status $rc" && return 1; }
}

says() { # PATTERN COMMAND...
    local pattern=$1
    shift
    # With any exit status.
    "$@" >"$room/said" 2>&1
    grep -qE "$pattern" "$room/said" || { cat "$room/said" && return 1; }
}

# json EXPRESSION COMMAND...: the output is JSON, one document d per line, and the expression holds
# for the last.
json() {
    local expression=$1
    shift
    "$@" >"$room/json" || return 1
    python3 - "$expression" "$room/json" <<'PYTHON' || { cat "$room/json" && return 1; }
import json, sys
documents = [json.loads(line) for line in open(sys.argv[2])]
d = documents[-1]
sys.exit(0 if eval(f"({sys.argv[1]})") else 1)
PYTHON
}

documented() {
    local word help missing=0
    help=$("$tool" --help)
    local words=(nodes endpoints connections windows ping bw 'node lose' 'node restore' json live
        count all max serve progress doctor peers dump job top stats watch report svg
        trace perfetto raw output last sisci segments maps interrupts)
    for word in "${words[@]}"; do
        grep -q -- "${word//-/\\-}" "$page" || { echo "not in scifctl.1: $word" && missing=1; }
        grep -q -- "$word" <<<"$help" || { echo "not in --help: $word" && missing=1; }
    done
    return $missing
}

SCIF_NODE=3 "$tool" bw --serve=2050 >"$room/served" 2>&1 &
server=$!
# The process that keeps a node failed ends with this script in any case.
cleaned() {
    kill "$server"
    [ -z "${client-}" ] || kill -KILL "$client" 2>/dev/null
    "$tool" node restore 3 >/dev/null 2>&1
    rm -rf "$room"
}
trap cleaned EXIT
for _ in $(seq 100); do [ -s "$room/served" ] && break || sleep 0.1; done

case_of "--help, the manual page: every word" documented
case_of "no command" ends_with 2 "$tool"
case_of "an unknown one" ends_with 2 "$tool" dance
case_of "an option of another command" ends_with 2 "$tool" nodes --max=3
case_of "a reader that goes away is no problem" \
    sh -c "'$tool' endpoints --live=0.01 --count=1000 | head -n 1 >/dev/null"
case_of "nodes" says '^ *3  online +[0-9]+ +2050$' "$tool" nodes
case_of "nodes, JSON" json "d['nodes'] == [{'node': 3, 'lost': False, 'processes': [$server],
    'ports': [2050]}] and d['denied'] == []" "$tool" nodes --json
case_of "nodes of another domain" json "d['nodes'] == []" \
    env SCIF_DOMAIN=nobody "$tool" nodes --json
case_of "endpoints" says "^ *$server .* LISTENING +3:2050 " "$tool" endpoints
case_of "endpoints, JSON" json "[(e['state'], e['node'], e['port'], e['peer'])
    for e in d['endpoints']] == [('LISTENING', 3, 2050, None)]" "$tool" endpoints --json
case_of "dump of a process" says "^ *$server .* LISTENING +3:2050 " "$tool" dump "$server"
case_of "dump of none" ends_with 1 "$tool" dump 1
case_of "a process of scif.h is not part of a job" json \
    "$server not in [p['pid'] for p in d['processes']]" "$tool" job --json
case_of "of one node only" json "d['endpoints'] == []" "$tool" endpoints --json --node=4
case_of "live: as many documents as requested, with rates" json "len(documents) == 3
    and 'message_bytes_per_second' in d['endpoints'][0]" \
    "$tool" endpoints --json --live=0.05 --count=3
case_of "ping" says "^node 3 process $server: [0-9.]+ us$" "$tool" ping 3 --count=1
case_of "ping, JSON" json "d['node'] == 3 and d['microseconds'] > 0" "$tool" ping 3 --count=1 --json
case_of "ping of nobody" ends_with 1 "$tool" ping 4 --count=1

SCIF_NODE=1 "$tool" bw 3:2050 --max=16777216 --json >"$room/bw" 2>&1 &
client=$!
stopped() { # PROCESS: stops it and waits until all its threads have stopped
    kill -STOP "$1"
    for _ in $(seq 500); do
        grep -qv 'T (stopped)' < <(grep -h '^State:' "/proc/$1/task/"*/status 2>/dev/null) ||
            return 0
        sleep 0.01
    done
}
during() { # EXPRESSION COMMAND: waits for it with the client stopped
    for _ in $(seq 200); do
        stopped "$client"
        json "$1" "$tool" "$2" --json >/dev/null && return 0
        kill -CONT "$client"
        sleep 0.02
    done
    json "$1" "$tool" "$2" --json
}
case_of "connections: both ends, and who they are with" during \
    "{(c['pid'], c['peer']['pid'], c['peer']['node'])
    for c in d['connections'] if c['state'] == 'CONNECTED'}
    == {($server, $client, 1), ($client, $server, 3)}" connections
case_of "connections: counters of messages, RMA and mappings" during \
    "any(c['pid'] == $client and c['sent'] > 0 and c['writes']['bytes'] > 0 and c['mapped'] == 1
    for c in d['connections'])" connections
case_of "windows" during \
    "{(w['node'], w['offset'], w['bytes'], w['write'], w['mappable']) for w in d['windows']}
    >= {(1, 0, 16777216, True, True), (3, 0, 16777216, True, True)}" windows
case_of "windows: a line an endpoint, and the total" \
    says "^ *$client +1:[0-9]+ +3:[0-9]+ +1 +16M +1 +1$" "$tool" windows
case_of "windows --all: a line a window" \
    says "^ *$client +1:[0-9]+ +3:[0-9]+ +0x0 +16M +rw +yes$" "$tool" windows --all
kill -CONT "$client"
case_of "bw to somebody: ends well" wait "$client"
client=
case_of "bw: every size, every way" json "[sorted(r) for r in d['megabytes_per_second']]
    == [sorted(['bytes', 'send', 'writeto', 'readfrom', 'mmap'])] * 10
    and all(sum(r[way] for r in d['megabytes_per_second']) > 0
    for way in ('send', 'writeto', 'readfrom', 'mmap'))" cat "$room/bw"
case_of "bw alone, with its bar" says '\[#+\.*\] +[0-9]+ % ' "$tool" bw --max=1024 --progress
case_of "bw to nobody" ends_with 1 "$tool" bw 3:2051

case_of "node lose" says '^node 3 is lost: 1 processes notified, 0 ' "$tool" node lose 3
case_of "it is shown" json "d['nodes'][0]['lost'] is True" "$tool" nodes --json
case_of "it is not there" ends_with 1 "$tool" ping 3 --count=1
case_of "nor to be connected with" says 'no such node' "$tool" bw 3:2050
case_of "not lost twice" ends_with 1 "$tool" node lose 3
case_of "node restore" says '^node 3 is restored$' "$tool" node restore 3
case_of "not restored twice" ends_with 1 "$tool" node restore 3
case_of "it is there again" "$tool" ping 3 --count=1
stopped "$server"
case_of "who does not answer is named" says "no answer within a second: \[$server\]" \
    "$tool" node lose 3
kill -CONT "$server"
case_of "and brought back" "$tool" node restore 3
if command -v man >/dev/null; then
    case_of "the manual page has no faults" sh -c "! LC_ALL=C.UTF-8 MANROFFSEQ= man --warnings \
        -E UTF-8 -l -Tutf8 -Z '$page' 2>&1 >/dev/null | grep ."
fi
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
