#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Measures scif, shm and tcp in turns, with the newest available libfabric, from the mpich wheel.
# Arguments are passed to the program; see its `--help`. Then measures scif.h beside streams of the
# system, and libsisci beside memory and events of the system. Results are in build/results.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/mpi/setup.sh"
. "$here/mpi/stacks.sh"

find_cargo
need_build_packages
need_stack mpich5
build_release scif-fabtests libscif libsisci
"$ROOT/libscif/link.sh" "$TARGET/release/libscif_c.a" "$ROOT/build/lib" ||
    die "libscif does not link."
"$ROOT/libsisci/link.sh" "$TARGET/release/libsisci_c.a" "$ROOT/build/lib" ||
    die "libsisci does not link."
FI_PROVIDER_PATH=$PROVIDER_DIR "$TARGET/release/bench" \
    --lib "$(wheel_libfabric)/libfabric.so.1" --out "$RESULTS" "$@" || exit
rows=()
for option; do
    case $option in
        -h | --help) exit ;;
        --quick) rows=(bulk) ;;
    esac
done
"$TARGET/release/scif-conformance" --lib "$ROOT/build/lib/libscif.so.0" --bench "${rows[@]}" |
    tee "$RESULTS/scif-h.txt"
"${CC:-cc}" -std=c11 -O2 -Wall -Werror -pthread -D_REENTRANT -I"$ROOT/libsisci/include" \
    -o "$RESULTS/sisci-bench" "$ROOT/libsisci/conformance/c/bench.c" -L"$ROOT/build/lib" -lsisci ||
    die "the benchmark of libsisci does not compile."
SCIF_DOMAIN="bench-$$" LD_LIBRARY_PATH="$ROOT/build/lib" timeout 120 "$RESULTS/sisci-bench" |
    tee "$RESULTS/sisci.txt"
