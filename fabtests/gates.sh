# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after mpi/setup.sh: counting of cases. A gate is a named group of cases; it prints their
# number and its duration, and has failed without any case. The last line of a run is the sum, which
# determines the exit status.

PASSED=0
FAILED=0
FAILURES=()
gate_name='' gate_passed=0 gate_failed=0 gate_began=0

gate() {
    gate_name=$1 gate_passed=0 gate_failed=0 gate_began=$SECONDS
    printf '\n== %s\n' "$gate_name"
}

gate_end() {
    if ((gate_passed + gate_failed == 0)); then
        gate_failed=1
        echo "FAIL: no case ran"
        FAILURES+=("$gate_name: no case ran")
    fi
    printf -- '-- %s: %d cases, %d failed, %d s\n' "$gate_name" \
        $((gate_passed + gate_failed)) "$gate_failed" $((SECONDS - gate_began))
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

# shows PATTERN COMMAND...: the command succeeds and prints a matching line. All output is read,
# because `grep -q` in a pipe ends at the first match. With pipefail a command that prints on then
# fails by SIGPIPE.
shows() {
    local printed
    printed=$("${@:2}") || return
    printf '%s\n' "$printed"
    grep -q -- "$1" <<<"$printed"
}

# Runs a command as one case; its output is in build/logs/LOG.log, printed on failure.
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

# Runs a command that counts by itself: every line "…N passed[;,] M failed…" of its output counts. A
# failure status without a failed case is one more failure.
cases_of() {
    local what=$1 log=$2 rc good bad
    shift 2
    "$@" >"$LOGS/$log.log" 2>&1 </dev/null
    rc=$?
    read -r good bad < <(
        sed -n 's/.*\b\([0-9]\+\) passed[;,] \([0-9]\+\) failed.*/\1 \2/p' "$LOGS/$log.log" |
            awk '{ good += $1; bad += $2 } END { print good + 0, bad + 0 }'
    )
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

# Ends a script with the sum.
verdict() {
    echo
    local line
    for line in "${FAILURES[@]}"; do echo "failed: $line"; done
    ((PASSED + FAILED > 0)) || FAILED=1
    echo "$PASSED passed, $FAILED failed"
    ((FAILED == 0))
}
