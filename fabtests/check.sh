#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Everything that must hold, from nothing: sets itself up, builds, and runs each gate. The last line is the sum.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"
. "$(dirname "$0")/mpi/jobs.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1

# Runs a command as a user who may do nothing special: no capabilities, 1024 descriptors. The checkout may lie where
# such a user cannot look, so what it needs is copied. Arguments: FILE... -- COMMAND with the copies' names.
as_nobody() {
    local room rc file
    room=$(mktemp -d) && chmod 755 "$room"
    mkdir -m 755 "$room/provider" && install -m 755 "$PROVIDER_DIR"/*.so "$room/provider"
    while [ "$1" != -- ]; do
        install -m 755 "$1" "$room" && shift
    done
    shift
    local who=()
    [ "$(id -u)" != 0 ] ||
        who=(setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs)
    (cd "$room" && ulimit -n 1024 && FI_PROVIDER_PATH=$room/provider HOME=$room "${who[@]}" "$@")
    rc=$?
    rm -rf "$room"
    return $rc
}

lists_provider() { # LIBRARY_DIRECTORY
    env LD_LIBRARY_PATH="$1" FI_PROVIDER_PATH="$PROVIDER_DIR" timeout 20 fi_info -p "$PROVIDER" | grep -q "provider: $PROVIDER\$"
}

conformance() { # LIBRARY_DIRECTORY
    env FI_PROVIDER_PATH="$PROVIDER_DIR" timeout -k 10 1500 "$TARGET/release/conformance" --lib "$1/libfabric.so.1" --prov "$PROVIDER"
}

formatted() { "${CARGO[@]}" fmt --all --check; }
linted() { "${CARGO[@]}" clippy --workspace --all-targets --locked --quiet -- -D warnings; }
unit_tests() { timeout -k 10 1500 "${CARGO[@]}" test --workspace --locked --no-fail-fast; }
loom_tests() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$TARGET/loom" \
        timeout -k 10 1200 "${CARGO[@]}" test -p scif-ring --release --locked --test loom
}

started=$SECONDS
need_build_packages
find_cargo
need_cargo_tools
need_stack mpich5 debian
echo "building the provider"
build_release scif-fi scif-fabtests
debian=$(debian_libfabric)
wheel=$(wheel_libfabric)

gate "format and lints"
case_of "rustfmt" fmt formatted
case_of "clippy, warnings denied" clippy linted
gate_end

gate "rules of the house"
cases_of "rooms, form, library" rules fabtests/rules.sh
gate_end

gate "unit tests"
cases_of "cargo test" test unit_tests
gate_end

gate "loom: the ring under every interleaving"
cases_of "loom" loom loom_tests
gate_end

gate "libfabric loads it"
case_of "fi_info -p $PROVIDER, Debian's libfabric" fi_info-debian lists_provider "$debian"
case_of "fi_info -p $PROVIDER, the libfabric of the mpich wheel" fi_info-wheel lists_provider "$wheel"
gate_end

for lib in debian wheel; do
    gate "conformance, ${lib/debian/Debian\'s} libfabric"
    cases_of "conformance" "conformance-$lib" conformance "${!lib}"
    gate_end
    gate "conformance as an ordinary user, ${lib/debian/Debian\'s} libfabric"
    cases_of "conformance, no capabilities, 1024 descriptors" "conformance-$lib-nobody" \
        as_nobody "$TARGET/release/conformance" "${!lib}/libfabric.so.1" -- \
        timeout -k 10 1500 ./conformance --lib ./libfabric.so.1 --prov "$PROVIDER"
    gate_end
done

for stack in debian debian-btl mpich5; do
    gate "MPI: $(stack_title $stack)"
    exchange_jobs $stack 2 4
    gate_end
done

printf '\n%d seconds\n' $((SECONDS - started))
verdict
