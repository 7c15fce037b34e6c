# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after mpi/setup.sh: benchmark programs of others, for several subjects in turns. The round
# trip of a cache line between the two processors is measured before and after each sample. A sample
# counts if both round trips are of one placement:
#
#   near  below 80 ns, two hardware threads of a core
#   mid   below 180 ns, two cores that share a cache
#   far   above
#
# The caller sets SUBJECTS, SAMPLES and FIGURES (a file), and defines the function `take`.

NEAR_NS=80
MID_NS=180
PROBES=5

# Prints the two processors and the round trip of a line in nanoseconds.
probe() { "${PRIORITY[@]}" "$TARGET/release/bench" --probe "$PROBES"; }

# Sets PRIORITY, the command prefix of a measured process, and CPU0 and CPU1, its processors.
prepare_turns() {
    PRIORITY=()
    if chrt -f 1 true 2>/dev/null; then
        PRIORITY=(chrt -f 1)
    else
        echo "No right to FIFO priority, figures are less exact: run as root or with CAP_SYS_NICE."
    fi
    read -r CPU0 CPU1 NS < <(probe) || die "Two processors are necessary; see taskset(1)."
    [ -n "${NS:-}" ] || die "No round trip of a cache line could be measured."
    echo "test,unit,size,subject,placement,before_ns,after_ns,value" >"$FIGURES"
    DROPPED=0 PROBLEMS=()
    declare -gA ABSENT=()
}

placement() { # NS
    if (($1 < NEAR_NS)); then echo near; elif (($1 < MID_NS)); then echo mid; else echo far; fi
}

# in_turns TEST UNIT [ARGUMENT...]: calls `take SUBJECT TEST ARGUMENT...` for each subject in turns,
# until each has SAMPLES samples of one placement, or had three times as many turns. `take` prints
# lines "SIZE VALUE", or "SIZE VALUE TEST,UNIT" for a program with several results, and fails if the
# program fails. A subject that fails twice is absent in this test.
in_turns() {
    local test=$1 unit=$2 order=("${SUBJECTS[@]}") subject rows before after round place
    local -A count=() failures=()
    shift 2
    read -r _ _ before < <(probe)
    for ((round = 0; round < 3 * SAMPLES; round++)); do
        ! taken || return 0
        for subject in "${order[@]}"; do
            [ -z "${ABSENT[$test $subject]:-}" ] || continue
            if ! rows=$(take "$subject" "$test" "$@") || [ -z "$rows" ]; then
                ((failures[$subject] += 1))
                if ((failures[$subject] >= 2)); then
                    ABSENT[$test $subject]=1
                    PROBLEMS+=("$test, $subject: no figures, see $LOGS/turns-*.log: $(last_words)")
                fi
                continue
            fi
            read -r _ _ after < <(probe)
            place=$(placement "$before")
            if [ "$place" = "$(placement "$after")" ]; then
                ((count[$place $subject] += 1))
                awk -v OFS=, -v head="$test,$unit" -v tail="$subject,$place,$before,$after" \
                    '{ print (NF > 2 ? $3 : head), $1, tail, $2 }' <<<"$rows" >>"$FIGURES"
            else
                DROPPED=$((DROPPED + 1))
            fi
            before=$after
        done
        # Alternates, so that no subject always follows the same one.
        mapfile -t order < <(printf '%s\n' "${order[@]}" | tac)
    done
}

# Whether all subjects of the test in progress have their samples of one placement.
taken() {
    local place subject lacks
    for place in near mid far; do
        lacks=0
        for subject in "${SUBJECTS[@]}"; do
            [ -n "${ABSENT[$test $subject]:-}" ] ||
                ((${count[$place $subject]:-0} >= SAMPLES)) || lacks=1
        done
        ((lacks)) || return 0
    done
    return 1
}

# Prints the last line of the newest log of a sample.
last_words() { tail -qn 1 "$(ls -t "$LOGS"/turns-*.log | head -n 1)"; }

# report NAME: writes the tables to build/results/NAME.txt and the medians to NAME.csv.
report() {
    local problem
    awk -v subjects="${SUBJECTS[*]}" -v samples="$SAMPLES" -v csv="$RESULTS/$1.csv" \
        -f "$ROOT/fabtests/turns.awk" "$FIGURES" | tee "$RESULTS/$1.txt"
    local rc=${PIPESTATUS[0]}
    echo "$DROPPED samples dropped because the placement changed"
    for problem in "${PROBLEMS[@]}"; do echo "$problem"; done
    ((rc == 0)) || die "No figures: nothing was measured."
    echo "written: $RESULTS/$1.txt, $RESULTS/$1.csv and $FIGURES (each sample)"
}
