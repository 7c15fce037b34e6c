#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Everything that must hold, from nothing: sets itself up, builds, and runs each gate. The last line is the sum.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/stacks.sh"
. "$(dirname "$0")/mpi/jobs.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1

NOBODY=(--reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs)
# Why a command needs no other user, or can have none.
ORDINARY=
if [ "$(id -u)" != 0 ]; then
    ORDINARY="as the user who runs this"
elif ! setpriv "${NOBODY[@]}" true 2>/dev/null; then
    ORDINARY="as root: setpriv cannot change to another user here"
fi

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
    [ -n "$ORDINARY" ] || who=(setpriv "${NOBODY[@]}")
    (cd "$room" && ulimit -n 1024 && FI_PROVIDER_PATH=$room/provider HOME=$room "${who[@]}" "$@")
    rc=$?
    rm -rf "$room"
    return $rc
}

# The same for MPI jobs, which find their files by where the checkout and Python are. Where such a user cannot look, those are
# shown again in a name space in which the way to them is open.
as_nobody_here() {
    local who=() way=() closed=() path room rc
    room=$(mktemp -d) && chmod 1777 "$room"
    if [ -z "$ORDINARY" ]; then
        who=(setpriv "${NOBODY[@]}")
        for path in "$ROOT" "$("$BUILD/venv-mpich5/bin/python" -c 'import sys; print(sys.base_prefix)')"; do
            "${who[@]}" test -x "$path" || closed+=("$path")
        done
        [ ${#closed[@]} = 0 ] || way=(unshare -m bash -c "$OPEN_WAYS" bash "$room" "${#closed[@]}" "${closed[@]}")
    fi
    (ulimit -n 1024 && export HOME=$room TMPDIR=$room && exec "${way[@]}" "${who[@]}" "$@")
    rc=$?
    rm -rf "$room"
    return $rc
}
# Arguments: ROOM COUNT PATH... COMMAND...
OPEN_WAYS='
    room=$1 count=$2 here=$PWD; shift 2; paths=("${@:1:count}"); shift "$count"
    for i in "${!paths[@]}"; do mkdir "$room/$i" && mount --bind "${paths[i]}" "$room/$i" || exit 1; done
    for i in "${!paths[@]}"; do
        until [ -d "${paths[i]}" ] && setpriv --reuid=65534 --clear-groups test -x "${paths[i]}"; do
            up=${paths[i]}
            while up=$(dirname "$up"); setpriv --reuid=65534 --clear-groups test ! -x "$(dirname "$up")"; do :; done
            [ -d "$up" ] && ! setpriv --reuid=65534 --clear-groups test -x "$up" && { mount -t tmpfs -o mode=755 tmpfs "$up" || exit 1; }
            mkdir -p "${paths[i]}" && mount --bind "$room/$i" "${paths[i]}" || exit 1
        done
    done
    cd "$here" && exec "$@"'

lists_provider() { # LIBRARY_DIRECTORY
    shows "provider: $PROVIDER\$" env LD_LIBRARY_PATH="$1" FI_PROVIDER_PATH="$PROVIDER_DIR" timeout 20 fi_info -p "$PROVIDER"
}

lists_settings() { # LIBRARY_DIRECTORY
    shows '^# FI_SCIF_STATS' env LD_LIBRARY_PATH="$1" FI_PROVIDER_PATH="$PROVIDER_DIR" timeout 20 fi_info -e
}

conformance() { # LIBRARY_DIRECTORY [WRAPPER...]
    FI_PROVIDER_PATH=$PROVIDER_DIR "${@:2}" timeout -k 10 1500 "$TARGET/release/conformance" --lib "$1/libfabric.so.1" --prov "$PROVIDER"
}

# The provider over the driver that libscifdev.so stands in for. In a child of a fork that library keeps its parent's endpoints
# alive, as the guide has it for SCIF: cases that kill a process and not its child are not for it.
OVER_DRIVER=(msg/send msg/inject msg/delivery msg/to_itself msg/both_at_once msg/unexpected_flood msg/cancel tagged/inject tagged/ignore
    tagged/same tagged/truncation tagged/directed rma/write rma/read bad_rma/outside atomic/base atomic/inject atomic/order cq/ cntr/
    death/sending death/receiving_64k death/writing_4m death/idle death/asleep death/by_closing death/unaccepted
    meeting/closed_before av/lookup av/text ep/name)
OVER_DRIVER_NODES=(msg/send tagged/senddata rma/write rma/read atomic/base cntr/rma death/sending_8 death/idle av/lookup)
STAND_IN=(env SCIF_DOMAIN=check FI_SCIF_TRANSPORT=kernel LD_PRELOAD="$ROOT/build/lib/libscifdev.so" FI_PROVIDER_PATH="$PROVIDER_DIR")
over_driver() { # DEVICE CASES... [OPTION...]
    "${STAND_IN[@]}" SCIF_DEVICE="$1" timeout -k 10 600 "$TARGET/release/conformance" \
        --lib "$debian/libfabric.so.1" --prov "$PROVIDER" --skip fork "${@:2}"
}

# Runs a command without what containers like to withhold: the right to some system calls, and more than 64 MiB of
# /dev/shm where a mount is permitted here. Arguments are those of the program deny.
confined() {
    local room=()
    [ -z "$SMALL_SHM" ] || room=(unshare -m sh -c "$SMALL_SHM && exec \"\$@\"" sh)
    "${room[@]}" "$TARGET/release/deny" "$@"
}
SMALL_SHM='mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm'
unshare -m sh -c "$SMALL_SHM" 2>/dev/null || SMALL_SHM=

# The third host has the provider inside.
conformance_kofi() {
    env -u FI_PROVIDER_PATH timeout -k 10 1500 "$TARGET/release/conformance" --lib "$BUILD/kofi/kofi/libfabric.so.1" --prov "$PROVIDER"
}

formatted() { "${CARGO[@]}" fmt --all --check; }
# Other versions of Rust have other lints: as warnings they count only in the one the sources are written for.
linted() { "${CARGO[@]}" clippy --workspace --all-targets --locked --quiet -- "${LINTS[@]}"; }
unit_tests() { timeout -k 10 1500 "${CARGO[@]}" test --workspace --locked --no-fail-fast; }
scif_conformance() { # VARIABLE=VALUE...
    env SCIF_DOMAIN=check SCIF_TRANSPORT=soft "$@" timeout -k 10 1200 "$TARGET/release/scif-conformance" --lib "$ROOT/build/lib/libscif.so.0"
}
loom_tests() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$TARGET/loom" \
        timeout -k 10 1200 "${CARGO[@]}" test -p "$1" --release --locked --test loom
}

started=$SECONDS
find_cargo
need_build_packages
need_packages g++ autoconf valgrind
need_cargo_tools
need_stack mpich5 debian
echo "building the provider"
build_release scif-fi scif-fabtests scif-fuzz libscif scifdev scifctl libkofi
logged kofi-link fabtests/kofi/check.sh link || die "libkofi cannot be linked (see $LOGS/kofi-link.log)."
"$ROOT/libscif/link.sh" "$TARGET/release/libscif_c.a" "$ROOT/build/lib" || die "libscif does not link."
install -m 755 "$TARGET/release/libscifdev.so" "$ROOT/build/lib/libscifdev.so"
debian=$(debian_libfabric)
wheel=$(wheel_libfabric)

gate "format and lints"
case_of "rustfmt" fmt formatted
if [[ $("${CARGO[@]}" --version) == "cargo $(rust_needed)."* ]]; then
    LINTS=(-D warnings)
    case_of "clippy, warnings denied" clippy linted
else
    LINTS=()
    case_of "clippy, warnings shown: this is not Rust $(rust_needed)" clippy linted
fi
gate_end

gate "rules of the house"
cases_of "rooms, form, library" rules fabtests/rules.sh
gate_end

gate "unit tests"
cases_of "cargo test" test unit_tests
gate_end

gate "loom: the ring under every interleaving"
cases_of "loom" loom loom_tests scif-ring
gate_end

gate "loom: the registry of providers under every interleaving"
cases_of "loom" loom-kofi loom_tests kofi
grep -h ' schedules$' "$LOGS/loom-kofi.log"
gate_end

gate "the installation, and the examples against it"
cases_of "configure, install, install-strip, uninstall, --disable-provider" install fabtests/install.sh "$BUILD"
case_of "cargo build --examples" examples "${CARGO[@]}" build --release --locked -p scif --examples
cases_of "examples in C, C++ and Rust, memcheck" scif-examples examples/run.sh "$BUILD/dest/usr/local/lib/pkgconfig" "$TARGET/release/examples"
gate_end

gate "scifctl"
cases_of "what it shows and does" scifctl fabtests/scifctl/check.sh "$TARGET/release/scifctl"
gate_end

gate "conformance of libscif"
cases_of "scif-conformance" scif-conformance scif_conformance
cases_of "scif-conformance, every number looked up" scif-conformance-strict scif_conformance SCIF_STRICT_FD=1
cases_of "programs in C and C++" scif-conformance-c libscif/conformance/c/run.sh "$ROOT/build/lib"
gate_end

gate "both sides of the driver's ioctls"
for device in /dev/scif /dev/mic/scif; do
    cases_of "scif-conformance over libscifdev.so, $device" "scif-conformance-device${device//\//-}" \
        scif_conformance SCIF_TRANSPORT=kernel SCIF_DEVICE=$device LD_PRELOAD="$ROOT/build/lib/libscifdev.so"
    grep '^of ' "$LOGS/scif-conformance-device${device//\//-}.log" | sed 's/^/     /'
done
cases_of "scif-conformance over libscifdev.so with the traps of mainline's driver" scif-conformance-traps \
    scif_conformance SCIF_TRANSPORT=kernel SCIF_DEVICE_TRAPS=1 LD_PRELOAD="$ROOT/build/lib/libscifdev.so"
grep -E '^(not asked|[0-9]+ not asked|of )' "$LOGS/scif-conformance-traps.log" | sed 's/^/     /'
for device in /dev/scif /dev/mic/scif; do
    if [ -r $device ] && [ -w $device ]; then
        # mainline's driver opens on every machine; without a card it connects nobody.
        whom=$(SCIF_TRANSPORT=kernel SCIF_DEVICE=$device timeout 60 "$TARGET/release/scif-conformance" --who)
        echo "     $whom"
        [[ $whom != *"no node is online"* ]] || continue
        cases_of "scif-conformance over this system's driver, $device" "scif-conformance-driver${device//\//-}" \
            scif_conformance SCIF_TRANSPORT=kernel SCIF_DEVICE=$device
        grep -E '^(not asked|of )' "$LOGS/scif-conformance-driver${device//\//-}.log" | sed 's/^/     /'
    else
        echo "     no driver at $device on this system"
    fi
done
gate_end

gate "conformance over the driver's ioctls"
SCIF_DEVICE_TRAPS=1 cases_of "one node, with the traps of mainline's driver, /dev/scif" conformance-driver \
    over_driver /dev/scif "${OVER_DRIVER[@]}"
cases_of "a node for each process, /dev/mic/scif" conformance-driver-nodes \
    over_driver /dev/mic/scif --wrap "$ROOT/fabtests/by_node.sh" "${OVER_DRIVER_NODES[@]}"
gate_end

gate "fi_pingpong over the driver's ioctls"
for traps in 0 1; do
    SCIF_DEVICE_TRAPS=$traps cases_of "rdm and msg, 64 B to 1 MiB, SCIF_DEVICE_TRAPS=$traps" pingpong-driver-$traps \
        "${STAND_IN[@]}" SCIF_DEVICE=/dev/scif fabtests/pingpong.sh "rdm msg" 20 64 4096 16384 65536 1048576
done
gate_end

gate "MPI over the driver's ioctls"
for stack in debian debian-btl mpich5; do
    SCIF_DEVICE_TRAPS=1 confined_job "$stack, with the traps of mainline's driver, over the stand-in" $stack 2 ' process_vm 0/0 ' \
        "${STAND_IN[@]}" SCIF_DEVICE=/dev/scif
done
gate_end

gate "libfabric loads it"
case_of "fi_info -p $PROVIDER, Debian's libfabric" fi_info-debian lists_provider "$debian"
case_of "fi_info -p $PROVIDER, the libfabric of the mpich wheel" fi_info-wheel lists_provider "$wheel"
case_of "fi_info -e shows what can be set, Debian's libfabric" fi_info-e-debian lists_settings "$debian"
case_of "fi_info -e shows what can be set, the libfabric of the mpich wheel" fi_info-e-wheel lists_settings "$wheel"
gate_end

for lib in debian wheel; do
    gate "conformance, ${lib/debian/Debian\'s} libfabric"
    cases_of "conformance" "conformance-$lib" conformance "${!lib}"
    gate_end
    gate "conformance as an ordinary user, ${lib/debian/Debian\'s} libfabric"
    [ -z "$ORDINARY" ] || echo "     $ORDINARY"
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

gate "MPI as an ordinary user"
[ -z "$ORDINARY" ] || echo "     $ORDINARY"
for stack in debian debian-btl mpich5; do
    confined_job "$stack, no capabilities, 1024 descriptors" $stack 2 'sent [1-9]' as_nobody_here
done
gate_end

gate "without process_vm_readv and process_vm_writev${SMALL_SHM:+, 64 MiB of /dev/shm}"
[ -n "$SMALL_SHM" ] || echo "     /dev/shm as it is: this user may not mount another"
cases_of "conformance" conformance-confined conformance "$debian" confined process_vm --
for stack in debian debian-btl mpich5; do
    confined_job "$stack, from the start" $stack 2 ' process_vm 0/0 ' confined process_vm --
done
if "$TARGET/release/deny" --after 0 process_vm -- true 2>/dev/null; then
    for stack in debian debian-btl mpich5; do
        if ! grep -qE ' (process_vm|both_sides) [1-9]' "$LOGS/exchange-$stack-2.log"; then
            echo "     $stack, not denied on the way: this system denies it from the start"
            continue
        fi
        confined_job "$stack, after 40 calls" $stack 1 ' process_vm [1-9].* fallbacks [1-9]' confined --after 40 process_vm --
    done
else
    echo "     not denied on the way: this kernel lets nobody supervise system calls"
fi
gate_end

gate "conformance under memcheck: a sample"
cases_of "conformance" conformance-memcheck timeout -k 10 600 fabtests/valgrind.sh --sample
gate_end

gate "conformance, libkofi"
cases_of "conformance" conformance-kofi conformance_kofi
gate_end
gate "conformance as an ordinary user, libkofi"
cases_of "conformance, no capabilities, 1024 descriptors" conformance-kofi-nobody \
    as_nobody "$TARGET/release/conformance" "$BUILD/kofi/libkofi.so" "$BUILD/kofi/kofi/libfabric.so.1" -- \
    timeout -k 10 1500 env -u FI_PROVIDER_PATH ./conformance --lib ./libfabric.so.1 --prov "$PROVIDER"
gate_end

gate "faults: kill, stop, fuzz"
cases_of "30 seconds of them" faults env FAULTS=30 FAULTS_STALL_MS=10000 fabtests/faults.sh "$wheel/libfabric.so.1"
grep -hE '^(FAULTS_SEED=|     )' "$LOGS/faults.log"
gate_end

gate "libkofi: C programs"
cases_of "symbols, header, registry, bridge, example, tools" kofi fabtests/kofi/check.sh
gate_end

if [ "$(id -u)" = 0 ] && [ -n "$ORDINARY" ]; then
    printf '\nnot tried here: an ordinary user (%s)\n' "$ORDINARY"
fi
[ -n "$SMALL_SHM" ] || printf '\nnot tried here: a small /dev/shm (no mount is permitted)\n'
printf '\n%d seconds\n' $((SECONDS - started))
verdict
