#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs a rank in a pid namespace of its own with its own /proc, as a container does: a rank of a
# conformance case (`conformance --wrap`), or with options alone a rank of RANK_PROGRAM
# (`faults --rank-program`). OWN_PIDS is the command that makes the namespace.
set -u
[[ ${1:-} != --* ]] || set -- "$RANK_PROGRAM" "$@"
# Process 1 of a namespace ignores signals from within, also SIGKILL: the rank is process 2.
# shellcheck disable=SC2086 # words of a command
exec $OWN_PIDS bash -c '"$@"; exit' bash "$@"
