#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# link.sh ARCHIVE DIRECTORY: links the shared libraries of libkofi from the archive built by cargo.
# Cargo would use a version script of its own, so that symbols could not have versions.
#   DIRECTORY/libkofi.so              all symbols
#   DIRECTORY/kofi/libfabric.so.1     libfabric's symbols only; loads libkofi.so from the directory
#                                     above or its own
#   DIRECTORY/kofi/libfabric.so       link for cc -lfabric
#   DIRECTORY/kofi/libkofi-fi.so      the bridge, for a real libfabric
# CC and CFLAGS are taken from the environment.
set -eu
archive=$1 to=$2
here=$(dirname "$0")
cc=${CC:-cc}
mkdir -p "$to/kofi"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
compile() {
    $cc ${CFLAGS--O2} -std=gnu11 -Wall -Wextra -Werror -fPIC -c "$here/$1.c" -o "$objects/$1.o"
}
compile versions
compile bridge
# Each file is replaced atomically, since a process may have the old one mapped.
link() { # link FILE ARGUMENT...
    file=$1
    shift
    $cc -shared -o "$objects/out" "$@" -Wl,-z,nodelete,-z,defs,-z,relro,-z,now
    chmod 755 "$objects/out"
    mv -f "$objects/out" "$to/$file.new"
    mv -f "$to/$file.new" "$to/$file"
}
link libkofi.so "$objects/versions.o" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -Wl,-soname,libkofi.so -Wl,--version-script="$here/fabric.map" \
    -Wl,--version-script="$here/kofi.map" -Wl,-Bsymbolic,--gc-sections,--as-needed \
    -lgcc_s -lm -lpthread -ldl -lc
link kofi/libfabric.so.1 "$objects/versions.o" "$to/libkofi.so" \
    -Wl,-soname,libfabric.so.1 -Wl,--version-script="$here/fabric.map" -Wl,-Bsymbolic \
    -Wl,--enable-new-dtags,-rpath,"\$ORIGIN/..:\$ORIGIN"
ln -sf libfabric.so.1 "$to/kofi/libfabric.so"
link kofi/libkofi-fi.so "$objects/bridge.o" -Wl,-soname,libkofi-fi.so
