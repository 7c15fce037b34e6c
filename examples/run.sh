#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Compiles the C examples against an installed libscif and runs them, with the Rust ones that cargo
# built:
#     run.sh PKG_CONFIG_DIRECTORY RUST_DIRECTORY
# The first argument is the directory of scif.pc of an installation, possibly below a DESTDIR of any
# depth. The last line counts.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
packages=$(cd "$1" && pwd) rust=$2
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
good=0 bad=0

# pkg-config and DESTDIR: the prefix of an installation below a DESTDIR is not the configured one.
prefix=$(PKG_CONFIG_PATH=$packages pkg-config --variable=prefix scif) || exit 1
libdir=$(PKG_CONFIG_PATH=$packages pkg-config --variable=libdir scif) || exit 1
destdir=${packages%"$libdir/pkgconfig"}
export PKG_CONFIG_PATH=$packages PKG_CONFIG_SYSROOT_DIR=$destdir SCIF_DOMAIN="examples-$$"
export LD_LIBRARY_PATH="$destdir$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
read -r -a flags < <(pkg-config --cflags scif)
read -r -a libraries < <(pkg-config --libs scif)
echo "     scif $(pkg-config --modversion scif), prefix $prefix below ${destdir:-/}"

case_of() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@"; then
        good=$((good + 1)) && echo "ok   $what"
    else
        bad=$((bad + 1)) && echo "FAIL $what"
    fi
}

compiled() { # COMPILER STANDARD SOURCE
    "$1" "-std=$2" -D_DEFAULT_SOURCE -g -O2 -Wall -Wextra -Werror "${flags[@]}" \
        -o "$room/$(basename "${3%.*}")" "$here/$3" "${libraries[@]}"
}

# overview ACCEPT CONNECT: each may consist of several words
overview() {
    SCIF_NODE=1 timeout 60 $1 &
    local other=$!
    SCIF_NODE=2 timeout 60 $2 1 && wait "$other"
}

# Errors of any kind and definitely lost blocks count.
MEMCHECK="valgrind -q --error-exitcode=9 --leak-check=full --show-leak-kinds=definite"
MEMCHECK+=" --errors-for-leak-kinds=definite"

programs=(poll fork windows mmap)
for source in overview_accept overview_connect "${programs[@]}"; do
    case_of "$source.c, C11, -Wall -Wextra -Werror" compiled "${CC:-cc}" c11 "$source.c"
done
for source in header talk; do
    case_of "$source.cc, C++17, -Wall -Wextra -Werror" compiled "${CXX:-c++}" c++17 "$source.cc"
done

case_of "the overview's two programs, on two nodes" \
    overview "$room/overview_accept" "$room/overview_connect"
for program in "${programs[@]}"; do
    case_of "$program" timeout 60 "$room/$program"
done
case_of "C++: the header" timeout 60 "$room/header"
case_of "C++: talk" timeout 60 "$room/talk"

case_of "Rust: the overview's two programs" \
    overview "$rust/overview_accept" "$rust/overview_connect"
case_of "Rust accepts, C connects" overview "$rust/overview_accept" "$room/overview_connect"
case_of "C accepts, Rust connects" overview "$room/overview_accept" "$rust/overview_connect"
for program in "${programs[@]}"; do
    case_of "Rust: $program" timeout 60 "$rust/$program"
done

if command -v valgrind >/dev/null; then
    case_of "memcheck: the overview" \
        overview "$MEMCHECK $room/overview_accept" "$MEMCHECK $room/overview_connect"
    # A forked child has the memory of its parent's threads without the threads, so leaks are not
    # counted.
    case_of "memcheck: fork" timeout 120 valgrind -q --error-exitcode=9 "$room/fork"
    for program in poll windows mmap header talk; do
        case_of "memcheck: $program" timeout 120 $MEMCHECK "$room/$program"
    done
else
    echo "     no valgrind here: memcheck not run"
fi
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
