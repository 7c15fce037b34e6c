# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after mpi/setup.sh: counts. A gate is a named group of cases; it says how many it ran, and one that ran none
# has failed. The last line of a run is the sum, and its exit status follows from it.

PASSED=0
FAILED=0
FAILURES=()
gate_name='' gate_passed=0 gate_failed=0

gate() {
    gate_name=$1 gate_passed=0 gate_failed=0
    printf '\n== %s\n' "$gate_name"
}

gate_end() {
    if ((gate_passed + gate_failed == 0)); then
        gate_failed=1
        echo "FAIL: no case ran"
        FAILURES+=("$gate_name: no case ran")
    fi
    printf -- '-- %s: %d cases, %d failed\n' "$gate_name" $((gate_passed + gate_failed)) "$gate_failed"
    PASSED=$((PASSED + gate_passed))
    FAILED=$((FAILED + gate_failed))
}

# passed WHAT [COUNT], failed WHAT [COUNT]
passed() {
    gate_passed=$((gate_passed + ${2:-1}))
    echo "ok   $1"
}

failed() {
    gate_failed=$((gate_failed + ${2:-1}))
    echo "FAIL $1"
    FAILURES+=("$gate_name: $1")
}

# shows PATTERN COMMAND...: the command succeeds and a line that it prints matches. All of it is read: a `grep -q` behind a
# pipe goes away at the first match, and with pipefail a command that prints on has then failed, by SIGPIPE.
shows() {
    local printed
    printed=$("${@:2}") || return
    printf '%s\n' "$printed"
    grep -q -- "$1" <<<"$printed"
}

# A command is one case; its output is in build/logs/LOG.log, shown when it fails.
case_of() {
    local what=$1 log=$2
    shift 2
    if "$@" >"$LOGS/$log.log" 2>&1 </dev/null; then
        passed "$what"
    else
        failed "$what (status $?, $LOGS/$log.log)"
        tail -n 40 "$LOGS/$log.log"
    fi
}

# A command that counts by itself: every line "…N passed[;,] M failed…" of its output counts. A status that says
# failure where no line does is one more failure.
cases_of() {
    local what=$1 log=$2 rc good bad
    shift 2
    "$@" >"$LOGS/$log.log" 2>&1 </dev/null
    rc=$?
    read -r good bad < <(sed -n 's/.*\b\([0-9]\+\) passed[;,] \([0-9]\+\) failed.*/\1 \2/p' "$LOGS/$log.log" |
        awk '{ good += $1; bad += $2 } END { print good + 0, bad + 0 }')
    ((rc == 0 || bad > 0)) || bad=1
    ((good == 0)) || passed "$what: $good" "$good"
    if ((bad > 0)); then
        failed "$what: $bad (status $rc, $LOGS/$log.log)" "$bad"
        grep -B 10 -A 12 -E '^(FAIL|---- .* stdout ----|error(\[|:))' "$LOGS/$log.log" | tail -n 60
        tail -n 15 "$LOGS/$log.log"
    elif ((good == 0)); then
        failed "$what: no case ran"
    fi
}

# Ends a script.
verdict() {
    echo
    local line
    for line in "${FAILURES[@]}"; do echo "failed: $line"; done
    ((PASSED + FAILED > 0)) || FAILED=1
    echo "$PASSED passed, $FAILED failed"
    ((FAILED == 0))
}
