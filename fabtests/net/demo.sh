#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Demonstration: MPI jobs of 2 x 2 ranks on two hosts, over scif, over a network provider of
# libfabric alone, and over the MPI's own pair of shared memory and network. The hosts are
# namespaces of this machine (hosts.sh). Ends with a table and a plot; the hosts are removed, also
# after Ctrl-C.
# Needs root or user namespaces.
#   demo.sh            installs and builds what it needs
#   demo.sh --quick    uses what is built; short loops, whose figures say little
set -u -o pipefail
. "$(dirname "$0")/../mpi/setup.sh"
. "$(dirname "$0")/../mpi/stacks.sh"
. "$(dirname "$0")/hosts.sh"
. "$(dirname "$0")/jobs.sh"
cd "$ROOT" || exit 1

# STACK WAY pairs. The libfabric of Debian has tcp by the name of net.
JOBS=("mpich5 scif" "mpich5 tcp" "mpich5 own" "debian scif" "debian net" "debian own")
LIMIT=90
STEPS=$((6 + ${#JOBS[@]}))
step=0
say() { printf '[%2d/%d] %s\n' $((++step)) "$STEPS" "$*"; }

seconds=0.25 name=demo-hosts
case ${1:-} in
    '') ;;
    --quick) seconds=0.01 name=demo-hosts-quick step=4 ;;
    --built) step=4 ;;
    *) die "usage: make demo-hosts, or $0 --quick" ;;
esac
started=$SECONDS
if [ $# = 0 ]; then
    say "a cargo that is new enough"
    find_cargo
    say "Debian packages: compiler, libfabric, Open MPI, iproute2"
    "${CARGO[@]}" fetch --locked >/dev/null 2>&1 &
    need_quick_packages
    need_packages openmpi-bin iproute2
    say "MPICH 5 and mpi4py from PyPI"
    need_stack mpich5 debian
    say "the build of the provider"
    build_quick
    set -- --built
fi
hosts_as_root "$0" "$@"

job=
trap '[ -z "$job" ] || kill "$job" 2>/dev/null; hosts_down' EXIT
trap 'echo "stopped, the hosts are being removed" >&2; exit 130' INT TERM HUP
say "two hosts: namespaces of this machine, with a network between them"
hosts_possible || die "Two hosts on this machine need root, or user namespaces." \
    "Run this as root, and in a container with the right to create namespaces."
hosts_up 2 || die "The hosts cannot be set up."

dir=$RESULTS/$name
rm -rf "$dir" && mkdir -p "$dir"
broken=0
VARIABLES=(FI_SCIF_STATS=1)

# measure STACK WAY: output in FILE.out; a failure leaves FILE.failed with its reason.
measure() {
    local file=$dir/$1.$2 rc
    # In the background, so that a signal does not wait for its end.
    between_hosts "$1" "$2" 4 2 "$LIMIT" "$(stack_python "$1")" \
        "$ROOT/fabtests/mpi/jobs/hosts.py" "$seconds" >"$file.out" 2>"$file.err" &
    job=$!
    wait "$job"
    rc=$?
    job=
    ((rc != 0)) || return 0
    echo failed >"$file.failed"
    ((rc != 124 && rc != 137)) || echo "no end in $LIMIT s" >"$file.failed"
    [ "$2" = scif ] || return 0
    broken=1
    tail -n 20 "$file.err" "$file.out" >&2
}

for pair in "${JOBS[@]}"; do
    read -r stack way <<<"$pair"
    case $way in
        own) title="its own shared memory and tcp" ;;
        scif) title=$way ;;
        *) title="$way alone" ;;
    esac
    say "4 ranks on 2 hosts, $(stack_title "$stack"), $title (at most $LIMIT s)"
    RUN_BY=exec measure "$stack" "$way"
done
hosts_down

say "table and plot"
[ -n "${PYTHON:-}" ] || PYTHON=$(stack_python mpich5)
echo
"$PYTHON" fabtests/mpi/hosts_table.py "$dir" "$dir.csv" || broken=1
"$PYTHON" fabtests/plot.py "$dir.csv" "$dir.svg" || broken=1
printf '\nWhat the endpoints of scif counted (FI_SCIF_STATS=1):\n'
for file in "$dir"/*.scif.err; do
    grep -ah 'scif: endpoint .* peers [1-9]' "$file" "${file%.err}.out" |
        sed "s/^.*scif: endpoint/  $(basename "$file" .scif.err): endpoint/"
done
printf '\nplot: %s\ndata: %s\n' "${dir#"$ROOT"/}.svg" "${dir#"$ROOT"/}.csv"
printf '%d seconds in all\n' $((SECONDS - started))
cat <<END

What to type for your own program on hosts a and b, which both have the provider:
  export FI_PROVIDER_PATH=$PROVIDER_DIR FI_PROVIDER=scif
  MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1 mpiexec -hosts a,b -ppn 2 -n 4 ./program
  mpirun -H a:2,b:2 -x FI_PROVIDER -x FI_PROVIDER_PATH --mca pml cm --mca mtl ofi ./program
The page docs/user/hosts.md has more of them, and which networks they use.
END
((!broken)) || die "A run over scif failed; its output is in ${dir#"$ROOT"/}."
