#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Makes libsisci.so from the archive that cargo built, with each function under three names:
# link.sh ARCHIVE DIRECTORY
set -eu
here=$(dirname "$0")
mkdir -p "$2"
rm -f "$2/libsisci.so"
functions=$(sed -n 's/^ *\([SDG][A-Za-z_]*\);$/\1/p' "$here/sisci.map")
objects=$(sed -n 's/^ *\(_SISCI_PUBLIC_CONST_[A-Z0-9_]*\);$/\1/p' "$here/sisci.map")
set -- "$1" "$2"
for name in $functions; do
    set -- "$@" "-Wl,-u,$name"
    for spelling in ST MT; do
        set -- "$@" "-Wl,--defsym=_SISCI_PUBLIC_FUNC_${spelling}_$name=$name"
    done
done
for name in $objects; do
    set -- "$@" "-Wl,-u,$name"
done
archive=$1
directory=$2
shift 2
${CC:-cc} -shared -o "$directory/libsisci.so" "$@" "$archive" \
    -Wl,-soname,libsisci.so -Wl,--version-script="$here/sisci.map" \
    -Wl,-z,defs -Wl,-z,nodelete -Wl,-z,relro,-z,now -Wl,--gc-sections -lgcc_s -lc
