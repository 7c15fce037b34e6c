# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after jobs.sh: reports of the traffic of a job, as cases.

# traffic_of STACK ROUNDS DIRECTORY: runs the job with 4 ranks, and writes its report there as
# DIRECTORY/ROUNDS.json and .svg.
traffic_of() {
    local stack=$1 rounds=$2 dir=$3
    rm -rf "${dir:?}/$rounds" && mkdir -p "$dir/$rounds" || return 1
    FI_SCIF_STATS=json FI_SCIF_STATS_DIR=$dir/$rounds run_mpi "$stack" scif 4 120 \
        "$(stack_python "$stack")" "$ROOT/fabtests/mpi/jobs/traffic.py" "$rounds" || return 1
    "$TARGET/release/scifctl" report --json --svg="$dir/$rounds.svg" "$dir/$rounds"/*.json \
        >"$dir/$rounds.json" || return 1
    "$TARGET/release/scifctl" report --svg="$dir/$rounds.svg" "$dir/$rounds"/*.json
}

# Two runs differ in the messages of the additional rounds only: the matrix has exactly these, as
# sent and as received. Arguments: DIRECTORY, and the numbers of rounds of both, and the sizes.
MATRIX_TEST='
import json, sys
directory, few, many = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
few_report, many_report = (json.load(open(f"{directory}/{n}.json")) for n in (few, many))
sizes = json.loads(sys.argv[4])
for way in ("sent", "received"):
    for unit in ("operations", "bytes"):
        for i in range(4):
            for j in range(5):
                more = many_report[way][unit][i][j] - few_report[way][unit][i][j]
                sender, receiver = (i, j) if way == "sent" else (j, i)
                extra = 1000 * (sender + 1) + 10 * (receiver + 1)
                per = sum(sizes) + extra if unit == "bytes" else len(sizes) + 1
                wanted = (many - few) * per if i != j and j < 4 else 0
                assert more == wanted, f"{way} {unit} {i} {j}: {more}, not {wanted}"
sent = sum(map(sum, many_report["sent"]["operations"]))
assert sent == sum(many_report["sizes"]), "sizes"
assert [p["rank"] for p in many_report["processes"]] == [0, 1, 2, 3], "ranks"
waits = [(p["waiting_ns"], p["open_ns"]) for p in many_report["processes"]]
assert all(wait <= opened for wait, opened in waits) and any(wait > 0 for wait, _ in waits), waits
'

# report_jobs STACK...: the report of a job of 4 ranks has what was sent.
report_jobs() {
    local stack dir log sizes
    sizes=$(sed -n 's/^SIZES = //p' "$ROOT/fabtests/mpi/jobs/traffic.py" | tr -d _)
    for stack; do
        dir=$LOGS/report-$stack log=$LOGS/report-$stack.log
        if traffic_of "$stack" 10 "$dir" >"$log" 2>&1 &&
            traffic_of "$stack" 40 "$dir" >>"$log" 2>&1 &&
            python3 -c "$MATRIX_TEST" "$dir" 10 40 "$sizes" >>"$log" 2>&1; then
            passed "report, $stack: the matrix has the messages sent and received"
        else
            failed "report, $stack ($log)"
            tail -n 20 "$log"
        fi
    done
}
