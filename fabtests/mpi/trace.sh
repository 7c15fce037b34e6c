# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after jobs.sh: traces of a job, as cases.

# The document of Perfetto has each large message as an arrow between two processes, and an interval
# for each receive. Argument: its file.
PERFETTO_TEST='
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
of = lambda phase: {e["id"]: e["pid"] for e in events if e["ph"] == phase}
starts, ends = of("s"), of("f")
both = starts.keys() & ends.keys()
assert both and all(starts[m] != ends[m] for m in both), "arrows"
count = lambda ph, name: sum(e["ph"] == ph and e["name"] == name for e in events)
assert count("b", "receive") >= count("e", "receive") > 0, "receives"
assert count("b", "copy") == count("e", "copy") > 0, "copies"
assert all(e["ts"] >= 0 for e in events if e["ph"] != "M"), "times"
'

# traced STACK DIRECTORY: the trace of a job that ends.
traced() {
    local stack=$1 dir=$2
    FI_SCIF_TRACE=$dir/end run_mpi "$stack" scif 2 120 "$(stack_python "$stack")" \
        "$ROOT/fabtests/mpi/jobs/traffic.py" 5 || return 1
    [ "$(find "$dir" -name 'end.*' -perm 600 | wc -l)" = 2 ] || { ls -l "$dir" && return 1; }
    "$TARGET/release/scifctl" trace --perfetto --output="$dir/end.json" "$dir"/end.[0-9]* &&
        python3 -c "$PERFETTO_TEST" "$dir/end.json" &&
        "$TARGET/release/scifctl" trace --last=8 "$dir"/end.[0-9]*
}

# shows_wait TRACE...: the last receive posted with the tag of the job is not matched.
shows_wait() {
    local text
    text=$("$TARGET/release/scifctl" trace --last=2000000 "$@") || return 1
    awk '/ post(ed)? / { last = "post" } / (match|received) / { last = "" }
        END { exit last != "post" }' <<<"$text" || { tail -n 20 <<<"$text" && return 1; }
}

# hung STACK DIRECTORY SIGNAL: the trace of a rank that hangs, from outside, also while it is
# stopped; then its file after the signal.
hung() {
    local stack=$1 dir=$2 signal=$3 job pid='' rc
    : >"$dir/$signal.log"
    FI_SCIF_TRACE=$dir/$signal run_mpi "$stack" scif 2 60 "$(stack_python "$stack")" \
        "$ROOT/fabtests/mpi/jobs/unmatched.py" >"$dir/$signal.log" 2>&1 &
    job=$!
    for _ in {1..300}; do
        pid=$(sed -n 's/.*waiting: //p' "$dir/$signal.log")
        [ -z "$pid" ] || break
        sleep 0.1
    done
    [ -n "$pid" ] || { echo "no rank waits" && wait $job; return 1; }
    sleep 0.2
    shows_wait "$pid" && kill -STOP "$pid" && shows_wait "$pid"
    rc=$?
    kill -CONT "$pid" && kill "-$signal" "$pid"
    wait $job
    ((rc == 0)) && [ -s "$dir/$signal.$pid" ] && shows_wait "$dir/$signal.$pid"
}

# trace_jobs STACK...: a job that ends, one that hangs and is ended by its launcher, and one that
# crashes. Open MPI handles SIGSEGV itself.
trace_jobs() {
    local stack dir signal log signals
    for stack; do
        dir=$LOGS/trace-$stack
        rm -rf "$dir" && mkdir -p "$dir"
        if traced "$stack" "$dir" >"$dir/end.log" 2>&1; then
            passed "trace, $stack: large messages and receives of a job"
        else
            failed "trace, $stack ($dir/end.log)"
            tail -n 20 "$dir/end.log"
        fi
        signals=(TERM SEGV)
        [[ $stack != debian* ]] || signals=(TERM)
        for signal in "${signals[@]}"; do
            log=$dir/$signal-case.log
            if hung "$stack" "$dir" $signal >"$log" 2>&1; then
                passed "trace, $stack: a receive that nobody matches, hung, stopped, SIG$signal"
            else
                failed "trace, $stack, SIG$signal ($log)"
                tail -n 20 "$log"
            fi
        done
    done
}
