#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# `make bench-crowd`: more ranks than cores (oversubscription). Runs Intel's benchmarks under MPICH,
# in turns over scif and over MPICH's own shared memory. Prints the median of the runs for each
# line, and the ratio. Arguments: RANKS (8), RUNS (3), ITERATIONS (20: operations of a microsecond
# may then all end within one time slice of a rank; 200 show the cost of time slices).
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/setup.sh"
. "$here/stacks.sh"
cd "$ROOT" || exit 1
ranks=${1:-8} runs=${2:-3} iterations=${3:-20}

find_cargo
need_build_packages
need_stack mpich5 intel
build_release

# MPICH's library runs programs linked with Intel's, because both have one ABI.
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(wheel_libfabric):$BUILD/venv-mpich5/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
rm -f "$LOGS"/crowd-*.log
for ((run = 1; run <= runs; run++)); do
    for way in own "$PROVIDER"; do
        log=$LOGS/crowd-$way-$run.log
        printf 'run %d of %d, %d ranks, %s, load %s\n' \
            "$run" "$runs" "$ranks" "$way" "$(cut -d' ' -f1 /proc/loadavg)"
        run_mpi mpich5 "$way" "$ranks" 600 "$BUILD/venv-intel/bin/IMB-MPI1" -npmin "$ranks" \
            -iter "$iterations" -time 0.1 -msglog 0:16 >"$log" 2>&1 ||
            die "IMB-MPI1 over $way failed (see $log)."
        grep -q 'MPICH' "$log" || echo "(the benchmark does not say which MPI it runs on)"
    done
done

# The average over ranks: the last column, or the one before a rate in megabytes per second.
awk -v own=own '
    function median(list,    n, parts, i, j, t) {
        n = split(list, parts, " ")
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && parts[j] + 0 < parts[j - 1] + 0; j--) {
                t = parts[j]; parts[j] = parts[j - 1]; parts[j - 1] = t
            }
        return parts[int((n + 1) / 2)] + 0
    }
    FNR == 1 { way = FILENAME; sub(/.*crowd-/, "", way); sub(/-[0-9]+\.log$/, "", way) }
    /^# Benchmarking / { name = $3 }
    /#bytes|#repetitions/ {
        last = NF
        while (last > 0 && $last !~ /t_avg|t\[usec\]/) last--
        sized = /#bytes/
    }
    /^ +[0-9]+ +[0-9]/ && last {
        line = name " " (sized ? $1 : "-")
        if (!(line in seen)) { seen[line] = ++lines; order[lines] = line }
        time[way, line] = time[way, line] " " $last
        ways[way] = 1
    }
    END {
        for (way in ways) if (way != own) ours = way
        printf "%-16s %8s %12s %12s %8s\n", "benchmark", "bytes", own " us", ours " us", "ratio"
        for (i = 1; i <= lines; i++) {
            a = median(time[own, order[i]]); b = median(time[ours, order[i]])
            if (a <= 0 || b <= 0) continue
            split(order[i], part, " ")
            printf "%-16s %8s %12.1f %12.1f %8.2f\n", part[1], part[2], a, b, b / a
            logs += log(b / a); n++; sum_own += a; sum_ours += b
            if (b / a > worst) { worst = b / a; which = order[i] }
            if (b / a > 2) over++
        }
        if (!n) { print "no line of results"; exit 1 }
        printf "%d lines; all of them together %.2f, geometric mean %.2f, ",
            n, sum_ours / sum_own, exp(logs / n)
        printf "worst %.2f (%s), above 2: %d\n", worst, which, over
    }' "$LOGS"/crowd-{own,"$PROVIDER"}-*.log | tee "$RESULTS/crowd.txt"
