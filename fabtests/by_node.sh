#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs a rank of a conformance case (`conformance --wrap`) on a SCIF node of its own, the one with its number.
set -u
for ((at = 1; at < $#; at++)); do
    next=$((at + 1))
    [ "${!at}" = --rank ] && export SCIF_NODE=${!next}
done
exec "$@"
