#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs one program under one MPI over one provider: run.sh STACK PROVIDER RANKS SECONDS COMMAND...,
# as in stacks.sh. Its requirements must be installed already.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/setup.sh"
. "$here/stacks.sh"

[ $# -ge 5 ] || die "usage: run.sh STACK PROVIDER RANKS SECONDS COMMAND..."
RUN_BY=exec run_mpi "$@"
