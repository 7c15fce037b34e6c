#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Tests of the whole project, from a clean checkout: installs requirements, builds, and runs gates.
# The last line is the sum.
#   check.sh            the gates of the first tier, for every change
#   check.sh --all      the second tier as well; with CHECK_SECONDS=N only its gates that are
#                       expected to end within N seconds in total
#   check.sh GATE...    these gates, such as: check.sh lints unit
#   check.sh --list     the names of the gates
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"
. "$(dirname "$0")/mpi/jobs.sh"
. "$(dirname "$0")/mpi/report.sh"
. "$(dirname "$0")/mpi/trace.sh"
. "$(dirname "$0")/gates.sh"
. "$(dirname "$0")/check_gates.sh"
cd "$ROOT" || exit 1

TIER_1=(lints rules unit scifctl libscif libsisci ioctls driver scif_calls loads conformance_wheel
    debian_sample mpi mpi_restricted hosts_quick kofi faults)
# Gates with their duration in seconds on 2 cores.
TIER_2=(confined_wheel:115 ordinary_wheel:115 conformance_libkofi:115 ordinary_libkofi:115
    versions:75 devices:75 driver_mpi:60 calls_mpi:100 libscif_strict:25 memcheck:25 loom:100
    loom_kofi:25 installation:450 pid_namespaces:35 hosts:320 packages:15 recipes:10
    conformance_driver:900 conformance_calls:500 conformance_mpss:900 conformance_device:900
    conformance_mpss_device:900 conformance_sisci:150 sisci_long:40
    conformance_debian:620 ordinary_debian:620 hosts_suites:1800 hosts_mpi4py:900
    pip_wheel:300 newcomer:400 debian_packages:300 docs:400 distcheck:450 debian_rust:400)

case ${1:-} in
    --list) printf '%s\n' "${TIER_1[@]}" "${TIER_2[@]%:*}" && exit ;;
    --all) first=("${TIER_1[@]}") second=("${TIER_2[@]}") ;;
    '') first=("${TIER_1[@]}") second=() ;;
    *) first=("$@") second=() ;;
esac
for name in "${first[@]}"; do
    [[ " ${TIER_1[*]} ${TIER_2[*]%:*} " == *" $name "* ]] ||
        die "check.sh: no gate $name; check.sh --list names them."
done

started=$SECONDS
find_cargo
need_build_packages
need_packages g++ autoconf valgrind iproute2
need_cargo_tools
need_stack mpich5 debian
echo "building the provider"
build_release scif-fabtests scif-fuzz libscif libsisci scifdev scifctl libkofi
logged kofi-link fabtests/kofi/check.sh link ||
    die "libkofi cannot be linked (see $LOGS/kofi-link.log)."
"$ROOT/libscif/link.sh" "$TARGET/release/libscif_c.a" "$ROOT/build/lib" ||
    die "libscif does not link."
"$ROOT/libsisci/link.sh" "$TARGET/release/libsisci_c.a" "$ROOT/build/lib" ||
    die "libsisci does not link."
install -m 755 "$TARGET/release/libscifdev.so" "$ROOT/build/lib/libscifdev.so"
debian=$(debian_libfabric)
wheel=$(wheel_libfabric)

for name in "${first[@]}"; do
    "$name"
    gate_end
done
left_out=()
for name in "${second[@]}"; do
    if ((SECONDS - started + ${name#*:} > ${CHECK_SECONDS:-1000000})); then
        left_out+=("${name%:*}")
        continue
    fi
    "${name%:*}"
    gate_end
done

if [ "$(id -u)" = 0 ] && [ -n "$ORDINARY" ]; then
    printf '\nnot tried here: an ordinary user (%s)\n' "$ORDINARY"
fi
[ -n "$SMALL_SHM" ] || printf '\nnot tried here: a small /dev/shm (no mount is permitted)\n'
[ ${#left_out[@]} = 0 ] ||
    printf '\nnot run within CHECK_SECONDS=%s: %s\n' "$CHECK_SECONDS" "${left_out[*]}"
printf '\n%d seconds\n' $((SECONDS - started))
verdict
