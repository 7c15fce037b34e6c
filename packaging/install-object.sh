#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Installs a program or a library: install-object.sh HOW SOURCE TARGET
#   separate  stripped, with its debug information in the directory .debug beside it, where
#             debuggers look
#   strip     stripped
#   keep      with its debug information, for packagers whose tools separate it
# INSTALL, STRIP and OBJCOPY name the tools.
set -e
how=$1 source=$2 target=$3
: "${INSTALL:=install}" "${STRIP:=strip}" "${OBJCOPY:=objcopy}"
debug=$(dirname "$target")/.debug/$(basename "$target").debug

$INSTALL -m 755 "$source" "$target"
case $how in
    keep) ;;
    strip) $STRIP --strip-all "$target" ;;
    separate)
        $INSTALL -d "$(dirname "$debug")"
        $OBJCOPY --only-keep-debug --compress-debug-sections "$source" "$debug"
        chmod 644 "$debug"
        $STRIP --strip-all "$target"
        $OBJCOPY --add-gnu-debuglink="$debug" "$target"
        ;;
    *) echo "install-object.sh: $how is neither separate, strip nor keep" >&2 && exit 2 ;;
esac
