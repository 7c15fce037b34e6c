#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Configures, installs and uninstalls as a packager does: install.sh BUILD_DIRECTORY
# The installation below BUILD_DIRECTORY/dest stays for the examples. The last line counts.
set -u -o pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
build=$(cd "$1" && pwd)
good=0 bad=0

case_of() { # WHAT COMMAND...
    local what=$1
    shift
    if "$@" >"$build/install.out" 2>&1; then
        good=$((good + 1)) && echo "ok   $what"
    else
        bad=$((bad + 1)) && echo "FAIL $what" && tail -n 25 "$build/install.out" | sed 's/^/     /'
    fi
}

# Configures a copy of the sources in place, as docs/user/start.md describes, and checks the
# commands of make.
in_the_sources() (
    rm -rf "$build/in-tree" && mkdir -p "$build/in-tree" && cd "$root" &&
        find . \( -path ./target -o -path ./build -o -path ./.git \) -prune -o -type f -print0 |
        xargs -0 cp --parents -t "$build/in-tree" && cd "$build/in-tree" &&
        autoconf && ./configure && make -n install >steps && grep -q 'cargo.* build' steps &&
        grep -qF "\"$(pkg-config --variable=libdir libfabric)/libfabric/libscif-fi.so\"" \
            <(tr -s / <steps | sed "s,\$(pwd),,") &&
        grep -q '/usr/lib64/libfabric' steps
)

# configured DIRECTORY OPTION...: configures outside of the sources.
configured() (
    rm -rf "${build:?}/$1" && mkdir -p "$build/$1" && cd "$build/$1" &&
        autoconf -o configure "$root/configure.ac" && ./configure --srcdir="$root" "${@:2}"
)

# In a separate directory, because configure leaves a log.
refuses_without_libfabric() (
    mkdir -p "$build/install-none" && cd "$build/install-none" &&
        ! PKG_CONFIG_LIBDIR=/nonexistent "$build/install/configure" --srcdir="$root" >out 2>&1 &&
        grep 'error: libfabric 1.17 or newer is needed' out
)

made() { make -C "$build/$1" "${@:2}"; }

# only_below DESTDIR PREFIX: there are files, all of them below PREFIX.
only_below() {
    [ -n "$(find "$1$2" -type f)" ] && [ -z "$(find "$1" -not -type d -not -path "$1$2/*" -print)" ]
}

lists_scif() { # PROVIDER_DIRECTORY
    FI_PROVIDER_PATH=$1 FI_PROVIDER=scif timeout 20 fi_info -p scif >"$build/info" &&
        grep -q 'provider: scif' "$build/info"
}

# Checks that pkg-config and scifctl of an installation state the version of Cargo.toml.
one_version() { # PREFIX
    local version package
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")
    for package in scif sisci; do
        [ "$(PKG_CONFIG_PATH=$1/lib/pkgconfig pkg-config --modversion $package)" = "$version" ] ||
            { echo "$package.pc has another version than $version" && return 1; }
    done
    [ "$("$1/bin/scifctl" --version)" = "scifctl $version" ] ||
        { echo "scifctl has another version than $version" && return 1; }
}

has() { # DIRECTORY FILE...
    local file missing=0
    for file in "${@:2}"; do
        [ -s "$1/$file" ] || { echo "missing: $1/$file" && missing=1; }
    done
    return $missing
}

# Checks that no shared library or program has a symbol table or debug information.
stripped() { # DIRECTORY
    local file seen=0 fault=0
    while read -r file; do
        readelf -h "$file" >/dev/null 2>&1 || continue
        seen=$((seen + 1))
        ! readelf -SW "$file" | grep -E ' \.(symtab|debug_info) ' ||
            { echo "not stripped: $file" && fault=1; }
    done < <(find "$1" -type f -not -path '*/.debug/*' \( -name '*.so*' -o -path '*/bin/*' \))
    ((fault == 0 && seen >= 7))
}

# Checks that debuggers find lines of Rust for each program and library: nine addresses are tried.
has_lines() { # PREFIX
    local file address size i addresses seen=0
    for file in "$1"/bin/scifctl "$1"/lib/libscif.so.0.* "$1"/lib/lib{scifdev,sisci,kofi}.so \
        "$1"/lib/libfabric/libscif-fi.so; do
        read -r address size < <(readelf -SW "$file" |
            sed -n 's/.* \.text *PROGBITS *\([0-9a-f]*\) [0-9a-f]* \([0-9a-f]*\) .*/\1 \2/p')
        addresses=()
        for ((i = 1; i < 10; i++)); do
            addresses+=("$(printf '%#x' $((0x$address + i * 0x$size / 10)))")
        done
        addr2line -e "$file" "${addresses[@]}" >"$build/lines"
        grep -m 1 '\.rs:[0-9]' "$build/lines" || { echo "no line: $file" && return 1; }
        seen=$((seen + 1))
    done
    ((seen == 6))
}

# Size that the provider may have where it is installed, in bytes. It has 2.4 MB; more shows that
# debug information or a large package came in.
PROVIDER_MAX=2500000
fits() { # LIBRARY
    local size
    size=$(stat -c %s "$1") && echo "$size of at most $PROVIDER_MAX bytes" &&
        ((size <= PROVIDER_MAX))
}

# pkg-config without packages acts as a system without libfabric; the search for libclang is
# skipped.
without_libfabric() { PKG_CONFIG_LIBDIR=/nonexistent LIBCLANG_PATH=/nonexistent "$@"; }

documents=(README.md CHANGELOG.md LICENSE LICENSES/BSD-2-Clause.txt docs/env.md
    docs/user/start.md libscif/README.md examples/windows.c examples/kofi/exchange.c
    examples/rust/windows.rs)
dest=$build/dest
rm -rf "$dest" "$build/dest-strip" "$build/dest-scif" "$build/dest-keep"

case_of "autoconf, configure in the sources: the provider goes where libfabric looks" in_the_sources
case_of "configure --prefix, outside of the sources" configured install --prefix=/usr/local
case_of "make install DESTDIR" made install install DESTDIR="$dest"
case_of "no symbol tables are left" stripped "$dest"
case_of "debuggers find lines beside them" has_lines "$dest/usr/local"
case_of "the provider is small" fits "$dest/usr/local/lib/libfabric/libscif-fi.so"
case_of "everything is below the prefix" only_below "$dest" /usr/local
case_of "libfabric lists the provider that was installed" lists_scif "$dest/usr/local/lib/libfabric"
case_of "pkg-config and scifctl state the version of Cargo.toml" one_version "$dest/usr/local"
case_of "licence, documents and examples" has "$dest/usr/local/share/doc/scif-fi" "${documents[@]}"
case_of "make install-strip" made install install-strip DESTDIR="$build/dest-strip"
case_of "no symbol tables are left" stripped "$build/dest-strip"
case_of "no debug information is beside them" \
    sh -c '! find "$1" -name "*.debug" | grep .' sh "$build/dest-strip"
case_of "libfabric lists the stripped provider" \
    lists_scif "$build/dest-strip/usr/local/lib/libfabric"
case_of "make install over that" made install install DESTDIR="$build/dest-strip"
case_of "make uninstall" made install uninstall DESTDIR="$build/dest-strip"
case_of "nothing is left, also in .debug" \
    sh -c '! find "$1" -not -type d -o -name .debug | grep .' sh "$build/dest-strip"
case_of "configure --disable-strip" configured install-keep --prefix=/usr/local --disable-strip
case_of "make install of that" made install-keep install DESTDIR="$build/dest-keep"
case_of "debug information is within the provider" \
    sh -c 'readelf -SW "$1" | grep " \.debug_line "' sh \
    "$build/dest-keep/usr/local/lib/libfabric/libscif-fi.so"
case_of "configure needs libfabric" refuses_without_libfabric
case_of "configure --disable-provider needs no libfabric" \
    without_libfabric configured install-scif --prefix=/usr --disable-provider
case_of "make install of that" \
    without_libfabric made install-scif install DESTDIR="$build/dest-scif"
case_of "libscif, its device, its tool" \
    has "$build/dest-scif/usr" lib/libscif.so lib/libscifdev.so bin/scifctl include/scif.h
case_of "libsisci and its headers" \
    has "$build/dest-scif/usr" lib/libsisci.so lib/pkgconfig/sisci.pc include/sisci/sisci_api.h
case_of "no provider, no libkofi" \
    sh -c '! find "$1" -name "*-fi.so" -o -name "libkofi*" | grep .' sh "$build/dest-scif"
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
