#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# link.sh ARCHIVE DIRECTORY: makes the shared libraries of libkofi from the archive that cargo built. Cargo links shared
# libraries itself, but with a version script of its own, so symbols could not have versions.
#   DIRECTORY/libkofi.so              all
#   DIRECTORY/kofi/libfabric.so.1     libfabric's symbols alone, over libkofi.so one directory above or beside it
#   DIRECTORY/kofi/libfabric.so       what cc -lfabric finds
#   DIRECTORY/kofi/libkofi-fi.so      the bridge, for a real libfabric
# CC and CFLAGS are taken from the environment.
set -eu
archive=$1 to=$2
here=$(dirname "$0")
cc=${CC:-cc}
mkdir -p "$to/kofi"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
compile() { $cc ${CFLAGS--O2} -std=gnu11 -Wall -Wextra -Werror -fPIC -c "$here/$1.c" -o "$objects/$1.o"; }
compile versions
compile bridge
# Each new file takes the place of the old at once: somebody may have that mapped.
link() { # link FILE ARGUMENT...
    file=$1
    shift
    $cc -shared -o "$objects/out" "$@" -Wl,-z,nodelete,-z,defs,-z,relro,-z,now
    chmod 755 "$objects/out"
    mv -f "$objects/out" "$to/$file.new"
    mv -f "$to/$file.new" "$to/$file"
}
link libkofi.so "$objects/versions.o" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -Wl,-soname,libkofi.so -Wl,--version-script="$here/fabric.map" -Wl,--version-script="$here/kofi.map" \
    -Wl,-Bsymbolic,--gc-sections,--as-needed -lgcc_s -lm -lpthread -ldl -lc
link kofi/libfabric.so.1 "$objects/versions.o" "$to/libkofi.so" \
    -Wl,-soname,libfabric.so.1 -Wl,--version-script="$here/fabric.map" -Wl,-Bsymbolic \
    -Wl,--enable-new-dtags,-rpath,"\$ORIGIN/..:\$ORIGIN"
ln -sf libfabric.so.1 "$to/kofi/libfabric.so"
link kofi/libkofi-fi.so "$objects/bridge.o" -Wl,-soname,libkofi-fi.so
