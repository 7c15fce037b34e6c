#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs one program under one MPI, half of its ranks on either of two hosts: run.sh STACK WAY RANKS
# SECONDS COMMAND..., as in jobs.sh, and as ../mpi/run.sh within one host. WAY scif uses the network
# NET or tcp: with the default, jobs of one host that others start could not reach these. HOSTS_RUN
# and HOSTS_SWITCH are those of the hosts (hosts.sh).
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
run=$HOSTS_RUN switch=$HOSTS_SWITCH
. "$here/../mpi/setup.sh"
. "$here/../mpi/stacks.sh"
. "$here/hosts.sh"
. "$here/jobs.sh"

[ $# -ge 5 ] || die "usage: run.sh STACK WAY RANKS SECONDS COMMAND..."
HOSTS_RUN=$run HOSTS_SWITCH=$switch
NET=${NET:-tcp} RUN_BY=exec between_hosts "$1" "$2" "$3" $(($3 / 2)) "$4" "${@:5}"
