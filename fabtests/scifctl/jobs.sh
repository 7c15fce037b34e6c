#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Tests of scifctl on MPI jobs of 4 ranks that hang: jobs.sh SCIFCTL STACK...
# The last line counts.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../mpi/setup.sh"
. "$here/../mpi/stacks.sh"
tool=$(readlink -f "$1")
shift
room=$(mktemp -d)
. "$here/cases.sh"
PROVIDER=${PROVIDER:-scif}
launcher=

cleaned() {
    ended
    rm -rf "$room"
}
trap cleaned EXIT

# Ends the job by its ranks and its launcher.
ended() {
    [ -n "$launcher" ] || return 0
    local pid
    for pid in $(sed -n 's/^hang: rank [0-9]* pid //p' "$room/job"); do
        kill -KILL "$pid" 2>/dev/null
    done
    kill "$launcher" 2>/dev/null
    wait "$launcher" 2>/dev/null
    launcher=
}

# begun STACK MODE: starts a job, and waits until each rank has printed its process id.
begun() {
    ended
    : >"$room/job"
    PIN=0 RUN_BY=exec run_mpi "$1" "$PROVIDER" 4 120 "$(stack_python "$1")" \
        "$ROOT/fabtests/mpi/jobs/hang.py" "$2" >"$room/job" 2>&1 &
    launcher=$!
    for _ in $(seq 600); do
        [ "$(grep -c '^hang: rank' "$room/job")" -lt 4 ] || return 0
        kill -0 "$launcher" 2>/dev/null || break
        sleep 0.1
    done
    cat "$room/job"
    return 1
}

# found EXPRESSION...: each expression holds for one of the documents of `scifctl job --json`; d has
# the processes of this job only, by rank.
found() {
    local deadline=$((SECONDS + 30))
    while ((SECONDS < deadline)); do
        "$tool" job --json >"$room/document" && "$tool" job >"$room/text" || return 1
        python3 - "$room" "$@" <<'PYTHON' && { cat "$room/text" && return 0; }
import json, re, sys
room, expressions = sys.argv[1], sys.argv[2:]
job = open(f"{room}/job").read()
pids = {int(p): int(r) for r, p in re.findall(r"hang: rank (\d+) pid (\d+)", job)}
document = json.load(open(f"{room}/document"))
d = {p["rank"]: p for p in document["processes"] if p["pid"] in pids}
own = [c for c in document["cycles"] if all(m["pid"] in pids for m in c)]
cycles = [sorted(m["rank"] for m in c) for c in own]
findings = "\n".join(document["findings"])
lines = open(f"{room}/text").read().splitlines()

def waits(rank, kind, peer, tag, size):
    """Whether a rank waits for an operation, with its age."""
    return any(w["kind"] == kind and w["peer_rank"] == peer and w["tag"] & 0x7fffffff == tag
               and w["bytes"] == size and w["age_ns"] >= 200_000_000 for w in d[rank]["waits"])

fits = len(d) == 4 and max(map(len, lines)) <= 100
sys.exit(0 if fits and all(eval(e) for e in expressions) else 1)
PYTHON
        sleep 0.1
    done
    cat "$room/text" "$room/document"
    return 1
}

# hangs STACK MODE EXPRESSION...: the job begins, and scifctl explains it.
hangs() {
    begun "$1" "$2" && found "${@:3}"
}

pid_of() { # RANK
    sed -n "s/^hang: rank $1 pid //p" "$room/job"
}

# Rank 2 of the job is killed, and read at its peers. They and the launcher are stopped first, so
# that no one reacts.
killed() {
    local killed keeper parent rank kept=0 status
    begun "$1" unmatched || return 1
    killed=$(pid_of 2) keeper=$(pid_of 0)
    parent=$(ps -o ppid= -p "$killed")
    for _ in $(seq 300); do
        kept=$(find "/proc/$keeper/fd" -lname '/memfd:scif-monitor*' | wc -l)
        ((kept < 4)) || break
        sleep 0.1
    done
    # shellcheck disable=SC2086 # a number with spaces
    kill -STOP "$launcher" $parent
    for rank in 0 1 3; do kill -STOP "$(pid_of "$rank")"; done
    kill -KILL "$killed"
    found "d[2]['activity'] == 'ended'" "d[0]['activity'] == 'stopped'" \
        "re.search('rank 2 .* has ended', findings)" &&
        prints "^process $killed (.*), ended$" 1 "$tool" dump "$killed" &&
        prints connected 3 "$tool" peers "$killed"
    status=$?
    # shellcheck disable=SC2086
    kill -CONT "$launcher" $parent
    return $status
}

# Endpoints of other users are not shown. Needs root to become another user.
hidden() {
    local pid
    pid=$(pid_of 0)
    cp "$tool" "$room/scifctl" && chmod 755 "$room" "$room/scifctl"
    setpriv --reuid=65534 --regid=65534 --clear-groups "$room/scifctl" dump "$pid" && return 1
    setpriv --reuid=65534 --regid=65534 --clear-groups "$room/scifctl" job --json >"$room/other" &&
        ! grep -q "\"pid\":$pid," "$room/other"
}

# Counters of messages and bytes agree in each of 300 snapshots of a storm of 8-byte messages.
storm() {
    local pid
    begun "$1" storm || return 1
    pid=$(pid_of 0)
    "$tool" dump "$pid" --json --watch=0.01 --count=300 >"$room/documents" || return 1
    python3 - "$room/documents" <<'PYTHON'
import json, sys
counters = [json.loads(line)["endpoints"][0]["snapshot"]["counters"] for line in open(sys.argv[1])]
sent = [(c["sent_ops"], c["sent_bytes"]) for c in counters]
# The barrier before the storm has sent empty messages, perhaps after the first snapshot.
rest = [8 * messages - size for messages, size in sent]
print(f"{sent[-1][0] - sent[0][0]} messages, rest {set(rest)}")
whole = rest == sorted(rest) and rest[-1] <= 32 and sent == sorted(sent)
sys.exit(0 if whole and sent[-1][0] - sent[0][0] > 300 else 1)
PYTHON
}

# A rank that ends without the end of MPI prints the counters of its endpoints. The launcher may
# kill the others before they do.
exits() {
    ended
    PIN=0 FI_SCIF_STATS=1 run_mpi "$1" "$PROVIDER" 4 120 "$(stack_python "$1")" \
        "$ROOT/fabtests/mpi/jobs/hang.py" exit >"$room/job" 2>&1
    grep -qE '^(\[[^]]*\] *)?scif: endpoint .* peers [0-9]+ sent [1-9]' "$room/job" && return 0
    cat "$room/job"
    return 1
}

# prints PATTERN COUNT COMMAND...: as many lines of the output match.
prints() {
    "${@:3}" >"$room/printed" && [ "$(grep -c "$1" "$room/printed")" = "$2" ] && return 0
    cat "$room/printed"
    return 1
}

# Each peer, counter and text of a process.
shown() {
    local pid
    pid=$(pid_of 0)
    prints 'connected *soft ' 3 "$tool" peers "$pid" &&
        prints 'no network to other hosts' 1 "$tool" peers "$pid" &&
        prints '^waits: trecv from rank 2' 1 "$tool" dump "$pid" &&
        prints '^scif: endpoint .* sent [1-9]' 1 "$tool" stats "$pid" &&
        prints ' foreign_sent 0/0 foreign_received 0/0 ' 1 "$tool" stats "$pid" &&
        prints "^ *$pid  *0  RDM " 1 "$tool" endpoints && prints "^ *$pid " 1 "$tool" top
}

for stack; do
    title=$(stack_title "$stack")
    case_of "$title: a receive that nobody matches" hangs "$stack" unmatched \
        "waits(1, 'trecv', 2, 77, 1024)"
    case_of "$title: two sends that wait for each other" hangs "$stack" deadlock \
        "waits(0, 'tsend', 3, 5, 4 << 20)" "waits(3, 'tsend', 0, 6, 4 << 20)" "[0, 3] in cycles" \
        "'deadlock: rank 0 waits for rank 3 waits for rank 0' in findings"
    case_of "$title: a rank in a loop outside of MPI" hangs "$stack" loop \
        "waits(0, 'trecv', 3, 11, 64)" "d[3]['activity'] == 'away'" "d[3]['waits'] == []" \
        "re.search('rank 3 .* has made no call', findings)"
    case_of "$title: a stopped rank" hangs "$stack" stopped \
        "waits(0, 'trecv', 2, 9, 64)" "d[2]['activity'] == 'stopped'" \
        "re.search('rank 2 .* is stopped', findings)"
    case_of "$title: peers, dump, stats, endpoints, top" shown
    [ "$(id -u)" != 0 ] || case_of "$title: hidden from another user" hidden
    case_of "$title: a killed rank, read at its peers" killed "$stack"
    case_of "$title: a storm of messages, with no torn snapshot" storm "$stack"
    case_of "$title: counters at an exit without the end of MPI" exits "$stack"
    ended
done
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
