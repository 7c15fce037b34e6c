#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs libfabric's own suite, an installed fabtests, with the provider `scif`.
#
#   run.sh PREFIX [SET...]
#
# PREFIX is the prefix of the installed fabtests: PREFIX/bin/runfabtests.sh and the programs beside
# it, PREFIX/lib of their libfabric. FI_PROVIDER_PATH names the directory of libscif-fi.so. SET is
# one of
#
#   unit functional short standard threaded multinode regression
#                  the lists of PREFIX/bin/runfabtests.sh, by its rules; threaded is new in 2.0
#   neg            the tests of unit that must end with FI_ENODATA
#   quick verify all
#                  fi_ubertest with test_configs/scif/{quick,verify,all}.test, fifty combinations
#                  at a time
#   complex        quick and verify
#   pytest         the tests of PREFIX/share/fabtests/pytest/shm, with its arguments, sizes and
#                  counts (pytest_list of suite.sh), without its fi_ubertest, which quick, verify
#                  and all contain
#   lnx            tagged messages over libfabric's provider lnx with this one as its only member
#                  (2.x)
#
# The default is unit, neg, functional and short.
#
# Safety: the runner of fabtests kills every process named fi_* when it ends. This script kills only
# its own processes. It runs in a PID namespace, which ends with it, and runs nothing without the
# right to create one. With a network namespace too (and `ip` for its loopback), several runs can be
# concurrent, although the ports of fabtests are fixed. Each test is printed with its result when it
# ends. Then follows the table: passes, failures, and tests not run with the reason. A combination
# of fi_ubertest counts as one test. The run fails when a test failed or none passed; with scif also
# when a test outside of scif.notrun was not run.
#
# Environment: PROV (scif); FT_ONLY, a bash pattern that names of tests must match; FT_EXCLUDE, a
# file of patterns instead of scif.exclude; FT_NOTRUN, a file of tests that may be not run, instead
# of scif.notrun (empty: all may, as with other providers); FT_TIMEOUT, seconds for a test (120);
# FT_LOG, file for the whole output (a temporary file); FT_ARGS, options for every program with a
# partner, such as -E. FT_NET is a network of FI_SCIF_NET: servers and clients then run on two hosts
# (../net/hosts.sh), for which hosts.exclude and hosts.notrun are the defaults. That needs root.
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
lists=$HERE/test_configs/scif/${FT_NET:+hosts}
[ -n "${FT_NET:-}" ] || lists+=scif
export EXCLUDE=${FT_EXCLUDE:-$lists.exclude}
[ -r "$EXCLUDE" ] || die "cannot read $EXCLUDE"
NOTRUN=${FT_NOTRUN-$([ "$PROV" != scif ] || echo "$lists.notrun")}
[ -z "$NOTRUN" ] || [ -r "$NOTRUN" ] || die "cannot read $NOTRUN"
export HERE CONFIGS=$HERE/test_configs/scif PATH="$BIN:$PATH"
export LD_LIBRARY_PATH="$PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# Otherwise every test except those of `neg` would count as not run.
if [ -x "$BIN/fi_info" ]; then
    "$BIN/fi_info" -p "$PROV" >/dev/null ||
        die "libfabric in $PREFIX has no provider $PROV: set FI_PROVIDER_PATH"
fi

if [ -n "${FT_NET:-}" ]; then
    . "$HERE/../net/hosts.sh"
    hosts_possible || die "no right to make hosts: not run"
    export FT_NET FI_SCIF_NET=$FT_NET
fi

isolate=(unshare --fork --pid --mount-proc --kill-child)
"${isolate[@]}" true 2>/dev/null ||
    isolate=(unshare --user --map-root-user --fork --pid --mount-proc --kill-child)
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
"${isolate[@]}" bash "$HERE/suite.sh" "$@" 2>&1 9>&- </dev/null | tee "$LOG" |
    awk -v notrun="$NOTRUN" -f "$HERE/table.awk"
status=("${PIPESTATUS[@]}")
[ "${FT_LOG:+x}" != x ] || echo "whole output: $LOG"
[ "${status[0]}" -eq 0 ] || exit 2
exit "${status[2]}"
