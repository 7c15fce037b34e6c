# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after mpi/setup.sh: clean roots of Debian, in which packages are tried. They are made by
# debootstrap, which only root can do, and kept below build/roots; each trial has a copy.

SUITES=${SUITES-bookworm trixie}
# The mirror of this system, in either form of apt's lists.
MIRROR=$(grep -hoE '^(URIs:|deb) .*' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ')
ROOTS=$BUILD/roots
CLEAN=$ROOTS/clean-$$
USER_OF_JOBS=65534
trap 'rm -rf "$CLEAN"' EXIT

# Leaves SUITES empty, with a line, where no root can be made.
need_roots() {
    if [ "$(id -u)" != 0 ] || ! unshare --mount --pid --fork true 2>/dev/null ||
        [ -z "$MIRROR" ]; then
        echo "not tried here: clean roots (as root, with debootstrap and mount namespaces)"
        SUITES=
    else
        need_packages debootstrap
    fi
}

# in_root COMMAND...: in the root, with its own mounts, which end with the command.
in_root() {
    unshare --mount --pid --fork --kill-child sh -c '
        root=$1 && shift && mount --make-rprivate / &&
            mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" &&
            mount -t tmpfs tmpfs "$root/dev/shm" && exec chroot "$root" env -i \
            PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive "$@"' sh "$CLEAN" "$@"
}

as_user() {
    in_root setpriv --reuid=$USER_OF_JOBS --regid=$USER_OF_JOBS --clear-groups --no-new-privs "$@"
}

# rooted SUITE FILE...: a clean root with these files in its directory /packages.
rooted() {
    local base=$ROOTS/$1
    if [ ! -e "$base/.complete" ]; then
        rm -rf "$base" && mkdir -p "$ROOTS" &&
            debootstrap --variant=minbase "$1" "$base" "$MIRROR" &&
            touch "$base/.complete" || return 1
    fi
    rm -rf "$CLEAN" && cp -a "$base" "$CLEAN" && cp /etc/resolv.conf "$CLEAN/etc/resolv.conf" &&
        mkdir "$CLEAN/packages" && cp "${@:2}" "$CLEAN/packages"
}
