#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Makes the release build/dist/scif-fi-VERSION.tar.xz: the sources, configure, and the packages of
# others, so that it builds without network and without autoconf. Equal commits give equal bytes.
set -u -o pipefail
. "$(dirname "$0")/../fabtests/mpi/setup.sh"
cd "$ROOT" || exit 1
find_cargo
need_packages autoconf xz-utils python3
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
name=scif-fi-$version
stage=$BUILD/dist/$name

sources() {
    if [ -e .git ]; then
        git ls-files -z
    else
        find . \( -path ./target -o -path ./build -o -path ./vendor -o -path ./autom4te.cache \) \
            -prune -o -type f -not -path ./.cargo/config.toml -not -path ./configure \
            -not -path ./Makefile -not -path ./config.log -not -path ./config.status -print0
    fi
}

rm -rf "$BUILD/dist" && mkdir -p "$stage/.cargo" || exit 1
sources | xargs -0 cp --parents -t "$stage" || die "The sources cannot be copied."
(cd "$stage" && logged autoconf autoconf && rm -rf autom4te.cache) || die "autoconf failed."
if [ -e vendor ]; then
    cp -r vendor "$stage" && cp .cargo/config.toml "$stage/.cargo"
else
    CARGO="${CARGO[*]}" packaging/vendor.py "$stage/vendor" >"$stage/.cargo/config.toml" \
        2>"$LOGS/vendor.log"
fi || die "The packages of others cannot be copied (see $LOGS/vendor.log)."
# Time of all files, in seconds since 1970: that of the commit.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}"
tar -C "$BUILD/dist" --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
    --numeric-owner --mode=u+rwX,go+rX,go-w -c "$name" | xz -6 -T1 >"$stage.tar.xz" ||
    die "The archive cannot be written."
rm -rf "$stage"
(cd "$BUILD/dist" && sha256sum "$name.tar.xz" >"$name.tar.xz.sha256")
echo "$stage.tar.xz"
