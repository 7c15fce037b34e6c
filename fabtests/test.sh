#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the provider and runs conformance cases by name: test.sh CASE [OPTION...]
#   test.sh peek/finds              every case whose name contains this
#   test.sh --exact msg/send         this case alone
#   test.sh rma/ --repeat 20         options are those of the program conformance (--help)
# LIBFABRIC selects the libfabric.so.1. The default is that of the mpich wheel, if make check has
# fetched it, or the system's.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"

(($# > 0)) || die "test.sh: no case named; target/release/conformance --list names them all."
find_cargo
need_build_packages
build_release scif-fabtests
wheel=$(wheel_libfabric 2>/dev/null)
[ -e "$wheel/libfabric.so.1" ] || wheel=$(debian_libfabric)
FI_PROVIDER_PATH=$PROVIDER_DIR exec "$TARGET/release/conformance" \
    --lib "${LIBFABRIC:-$wheel/libfabric.so.1}" --prov "$PROVIDER" "$@"
