#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs one program under MPICH, half of its ranks on either of two hosts: run.sh STACK PROVIDER
# RANKS SECONDS COMMAND..., as ../mpi/run.sh within one host. Provider scif uses tcp between them.
# HOSTS_RUN and HOSTS_SWITCH are those of the hosts (hosts.sh).
set -u -o pipefail
. "$(dirname "$0")/../mpi/setup.sh"

[ $# -ge 5 ] || die "usage: run.sh STACK PROVIDER RANKS SECONDS COMMAND..."
stack=$1 provider=$2 ranks=$3 limit=$4
shift 4
net=10.77.0
exec nsenter -t "$HOSTS_SWITCH" -n env PYTHONDONTWRITEBYTECODE=1 MPIR_CVAR_CH4_NETMOD=ofi \
    MPIR_CVAR_NOLOCAL=1 "FI_PROVIDER=$provider" "FI_PROVIDER_PATH=$PROVIDER_DIR" FI_SCIF_NET=tcp \
    SCIF_DOMAIN=hosts timeout -k 10 "$limit" "$BUILD/venv-$stack/bin/mpiexec.hydra" \
    -localhost "$net.254" -launcher ssh -launcher-exec "$HOSTS_RUN/start" \
    -hosts "$net.1,$net.2" -n "$ranks" -ppn $((ranks / 2)) "$@" </dev/null
