#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Makes the release and builds it as a packager does, without network and with an empty home of
# cargo: configure, make, unit tests, make install, make uninstall, and the same release from it.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1
ROOM=$BUILD/distcheck

# Without network where this user may make such a namespace; cargo itself is forbidden to use it.
OFFLINE=(unshare --net)
"${OFFLINE[@]}" true 2>/dev/null || OFFLINE=()
offline() { # COMMAND...
    (cd "$ROOM/source" && env -u CARGO_TARGET_DIR CARGO_HOME="$ROOM/cargo" CARGO_NET_OFFLINE=true \
        CARGO="${CARGO[*]}" "${OFFLINE[@]}" "$@")
}

unpacked() {
    rm -rf "$ROOM" && mkdir -p "$ROOM/source" "$ROOM/cargo" &&
        tar -C "$ROOM/source" --strip-components=1 -xJf "$RELEASE" &&
        [ -x "$ROOM/source/configure" ]
}

lists_scif() {
    FI_PROVIDER_PATH=$1 FI_PROVIDER=scif timeout 20 fi_info -p scif >"$ROOM/info" &&
        grep 'provider: scif' "$ROOM/info"
}

# The release of the unpacked sources is the same archive.
again() {
    SOURCE_DATE_EPOCH=$(tar -tvJf "$RELEASE" --full-time --utc | awk 'NR == 1 { print $4, $5 }' |
        xargs -I{} date -u -d {} +%s) offline packaging/dist.sh &&
        cmp "$RELEASE" "$ROOM/source/build/dist/${RELEASE##*/}"
}

vendored() { (cd "$ROOM/source" && find vendor -type f | sort | sha256sum); }

# The clean of a Debian build leaves vendor/ as it is: cargo verifies each of its files.
debian_clean() {
    local before debian=$ROOM/source/debian
    before=$(vendored) && cp -r packaging/debian/debian "$debian" &&
        sed -e 's/@VERSION@/0/' -e "s/@DATE@/$(date -R)/" "$debian/changelog.in" \
            >"$debian/changelog" &&
        (cd "$ROOM/source" && debian/rules clean) && rm -r "$debian" &&
        [ "$(vendored)" = "$before" ]
}

find_cargo
need_build_packages
need_packages debhelper
RELEASE=$BUILD/dist/scif-fi-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml).tar.xz
gate "release"
[ ${#OFFLINE[@]} -gt 0 ] || echo "     cargo is offline; this user may not leave the network"
case_of "make dist" dist packaging/dist.sh
case_of "it unpacks, with configure" dist-unpack unpacked
case_of "make dist of it gives the same bytes" dist-again again
case_of "the clean of a Debian build leaves vendor/" dist-clean debian_clean
case_of "configure" dist-configure offline ./configure --prefix=/usr
case_of "make" dist-make offline make
case_of "unit tests of the rings" dist-test offline "${CARGO[@]}" test --locked -p scif-ring
case_of "make install" dist-install offline make install DESTDIR="$ROOM/root"
case_of "libfabric lists the provider" dist-lists lists_scif "$ROOM/root/usr/lib/libfabric"
case_of "make uninstall" dist-uninstall offline make uninstall DESTDIR="$ROOM/root"
case_of "nothing is left" dist-left sh -c '! find "$1" -not -type d | grep .' sh "$ROOM/root"
rm -rf "$ROOM/source/target"
gate_end
verdict
