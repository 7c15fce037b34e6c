#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the examples as C11 and as C++17, and runs each between processes that play nodes:
# run.sh [DIRECTORY], which has libsisci.so (default: build/lib). The last line has the counts.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
lib=$(cd "${1:-$here/../../build/lib}" && pwd) || exit 1
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
good=0 bad=0

# compiled PROGRAM COMPILER LANGUAGE STANDARD
compiled() {
    "$2" -x "$3" "-std=$4" -O2 -Wall -Wextra -Wpedantic -Werror -pthread -D_REENTRANT \
        -I"$here/../include" -o "$room/$1.$3" "$here/$1.c" -x none -L"$lib" -lsisci
}

# nodes PROGRAM LANGUAGE ARGUMENTS...: a process for each ARGUMENTS, as nodes 4, 8, 12.
nodes() {
    local program=$1 language=$2 node=4 pids=() pid failed=0 arguments
    shift 2
    for arguments in "$@"; do
        # shellcheck disable=SC2086 # words of a command line
        SCIF_DOMAIN="$program-${language//+/x}-$$" SISCI_NODE=$node \
            timeout 120 "$room/$program.$language" $arguments &
        pids+=($!)
        node=$((node + 4))
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || failed=1
    done
    return $failed
}

# example PROGRAM ARGUMENTS...
example() {
    local program=$1 language compiler standard
    shift
    while read -r language compiler standard; do
        if compiled "$program" "$compiler" "$language" "$standard" &&
            nodes "$program" "$language" "$@"; then
            good=$((good + 1)) && echo "ok   $program, $standard"
        else
            bad=$((bad + 1)) && echo "FAIL $program, $standard"
        fi
    done <<LANGUAGES
c ${CC:-cc} c11
c++ ${CXX:-c++} c++17
LANGUAGES
}

example ping_pong "8 first" "4 second"
example dma receiver "sender 4"
example interrupt waiter "trigger 4"
example connection server "client 4"
example reflective "0 3" "1 3" "2 3"
example chain "producer 8" "filter 4 12" "consumer 8"
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
