#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Compiles the examples against a header and a library and runs them: run.sh INCLUDE_DIRECTORY LIBRARY_DIRECTORY
# The last line counts.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
include=$1 lib=$2
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" SCIF_DOMAIN="examples-$$"
good=0 bad=0

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
    "$1" "-std=$2" -D_DEFAULT_SOURCE -O2 -Wall -Wextra -Werror -I"$include" -o "$room/$(basename "${3%.*}")" "$here/$3" -L"$lib" -lscif
}

overview() {
    SCIF_NODE=1 timeout 30 "$room/overview_accept" &
    local other=$!
    SCIF_NODE=2 timeout 30 "$room/overview_connect" 1 && wait "$other"
}

for source in overview_accept overview_connect poll; do
    case_of "$source.c, C11, -Wall -Wextra -Werror" compiled "${CC:-cc}" c11 "$source.c"
done
case_of "header.cc, C++17, -Wall -Wextra -Werror" compiled "${CXX:-c++}" c++17 header.cc
case_of "the overview's two programs, on two nodes" overview
case_of "poll" timeout 30 "$room/poll"
case_of "a C++ program" timeout 30 "$room/header"
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
