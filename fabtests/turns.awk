# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Medians of the samples that turns.sh writes, and their ratios: the first subject against each
# other one, in time. Below 1 the first subject is faster. `n` is the smallest number of samples.

BEGIN {
    FS = ","
    subject_count = split(subjects, subject, " ")
    print "test,unit,placement,size,subject,samples,median,least,most,time_ratio_of_" \
        subject[1] >csv
}

FNR > 1 {
    row = $1 FS $2 FS $5
    if (!(row in sizes)) {
        table[++tables] = row
        sizes[row] = ""
    }
    if (!((row, $3) in seen)) {
        seen[row, $3] = 1
        sizes[row] = sizes[row] " " $3
    }
    cell = row SUBSEP $3 SUBSEP $4
    value[cell, ++count[cell]] = $8
}

# Sorts the samples of a cell and returns the median.
function median(cell, n, i, j, v) {
    n = count[cell]
    for (i = 2; i <= n; i++) {
        v = value[cell, i]
        for (j = i - 1; j > 0 && value[cell, j] > v; j--) value[cell, j + 1] = value[cell, j]
        value[cell, j + 1] = v
    }
    return n % 2 ? value[cell, (n + 1) / 2] : (value[cell, n / 2] + value[cell, n / 2 + 1]) / 2
}

function size_name(size) {
    if (size >= 1048576 && size % 1048576 == 0) return size / 1048576 "M"
    if (size >= 1024 && size % 1024 == 0) return size / 1024 "K"
    return size
}

function mean(key) {
    return log_count[key] ? sprintf("%.2f", exp(log_sum[key] / log_count[key])) : "-"
}

function print_row(row, unit, size, i, cell, medians, least, ratio, line, ratios) {
    for (i = 1; i <= subject_count; i++) {
        cell = row SUBSEP size SUBSEP subject[i]
        if (!(cell in count)) {
            line = line sprintf(" %12s", "-")
            if (i > 1) ratios = ratios sprintf(" %12s", "-")
            continue
        }
        medians[i] = median(cell)
        if (least == "" || count[cell] < least) least = count[cell]
        line = line sprintf(" %12.4g", medians[i])
        ratio = ""
        if (i > 1 && (1 in medians)) {
            ratio = medians[1] / medians[i]
            # More is better for rates.
            if (unit ~ /\/s$/) ratio = 1 / ratio
            ratio = sprintf("%.2f", ratio)
            log_sum[row, i] += log(ratio)
            log_count[row, i]++
        }
        if (i > 1) ratios = ratios sprintf(" %12s", ratio == "" ? "-" : ratio)
        printf "%s,%s,%s,%s,%d,%.5g,%.5g,%.5g,%s\n", part[1] FS unit, part[3], size, subject[i],
            count[cell], medians[i], value[cell, 1], value[cell, count[cell]], ratio >csv
    }
    printf "%6s%s%s %3d%s\n", size_name(size), line, ratios, least, least < samples ? " few" : ""
}

END {
    if (!tables) exit 1
    for (t = 1; t <= tables; t++) {
        row = table[t]
        split(row, part, FS)
        printf "\n%s, %s, %s\n%6s", part[1], part[2], part[3], "size"
        for (i = 1; i <= subject_count; i++) printf " %12s", subject[i]
        for (i = 2; i <= subject_count; i++) printf " %12s", subject[1] "/" subject[i]
        print "   n"
        n = split(sizes[row], size, " ")
        for (s = 1; s <= n; s++) print_row(row, part[2], size[s])
        printf "%6s", "mean"
        for (i = 1; i <= subject_count; i++) printf " %12s", ""
        for (i = 2; i <= subject_count; i++) printf " %12s", mean(row SUBSEP i)
        print ""
    }
    print "\nratios: below 1 " subject[1] " needs less time; mean: geometric; n: least samples"
}
