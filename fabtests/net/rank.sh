#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs a rank of a conformance case (`conformance --wrap`) on one of two hosts (hosts.sh): the even
# ranks on the first, the odd ones on the second. HOSTS_RUN is the directory of the hosts.
set -u
rank=0
for ((at = 1; at < $#; at++)); do
    next=$((at + 1))
    [ "${!at}" = --rank ] && rank=${!next}
done
# nsenter would stay stopped after a rank was stopped and continued, so another process waits for
# the rank. The rank ends with that process.
exec nsenter --no-fork -t "$(cat "$HOSTS_RUN/10.77.0.$((rank % 2 + 1))")" -a \
    bash -c '"$@"; exit' bash "$@"
