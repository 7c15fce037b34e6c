#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Makes libscif.so.0.0.1 and its symbolic links from the archive that cargo built:
# link.sh ARCHIVE DIRECTORY
set -eu
here=$(dirname "$0")
mkdir -p "$2"
rm -f "$2/libscif.so.0.0.1"
symbols=$(sed -n 's/^[[:space:]]*\(scif_[A-Za-z_]*\);.*/-Wl,-u,\1/p' "$here/scif.map")
# shellcheck disable=SC2086 # a list of arguments
${CC:-cc} -shared -o "$2/libscif.so.0.0.1" $symbols "$1" \
    -Wl,-soname,libscif.so.0 -Wl,--version-script="$here/scif.map" \
    -Wl,-z,defs -Wl,-z,nodelete -Wl,-z,relro,-z,now -Wl,--gc-sections -lgcc_s -lc
ln -sf libscif.so.0.0.1 "$2/libscif.so.0"
ln -sf libscif.so.0 "$2/libscif.so"
