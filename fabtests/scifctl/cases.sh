#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Cases of the tests of scifctl, sourced. The caller sets room, a directory for output, and prints
# the numbers of good and bad cases.
good=0 bad=0

case_of() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@" >"$room/out" 2>&1; then
        good=$((good + 1)) && echo "ok   $what"
    else
        bad=$((bad + 1)) && echo "FAIL $what" && sed 's/^/     /' "$room/out"
    fi
}
