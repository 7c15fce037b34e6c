#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the release in a root of Debian 13, by that distribution's Rust and without network: the
# workspace, its unit tests, a conformance subset with its libfabric. Then the same for arm64 by its
# cross compiler: under qemu run the unit tests of the rings, a conformance subset with arm64's
# libfabric, and jobs of arm64's Open MPI.
#   debian_rust.sh           both
#   debian_rust.sh native    without arm64
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/gates.sh"
. "$(dirname "$0")/roots.sh"
cd "$ROOT" || exit 1

ARM=aarch64-unknown-linux-gnu
NEEDED=(iproute2 cargo rustc gcc libc6-dev pkg-config libfabric-dev libfabric-bin libclang-dev
    gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libstd-rust-dev:arm64
    libfabric1:arm64 openmpi-bin libopenmpi-dev libopenmpi40:arm64)
CASES=(getinfo/ msg/send tagged/inject tagged/truncation peek/ rma/write rma/read atomic/base cq/
    cntr/ death/sending_64k death/idle)
ARM_CASES=(getinfo/ msg/send tagged/ peek/ rma/write rma/read atomic/base cq/ cntr/
    death/sending death/idle)

# The root stays for the next run, with what was built in it.
prepared() {
    local base=$ROOTS/trixie-rust
    if [ ! -e "$base/.complete" ]; then
        rm -rf "$base" && rooted trixie "$RELEASE" && in_root dpkg --add-architecture arm64 &&
            in_root apt-get update &&
            in_root apt-get install -y --no-install-recommends "${NEEDED[@]}" &&
            in_root apt-get clean && echo "127.0.0.1 localhost" >"$CLEAN/etc/hosts" &&
            mv "$CLEAN" "$base" && touch "$base/.complete" || return 1
    fi
    trap - EXIT
    CLEAN=$base
    rm -rf "$CLEAN/source" && mkdir "$CLEAN/source" && cp "$RELEASE" "$CLEAN/packages" &&
        tar -C "$CLEAN/source" --strip-components=1 -xJf "$RELEASE"
}

# In the root, without network.
built() { # COMMAND...
    in_root unshare --net sh -c 'ip link set lo up && cd /source && exec "$@"' sh \
        env CARGO_TARGET_DIR=/target CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0 \
        PKG_CONFIG_ALLOW_CROSS=1 \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" "$@"
}

is_declared() { [[ $(in_root cargo --version) == "cargo $(rust_needed)."* ]]; }

conformance() {
    built sh -c 'mkdir -p /provider && cp /target/debug/libscif_fi.so /provider/libscif-fi.so &&
        export FI_PROVIDER_PATH=/provider && exec /target/debug/conformance \
            --lib "/usr/lib/$(gcc -print-multiarch)/libfabric.so.1" "$@"' sh "${CASES[@]}"
}

arm_provider() {
    built sh -c "mkdir -p /provider-arm64 &&
        cp /target/$ARM/debug/libscif_fi.so /provider-arm64/libscif-fi.so"
}

arm_conformance() {
    built env FI_PROVIDER_PATH=/provider-arm64 timeout -k 10 1800 \
        qemu-aarch64 "/target/$ARM/debug/conformance" --wrap qemu-aarch64 \
        --lib /usr/lib/aarch64-linux-gnu/libfabric.so.1 "${ARM_CASES[@]}"
}

arm_program() {
    built sh -c 'aarch64-linux-gnu-gcc -O1 -Wall -Werror fabtests/mpi/exchange.c -o /tmp/exchange \
        -I"$(echo /usr/lib/*/openmpi/include)" -L/usr/lib/aarch64-linux-gnu -l:libmpi.so.40 \
        -Wl,--allow-shlib-undefined'
}

# A job of the launcher of this machine, whose ranks are arm64. Both sides speak PMIx over sockets:
# its tables in shared memory have pointers of one machine.
arm_job() { # PROVIDER RANKS
    built env PMIX_MCA_gds=hash OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
        PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe FI_PROVIDER_PATH=/provider-arm64 \
        FI_PROVIDER="$1" FI_SCIF_STATS=1 timeout -k 10 300 \
        mpirun -n "$2" --mca pml cm --mca mtl ofi qemu-aarch64 /tmp/exchange 2>&1
}

arm_exchange() { # RANKS
    local printed
    printed=$(arm_job scif "$1") || { echo "$printed"; return 1; }
    echo "$printed"
    grep -q "^exchange: $1 ranks, [1-9][0-9]* checks, errors 0$" <<<"$printed" &&
        (($(grep -c '^scif: endpoint .* sent [1-9]' <<<"$printed") == $1))
}

arm_control() { ! arm_job nosuch 2; }

is_arm() { built sh -c "readelf -h /target/$ARM/debug/libscif_fi.so" | grep AArch64; }

gate "Debian 13's Rust"
RELEASE=$BUILD/dist/scif-fi-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml).tar.xz
SUITES=trixie
find_cargo
need_roots
if [ -n "$SUITES" ]; then
    case_of "make dist" rust-dist packaging/dist.sh
    case_of "a root with its packages" rust-root prepared
    case_of "it has the version that Cargo.toml declares" rust-version is_declared
    case_of "the workspace" rust-build built cargo build --workspace --locked --offline
    cases_of "unit tests" rust-unit built cargo test --workspace --lib --locked --offline
    cases_of "conformance, its libfabric" rust-conformance conformance
    if [ "${1:-}" != native ]; then
        case_of "arm64: the provider, the tests" rust-arm built \
            cargo build --target $ARM -p scif-fi -p scif-fabtests --locked --offline
        case_of "arm64: it is" rust-arm-file is_arm
        # Optimized: each return costs the emulator longer than a store stays in a store buffer.
        cases_of "arm64: unit and litmus tests of the rings, under qemu" rust-arm-ring built \
            env CARGO_PROFILE_TEST_OPT_LEVEL=2 cargo test --target $ARM -p scif-ring --lib \
            --test litmus --locked --offline
        case_of "arm64: the provider's directory" rust-arm-provider arm_provider
        cases_of "arm64: conformance, its libfabric, under qemu" rust-arm-conformance \
            arm_conformance
        case_of "arm64: a program for its Open MPI" rust-arm-program arm_program
        for ranks in 2 4; do
            case_of "arm64: Open MPI, $ranks ranks" "rust-arm-job-$ranks" arm_exchange $ranks
        done
        case_of "arm64: FI_PROVIDER=nosuch fails" rust-arm-control arm_control
    fi
fi
gate_end
verdict
