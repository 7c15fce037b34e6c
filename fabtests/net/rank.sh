#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs a rank of a conformance case (`conformance --wrap`) on one of HOSTS_COUNT hosts (hosts.sh),
# by default 2: the ranks are dealt in turn. HOSTS_PLACES instead is a list of the hosts of the
# first ranks, the further ones are dealt in turn over the list. HOSTS_RUN is the directory of the
# hosts. HOSTS_UNDER is a command that runs each rank.
set -u
rank=0
for ((at = 1; at < $#; at++)); do
    next=$((at + 1))
    [ "${!at}" = --rank ] && rank=${!next}
done
read -ra places <<<"${HOSTS_PLACES:-$(seq -s ' ' "${HOSTS_COUNT:-2}")}"
host=${places[rank % ${#places[@]}]}
read -ra under <<<"${HOSTS_UNDER:-}"
# nsenter would stay stopped after a rank was stopped and continued, so another process waits for
# the rank. The rank ends with that process, and both with the program that runs the cases: a rank
# that polls would otherwise go on without it.
exec setpriv --pdeathsig KILL nsenter --no-fork -t "$(cat "$HOSTS_RUN/10.77.0.$host")" \
    -m -u -i -n -p bash -c 'setpriv --pdeathsig KILL "$@"; exit' bash "${under[@]}" "$@"
