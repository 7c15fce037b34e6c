#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs libfabric's own suite, fabtests, as somebody else installed it, with the provider `scif`.
#
#   run.sh PREFIX [SET...]
#
# PREFIX is where fabtests was installed: PREFIX/bin/runfabtests.sh and the programs beside it, PREFIX/lib of the libfabric
# they belong to. SET is one of fabtests' sets (unit functional short standard threaded multinode regression complex); the
# default is unit, functional and short. FI_PROVIDER_PATH names the directory of libscif-fi.so, as ever.
#
# Safe: fabtests' own runner kills every process named fi_* when it ends. Here it runs in a process name space of its own,
# where there are none but its own, and which ends with this script; without the right to make one nothing is run.
# Each test is shown with its result when it ends; then the table: passes, failures, and tests not run with the reason.
#
# Environment: PROV (scif), FT_TIMEOUT seconds a test (60), FT_EXCLUDE a file of patterns instead of scif.exclude,
# FT_LOG where the whole output goes (a temporary file).
set -u -o pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
    printf '%s\n' "$*" >&2
    exit 2
}

# What is process 1 of the name space: a shell, for it must reap whoever is left over.
if [ "${1-}" = --inside ]; then
    shift
    work=$1 bin=$2 set=$3 exclude=$4
    cd "$work" || exit 2
    "$bin/runfabtests.sh" -vv -T "${FT_TIMEOUT:-60}" -t "$set" -p "$bin" -f "$exclude" "${PROV:-scif}" </dev/null
    exit $?
fi

[ $# -ge 1 ] || die "usage: $0 PREFIX [SET...], see the head of this file"
PREFIX=$(realpath -e "$1") || die "no directory $1"
shift
[ $# -gt 0 ] || set -- unit functional short
SETS=$(IFS=,; echo "$*")
BIN=$PREFIX/bin
[ -x "$BIN/runfabtests.sh" ] || die "no $BIN/runfabtests.sh: is fabtests installed there?"
PROV=${PROV:-scif}
EXCLUDE=${FT_EXCLUDE:-$HERE/test_configs/scif/scif.exclude}
[ -r "$EXCLUDE" ] || die "cannot read $EXCLUDE"
export PROV FT_TIMEOUT="${FT_TIMEOUT:-60}" PATH="$BIN:$PATH"
export LD_LIBRARY_PATH="$PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# Else every test would be one that is not run, and the whole a success.
if [ -x "$BIN/fi_info" ]; then
    "$BIN/fi_info" -p "$PROV" >/dev/null || die "libfabric in $PREFIX has no provider $PROV: set FI_PROVIDER_PATH"
fi

isolate=(unshare --fork --pid --mount-proc --kill-child)
"${isolate[@]}" true 2>/dev/null || isolate=(unshare --user --map-root-user --fork --pid --mount-proc --kill-child)
"${isolate[@]}" true 2>/dev/null || die "no right to make a process name space: not run, for it would kill other people's processes"

WORK=$(mktemp -d "${TMPDIR:-/tmp}/scif-upstream.XXXXXX") || exit 2
trap 'rm -rf "$WORK"' EXIT
LOG=${FT_LOG:-$WORK/log}
# ubertest's configurations are looked for below the working directory: theirs, and ours beside them.
mkdir "$WORK/test_configs" || exit 2
for configs in "$PREFIX/share/fabtests/test_configs" "$HERE/test_configs"; do
    [ ! -d "$configs" ] || cp -r "$configs/." "$WORK/test_configs/" || exit 2
done

# The ports are fixed, so only one run at a time.
exec 9>"${TMPDIR:-/tmp}/scif-upstream.lock"
flock -n 9 || {
    echo "waiting for another run to end"
    flock 9
}

echo "fabtests of $PREFIX, provider $PROV, sets $SETS"
"${isolate[@]}" "$0" --inside "$WORK" "$BIN" "$SETS" "$EXCLUDE" 2>&1 9>&- | tee "$LOG" | awk '
    # One record a test: name, result, time; with a failure or a test not run comes what it said.
    function flush() {
        if (name == "") return
        family = name
        sub(/ .*/, "", family)
        if (!(family in seen)) { seen[family] = 1; families[++count] = family }
        result_of[family, result]++
        total[result]++
        printf "%-9s %4ss  %s\n", tolower(result), time, name
        fflush()
        if (result != "Pass") {
            why = ""
            if (result == "Excluded") why = "excluded"
            else if (said ~ /No data available|ret: *61|\(61\)/) why = "no offer for what it asks (FI_ENODATA)"
            else if (said ~ /not implemented|Operation not supported|\(38\)/) why = "no such function (FI_ENOSYS)"
            else if (result == "Notrun") why = "the program ended with FI_ENODATA or FI_ENOSYS"
            else why = "see the log"
            left[++lefts] = sprintf("%-9s %s: %s", tolower(result), name, why)
        }
        name = said = ""
    }
    /^- name:/ { flush(); name = $0; sub(/^- name: */, "", name); gsub(/ +-p "[^"]*"/, "", name); result = "?"; time = 0; next }
    name != "" && /^  result:/ { result = $2; next }
    name != "" && /^  time:/ { time = $2; next }
    name != "" { said = said $0 "\n" }
    END {
        flush()
        printf "\n%-24s %6s %6s %7s %9s\n", "program", "pass", "fail", "notrun", "excluded"
        for (i = 1; i <= count; i++) {
            f = families[i]
            printf "%-24s %6d %6d %7d %9d\n", f, result_of[f, "Pass"], result_of[f, "Fail"], result_of[f, "Notrun"], result_of[f, "Excluded"]
        }
        printf "%-24s %6d %6d %7d %9d\n", "all", total["Pass"], total["Fail"], total["Notrun"], total["Excluded"]
        if (lefts) print ""
        for (i = 1; i <= lefts; i++) print left[i]
        if (count == 0) { print "no test ran"; exit 1 }
        exit total["Fail"] > 0
    }'
status=("${PIPESTATUS[@]}")
[ "${FT_LOG:+x}" != x ] || echo "whole output: $LOG"
exit "${status[2]}"
