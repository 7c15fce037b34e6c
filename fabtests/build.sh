#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the provider and the named packages, with their requirements. The provider is placed in
# build/provider/.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"

find_cargo
need_build_packages
build_release "$@"
echo "built $PROVIDER_DIR/libscif-fi.so; try: FI_PROVIDER_PATH=$PROVIDER_DIR fi_info -p scif"
