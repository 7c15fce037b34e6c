# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after setup.sh and stacks.sh, run between gate and gate_end of ../gates.sh: MPI jobs as cases.

# Lines that endpoints print when they close, and how many of them moved something.
traffic() { grep -cE "^(\[[^]]*\] *)?scif: endpoint .* sent [1-9]" "$1"; }

# exchange_jobs STACK RANKS...: the data-checking job, proof that its traffic was the provider's, and the control:
# without the provider the same command must fail, or something else could have carried the messages.
exchange_jobs() {
    local stack=$1 ranks log rc job
    shift
    job=("$(stack_python "$stack")" "$ROOT/fabtests/mpi/jobs/exchange.py")
    for ranks; do
        log=$LOGS/exchange-$stack-$ranks.log
        FI_SCIF_STATS=1 run_mpi "$stack" "$PROVIDER" "$ranks" 120 "${job[@]}" >"$log" 2>&1
        rc=$?
        if ((rc != 0)) || ! grep -q "^exchange: $ranks ranks, [1-9][0-9]* checks, errors 0" "$log"; then
            failed "exchange, $ranks ranks (status $rc, $log)"
            tail -n 30 "$log"
        elif [ "$PROVIDER" = scif ] && (($(traffic "$log") < ranks)); then
            failed "exchange, $ranks ranks: statistics of $(traffic "$log") endpoints ($log)"
        else
            passed "$(grep '^exchange:' "$log")"
        fi
    done
    log=$LOGS/exchange-$stack-nosuch.log
    run_mpi "$stack" nosuch 2 60 "${job[@]}" >"$log" 2>&1
    rc=$?
    if ((rc == 0 || rc == 124)) || grep -q '^exchange:' "$log"; then
        failed "FI_PROVIDER=nosuch must fail (status $rc, $log)"
    else
        passed "FI_PROVIDER=nosuch fails, nothing steps in"
    fi
}
