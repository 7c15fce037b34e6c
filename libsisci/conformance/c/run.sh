#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Compiles a C program with each spelling of the functions and runs it over the built library:
# run.sh DIRECTORY, which has the library. The last line has the counts.
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

compiled() { # COMPILER LANGUAGE STANDARD PROGRAM [FLAG...]
    "$1" -x "$2" "-std=$3" -O2 -Wall -Wextra -Wpedantic -Werror "${@:5}" \
        -I"$here/../../include" -o "$room/$4" "$here/names.c" -x none -L"$lib" -lsisci
}

# imports PROGRAM PATTERN: all functions of SISCI that the program needs match.
imports() {
    local names
    names=$(nm -D --undefined-only "$room/$1" | sed -n 's/^ *U //p' | grep SCI)
    [ -n "$names" ] && ! grep -vE "^($2)" <<<"$names"
}

runs() { SCIF_DOMAIN="c-$1-$$" timeout 60 "$room/$1"; }

case_of "names.c, C11" compiled "${CC:-cc}" c c11 single
case_of "it needs the _ST_ names" imports single '_SISCI_PUBLIC_(FUNC_ST|CONST)_'
case_of "names.c, C11, -pthread" compiled "${CC:-cc}" c c11 threads -pthread -D_REENTRANT
case_of "it needs the _MT_ names" imports threads '_SISCI_PUBLIC_(FUNC_MT|CONST)_'
case_of "names.c, C11, plain" compiled "${CC:-cc}" c c11 plain -DSISCI_PLAIN_NAMES
case_of "it needs the plain names" imports plain 'SCI|_SISCI_PUBLIC_CONST_'
case_of "names.c, C11, API 1" compiled "${CC:-cc}" c c11 old -DSISCI_API_1
case_of "names.c, C++17" compiled "${CXX:-c++}" c++ c++17 cxx
for program in single threads plain old cxx; do
    case_of "$program runs" runs $program
done
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
