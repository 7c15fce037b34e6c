# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Reads the records of suite.sh, one for each test; prints each on arrival, and then the table.
# Fails when a test failed, was not run without permission, or none passed.
#
# The file in the variable `notrun` has patterns of the tests that may end as not run, one per line.
# Without it all tests may.
#
# A record is a line "- name: ...", then "  result:", "  time:", "  count:" (number of tests), "
# reason:", and the indented output of the processes.

BEGIN {
    while (notrun != "" && (got = (getline line <notrun)) != 0) {
        if (got < 0) { print "cannot read " notrun; unread = 1; exit 1 }
        if (line !~ /^[ \t]*(#|$)/) may_miss[++may_miss_cnt] = line
    }
}

# Whether this test may end as not run.
function excused(i) {
    if (notrun == "") return 1
    for (i = 1; i <= may_miss_cnt; i++) if (name ~ may_miss[i]) return 1
    return 0
}

function flush() {
    if (name == "") return
    if (result == "notrun" && !excused()) {
        result = "fail"
        reason = "not run: " reason
    }
    family = name
    sub(/ .*/, "", family)
    if (!(family in seen)) { seen[family] = 1; families[++families_cnt] = family }
    results[family, result] += count
    total[result] += count
    printf "%-8s %4ds  %s\n", result, time, name
    fflush()
    if (result != "pass") left[++left_cnt] = sprintf("%-8s %s: %s", result, name, reason)
    name = ""
}

/^- name: / {
    flush()
    name = substr($0, 9)
    result = "fail"
    reason = "see the log"
    time = 0
    count = 1
    next
}
name != "" && /^  result: / { result = $2; next }
name != "" && /^  time: / { time = $2; next }
name != "" && /^  count: / { count = $2; next }
name != "" && /^  reason: / { reason = substr($0, 11); next }
/^note: / { left[++left_cnt] = substr($0, 7) }

END {
    if (unread) exit 1
    flush()
    printf "\n%-24s %6s %6s %7s %9s\n", "program", "pass", "fail", "notrun", "excluded"
    families[++families_cnt] = "all"
    for (result in total) results["all", result] = total[result]
    for (i = 1; i <= families_cnt; i++) {
        f = families[i]
        printf "%-24s %6d %6d %7d %9d\n", f, results[f, "pass"], results[f, "fail"],
            results[f, "notrun"], results[f, "excluded"]
    }
    if (left_cnt) print ""
    for (i = 1; i <= left_cnt; i++) print left[i]
    printf "\n%d passed, %d failed\n", total["pass"], total["fail"]
    if (!total["pass"]) { print "no test passed"; exit 1 }
    exit total["fail"] > 0
}
