#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs a rank of an MPI job on one of two SCIF nodes, by the parity of its number.
set -u
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-}}
if [ -z "$rank" ]; then
    echo "by_node.sh: neither OMPI_COMM_WORLD_RANK nor PMI_RANK names the rank" >&2
    exit 2
fi
export SCIF_NODE=$((rank % 2))
exec "$@"
