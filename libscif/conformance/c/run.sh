#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Compiles the C programs of this directory against the header and runs them over the built library,
# without a device and over libscifdev.so: run.sh DIRECTORY, which has both libraries. The last line
# has the counts.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
lib=$(cd "$1" && pwd)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
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

compiled() { # COMPILER LANGUAGE STANDARD SOURCE PROGRAM
    "$1" -x "$2" "-std=$3" -D_DEFAULT_SOURCE -pthread -g -O2 -Wall -Wextra -Werror \
        -I"$here/../../include" -o "$room/$5" "$here/$4" -x none -L"$lib" -lscif
}

# Arguments: DOMAIN PROGRAM [VARIABLE=VALUE...]
soft() { env SCIF_DOMAIN="c-$1-$$" SCIF_TRANSPORT=soft "${@:3}" timeout 60 "$room/$2"; }
over_device() { # DEVICE PROGRAM
    env SCIF_DOMAIN="c-device-$$" SCIF_TRANSPORT=kernel SCIF_DEVICE="$1" \
        LD_PRELOAD="$lib/libscifdev.so" timeout 60 "$room/$2"
}

case_of "mpss.c, C11, -Wall -Wextra -Werror" compiled "${CC:-cc}" c c11 mpss.c mpss
case_of "mpss.c, C99, -Wall -Wextra -Werror" compiled "${CC:-cc}" c c99 mpss.c mpss99
case_of "mpss.c, C++17, -Wall -Wextra -Werror" compiled "${CXX:-c++}" c++ c++17 mpss.c mpss17
for program in mpss mpss99 mpss17; do
    case_of "names and values of MPSS's header, $program" soft names $program
done
case_of "heap.c, C11, -Wall -Wextra -Werror" compiled "${CC:-cc}" c c11 heap.c heap
# Only without a device: mappings of a driver are unmapped by the C library.
case_of "malloc gets a buffer back over which a window was mapped" soft heap heap
case_of "errno.c, C11, -Wall -Wextra -Werror" compiled "${CC:-cc}" c c11 errno.c errno
case_of "errno after every call that succeeds" soft plain errno
case_of "errno after every call that succeeds, every number looked up" \
    soft strict errno SCIF_STRICT_FD=1
for device in /dev/scif /dev/mic/scif; do
    case_of "errno after every call that succeeds, over libscifdev.so, $device" \
        over_device $device errno
done
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
