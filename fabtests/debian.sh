#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the Debian packages and installs them in clean roots of Debian 12 and 13 without a
# compiler: a job of the distribution's Open MPI as an ordinary user, the doctor, a program that
# loads libscif, and the removal. With `staged` the packages contain what is built already; SUITES
# names other suites. Roots are made by debootstrap, which only root can do.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/jobs.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1
SUITES=${SUITES:-bookworm trixie}
# The mirror of this system, in either form of apt's lists.
MIRROR=$(grep -hoE '^(URIs:|deb) .*' /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ')
ROOTS=$BUILD/roots
USER_OF_JOBS=65534

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

# A clean root, copied from one that is kept.
rooted() { # SUITE
    local base=$ROOTS/$1
    CLEAN=$ROOTS/clean
    if [ ! -e "$base/.complete" ]; then
        rm -rf "$base" && mkdir -p "$ROOTS" &&
            debootstrap --variant=minbase "$1" "$base" "$MIRROR" &&
            touch "$base/.complete" || return 1
    fi
    rm -rf "$CLEAN" && cp -a "$base" "$CLEAN" && cp /etc/resolv.conf "$CLEAN/etc/resolv.conf" &&
        mkdir "$CLEAN/packages" && cp "$BUILD"/debian/*.deb fabtests/mpi/jobs/exchange.py \
        "$CLEAN/packages" && rm "$CLEAN"/packages/*-dbgsym_*
}

installed() {
    in_root apt-get update && in_root apt-get install -y --no-install-recommends openmpi-bin \
        python3-mpi4py libfabric-bin && in_root sh -c \
        'apt-get install -y --no-install-recommends /packages/*.deb && ! command -v cc gcc'
}

job() { # SUITE [VARIABLE=VALUE...]
    local log=$LOGS/debian-job-$1
    as_user env FI_SCIF_STATS=1 FI_PROVIDER=scif OMPI_MCA_rmaps_base_oversubscribe=1 "${@:2}" \
        timeout -k 10 120 mpirun --mca pml cm --mca mtl ofi -n 2 python3 /packages/exchange.py \
        >"$log" 2>&1 </dev/null
}

over_scif() { # SUITE
    job "$1" && grep '^exchange: 2 ranks, [1-9][0-9]* checks, errors 0' "$LOGS/debian-job-$1" &&
        (($(traffic "$LOGS/debian-job-$1") >= 2))
}

# Without the provider the command fails, so no other transport stepped in.
control() { ! job "$1" FI_PROVIDER=nosuch && ! grep '^exchange:' "$LOGS/debian-job-$1"; }

doctor() { # SUITE
    as_user env FI_PROVIDER=scif OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi scifctl doctor \
        >"$LOGS/debian-doctor-$1"
    (($? < 2)) && grep -E '^ok +Open MPI ' "$LOGS/debian-doctor-$1" &&
        grep -E '^ok +provider ' "$LOGS/debian-doctor-$1"
}

libraries() {
    in_root python3 -c '
import ctypes
scif = ctypes.CDLL("libscif.so.0")
assert scif.scif_open() >= 0
ctypes.CDLL("libsisci.so")
ctypes.CDLL("libkofi.so")' && in_root env LD_LIBRARY_PATH="$1/kofi" fi_info -p scif
}

removed() {
    in_root sh -c 'dpkg --purge libscif-dev scif-tools libfabric-scif libkofi libsisci0 libscif0 &&
        ! find / -xdev \( -name "*scif*" -o -name "*kofi*" -o -name "*sisci*" \) \
            -not -path "/packages/*" -not -path "/proc/*" | grep .'
}

gate "Debian packages"
case_of "they are built, and lintian finds no error" debian-build packaging/debian/build.sh "$@"
if [ "$(id -u)" != 0 ] || ! unshare --mount --pid --fork true 2>/dev/null || [ -z "$MIRROR" ]; then
    echo "not tried here: clean roots (as root, with debootstrap and mount namespaces)"
    SUITES=
else
    need_packages debootstrap
fi
for suite in $SUITES; do
    case_of "$suite: a clean root" "debian-root-$suite" rooted "$suite" || continue
    CLEAN=$ROOTS/clean
    multiarch=/usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)
    case_of "$suite: install, without a compiler" "debian-install-$suite" installed
    case_of "$suite: 2 ranks of Open MPI as an ordinary user" "debian-over-$suite" \
        over_scif "$suite"
    case_of "$suite: FI_PROVIDER=nosuch fails" "debian-control-$suite" control "$suite"
    case_of "$suite: doctor" "debian-doctor-$suite" doctor "$suite"
    case_of "$suite: libscif, libsisci, libkofi" "debian-libraries-$suite" libraries "$multiarch"
    case_of "$suite: nothing is left after a purge" "debian-removed-$suite" removed
done
rm -rf "$ROOTS/clean"
gate_end
verdict
