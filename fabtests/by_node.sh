#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs a rank of a conformance case (`conformance --wrap`) on its own SCIF node, with the number of
# the rank.
set -u
for ((at = 1; at < $#; at++)); do
    next=$((at + 1))
    [ "${!at}" = --rank ] && export SCIF_NODE=${!next}
done
exec "$@"
