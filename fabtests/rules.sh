#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Rules that no compiler checks: each crate contains its kind of code only, files keep their form,
# and the finished library exports one symbol and needs none of libfabric. `rules.sh` checks sources
# and libraries, `rules.sh sources` the sources only.
set -u -o pipefail
shopt -s lastpipe # `… | rule` counts in this shell
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/gates.sh"
cd "$ROOT" || exit 1

sources_named() { # SUFFIX...: sources under version control, and new ones
    local args=() s
    for s; do args+=(-o -name "*$s"); done
    find . \( "${BUILT[@]}" -o -name autom4te.cache -o -path ./configure \) -prune \
        -o -type f \( "${args[@]:1}" \) -print | sed 's,^\./,,' | sort
}
BUILT=(-path ./target -o -path ./build -o -path ./vendor -o -path ./.git)
CODE=(.rs .c .cc .h .sh .py)

# rule WHAT: reads the offending lines from standard input.
rule() {
    local bad
    bad=$(cat)
    if [ -z "$bad" ]; then
        passed "$1"
    else
        failed "$1"
        head -n 20 <<<"$bad" | sed 's/^/     /'
    fi
}

# Prints matching lines of the files listed on standard input, without comments. With 1 as second
# argument, items for tests are excluded too.
code_lines() {
    xargs -r awk -v pattern="$1" '
        FNR == 1 { tests = next_is = 0 }
        next_is && !/^#\[/ { next_is = 0; tests = /\{$/ }
        /^#\[cfg\((all\()?test/ { next_is = 1 }
        tests && /^}/ { tests = 0 }
        { line = $0; sub(/\/\/.*/, "", line); gsub(/"([^"\\]|\\.)*"/, "\"\"", line) }
        line ~ pattern && !(tests && skip_tests) { print FILENAME ":" FNR ": " $0 }
    ' skip_tests="${2:-0}"
}

# Alternatives of an extended regular expression.
any_of() { local IFS='|' && printf '%s\n' "$*"; }
inside() { grep -E "^($(any_of "$@"))"; }
outside() { grep -vE "^($(any_of "$@"))"; }

sources() {
    gate "places"
    # transport/kernel: ioctls of a driver, with addresses in them. transport/sisci: functions and
    # callbacks of a C library. transport/net/shared_mux: a lock that is elided. scifdev: functions
    # that replace those of the C library.
    local rooms=(
        ffi/ 'ring/src/spsc/' 'ring/src/(copy|layout|reply_line|doorbell|keytable|claim|rmw)\.rs$'
        'ring/src/(domain_lock|sync|model|stream|shared_word)\.rs$' '(ring|scif)/(tests|benches)/'
        'libscif/(src|conformance)/' 'libsisci/(src/ffi|conformance)/' 'examples/rust/fork\.rs'
        'scif/src/(sys|transport/kernel)/' 'scif/src/transport/net/shared_mux\.rs$'
        'scif/src/transport/sisci/(functions|callbacks|library)\.rs$'
        scifdev/src/ prov/src/ libkofi/ 'fabtests/src/(fi/|harness/(process|sandbox|seccomp)\.rs)'
        'fabtests/src/bench/(os|segment)\.rs' fuzz/ 'scifctl/src/doctor/(sisci_)?library\.rs'
    )
    sources_named .rs | outside "${rooms[@]}" | code_lines '(^|[^a-z_])unsafe([^a-z_]|$)' 1 |
        rule "unsafe stays in its rooms"
    local safe=(
        'prov/src/engine/' 'prov/src/base/(attr|addr|env)\.rs'
        'prov/src/objects/getinfo/(matching|shape)\.rs'
        'prov/src/state/(av_table|mr_table|cq_queue)\.rs'
    )
    sources_named .rs | grep -v '/tests\.rs$' | inside "${safe[@]}" |
        code_lines '(^|[^a-z_])unsafe([^a-z_]|$)' 1 |
        rule "no unsafe in the data path and the tables of the provider"
    local atomics=(
        'sync::atomic' 'Atomic(U|I)(8|16|32|64|size)' 'Atomic(Bool|Ptr)' 'atomic::fence'
    )
    sources_named .rs | outside 'ring/' | code_lines "$(any_of "${atomics[@]}")" |
        rule "atomics are in ring/ only"
    # Types and constants of rustix may be named elsewhere. hostile.rs is a peer for tests. scifdev
    # replaces system calls, and forwards the others to the system.
    local callers=(
        '[a-z]+/tests/' examples/ scif/src/sys/ 'scif/src/transport/(kernel/|soft/hostile\.rs)'
        scifdev/src/ fabtests/ fuzz/ libscif/conformance/ libsisci/conformance/
    )
    local names='syscall|mmap|munmap|socket|bind|connect|accept|sendmsg|recvmsg|poll|epoll|ioctl'
    names+='|fork|kill|open|read|write|close|fcntl|prctl|memfd|process_vm'
    local calls=(
        'rustix::[a-z_]+::[a-z_]+[(]' 'use rustix::([a-z_]+::)*[a-z_]+( as .*)?;'
        'use rustix::.*[{,] *[a-z_]+ *[,}]' "libc::($names)[a-z_0-9]*[(]"
    )
    sources_named .rs | grep -v '/tests\.rs$' | outside "${callers[@]}" |
        code_lines "$(any_of "${calls[@]}")" 1 |
        rule "system calls are in scif/src/sys and the listed files only"
    local readers=(
        'scif/src/config\.rs' 'prov/src/base/env\.rs' 'libkofi/src/param\.rs'
        'scifctl/src/doctor/env\.rs' 'libsisci/src/config\.rs' fabtests/
        libscif/conformance/ libsisci/conformance/ '[a-z]+/tests/' '([a-z]+/)?build\.rs'
    )
    sources_named .rs | outside "${readers[@]}" |
        code_lines 'env::(var|vars|var_os)|getenv' 1 |
        rule "the environment is read in the config.rs, env.rs and param.rs of the libraries only"
    sources_named .rs | inside '(ring|scif|scif-api|ffi|kofi|prov)/src/' | code_lines 'no_mangle' |
        grep -v '^prov/src/lib\.rs' |
        rule "one exported symbol below the libraries, in prov/src/lib.rs"
    # reason.rs: reason for which the current call of a thread is refused.
    sources_named .rs | inside 'prov/src/' | outside 'prov/src/base/reason\.rs' |
        code_lines 'static mut|thread_local!' | rule "no mutable statics in the provider"
    gate_end

    gate "the form"
    sources_named "${CODE[@]}" | xargs wc -l |
        awk '$2 != "total" && $1 > 800 { print $2 ": " $1 " lines" }' |
        rule "no file above 800 lines"
    sources_named "${CODE[@]}" | grep -E '(^|/)(utils?|common|misc|helpers?)(\.[a-z]+$|/)' |
        rule "no file named util, common, misc or helper"
    {
        sources_named "${CODE[@]}" .ac .am
        ls GNUmakefile Makefile.in .ci/run 2>/dev/null
    } | while read -r f; do
        grep -q 'SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only' <(head -n 3 "$f") ||
            echo "$f"
    done | rule "every source has a licence line"
    sources_named "${CODE[@]}" .md | xargs grep -laP '\x00' | rule "sources are text"
    sources_named .rs | outside '([a-z]+/)?build\.rs' | while read -r f; do
        grep -q '^//!' <(head -n 12 "$f") || echo "$f"
    done | rule "every Rust file begins with its subject"
    sources_named "${CODE[@]}" | outside 'fabtests/rules\.sh' |
        xargs grep -nE '\b(TODO|FIXME|XXX|HACK)\b|\b(todo|unimplemented|dbg)!\(' |
        rule "no open task in a comment"
    # The lints find library calls that are newer than rust-version, but not this form.
    sources_named .rs | xargs awk '
        FNR == 1 { open = -1 }
        { match($0, /^ */); indent = RLENGTH }
        /&& let / || (open >= 0 && indent == open + 4 && /^ *&& /) {
            print FILENAME ":" FNR ": " $0
        }
        /^ *(} else )?(if|while) let / { open = indent }
        /\{$/ { open = -1 }
    ' | rule "no let chains, which need Rust 1.88"
    sources_named .sh | xargs grep -nE '(^|[^|])[|] *grep -[a-zA-Z]*q' |
        rule "no script leaves a command that still prints (gates.sh: shows)"
    {
        sed -n 's/^ *name: c"\([a-z_]*\)",$/FI_SCIF_\U\1/p' prov/src/base/env.rs
        sed -n 's/.*lookup("\(SCIF_[A-Z_]*\)").*/\1/p' scif/src/config.rs
        sed -n 's/.*lookup("\(SISCI_[A-Z_]*\)").*/\1/p' libsisci/src/config.rs
    } | while read -r setting; do
        [ "$(grep -c "^| \`$setting\` |" docs/env.md)" = 1 ] || echo "$setting"
    done | rule "every setting has one row in docs/env.md"
    local version spack=packaging/spack/spack_repo/scif/packages/scif_fi/package.py
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
    {
        [[ $version =~ ^[0-9]+(\.[0-9]+){2}$ ]] || echo "Cargo.toml: version '$version'"
        grep -L '^version\.workspace = true$' Cargo.toml ./*/Cargo.toml
        grep -LxF "AC_INIT([scif-fi], [$version], [], [scif-fi])" configure.ac
        grep -LxF "version: $version" CITATION.cff
        grep -LF "version(\"$version\")" "$spack"
        grep -LF "scif-fi-$version.tar.xz" "$spack"
        grep -LxF "  version: \"$version\"" packaging/conda/recipe.yaml
        grep -L "^\.TH .* \"scif ${version//./\\.}\" " man/*.[17]
    } | rule "every package, recipe, manual page and configure state the version of Cargo.toml"
    find . \( "${BUILT[@]}" \) -prune -o -type l -print | rule "no symbolic links"
    gate_end
}

# shared_library NAME DYNAMIC: rules of every library, on the output of `readelf -dW`.
shared_library() {
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$2" |
        grep -vE '^(libc\.so\.6|libgcc_s\.so\.1|libm\.so\.6|ld-linux.*)$' |
        rule "needs nothing but the C library"
    [ -z "$1" ] || { grep -qE "\(SONAME\).*\[${1//./\\.}\]" <<<"$2" || echo "no SONAME"; } |
        rule "its SONAME is $1"
    grep -E '\((RPATH|RUNPATH|TEXTREL)\)' <<<"$2" | rule "no run path, no text relocation"
}

library() {
    local so=${1:-$PROVIDER_DIR/libscif-fi.so} dynamic
    gate "the library"
    if [ ! -e "$so" ]; then
        failed "$so exists"
        gate_end
        return
    fi
    dynamic=$(readelf -dW "$so")
    nm -D --defined-only "$so" |
        awk '$3 != "fi_prov_ini" { print $3 } { n += $3 == "fi_prov_ini" }
            END { if (n != 1) print "no fi_prov_ini" }' |
        rule "exactly one exported symbol, fi_prov_ini"
    nm -D --undefined-only "$so" | grep -E '\b(fi|ofi)_' | rule "no undefined symbol of libfabric"
    { grep -q NODELETE <<<"$dynamic" || echo "no NODELETE"; } | rule "it is never unmapped"
    shared_library libscif-fi.so "$dynamic"
    gate_end
}

scif_library() { # DIRECTORY of libscif.so
    local so=$1/libscif.so.0.0.1 dynamic
    gate "libscif"
    if [ ! -e "$so" ]; then
        failed "$so exists"
        gate_end
        return
    fi
    dynamic=$(readelf -dW "$so")
    diff <(nm -D --defined-only "$so" | awk '$2 != "A" { print $3 }' | sort) <(
        sed -n 's/^[[:space:]]*\(scif_[A-Za-z_]*\);.*/\1@@SCIF_0.0/p' libscif/scif.map | sort
    ) | rule "it exports what scif.map names, at @@SCIF_0.0"
    nm -D --defined-only "$so" | grep -c '@@SCIF_0.0$' | grep -vx 22 | rule "22 functions"
    shared_library libscif.so.0 "$dynamic"
    gate_end
}

sisci_library() { # DIRECTORY of libsisci.so
    local so=$1/libsisci.so dynamic names
    gate "libsisci"
    if [ ! -e "$so" ]; then
        failed "$so exists"
        gate_end
        return
    fi
    dynamic=$(readelf -dW "$so")
    names=$(sed -n 's/.*SISCI_FUNCTION(\([A-Za-z_]*\))(.*/\1/p' libsisci/include/sisci_api.h)
    diff <(nm -D --defined-only "$so" | sed -n 's/.* T _SISCI_PUBLIC_FUNC_MT_//p' | sort) <(
        printf '%s\n' $names DISStartDmaTransfer DISStartDmaTransferVec SCICreateNamedInterrupt |
            sort -u
    ) | rule "it exports the functions of sisci_api.h, and three of unknown signature"
    diff <(nm -D --defined-only "$so" | awk '$2 == "R" { print $3 }' | sort) <(
        sed -n 's/^extern const unsigned int \(.*\);$/\1/p' libsisci/include/sisci_api.h | sort
    ) | rule "it exports the numbers of sisci_api.h"
    shared_library libsisci.so "$dynamic"
    gate_end
}

# Functions of the C library that the stand-in device replaces.
DEVICE_NAMES='close dup dup2 dup3 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait ioctl mmap mmap64
open open64 openat openat64 poll ppoll pselect select
__open_2 __open64_2 __openat_2 __openat64_2 __poll_chk __ppoll_chk'

device_library() { # FILE
    local dynamic
    gate "libscifdev"
    if [ ! -e "$1" ]; then
        failed "$1 exists"
        gate_end
        return
    fi
    dynamic=$(readelf -dW "$1")
    diff <(nm -D --defined-only "$1" | awk '{ print $3 }' | sort) \
        <(printf '%s\n' $DEVICE_NAMES | sort) | rule "it takes these names and no others"
    shared_library "" "$dynamic"
    gate_end
}

sources
[ "${1:-}" = sources ] || {
    library
    scif_library "$ROOT/build/lib"
    sisci_library "$ROOT/build/lib"
    device_library "$ROOT/build/lib/libscifdev.so"
}
verdict
