#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs libfabric's own suite, fabtests, as somebody else installed it, with the provider `scif`.
#
#   run.sh PREFIX [SET...]
#
# PREFIX is where fabtests was installed: PREFIX/bin/runfabtests.sh and the programs beside it, PREFIX/lib of the libfabric
# they belong to. FI_PROVIDER_PATH names the directory of libscif-fi.so, as ever. SET is one of
#
#   unit functional short standard threaded multinode regression
#                  the lists of PREFIX/bin/runfabtests.sh, by its rules; threaded is new in 2.0
#   neg            the tests of unit that must end with FI_ENODATA
#   quick verify all
#                  fi_ubertest with test_configs/scif/{quick,verify,all}.test, fifty combinations at a time
#   complex        quick and verify
#   pytest         what PREFIX/share/fabtests/pytest/shm runs, with its arguments, sizes and counts (pytest_list of suite.sh);
#                  but for fi_ubertest, which it runs too: that is quick, verify and all
#   lnx            tagged messages over libfabric's provider lnx, whose only member is this one (2.x)
#
# and without any: unit, neg, functional and short.
#
# Safe: fabtests' own runner kills every process named fi_* when it ends. This one kills none but its own, and runs in a
# process name space, which ends with this script; without the right to make one nothing is run. Where it may also have a
# network name space (with `ip` to start the loopback in it) several runs can go on at a time: fabtests' ports are fixed.
# Each test is shown with its result when it ends; then the table: passes, failures, and tests not run with the reason.
# A combination of fi_ubertest counts as one test. Fails when a test failed or none passed; with scif also when one was not run
# that scif.notrun does not name.
#
# Environment: PROV (scif); FT_ONLY, a pattern (of bash) that names of tests must match; FT_EXCLUDE, a file of patterns
# instead of scif.exclude; FT_NOTRUN, one of tests that may be not run, instead of scif.notrun (empty: all may, as with other
# providers); FT_TIMEOUT, seconds for a test (120); FT_LOG, where the whole output goes (a temporary file).
set -u -o pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
    printf '%s\n' "$*" >&2
    exit 2
}

[ $# -ge 1 ] || die "usage: $0 PREFIX [SET...], see the head of this file"
PREFIX=$(realpath -e "$1") || die "no directory $1"
shift
[ $# -gt 0 ] || set -- unit neg functional short
export BIN=$PREFIX/bin
[ -r "$BIN/runfabtests.sh" ] || die "no $BIN/runfabtests.sh: is fabtests installed there?"
export PROV=${PROV:-scif}
export EXCLUDE=${FT_EXCLUDE:-$HERE/test_configs/scif/scif.exclude}
[ -r "$EXCLUDE" ] || die "cannot read $EXCLUDE"
NOTRUN=${FT_NOTRUN-$([ "$PROV" != scif ] || echo "$HERE/test_configs/scif/scif.notrun")}
[ -z "$NOTRUN" ] || [ -r "$NOTRUN" ] || die "cannot read $NOTRUN"
export CONFIGS=$HERE/test_configs/scif PATH="$BIN:$PATH"
export LD_LIBRARY_PATH="$PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# Else every test but those of `neg` would be one that is not run.
if [ -x "$BIN/fi_info" ]; then
    "$BIN/fi_info" -p "$PROV" >/dev/null || die "libfabric in $PREFIX has no provider $PROV: set FI_PROVIDER_PATH"
fi

isolate=(unshare --fork --pid --mount-proc --kill-child)
"${isolate[@]}" true 2>/dev/null || isolate=(unshare --user --map-root-user --fork --pid --mount-proc --kill-child)
"${isolate[@]}" true 2>/dev/null || die "no right to make a process name space: not run"

WORK=$(mktemp -d "${TMPDIR:-/tmp}/upstream-suite.XXXXXX") || exit 2
trap 'rm -rf "$WORK"' EXIT
export WORK
LOG=${FT_LOG:-$WORK/log}

if "${isolate[@]}" --net ip link set lo up 2>/dev/null; then
    isolate+=(--net)
else
    exec 9>"${TMPDIR:-/tmp}/scif-upstream.lock"
    flock -n 9 || {
        echo "waiting for another run to end"
        flock 9
    }
fi

echo "fabtests of $PREFIX, provider $PROV, sets $*"
"${isolate[@]}" bash "$HERE/suite.sh" "$@" 2>&1 9>&- </dev/null | tee "$LOG" | awk -v notrun="$NOTRUN" -f "$HERE/table.awk"
status=("${PIPESTATUS[@]}")
[ "${FT_LOG:+x}" != x ] || echo "whole output: $LOG"
[ "${status[0]}" -eq 0 ] || exit 2
exit "${status[2]}"
