#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Demonstration: unmodified MPI programs over scif, over libfabric's shm where the MPI supports it,
# and over tcp. Ends with a table, a plot and the counters of the scif endpoints.
set -u -o pipefail
. "$(dirname "$0")/setup.sh"
. "$(dirname "$0")/stacks.sh"
cd "$ROOT" || exit 1

PROVIDERS=("$PROVIDER" shm tcp)
STEPS=$((7 + 5 * ${#PROVIDERS[@]}))
step=0
say() { printf '[%2d/%d] %s\n' $((++step)) "$STEPS" "$*"; }

started=$SECONDS
say "a cargo that is new enough"
find_cargo
say "Debian packages: compiler, libfabric"
# The build fetches crates again if this fails, and says why.
"${CARGO[@]}" fetch --locked >/dev/null 2>&1 &
need_quick_packages
say "the build of the provider begins, in the background"
build_quick &
build=$!
trap 'kill $build 2>/dev/null' EXIT
say "Debian packages: Open MPI, NetPIPE"
need_packages openmpi-bin netpipe-openmpi
say "MPICH 5 and mpi4py from PyPI"
need_stack mpich5
say "the end of the build"
wait $build || exit 1
trap - EXIT

# Prints the lines for a program of the user's, for the MPI whose launcher is found first.
next_commands() {
    local found launch
    found=$(mpiexec --version 2>&1 </dev/null)
    case $found in
    *"Open MPI"* | *OpenRTE*) launch='mpirun --mca pml cm --mca mtl ofi -n 2 ./program' ;;
    *Intel*) launch='I_MPI_FABRICS=ofi mpiexec -n 2 ./program' ;;
    *HYDRA*) launch='MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 mpiexec -n 2 ./program' ;;
    *) launch='mpirun -n 2 ./program    # with the settings of docs/user/mpi.md' ;;
    esac
    printf '\nWhat to type next, for your own program:\n'
    printf '  export FI_PROVIDER_PATH=%s FI_PROVIDER=scif\n' "$PROVIDER_DIR"
    printf '  FI_SCIF_STATS=1 %s\n' "$launch"
    printf 'Each rank then prints a line "scif: endpoint ..." at its end.\n'
    printf '`make` builds the provider with link-time optimization, which takes longer.\n'
}

dir=$RESULTS/demo
rm -rf "$dir" && mkdir -p "$dir"
broken=0

# measure STACK PROVIDER RANKS NAME COMMAND...: output in NAME.out; a failure leaves NAME.failed
# with its reason.
measure() {
    local stack=$1 provider=$2 ranks=$3 name=$dir/$1.$2.$3.$4 rc
    shift 4
    FI_SCIF_STATS=1 run_mpi "$stack" "$provider" "$ranks" 60 "$@" >"$name.out" 2>"$name.err" &&
        return
    rc=$?
    if [ $rc = 124 ]; then
        echo "over 60 s" >"$name.failed"
    elif grep -qE 'cannot be selected|getinfo failed' "$name.err" "$name.out"; then
        echo "refused by this MPI" >"$name.failed"
    else
        echo "failed" >"$name.failed"
    fi
    if [ "$provider" = "$PROVIDER" ]; then
        broken=1
        tail -n 20 "$name.err" "$name.out" >&2
    fi
}

netpipe() { # PROVIDER
    # A fixed number of repeats, because NetPIPE takes half a second for each of its 120 sizes by
    # default.
    measure debian "$1" 2 netpipe-small \
        NPopenmpi -p 0 -n 300 -u 65536 -o "$dir/debian.$1.2.netpipe-small.np"
    [ -e "$dir/debian.$1.2.netpipe-small.failed" ] && return
    measure debian "$1" 2 netpipe-large \
        NPopenmpi -p 0 -n 30 -l 65536 -u 4194304 -o "$dir/debian.$1.2.netpipe-large.np"
}

bench=("$(stack_python mpich5)" -m mpi4py.bench)
for provider in "${PROVIDERS[@]}"; do
    say "NetPIPE, 2 ranks, $(stack_title debian), $provider"
    netpipe "$provider"
    for ranks in 2 4; do
        # With more ranks than cores, a run within a few time slices measures the start alone. A run
        # of two ranks within 20 ms is decided by a single interruption.
        loops=$((ranks == 2 ? 15000 : 3000)) large=$((ranks == 2 ? 500 : 1000))
        # Messages over tcp take five to ten times as long.
        [ "$provider" = tcp ] && loops=$((ranks == 2 ? 3000 : 1000)) large=100
        say "mpi4py ring, $ranks ranks, $(stack_title mpich5), $provider"
        measure mpich5 "$provider" $ranks ring-small "${bench[@]}" ringtest -n 8 -s 50 -l $loops
        measure mpich5 "$provider" $ranks ring-large \
            "${bench[@]}" ringtest -n 1048576 -s 5 -l $large
        say "mpi4py ping-pong, $ranks ranks, $(stack_title mpich5), $provider"
        measure mpich5 "$provider" $ranks pingpong \
            "${bench[@]}" pingpong -a none -n 4194304 -s 50 -l $loops --loop-large $large \
            --loop-huge $((ranks == 2 ? 20 : 200)) --skip-huge 3 --huge-size 524288
    done
done

say "table and plot"
[ -n "${PYTHON:-}" ] || PYTHON=$(stack_python mpich5)
echo
"$PYTHON" fabtests/mpi/table.py "$dir" "$PROVIDER" "$RESULTS/demo.csv" || broken=1
"$PYTHON" fabtests/plot.py "$RESULTS/demo.csv" "$RESULTS/demo.svg" || broken=1
if [ "$PROVIDER" = scif ]; then
    printf '\nWhat the endpoints of scif counted (FI_SCIF_STATS=1):\n'
    for name in "$dir"/*."$PROVIDER".*.err; do
        label=$(basename "$name" .err)
        grep -h '^scif: endpoint' "$name" "${name%.err}.out" | sed "s/^scif: /  $label: /"
    done
fi
printf '\nplot: %s\ndata: %s\n' "${RESULTS#"$ROOT"/}/demo.svg" "${RESULTS#"$ROOT"/}/demo.csv"
printf '%d seconds in all\n' $((SECONDS - started))
next_commands
if ((broken)); then
    die "A run over $PROVIDER failed; its output is in ${dir#"$ROOT"/}."
fi
