#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Tests of scifctl with SISCI: its lists, and the checks of its doctor:
# sisci.sh SCIFCTL DIRECTORY, which has libsisci.so
# The last line counts.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
tool=$(readlink -f "$1")
lib=$(readlink -f "$2")
room=$(mktemp -d)
owner='' user=''
. "$here/cases.sh"
for name in $(compgen -e); do
    case $name in FI_* | SCIF_* | SISCI_* | LD_LIBRARY_PATH) unset "$name" ;; esac
done
export SCIF_DOMAIN="scifctl-sisci-$$"

cleaned() {
    for pid in $owner $user; do kill -KILL "$pid" 2>/dev/null; done
    rm -rf "$room"
}
trap cleaned EXIT

# started ROLE NODE [VARIABLE=VALUE...]: starts a node, and waits until it has its objects. Its
# process id is in $pid.
started() {
    env "${@:3}" SISCI_NODE="$2" "$room/nodes" "$1" >"$room/$1" 2>&1 &
    pid=$!
    for _ in $(seq 200); do grep -q ready "$room/$1" && return || sleep 0.05; done
    cat "$room/$1" && return 1
}

# json EXPRESSION COMMAND...: the output is JSON, one document d per line, and the expression holds
# for the last. In it, only(LIST, MEMBER...) is the set of these members of the list's objects.
json() {
    local expression=$1
    shift
    "$@" >"$room/json"
    python3 - "$expression" "$room/json" <<'PYTHON' || { cat "$room/json" && return 1; }
import json, re, sys
documents = [json.loads(line) for line in open(sys.argv[2])]
d = documents[-1]
def only(name, *members):
    return {tuple(str(o[m]) for m in members) for o in d[name]}
def found(state, meaning, action=""):
    return any(f["subject"] == "SISCI" and f["state"] == state and re.search(meaning, f["meaning"])
               and re.search(action, f["action"]) for f in d["findings"])
sys.exit(0 if eval(f"({sys.argv[1]})") else 1)
PYTHON
}

# soon EXPRESSION COMMAND...: the same, after at most some seconds: events of others are shown late.
soon() {
    for _ in $(seq 100); do json "$@" >/dev/null && return || sleep 0.05; done
    json "$@"
}

says() { # PATTERN COMMAND...
    local pattern=$1
    shift
    "$@" >"$room/said" 2>&1
    grep -qE -- "$pattern" "$room/said" || { cat "$room/said" && return 1; }
}

fits() {
    "$tool" sisci >"$room/table" && [ "$(wc -l <"$room/table")" -gt 15 ] &&
        ! grep -E '^.{101}' "$room/table"
}

doctor() { # [VARIABLE=VALUE...]
    env "$@" timeout 60 "$tool" doctor --json
}

case_of "the program compiles" "${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Werror -pthread \
    -D_REENTRANT -I"$here/../../libsisci/include" -o "$room/nodes" "$here/sisci_nodes.c" \
    -L"$lib" -lsisci -Wl,-rpath,"$lib"
case_of "no process: empty lists" json "set(d) == {'nodes', 'segments', 'connections', 'maps',
    'interrupts', 'hidden'} and not any(d.values())" "$tool" sisci --json
case_of "an owner starts" started owner 4
owner=$pid
case_of "a user starts" started user 8
user=$pid
case_of "nodes" json "only('nodes', 'node', 'pid', 'state', 'adapters', 'command')
    == {('4', '$owner', 'online', '1', 'nodes'), ('8', '$user', 'online', '1', 'nodes')}
    and d['hidden'] == []" "$tool" sisci nodes --json
case_of "segments" soon "only('segments', 'pid', 'node', 'segment', 'state', 'bytes', 'connections',
    'adapters', 'flags') == {
    ('$owner', '4', '7', 'available', '70000', '1', \"['0']\", '[]'),
    ('$owner', '4', '9', 'created', '70000', '0', '[]', \"['private']\")}" \
    "$tool" sisci segments --json
case_of "connections" json "only('connections', 'pid', 'own_node', 'node', 'segment', 'owner',
    'bytes', 'state') == {('$user', '8', '4', '7', '$owner', '70000', 'operational')}" \
    "$tool" sisci connections --json
case_of "maps" json "only('maps', 'pid', 'node', 'segment', 'offset', 'bytes', 'write', 'remote')
    == {('$owner', '4', '7', '0', '70000', 'True', 'False'),
    ('$user', '4', '7', '4096', '4096', 'False', 'True')}
    and all(m['address'] > 0 for m in d['maps'])" "$tool" sisci maps --json
case_of "interrupts and their counts" soon "only('interrupts', 'pid', 'kind', 'number', 'peers',
    'count', 'flags') == {
    ('$owner', 'interrupt', '300', '1', '0', \"['counting']\"),
    ('$owner', 'data', '301', '1', '3', \"['callback']\"),
    ('$user', 'trigger', '300', '1', '1', '[]'),
    ('$user', 'data-trigger', '301', '1', '3', '[]')}" "$tool" sisci interrupts --json
case_of "a table with each list" says "^ *$user +8 +4:7 +$owner +0 +68\.3K +operational +-$" \
    "$tool" sisci
case_of "all tables fit 100 columns" fits
case_of "of one node only" json "only('nodes', 'node') == {('8',)} and d['segments'] == []" \
    "$tool" sisci --node=8 --json
case_of "again and again" json "len(documents) == 3" \
    "$tool" sisci --json --watch=0.05 --count=3
case_of "nothing of another domain" json "not any(d.values())" \
    env SCIF_DOMAIN=nobody "$tool" sisci --json
case_of "doctor: the library, its interface and the node" json \
    "found('ok', '^SISCI_API 2 from $lib/libsisci.so, node 8$')" \
    doctor LD_LIBRARY_PATH="$lib" SISCI_NODE=8
case_of "doctor: a node id that is none" json \
    "found('ok', 'node 4$') and found('slower', '^SISCI_NODE ignored.*: 6$', 'env.md')" \
    doctor LD_LIBRARY_PATH="$lib" SISCI_NODE=6
case_of "doctor: no library, and none required" json "found('ok', 'none is required')" doctor
case_of "doctor: no library for FI_SCIF_TRANSPORT=sisci" json \
    "found('broken', 'requires one', 'LD_LIBRARY_PATH=|install')" doctor FI_SCIF_TRANSPORT=sisci
printf 'not a library\n' >"$room/libsisci.so"
case_of "doctor: a library that does not load" json \
    "found('broken', 'libsisci.so', 'replace')" doctor LD_LIBRARY_PATH="$room"
kill -STOP "$user"
case_of "a stopped process is shown" soon \
    "('8', 'stopped') in only('nodes', 'node', 'state')" "$tool" sisci nodes --json
kill -CONT "$user"
case_of "doctor: no segment of a dead owner" json "not found('slower', 'owners that died')" doctor
kill -KILL "$owner"
wait "$owner" 2>/dev/null
case_of "a dead owner: its objects are gone, and its user has lost the segment" soon \
    "only('connections', 'pid', 'state') == {('$user', 'lost')}
    and only('nodes', 'node') == {('8',)} and d['segments'] == []" "$tool" sisci --json
case_of "doctor: a segment of a dead owner" json \
    "found('slower', '^1 segments of owners that died.* $user$', 'SCIDisconnectSegment')" doctor
kill -KILL "$user"
wait "$user" 2>/dev/null
owner='' user=''
case_of "nothing is left" json "not any(d.values())" "$tool" sisci --json
mkdir "$room/run"
case_of "an owner in a runtime directory starts" started owner 4 SCIF_RUNTIME_DIR="$room/run"
owner=$pid
case_of "it is shown there, and only there" json "only('nodes', 'pid') == {('$owner',)}" \
    env SCIF_RUNTIME_DIR="$room/run" "$tool" sisci nodes --json
case_of "not without the directory" json "d['nodes'] == []" "$tool" sisci nodes --json
case_of "doctor: no socket file without a listener" json "not found('slower', 'socket files')" \
    doctor SCIF_RUNTIME_DIR="$room/run"
kill -KILL "$owner"
wait "$owner" 2>/dev/null
owner=''
case_of "doctor: socket files of a killed owner" json \
    "found('slower', '^[1-9][0-9]* socket files', 'remove $room/run/[^*]* if')" \
    doctor SCIF_RUNTIME_DIR="$room/run"
other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if [ "$(id -u)" = 0 ] && "${other[@]}" true 2>/dev/null; then
    chmod 755 "$room" && install -m 755 "$tool" "$room/scifctl"
    case_of "an owner of root starts" started owner 4
    owner=$pid
    case_of "another user sees that a process is hidden" json \
        "d['nodes'] == [] and d['hidden'] == [{'node': 4, 'processes': 1}]" \
        "${other[@]}" "$room/scifctl" sisci --json
    case_of "and is told so" says '^node 4: 1 processes publish no state that' \
        "${other[@]}" "$room/scifctl" sisci
else
    echo "     another user's process: not tried here, this user cannot start one"
fi
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
