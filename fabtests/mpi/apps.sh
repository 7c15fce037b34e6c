#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Measures HPCC, Debian's package, under Debian's Open MPI over scif and over the MPI's own shared
# memory, two ranks, in turns (../turns.sh). The column `size` is the order of the matrix.
#
#   apps.sh [--order N] [--samples N]
#
# A sample is one run of HPCC, about 10 s at the default order of 2000. Ranks have the ordinary
# priority, as those of a user.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/setup.sh"
. "$here/stacks.sh"
. "$here/../turns.sh"

# Figures of HPCC's summary with their units.
FIGURES_OF_HPCC="MPIRandomAccess_time s
MaxPingPongLatency_usec us
NaturallyOrderedRingLatency_usec us
RandomlyOrderedRingLatency_usec us
MinPingPongBandwidth_GBytes GB/s
NaturallyOrderedRingBandwidth_GBytes GB/s
RandomlyOrderedRingBandwidth_GBytes GB/s
PTRANS_GBs GB/s
MPIFFT_Gflops Gflop/s
HPL_Tflops Tflop/s"
ORDER=2000
SAMPLES=3

usage="usage: make bench-apps [BENCH=OPTIONS], see the head of ${BASH_SOURCE[0]}"
while [ $# -gt 0 ]; do
    case $1 in
    --order) ORDER=${2:?$usage} && shift ;;
    --samples) SAMPLES=${2:?$usage} && shift ;;
    *) die "$usage" ;;
    esac
    shift
done

# Prints HPCC's input: one matrix, on a grid of 1 x 2 ranks.
input() {
    cat <<END
HPLinpack benchmark input file
two ranks
HPL.out      output file
8            device out
1            number of problem sizes
$ORDER       Ns
1            number of NBs
80           NBs
0            PMAP process mapping
1            number of process grids
1            Ps
2            Qs
16.0         threshold
1            number of panel facts
2            PFACTs
1            number of recursive stopping criteria
4            NBMINs
1            number of panels in recursion
2            NDIVs
1            number of recursive panel facts
1            RFACTs
1            number of broadcasts
1            BCASTs
1            number of lookahead depths
1            DEPTHs
2            SWAP
64           swapping threshold
0            L1
0            U
1            Equilibration
8            memory alignment
-
0            additional problem sizes for PTRANS
1200         values of N
0            additional blocking sizes for PTRANS
40           values of NB
END
}

# Lines "SIZE VALUE FIGURE,UNIT" of one run.
take() { # SUBJECT
    local dir=$BUILD/hpcc
    rm -rf "$dir" && mkdir -p "$dir" && input >"$dir/hpccinf.txt" &&
        (cd "$dir" && run_mpi debian "$1" 2 300 hpcc) >"$LOGS/turns-hpcc.log" 2>&1 || return
    awk -F= -v order="$ORDER" -v figures="$FIGURES_OF_HPCC" '
        BEGIN {
            n = split(figures, line, "\n")
            for (i = 1; i <= n; i++) { split(line[i], part, " "); unit[part[1]] = part[2] }
        }
        $1 == "Success" { success = $2 }
        /^(HPL|PTRANS).*FAILED/ || (/^MPIRandomAccess_Errors=/ && $2 > 0) { wrong = 1 }
        $1 in unit { print order, $2, $1 "," unit[$1]; found++ }
        END { exit !(success == 1 && !wrong && found == n) }' "$dir/hpccoutf.txt"
}

find_cargo
need_build_packages
need_packages hpcc
need_stack debian
build_release scif-fabtests

SUBJECTS=("$PROVIDER" own)
FIGURES=$RESULTS/bench-apps-samples.csv
prepare_turns
echo "HPCC, $(stack_title debian), processors $CPU0 and $CPU1, round trip of a cache line $NS ns"
in_turns hpcc -
report bench-apps
