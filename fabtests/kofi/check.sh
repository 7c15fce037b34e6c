#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Tests of libkofi from C: its symbols, its header, registration of providers, the bridge, the
# example, and Debian's fi_info and fi_pingpong without a visible libfabric. Needs the build of
# ../check.sh; the last line is the sum.
#   check.sh link    only links the libraries in build/kofi
set -u -o pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../mpi/setup.sh"
. "$here/../mpi/stacks.sh"
. "$here/../gates.sh"
cd "$ROOT" || exit 1

KOFI=$BUILD/kofi
TESTS=$BUILD/kofi-tests
FLAGS=(-O1 -g -Wall -Wextra -Werror -D_GNU_SOURCE -I"$ROOT/libkofi/include" -I"$here")
CC=${CC:-cc}

link() { "$ROOT/libkofi/link/link.sh" "$TARGET/release/liblibkofi.a" "$KOFI"; }

exports() { # exports FILE: functions with their version nodes
    readelf --dyn-syms -W "$1" | awk '$7 != "UND" && $4 == "FUNC" { print $8 }' | LC_ALL=C sort
}

same_symbols() { diff <(exports "$KOFI/$1" | grep -vE '^(kofi|kfi)_') "$here/symbols"; }

# The exports of the newest available libfabric, up to the newest supported node, are present; the
# default node may differ.
covers() { # covers LIBRARY
    local missing
    missing=$(
        LC_ALL=C comm -23 \
            <(exports "$1" | grep -E '@FABRIC_1\.[0-9]$' | sed 's/@@/@/' | LC_ALL=C sort) \
            <(exports "$KOFI/kofi/libfabric.so.1" | sed 's/@@/@/' | LC_ALL=C sort)
    )
    shows '^fi_getinfo@' exports "$1" >/dev/null && [ -z "$missing" ] ||
        { echo "missing: $missing" && false; }
}

own_symbols() {
    diff <(exports "$KOFI/libkofi.so" | grep -E '^(kofi|kfi)_' |
        grep -v '^kofi_abi_.*@@KOFI_PRIVATE$') - <<EOF
kfi_provider_deregister@@KOFI_1.0
kfi_provider_deregister_timed@@KOFI_1.0
kfi_provider_register@@KOFI_1.0
kofi_bridge@@KOFI_1.0
kofi_provider_adopt@@KOFI_1.0
kofi_provider_deregister@@KOFI_1.0
kofi_provider_deregister_timed@@KOFI_1.0
kofi_provider_register@@KOFI_1.0
EOF
}

needs_no_libfabric() {
    local needed
    needed=$(readelf -dW "$KOFI/libkofi.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
        grep -vE '^(libc\.so\.6|libgcc_s\.so\.1|libm\.so\.6|ld-linux.*)$')
    [ -z "$needed" ] && shows NODELETE readelf -dW "$KOFI/libkofi.so"
}

# Runs a command without libfabric on the machine: its files are covered for this command alone.
hidden() {
    local as=()
    [ "$(id -u)" = 0 ] || as=(-r)
    unshare "${as[@]}" -m bash -c '
        for file in $(ldconfig -p | sed -n "s/.*libfabric\.so.* => //p"); do
            mount --bind /dev/null "$(readlink -f "$file")" || exit 99
        done
        "$@"' hidden "$@"
}

cannot() { ! "$@"; }

# Runs both sides of a program concurrently: pair SERVER... -- CLIENT...
pair() {
    local server=() rc
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    timeout -k 5 60 "${server[@]}" &
    # Retries the client, because the start of the server's listener is not visible from outside.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.5
        timeout -k 5 60 "$@"
        rc=$?
        [ $rc = 0 ] && break
    done
    wait $! && [ $rc = 0 ]
}

example() { pair "$TESTS/exchange" server 9300 -- "$TESTS/exchange" client 9300; }
example_over() { env LD_LIBRARY_PATH="$1" FI_PROVIDER_PATH="$PROVIDER_DIR" "${@:2}"; }
example_alone() { env -u FI_PROVIDER_PATH LD_LIBRARY_PATH="$KOFI/kofi" "$@"; }
export -f pair example example_over example_alone
export TESTS KOFI PROVIDER_DIR

no_other_fabric() {
    env LD_LIBRARY_PATH="$KOFI/kofi" ldd "$TESTS/exchange" >"$TESTS/ldd"
    grep -q "libfabric.so.1 => $KOFI/kofi/" "$TESTS/ldd" &&
        ! grep -E 'fabric|rdma|ibverbs|psm' "$TESTS/ldd" | grep -v "$KOFI"
}

old_nodes_only() { # the example needs no symbol newer than libfabric 1.17
    ! readelf -VW "$TESTS/exchange" | grep -oE 'FABRIC_1\.[0-9]+' | grep -vE '^FABRIC_1\.[0-6]$'
}

lists_scif() {
    shows '^ *\(provider\|prov_name\): scif$' \
        env -u FI_PROVIDER_PATH LD_LIBRARY_PATH="$KOFI/kofi" fi_info "$@" -p scif
}
pingpong() {
    export LD_LIBRARY_PATH=$KOFI/kofi
    pair fi_pingpong -p scif -e rdm -c -I 50 -B "$1" -- \
        fi_pingpong -p scif -e rdm -c -I 50 -P "$1" 127.0.0.1
}
cleaned_up_once() { [ "$("$TESTS/registry" end)" = "cleaned up" ]; }
filtered() { # only one of two is listed
    local listed
    listed=$(env FI_PROVIDER=scif FI_PROVIDER_PATH="+$TESTS/libtoy-fi.so" \
        LD_LIBRARY_PATH="$KOFI/kofi" fi_info -l)
    grep -q '^scif:' <<<"$listed" && ! grep -q '^toy:' <<<"$listed" &&
        shows '^toy:' env FI_PROVIDER_PATH="+$TESTS/libtoy-fi.so" \
            LD_LIBRARY_PATH="$KOFI/kofi" fi_info -l
}
bridged() { # bridged LIBRARY_DIRECTORY
    env LD_LIBRARY_PATH="$1" FI_PROVIDER_PATH="$TESTS/providers" "$TESTS/bridge" bridge
}

[ "${1:-}" = link ] && { link; exit; }

unset FI_PROVIDER FI_PROVIDER_PATH LD_LIBRARY_PATH
export SCIF_DOMAIN=kofi-$$
debian=$(debian_libfabric)
wheel=$(wheel_libfabric)
rm -rf "$TESTS" && mkdir -p "$TESTS/providers"

gate "the libraries"
case_of "they are linked" kofi-link link
case_of "libfabric.so.1 has libfabric's symbols and nodes" kofi-symbols \
    same_symbols kofi/libfabric.so.1
case_of "libkofi.so has them too" kofi-symbols-own same_symbols libkofi.so
case_of "nothing of Debian's libfabric is missing" kofi-debian covers "$debian/libfabric.so.1"
case_of "nothing of the wheel's libfabric is missing" kofi-wheel covers "$wheel/libfabric.so.1"
case_of "libkofi.so has its own symbols and no others" kofi-own own_symbols
case_of "it needs the C library only, and stays mapped" kofi-needed needs_no_libfabric
gate_end

gate "the header"
case_of "as C11" kofi-c "$CC" "${FLAGS[@]}" -std=c11 -pedantic -fsyntax-only "$here/header.c"
if command -v c++ >/dev/null; then
    case_of "as C++17" kofi-cxx c++ "${FLAGS[@]}" -x c++ -std=c++17 -fsyntax-only "$here/header.c"
else
    echo "skip as C++17: there is no C++ compiler"
fi
gate_end

gate "providers that come and go"
sources=("$here/registry.c" "$here/toy.c")
case_of "a program with libkofi alone" kofi-cc \
    "$CC" "${FLAGS[@]}" "${sources[@]}" -o "$TESTS/registry" -L"$KOFI" -lkofi -Wl,-rpath,"$KOFI"
case_of "a provider in a file" kofi-cc-toy \
    "$CC" "${FLAGS[@]}" -shared -fPIC "$here/toy.c" -o "$TESTS/libtoy-fi.so" -L"$KOFI" -lkofi
cases_of "registered, opened, gone; adopted" kofi-registry \
    "$TESTS/registry" kofi "$TESTS/libtoy-fi.so" "$KOFI/kofi/libkofi-fi.so"
cases_of "a file that asks while it is adopted" kofi-registry-path \
    env FI_PROVIDER_PATH="+$TESTS/libtoy-fi.so" timeout -k 5 30 "$TESTS/registry" path
case_of "FI_PROVIDER leaves out what it does not name" kofi-registry-filter filtered
case_of "what is left at the end of the process is cleaned up, once" kofi-registry-end \
    cleaned_up_once
cases_of "the same without any libfabric" kofi-registry-hidden \
    hidden "$TESTS/registry" kofi "$TESTS/libtoy-fi.so" "$KOFI/kofi/libkofi-fi.so"
gate_end

gate "across: a real libfabric finds them"
case_of "a program with libfabric and libkofi" kofi-cc-bridge \
    "$CC" "${FLAGS[@]}" "${sources[@]}" -o "$TESTS/bridge" \
    -L"$KOFI" -lfabric -lkofi -Wl,-rpath,"$KOFI"
install -m 755 "$KOFI/kofi/libkofi-fi.so" "$PROVIDER_DIR/libscif-fi.so" "$TESTS/providers"
cases_of "Debian's libfabric" kofi-bridge-debian bridged "$debian"
cases_of "the wheel's libfabric" kofi-bridge-wheel bridged "$wheel"
gate_end

gate "the example"
case_of "linked with -lfabric against ours" kofi-cc-example \
    "$CC" -O1 -Wall -Wextra -Werror examples/kofi/exchange.c -o "$TESTS/exchange" \
    -L"$KOFI/kofi" -lfabric -Wl,-rpath-link,"$KOFI"
case_of "needs no node that 1.17 has not" kofi-nodes old_nodes_only
case_of "loads no other fabric" kofi-ldd no_other_fabric
case_of "cannot run where libfabric is hidden and ours is not named" kofi-control \
    cannot hidden "$TESTS/exchange" server 9300
case_of "runs with ours, libfabric hidden" kofi-hidden \
    hidden bash -c 'example_alone bash -c example'
case_of "the same binary over Debian's libfabric" kofi-example-debian \
    example_over "$debian" bash -c example
case_of "the same binary over the wheel's libfabric" kofi-example-wheel \
    example_over "$wheel" bash -c example
gate_end

gate "Debian's tools over ours"
case_of "fi_info" kofi-fi_info lists_scif
case_of "fi_info -v" kofi-fi_info-v lists_scif -v
case_of "fi_info -e" kofi-fi_info-e \
    bash -c 'env LD_LIBRARY_PATH="$KOFI/kofi" fi_info -e | grep "^# FI_SCIF_STATS"'
case_of "fi_pingpong" kofi-pingpong pingpong $((20000 + $$ % 10000))
gate_end

verdict
