#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the documents as a site, build/docs/book/index.html, with mdBook. Without one in PATH, it
# is installed below build/tools. Then checks the links of the site.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
cd "$ROOT" || exit 1
# Version of mdBook that is installed; one in PATH is used whatever its version is.
MDBOOK=0.4.52

need_packages python3
mdbook=$(command -v mdbook) || mdbook=$BUILD/tools/bin/mdbook
if ! "$mdbook" --version >/dev/null 2>&1; then
    find_cargo
    need_packages gcc libc6-dev
    echo "installing mdBook $MDBOOK, which takes minutes"
    # Its objects lie apart from those of this tree, and are not needed afterwards.
    logged mdbook env CARGO_TARGET_DIR="$BUILD/tools/target" "${CARGO[@]}" install mdbook \
        --version "$MDBOOK" --locked --no-default-features --features search \
        --root "$BUILD/tools" ||
        die "mdBook could not be installed (see $LOGS/mdbook.log)."
    rm -rf "$BUILD/tools/target"
fi
fabtests/docs.py check || exit 1
fabtests/docs.py stage "$BUILD/docs" || exit 1
logged book "$mdbook" build "$BUILD/docs" || die "mdBook failed (see $LOGS/book.log)."
fabtests/docs.py built "$BUILD/docs" || exit 1
echo "build/docs/book/index.html"
