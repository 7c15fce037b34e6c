#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the Debian packages and installs them in clean roots of Debian 12 and 13 without a
# compiler: a job of the distribution's Open MPI as an ordinary user, the doctor, a program that
# loads libscif, and the removal. With `staged` the packages contain what is built already; SUITES
# names other suites.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/jobs.sh"
. "$(dirname "$0")/gates.sh"
. "$(dirname "$0")/roots.sh"
cd "$ROOT" || exit 1

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

# The speed, which depends on the load of the machine, may be called broken.
doctor() { # SUITE
    as_user env FI_PROVIDER=scif OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi scifctl doctor \
        >"$LOGS/debian-doctor-$1"
    (($? < 3)) && grep -E '^ok +Open MPI ' "$LOGS/debian-doctor-$1" &&
        grep -E '^ok +provider ' "$LOGS/debian-doctor-$1" &&
        ! grep -E '^broken ' "$LOGS/debian-doctor-$1" | grep -vE '^broken +(latency|bandwidth) '
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
need_roots
for suite in $SUITES; do
    packages=()
    for package in "$BUILD"/debian/*.deb; do
        [[ $package == *-dbgsym_* ]] || packages+=("$package")
    done
    case_of "$suite: a clean root" "debian-root-$suite" \
        rooted "$suite" fabtests/mpi/jobs/exchange.py "${packages[@]}"
    multiarch=/usr/lib/$(dpkg-architecture -q DEB_HOST_MULTIARCH)
    case_of "$suite: install, without a compiler" "debian-install-$suite" installed
    case_of "$suite: 2 ranks of Open MPI as an ordinary user" "debian-over-$suite" \
        over_scif "$suite"
    case_of "$suite: FI_PROVIDER=nosuch fails" "debian-control-$suite" control "$suite"
    case_of "$suite: doctor" "debian-doctor-$suite" doctor "$suite"
    case_of "$suite: libscif, libsisci, libkofi" "debian-libraries-$suite" libraries "$multiarch"
    case_of "$suite: nothing is left after a purge" "debian-removed-$suite" removed
done
gate_end
verdict
