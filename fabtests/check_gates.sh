# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced by check.sh: the gates, and the users and restrictions under which they run.

# Names of the cases for conformance; empty selects all.
SAMPLE=()

NOBODY=(--reuid=65534 --regid=65534 --clear-groups --bounding-set=-all --inh-caps=-all
    --no-new-privs)
# Reason for which commands run as the present user. Empty: they run as an unprivileged one.
ORDINARY=
if [ "$(id -u)" != 0 ]; then
    ORDINARY="as the user user runs this"
elif ! setpriv "${NOBODY[@]}" true 2>/dev/null; then
    ORDINARY="as root: setpriv cannot change to another user here"
fi

# as_nobody FILE... -- COMMAND: runs a command as an unprivileged user, with 1024 descriptors or
# $DESCRIPTORS. That user may have no access to the checkout, so the files are copied and the
# command names the copies.
as_nobody() {
    local dir rc file
    dir=$(mktemp -d) && chmod 755 "$dir"
    mkdir -m 755 "$dir/provider" && install -m 755 "$PROVIDER_DIR"/*.so "$dir/provider"
    while [ "$1" != -- ]; do
        install -m 755 "$1" "$dir" && shift
    done
    shift
    local user=()
    [ -n "$ORDINARY" ] || user=(setpriv "${NOBODY[@]}")
    (cd "$dir" && ulimit -n "${DESCRIPTORS:-1024}" &&
        FI_PROVIDER_PATH=$dir/provider HOME=$dir "${user[@]}" "$@")
    rc=$?
    rm -rf "$dir"
    return $rc
}

# as_nobody_here COMMAND: runs an MPI job as an unprivileged user. Its files are found through the
# paths of the checkout and of Python. Without access to those, the command gets a mount namespace
# that opens them.
as_nobody_here() {
    local user=() open=() closed=() path dir rc
    dir=$(mktemp -d) && chmod 1777 "$dir"
    if [ -z "$ORDINARY" ]; then
        user=(setpriv "${NOBODY[@]}")
        for path in "$ROOT" "$("$BUILD/venv-mpich5/bin/python" -c "$PYTHON_PREFIX")"; do
            "${user[@]}" test -x "$path" || closed+=("$path")
        done
        [ ${#closed[@]} = 0 ] ||
            open=(unshare -m bash -c "$OPEN_WAYS" bash "$dir" "${#closed[@]}" "${closed[@]}")
    fi
    (ulimit -n 1024 && export HOME=$dir TMPDIR=$dir && exec "${open[@]}" "${user[@]}" "$@")
    rc=$?
    rm -rf "$dir"
    return $rc
}
PYTHON_PREFIX='import sys; print(sys.base_prefix)'
# Arguments: DIRECTORY COUNT PATH... COMMAND...
OPEN_WAYS='
    dir=$1 count=$2 here=$PWD; shift 2; paths=("${@:1:count}"); shift "$count"
    open() { setpriv --reuid=65534 --clear-groups test -x "$1"; }
    for i in "${!paths[@]}"; do
        mkdir "$dir/$i" && mount --bind "${paths[i]}" "$dir/$i" || exit 1
    done
    for i in "${!paths[@]}"; do
        until [ -d "${paths[i]}" ] && open "${paths[i]}"; do
            up=${paths[i]}
            while up=$(dirname "$up"); ! open "$(dirname "$up")"; do :; done
            [ -d "$up" ] && ! open "$up" && { mount -t tmpfs -o mode=755 tmpfs "$up" || exit 1; }
            mkdir -p "${paths[i]}" && mount --bind "$dir/$i" "${paths[i]}" || exit 1
        done
    done
    cd "$here" && exec "$@"'

lists_provider() { # LIBRARY_DIRECTORY
    shows "provider: $PROVIDER\$" \
        env LD_LIBRARY_PATH="$1" FI_PROVIDER_PATH="$PROVIDER_DIR" timeout 20 fi_info -p "$PROVIDER"
}

lists_settings() { # LIBRARY_DIRECTORY
    shows '^# FI_SCIF_STATS' \
        env LD_LIBRARY_PATH="$1" FI_PROVIDER_PATH="$PROVIDER_DIR" timeout 20 fi_info -e
}

conformance() { # LIBRARY_DIRECTORY [WRAPPER...]
    FI_PROVIDER_PATH=$PROVIDER_DIR "${@:2}" timeout -k 10 1500 "$TARGET/release/conformance" \
        --lib "$1/libfabric.so.1" --prov "$PROVIDER" "${SAMPLE[@]}"
}

# Cases over the stand-in driver for every change; gate conformance_driver runs all, less those that
# fabtests/src/excused.rs names.
OVER_DRIVER=(msg/send msg/inject msg/delivery msg/to_itself msg/both_at_once msg/unexpected_flood
    msg/cancel tagged/inject tagged/ignore tagged/same tagged/truncation tagged/directed rma/write
    rma/read bad_rma/outside atomic/base atomic/inject atomic/order cq/ cntr/ death/sending
    death/receiving_64k death/writing_4m death/idle death/asleep death/by_closing death/unaccepted
    absent_peers/closed_before av/lookup av/text ep/name driver/)
OVER_DRIVER_NODES=(msg/send tagged/senddata rma/write rma/read atomic/base cntr/rma
    cm/data_both connected/msg_senddata death/sending_8 death/idle av/lookup)
over_driver() { # DEVICE [CASES...] [OPTION...]
    "${STAND_IN[@]}" SCIF_DEVICE="$1" timeout -k 10 1500 "$TARGET/release/conformance" \
        --lib "$wheel/libfabric.so.1" --prov "$PROVIDER" --over-driver "${@:2}"
}

# Cases over the calls of scif.h, without a driver.
OVER_CALLS=(msg/senddata msg/sendv_recvv msg/inject msg/both_at_once tagged/inject tagged/senddata
    tagged/truncation rma/writedata rma/read_after_write bad_rma/outside atomic/base cntr/rma
    death/sending_8 death/idle av/lookup)
CALLS=(env SCIF_DOMAIN=check SCIF_TRANSPORT=soft FI_SCIF_TRANSPORT=scif
    FI_PROVIDER_PATH="$PROVIDER_DIR")
over_calls() { # [CASES...] [OPTION...]
    "${CALLS[@]}" timeout -k 10 1500 "$TARGET/release/conformance" \
        --lib "$wheel/libfabric.so.1" --prov "$PROVIDER" --over-driver "$@"
}

# Cases over libsisci.so.
SISCI=(env SCIF_DOMAIN=check FI_SCIF_TRANSPORT=sisci LD_LIBRARY_PATH="$ROOT/build/lib"
    FI_PROVIDER_PATH="$PROVIDER_DIR")
over_sisci() { # [CASES...] [OPTION...]
    "${SISCI[@]}" timeout -k 10 900 "$TARGET/release/conformance" \
        --lib "$wheel/libfabric.so.1" --prov "$PROVIDER" --over-driver "$@"
}

# Runs a command under the limits of many containers: denied system calls (arguments of the program
# deny), and 64 MiB of /dev/shm where a mount is permitted.
confined() {
    local mount=()
    [ -z "$SMALL_SHM" ] || mount=(unshare -m sh -c "$SMALL_SHM && exec \"\$@\"" sh)
    "${mount[@]}" "$TARGET/release/deny" "$@"
}
SMALL_SHM='mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm'
unshare -m sh -c "$SMALL_SHM" 2>/dev/null || SMALL_SHM=

# Command that gives a process a pid namespace of its own, with its own /proc. Empty where that is
# not permitted.
export OWN_PIDS="unshare --pid --fork --kill-child --mount-proc"
$OWN_PIDS true 2>/dev/null || OWN_PIDS="${OWN_PIDS/unshare/unshare --user --map-root-user}"
$OWN_PIDS true 2>/dev/null || OWN_PIDS=

# libkofi contains the provider.
conformance_kofi() {
    env -u FI_PROVIDER_PATH timeout -k 10 1500 "$TARGET/release/conformance" \
        --lib "$BUILD/kofi/kofi/libfabric.so.1" --prov "$PROVIDER"
}

formatted() { "${CARGO[@]}" fmt --all --check; }
# Lints differ between versions of Rust: they are errors in the version that Cargo.toml names for
# them. One of them finds library calls that are newer than rust-version.
linted() { "${CARGO[@]}" clippy --workspace --all-targets --locked --quiet -- "${LINTS[@]}"; }
unit_tests() { timeout -k 10 1500 "${CARGO[@]}" test --workspace --locked --no-fail-fast; }
scif_conformance() { # VARIABLE=VALUE...
    env SCIF_DOMAIN=check SCIF_TRANSPORT=soft "$@" timeout -k 10 1200 \
        "$TARGET/release/scif-conformance" --lib "$ROOT/build/lib/libscif.so.0"
}
sisci_conformance() {
    SCIF_DOMAIN=check timeout -k 10 1200 \
        "$TARGET/release/sisci-conformance" --lib "$ROOT/build/lib/libsisci.so"
}
sisci_run() { # OPTION COUNT
    SCIF_DOMAIN=check timeout -k 10 3000 \
        "$TARGET/release/sisci-conformance" --lib "$ROOT/build/lib/libsisci.so" "$@"
}
# Groups of one process and thread. Callbacks of other groups leak their arguments on purpose.
sisci_memcheck() {
    SCIF_DOMAIN=check timeout -k 10 900 valgrind -q --error-exitcode=99 \
        --suppressions=fabtests/valgrind.supp --leak-check=full --show-leak-kinds=definite \
        --errors-for-leak-kinds=definite "$TARGET/release/sisci-conformance" \
        --lib "$ROOT/build/lib/libsisci.so" calls/ handles/ maps/ copies/
}
loom_tests() {
    RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$TARGET/loom" \
        timeout -k 10 1200 "${CARGO[@]}" test -p "$1" --release --locked --test loom
}

# Gates: each function is one gate, run by check.sh between gate and gate_end.

lints() {
    gate "format and lints"
    case_of "rustfmt" fmt formatted
    if [[ $("${CARGO[@]}" --version) == "cargo $(rust_of_lints)."* ]]; then
        LINTS=(-D warnings)
        case_of "clippy, warnings denied" clippy linted
    else
        LINTS=()
        case_of "clippy, warnings shown: this is not Rust $(rust_of_lints)" clippy linted
    fi
}

rules() {
    gate "rules of the code"
    cases_of "files, form, library" rules fabtests/rules.sh
    cases_of "layers, names, doc comments, width" rules-tree \
        "${CARGO[@]}" run -q --locked -p rules -- --limits
    case_of "words of comments" rules-words "${CARGO[@]}" run -q --locked -p rules -- --words
    cases_of "links and index of the documents" rules-docs fabtests/docs.py check
}

unit() {
    gate "unit tests"
    cases_of "cargo test" test unit_tests
}

scifctl() {
    gate "scifctl"
    cases_of "output and effects" scifctl fabtests/scifctl/check.sh "$TARGET/release/scifctl"
    cases_of "doctor: causes and remedies" doctor fabtests/scifctl/doctor.sh \
        "$TARGET/release/scifctl" "$TARGET/release/deny" "$PROVIDER_DIR" "$BUILD/venv-mpich5"
    cases_of "SISCI: lists and doctor" scifctl-sisci fabtests/scifctl/sisci.sh \
        "$TARGET/release/scifctl" "$ROOT/build/lib"
    cases_of "hung jobs" scifctl-jobs \
        fabtests/scifctl/jobs.sh "$TARGET/release/scifctl" mpich5 debian
}

libscif() {
    gate "conformance of libscif"
    cases_of "scif-conformance" scif-conformance scif_conformance
    case_of "scif-conformance --who without a device" scif-conformance-who without_device
    cases_of "programs in C and C++" scif-conformance-c \
        libscif/conformance/c/run.sh "$ROOT/build/lib"
}

libsisci() {
    gate "conformance of libsisci"
    cases_of "sisci-conformance" sisci-conformance sisci_conformance
    cases_of "programs in C and C++" sisci-conformance-c \
        libsisci/conformance/c/run.sh "$ROOT/build/lib"
    cases_of "examples as C and C++" sisci-examples libsisci/examples/run.sh "$ROOT/build/lib"
}

# Long runs of libsisci. SISCI_KILLS and SISCI_CALLS set their lengths.
sisci_long() {
    local kills=${SISCI_KILLS:-2000} calls=${SISCI_CALLS:-1000000} log
    gate "long runs of libsisci"
    case_of "$kills kills: the others see each loss" sisci-kills sisci_run --kills "$kills"
    case_of "$calls random calls: a code for each, and nothing is left" sisci-calls \
        sisci_run --calls "$calls"
    for log in sisci-kills sisci-calls; do
        grep -E ', seed ' "$LOGS/$log.log" | sed 's/^/     /'
    done
}

# scif-conformance names the device that it cannot open, and fails.
without_device() {
    ! env SCIF_TRANSPORT=kernel SCIF_DEVICE=/nonexistent timeout 60 \
        "$TARGET/release/scif-conformance" --who >"$LOGS/who" &&
        shows '^no SCIF device: open /nonexistent: ' cat "$LOGS/who"
}

# scif_over_device WHAT LOG [VARIABLE=VALUE...]
scif_over_device() {
    cases_of "scif-conformance over libscifdev.so, $1" "scif-conformance-$2" \
        scif_conformance SCIF_TRANSPORT=kernel LD_PRELOAD="$ROOT/build/lib/libscifdev.so" "${@:3}"
    grep -E '^(not run|[0-9]+ not run|of )' "$LOGS/scif-conformance-$2.log" | sed 's/^/     /'
}

ioctls() {
    gate "both sides of the driver's ioctls"
    scif_over_device "with the traps of mainline's driver" traps SCIF_DEVICE_TRAPS=1
    local device peers log
    for device in /dev/scif /dev/mic/scif; do
        if [ -r $device ] && [ -w $device ]; then
            # The driver of mainline Linux opens on every machine; without a card it connects no
            # nodes.
            peers=$(SCIF_TRANSPORT=kernel SCIF_DEVICE=$device \
                timeout 60 "$TARGET/release/scif-conformance" --who)
            echo "     $peers"
            [[ $peers != *"no node is online"* ]] || continue
            log=scif-conformance-driver${device//\//-}
            cases_of "scif-conformance over this system's driver, $device" "$log" \
                scif_conformance SCIF_TRANSPORT=kernel SCIF_DEVICE=$device
            grep -E '^(not run|of )' "$LOGS/$log.log" | sed 's/^/     /'
        else
            echo "     no driver at $device on this system"
        fi
    done
}

driver() {
    gate "provider over the driver's ioctls"
    SCIF_DEVICE_TRAPS=1 cases_of "one node, with the traps of mainline's driver, /dev/scif" \
        conformance-driver over_driver /dev/scif "${OVER_DRIVER[@]}"
    SCIF_DEVICE_TRAPS=1 cases_of "a node for each process, with store fences" \
        conformance-driver-fences over_driver /dev/scif --wrap "$ROOT/fabtests/by_node.sh" \
        "${OVER_DRIVER_NODES[@]}"
    SCIF_DEVICE_TRAPS=1 cases_of "records over the stream, without userfaultfd" \
        conformance-driver-relay "$TARGET/release/deny" userfaultfd -- "${STAND_IN[@]}" \
        SCIF_DEVICE=/dev/scif timeout -k 10 600 "$TARGET/release/conformance" \
        --lib "$wheel/libfabric.so.1" --prov "$PROVIDER" --over-driver "${OVER_DRIVER_NODES[@]}"
    SCIF_DEVICE_TRAPS=1 cases_of "fi_pingpong, rdm and msg, 64 B to 1 MiB, with the traps" \
        pingpong-driver-1 "${STAND_IN[@]}" SCIF_DEVICE=/dev/scif \
        fabtests/pingpong.sh "rdm msg" 20 64 4096 16384 65536 1048576
    driver_jobs debian debian-btl mpich5
}

scif_calls() {
    gate "provider over the calls of scif.h"
    cases_of "conformance, over the engine of scif.h" conformance-calls \
        over_calls "${OVER_CALLS[@]}"
    case_of "rings lie in windows" calls-windows shows 'lie in windows' \
        "${CALLS[@]}" SHOW=1 FI_LOG_LEVEL=debug fabtests/pingpong.sh rdm 20 64
    cases_of "fi_pingpong, rdm and msg, 64 B to 1 MiB" calls-pingpong \
        "${CALLS[@]}" fabtests/pingpong.sh "rdm msg" 20 64 4096 16384 65536 1048576
}

loads() {
    gate "libfabric loads it"
    local from
    for from in debian wheel; do
        local title="Debian's libfabric"
        [ $from = debian ] || title="the libfabric of the mpich wheel"
        case_of "fi_info -p $PROVIDER, $title" fi_info-$from lists_provider "${!from}"
        case_of "fi_info -e lists the settings, $title" fi_info-e-$from lists_settings "${!from}"
    done
}

# A build with another layout stands in for another release.
other_provider() {
    RUSTFLAGS='--cfg scif_other_layout' timeout -k 10 900 \
        "${CARGO[@]}" build --locked -p scif-fi --target-dir "$TARGET/other" &&
        install -D -m 755 "$TARGET/other/debug/libscif_fi.so" "$1/libscif-fi.so"
}

versions() {
    gate "two builds of different layout refuse each other"
    local other=$BUILD/other transport
    # Not 64 bytes: fi_pingpong injects these, and then waits for an answer that cannot come.
    case_of "the other build" other-provider other_provider "$other"
    for transport in soft scif; do
        cases_of "over $transport" "versions-$transport" env "FI_PROVIDER_PATH=$PROVIDER_DIR" \
            OTHER="$other" FI_SCIF_TRANSPORT=$transport FI_LOG_LEVEL=warn \
            fabtests/pingpong.sh 'rdm msg' 20 65536
    done
}

conformance_wheel() {
    gate "conformance, libfabric of the mpich wheel"
    cases_of "conformance" conformance-wheel conformance "$wheel"
}

# Every process with Debian's libfabric spends 0.3 s in the start of another provider's library;
# `make check-all` runs all cases.
debian_sample() {
    gate "conformance, Debian's libfabric: a sample"
    local SAMPLE=(getinfo/ av/ mr/ eq/ msg/send peek/finds rma/write atomic/base cq/read cntr/wait
        death/sending_64k)
    cases_of "conformance" conformance-debian-sample conformance "$debian"
}

mpi() {
    gate "MPI"
    local stack
    for stack in debian debian-btl mpich5; do
        echo "     $(stack_title $stack)"
        exchange_jobs $stack 2 4
    done
    report_jobs debian mpich5
    trace_jobs debian mpich5
}

hosts_quick() {
    gate "jobs that span two hosts: a sample"
    cases_of "two hosts" hosts-quick fabtests/net/check.sh quick
    cases_of "conformance" hosts-quick-cases fabtests/net/suites.sh msg/senddata tagged/directed \
        rma/writedata rma/readmsg atomic/base hosts/names
}

hosts() {
    gate "jobs that span two hosts"
    cases_of "two hosts" hosts fabtests/net/check.sh
    grep -h '^     resident' "$LOGS/hosts.log"
    cases_of "conformance: a sample" hosts-sample fabtests/net/suites.sh "${HOSTS_SAMPLE[@]}"
    HOSTS_COUNT=3 cases_of "conformance: a sample of collectives, three hosts" hosts-collectives \
        fabtests/net/suites.sh coll/five coll/many_groups coll_death/
    CONFORMANCE_MIB=64 HOSTS_PLACES="1 2 3 4 5 1 1" cases_of \
        "conformance: a stopped receiver and four hosts" hosts-five \
        fabtests/net/suites.sh five_hosts/
}
HOSTS_SAMPLE=(any_source/ sleepers/sread msg/send tagged/directed peek/source peek/claim
    rma/write rma/read atomic/base atomic_shared/ order/small cntr/rma fence/ hosts/
    fork/child_exits)

hosts_suites() {
    gate "suites between two hosts"
    cases_of "conformance, libfabric's own suite" hosts-suites fabtests/net/suites.sh
    grep -h '^not tried here' "$LOGS/hosts-suites.log" | sed 's/^/     /'
}

hosts_mpi4py() {
    gate "the tests of mpi4py between two hosts"
    cases_of "2 x 1 and 2 x 2 ranks, MPICH, with tcp alone as the control" hosts-mpi4py \
        fabtests/mpi/check.sh suite-hosts
    grep -h '^     ' "$LOGS/hosts-mpi4py.log"
}

mpi_restricted() {
    gate "MPI as an ordinary user, and without process_vm_readv and process_vm_writev"
    [ -z "$ORDINARY" ] || echo "     $ORDINARY"
    [ -n "$SMALL_SHM" ] || echo "     /dev/shm as it is: this user may not mount another"
    local stack
    for stack in debian debian-btl mpich5; do
        confined_job "$stack, no capabilities, 1024 descriptors" \
            $stack 2 'sent [1-9]' as_nobody_here
        confined_job "$stack, denied from the start" \
            $stack 2 ' process_vm 0/0 ' confined process_vm --
    done
    if "$TARGET/release/deny" --after 0 process_vm -- true 2>/dev/null; then
        for stack in debian debian-btl mpich5; do
            if ! grep -qE ' (process_vm|both_sides) [1-9]' "$LOGS/exchange-$stack-2.log"; then
                echo "     $stack, not denied on the way: this system denies it from the start"
                continue
            fi
            confined_job "$stack, denied after 40 calls" \
                $stack 1 ' process_vm [1-9].* fallbacks [1-9]' confined --after 40 process_vm --
        done
    else
        echo "     not denied on the way: this kernel lets nobody supervise system calls"
    fi
}

faults() {
    gate "faults: kill, stop, fuzz"
    cases_of "30 seconds of them" faults env FAULTS=30 FAULTS_STALL_MS=10000 \
        fabtests/faults.sh "$wheel/libfabric.so.1"
    grep -hE '^(FAULTS_SEED=|     )' "$LOGS/faults.log"
}

kofi() {
    gate "libkofi: C programs"
    cases_of "symbols, header, registry, bridge, example, tools" kofi fabtests/kofi/check.sh
}

confined_wheel() {
    local small=${SMALL_SHM:+, 64 MiB of /dev/shm}
    gate "conformance without process_vm_readv and process_vm_writev$small"
    [ -n "$SMALL_SHM" ] || echo "     /dev/shm as it is: this user may not mount another"
    cases_of "conformance" conformance-confined conformance "$wheel" confined process_vm --
}

ordinary_wheel() {
    gate "conformance as an ordinary user, libfabric of the mpich wheel"
    ordinary_conformance conformance-wheel-nobody "$wheel"
}

ordinary_conformance() { # LOG LIBRARY_DIRECTORY
    [ -z "$ORDINARY" ] || echo "     $ORDINARY"
    cases_of "conformance, no capabilities, 1024 descriptors" "$1" \
        as_nobody "$TARGET/release/conformance" "$2/libfabric.so.1" -- \
        timeout -k 10 1500 ./conformance --lib ./libfabric.so.1 --prov "$PROVIDER"
}

# Processes of different pid namespaces see no process ids of each other, and have equal ones. A
# rank ends shortly after the command that the harness kills: two cases need its end at once.
pid_namespaces() {
    gate "each rank in a pid namespace of its own, with its own /proc"
    local SAMPLE=(msg/send rma/write atomic/base death/ restart/) ranks=()
    if [ -n "$OWN_PIDS" ]; then
        SAMPLE+=(--wrap "$ROOT/fabtests/own_pids.sh" --skip before_the_first_word
            --skip address_free_at_once)
        ranks=(--rank-program "$ROOT/fabtests/own_pids.sh")
    else
        echo "     in the namespace of all: this user may not make another"
    fi
    cases_of "conformance" conformance-pids conformance "$wheel"
    cases_of "kills among reliable endpoints" faults-pids \
        env FI_PROVIDER_PATH="$PROVIDER_DIR" RANK_PROGRAM="$TARGET/release/faults" \
        timeout -k 10 600 "$TARGET/release/faults" --lib "$wheel/libfabric.so.1" \
        --prov "$PROVIDER" --seconds 10 "${ranks[@]}"
}

conformance_libkofi() {
    gate "conformance, libkofi"
    cases_of "conformance" conformance-kofi conformance_kofi
}

ordinary_libkofi() {
    gate "conformance as an ordinary user, libkofi"
    cases_of "conformance, no capabilities, 1024 descriptors" conformance-kofi-nobody \
        as_nobody "$TARGET/release/conformance" "$BUILD/kofi/libkofi.so" \
        "$BUILD/kofi/kofi/libfabric.so.1" -- timeout -k 10 1500 \
        env -u FI_PROVIDER_PATH ./conformance --lib ./libfabric.so.1 --prov "$PROVIDER"
}

devices() {
    gate "both sides of the driver's ioctls, without the traps"
    local device
    for device in /dev/scif /dev/mic/scif; do
        scif_over_device $device "device${device//\//-}" SCIF_DEVICE=$device
    done
    cases_of "provider, a node for each process, /dev/mic/scif" conformance-driver-nodes \
        over_driver /dev/mic/scif --wrap "$ROOT/fabtests/by_node.sh" "${OVER_DRIVER_NODES[@]}"
    cases_of "fi_pingpong, rdm and msg, 64 B to 1 MiB" pingpong-driver-0 \
        "${STAND_IN[@]}" SCIF_DEVICE=/dev/scif \
        fabtests/pingpong.sh "rdm msg" 20 64 4096 16384 65536 1048576
}

conformance_driver() {
    gate "conformance over the driver's ioctls"
    SCIF_DEVICE_TRAPS=1 cases_of "conformance, with the traps of mainline's driver" \
        conformance-driver-all over_driver /dev/scif
    grep -E '^(excused|[0-9]+ cases excused)' "$LOGS/conformance-driver-all.log" | sed 's/^/     /'
}

conformance_calls() {
    gate "conformance over the calls of scif.h"
    [ -z "$ORDINARY" ] || echo "     $ORDINARY"
    cases_of "conformance" conformance-calls-all over_calls
    # Each connection has descriptors of its own: three hundred of them exceed 1024.
    DESCRIPTORS=8192 cases_of "conformance, no capabilities" conformance-calls-nobody \
        as_nobody "$TARGET/release/conformance" "$wheel/libfabric.so.1" -- \
        env SCIF_DOMAIN=nobody SCIF_TRANSPORT=soft FI_SCIF_TRANSPORT=scif \
        timeout -k 10 1500 ./conformance --lib ./libfabric.so.1 --prov "$PROVIDER" --over-driver
}

# All cases over the second generation of ioctls.
conformance_mpss() {
    gate "conformance over the ioctls of MPSS 3"
    cases_of "conformance, /dev/mic/scif" conformance-mpss-all over_driver /dev/mic/scif
}

conformance_device() {
    gate "conformance over the driver's ioctls, as an ordinary user"
    device_as_nobody conformance-driver-nobody SCIF_DEVICE=/dev/scif SCIF_DEVICE_TRAPS=1
}

conformance_mpss_device() {
    gate "conformance over the ioctls of MPSS 3, as an ordinary user"
    device_as_nobody conformance-mpss-nobody SCIF_DEVICE=/dev/mic/scif
}

# device_as_nobody LOG VARIABLE=VALUE...: all cases over the stand-in device, as an ordinary user.
device_as_nobody() {
    [ -z "$ORDINARY" ] || echo "     $ORDINARY"
    DESCRIPTORS=8192 cases_of "conformance, no capabilities" "$1" \
        as_nobody "$TARGET/release/conformance" "$wheel/libfabric.so.1" \
        "$ROOT/build/lib/libscifdev.so" -- env SCIF_DOMAIN=nobody FI_SCIF_TRANSPORT=kernel \
        "${@:2}" LD_PRELOAD=./libscifdev.so \
        timeout -k 10 1500 ./conformance --lib ./libfabric.so.1 --prov "$PROVIDER" --over-driver
}

conformance_sisci() {
    gate "conformance over libsisci"
    cases_of "messages, tagged, RMA, cm, atomics, death" conformance-sisci over_sisci msg/ tagged/ \
        rma/ bad_rma/ cm/ atomic/ cntr/ mr/ death/
    cases_of "a node for each process, with store fences" conformance-sisci-nodes over_sisci \
        --wrap "$ROOT/fabtests/by_node.sh" "${OVER_DRIVER_NODES[@]}"
    case_of "rings lie in windows" sisci-windows shows 'lie in windows' \
        "${SISCI[@]}" SHOW=1 FI_LOG_LEVEL=debug fabtests/pingpong.sh rdm 20 64
    need_stack intel
    sisci_jobs debian mpich5 intel
}

driver_mpi() {
    gate "other MPIs over the driver's ioctls"
    need_stack openmpi5 mpich4 intel
    driver_jobs openmpi5 openmpi5-btl mpich4 intel
}

calls_mpi() {
    gate "MPI over the calls of scif.h"
    need_stack openmpi5 intel
    calls_jobs debian debian-btl mpich5 openmpi5 intel
}

libscif_strict() {
    gate "conformance of libscif, every descriptor looked up"
    cases_of "scif-conformance" scif-conformance-strict scif_conformance SCIF_STRICT_FD=1
}

memcheck() {
    gate "conformance under memcheck: a sample"
    cases_of "conformance" conformance-memcheck timeout -k 10 600 fabtests/valgrind.sh --sample
    cases_of "conformance of libsisci, one process and thread" sisci-memcheck sisci_memcheck
}

loom() {
    gate "loom: the ring under every interleaving"
    cases_of "loom" loom loom_tests scif-ring
}

loom_kofi() {
    gate "loom: the registry of providers under every interleaving"
    cases_of "loom" loom-kofi loom_tests kofi
    grep -h ' schedules$' "$LOGS/loom-kofi.log"
}

# Two bills of one tree are equal, and list each package once.
bill_of_materials() {
    local cargo="${CARGO[*]}"
    CARGO=$cargo fabtests/sbom.py "$BUILD/sbom.json" &&
        CARGO=$cargo fabtests/sbom.py "$BUILD/sbom-again.json" &&
        cmp "$BUILD/sbom.json" "$BUILD/sbom-again.json" &&
        ! grep '"bom-ref"' "$BUILD/sbom.json" | sort | uniq -d | grep .
}

installation() {
    gate "the installation, and the examples against it"
    cases_of "configure, install, install-strip, uninstall, --disable-provider" install \
        fabtests/install.sh "$BUILD"
    case_of "bill of materials (build/sbom.json)" sbom bill_of_materials
    case_of "cargo build --examples" examples \
        "${CARGO[@]}" build --release --locked -p scif-api --examples
    cases_of "examples in C, C++ and Rust, memcheck" scif-examples \
        examples/run.sh "$BUILD/dest/usr/local/lib/pkgconfig" "$TARGET/release/examples"
}

packages() {
    gate "packages of others"
    cases_of "licences, sources, versions, advisories" packages fabtests/packages.sh
    grep -h '^not tried here' "$LOGS/packages.log" | sed 's/^/     /'
}

# The checkers that Spack runs on a package, with its settings; and the renderer of conda-forge.
recipes() {
    gate "recipes for Spack and conda-forge"
    venv recipes black==26.10.1 isort==9.0.2 flake8==7.5.0 py-rattler-build==0.73.0
    local bin=$BUILD/venv-recipes/bin spack=$ROOT/packaging/spack version
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
    case_of "Spack: black" recipe-black "$bin/black" -l 99 --check "$spack"
    case_of "Spack: isort" recipe-isort \
        "$bin/isort" --profile black -l 99 -p spack --check "$spack"
    case_of "Spack: flake8" recipe-flake8 \
        "$bin/flake8" --max-line-length 99 --extend-ignore F403,F405 "$spack"
    cases_of "conda-forge: two platforms" recipe-conda \
        "$bin/python" fabtests/recipes.py packaging/conda/recipe.yaml "$version"
}

pip_wheel() {
    gate "the wheel scif-fi, with three MPIs of PyPI"
    cases_of "build, jobs, doctor" pip-wheel fabtests/wheel.sh staged
    grep -h '^not tried here' "$LOGS/pip-wheel.log" | sed 's/^/     /'
}

newcomer() {
    gate "a newcomer's commands, with three MPIs of PyPI"
    cases_of "release, build, jobs" newcomer fabtests/newcomer.sh
    grep -hE '^not tried here| s to build, ' "$LOGS/newcomer.log" | sed 's/^/     /'
}

debian_packages() {
    gate "Debian packages in clean roots"
    cases_of "lintian, installation, jobs, removal" debian fabtests/debian.sh staged
    grep -h '^not tried here' "$LOGS/debian.log" | sed 's/^/     /'
}

debian_rust() {
    gate "built by the Rust of Debian 13, and for arm64"
    cases_of "build, unit tests, conformance" debian-rust fabtests/debian_rust.sh
    grep -h '^not tried here' "$LOGS/debian-rust.log" | sed 's/^/     /'
}

distcheck() {
    gate "the release, built without network"
    cases_of "archive, build, tests, installation" distcheck fabtests/distcheck.sh
}

docs() {
    gate "the site of the documents"
    cases_of "links of the sources and of the site" docs fabtests/docs.sh
}

conformance_debian() {
    gate "conformance, Debian's libfabric"
    cases_of "conformance" conformance-debian conformance "$debian"
}

ordinary_debian() {
    gate "conformance as an ordinary user, Debian's libfabric"
    ordinary_conformance conformance-debian-nobody "$debian"
}
