# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Reads what suite.sh writes, a record for each test; shows each as it comes, and then the table. Fails when a test failed
# or none ran.
#
# A record is a line "- name: ...", then "  result:", "  time:", "  count:" (how many tests it is), "  reason:", and what
# the processes said, indented.

function flush() {
    if (name == "") return
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
    flush()
    printf "\n%-24s %6s %6s %7s %9s\n", "program", "pass", "fail", "notrun", "excluded"
    families[++families_cnt] = "all"
    for (result in total) results["all", result] = total[result]
    for (i = 1; i <= families_cnt; i++) {
        f = families[i]
        printf "%-24s %6d %6d %7d %9d\n", f, results[f, "pass"], results[f, "fail"], results[f, "notrun"], results[f, "excluded"]
    }
    if (left_cnt) print ""
    for (i = 1; i <= left_cnt; i++) print left[i]
    if (families_cnt == 1) { print "no test ran"; exit 1 }
    exit total["fail"] > 0
}
