#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the Debian packages into build/debian, from the release and its copies of the packages of
# others, without network; lintian checks them. With `staged` it takes the programs and libraries
# that are built already, and makes no source package.
set -u -o pipefail
. "$(dirname "$0")/../../fabtests/mpi/setup.sh"
cd "$ROOT" || exit 1
HERE=$ROOT/packaging/debian/debian
OUT=$BUILD/debian
staged=${1:-}

find_cargo
need_build_packages
need_packages debhelper dpkg-dev lintian autoconf python3
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
tree=$OUT/scif-fi-$version
rm -rf "$OUT" && mkdir -p "$tree" || exit 1
if [ "$staged" = staged ]; then
    { [ ! -e .git ] && echo configure.ac || git ls-files; } | xargs cp --parents -t "$tree" &&
        (cd "$tree" && logged autoconf autoconf) || die "The sources cannot be copied."
    export CARGO_TARGET_DIR=$TARGET MAKE_ARGUMENTS=CARGO=true DEB_BUILD_OPTIONS=nocheck
    kind=(-b)
else
    packaging/dist.sh || exit 1
    cp "$BUILD/dist/scif-fi-$version.tar.xz" "$OUT/scif-fi_$version.orig.tar.xz" &&
        tar -C "$OUT" -xJf "$OUT/scif-fi_$version.orig.tar.xz" || die "The release cannot be read."
    kind=()
fi

# Text of a licence as a paragraph of debian/copyright.
paragraph() { sed -e 's/[[:space:]]*$//' -e 's/^$/./' -e 's/^/ /' "$1"; }
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}"
export SOURCE_DATE_EPOCH
cp -r "$HERE" "$tree" && cd "$tree/debian" &&
    sed "s/@RUST@/$(rust_needed)/" "$HERE/control" >control &&
    sed -e "s/@VERSION@/$version/" -e "s/@DATE@/$(date -u -R -d "@$SOURCE_DATE_EPOCH")/" \
        changelog.in >changelog && rm changelog.in &&
    paragraph "$ROOT/LICENSES/BSD-2-Clause.txt" >bsd &&
    sed -i -e '/@BSD@/{r bsd' -e 'd}' copyright && rm bsd &&
    CARGO="${CARGO[*]}" "$ROOT/packaging/notices.py" THIRD-PARTY.txt ||
    die "debian/ cannot be written."
cd "$tree" || exit 1
# debhelper sets another HOME. -d: cargo may be rustup's.
export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
logged dpkg-buildpackage dpkg-buildpackage -d -us -uc "${kind[@]}" ||
    die "The packages cannot be built (see $LOGS/dpkg-buildpackage.log)."
cd "$OUT" || exit 1
root=()
[ "$(id -u)" != 0 ] || root=(--allow-root)
logged lintian lintian "${root[@]}" --fail-on error --tag-display-limit 0 ./*.changes ||
    die "lintian found errors (see $LOGS/lintian.log)."
rm -rf "$tree"
ls "$OUT"/*.deb
