# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after setup.sh and stacks.sh, used between gate and gate_end of ../gates.sh: MPI jobs as
# cases.

# Counts the lines that endpoints print at their close after any traffic.
traffic() { grep -cE "^(\[[^]]*\] *)?scif: endpoint .* sent [1-9]" "$1"; }

# exchanged WHAT RANKS STATUS LOG: whether a job exchanged its data without errors; else a failed
# case.
exchanged() {
    (($3 == 0)) && grep -q "^exchange: $2 ranks, [1-9][0-9]* checks, errors 0" "$4" && return
    failed "exchange, $1, $2 ranks (status $3, $4)"
    tail -n 30 "$4"
    return 1
}

# exchange_jobs STACK RANKS...: the data-checking job, proof that the provider carried its traffic,
# and the control: without the provider the command must fail, or another transport could have
# carried the messages.
exchange_jobs() {
    local stack=$1 ranks log rc job
    shift
    job=("$(stack_python "$stack")" "$ROOT/fabtests/mpi/jobs/exchange.py")
    for ranks; do
        log=$LOGS/exchange-$stack-$ranks.log
        FI_SCIF_STATS=1 run_mpi "$stack" "$PROVIDER" "$ranks" 120 "${job[@]}" >"$log" 2>&1
        rc=$?
        exchanged "$stack" "$ranks" $rc "$log" || continue
        if [ "$PROVIDER" = scif ] && (($(traffic "$log") < ranks)); then
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

# confined_job WHAT STACK COUNT PATTERN WRAPPER...: the job under a command that takes a right away,
# with 2 ranks. As proof of that, COUNT endpoints must have counters that match PATTERN.
confined_job() {
    local what=$1 stack=$2 count=$3 pattern=$4 log=$LOGS/confined-$2-${1##* }.log rc seen
    shift 4
    FI_SCIF_STATS=1 "$@" "$ROOT/fabtests/mpi/run.sh" "$stack" "$PROVIDER" 2 120 \
        "$(stack_python "$stack")" "$ROOT/fabtests/mpi/jobs/exchange.py" >"$log" 2>&1
    rc=$?
    seen=$(grep 'scif: endpoint .* sent [1-9]' "$log" | grep -cE "$pattern")
    exchanged "$what" 2 $rc "$log" || return 0
    if [ "$PROVIDER" = scif ] && ((seen < count)); then
        failed "exchange, $what: nothing was taken away ($log)"
    else
        passed "$(grep '^exchange:' "$log"), $what"
    fi
}

# The stand-in driver, for a provider over its ioctls.
STAND_IN=(env SCIF_DOMAIN=check FI_SCIF_TRANSPORT=kernel FI_PROVIDER_PATH="$PROVIDER_DIR"
    LD_PRELOAD="$ROOT/build/lib/libscifdev.so")

# driver_jobs STACK...: the job over the stand-in driver, with the traps of mainline's.
driver_jobs() {
    local stack
    for stack; do
        SCIF_DEVICE_TRAPS=1 confined_job \
            "$stack, with the traps of mainline's driver, over the stand-in" \
            "$stack" 2 ' process_vm 0/0 ' "${STAND_IN[@]}" SCIF_DEVICE=/dev/scif
    done
}

# calls_jobs STACK...: the job over the calls of scif.h, without a driver, with 2 and 4 ranks, on
# one SCIF node and on two. As proof, endpoints count registered windows.
calls_jobs() {
    local stack ranks nodes by log rc job
    for stack; do
        for ranks in 2 4; do
            for nodes in one two; do
                by=()
                [ $nodes = one ] || by=("$ROOT/fabtests/mpi/by_node.sh")
                log=$LOGS/calls-$stack-$ranks-$nodes.log
                job=("${by[@]}" "$(stack_python "$stack")" "$ROOT/fabtests/mpi/jobs/exchange.py")
                SCIF_DOMAIN=check SCIF_TRANSPORT=soft FI_SCIF_TRANSPORT=scif FI_SCIF_STATS=1 \
                    run_mpi "$stack" "$PROVIDER" "$ranks" 300 "${job[@]}" >"$log" 2>&1
                rc=$?
                exchanged "over scif.h, $stack, nodes: $nodes" "$ranks" $rc "$log" || continue
                if (($(traffic "$log") < ranks)) || ! grep -q ' windows [1-9]' "$log"; then
                    failed "exchange over scif.h, $stack, $ranks ranks: no windows ($log)"
                else
                    passed "$(grep '^exchange:' "$log"), over scif.h, $stack, nodes: $nodes"
                fi
            done
        done
    done
}

# sisci_jobs STACK...: the job over libsisci.so, preloaded since an MPI sets LD_LIBRARY_PATH itself.
sisci_jobs() {
    local stack
    for stack; do
        confined_job "$stack, over libsisci" "$stack" 2 ' process_vm 0/0 ' env SCIF_DOMAIN=check \
            FI_SCIF_TRANSPORT=sisci LD_PRELOAD="$ROOT/build/lib/libsisci.so" \
            FI_PROVIDER_PATH="$PROVIDER_DIR"
    done
}

# Runs one benchmark program of Intel MPI as a case: LOG, RANKS, PROGRAM, arguments. Data errors are
# reported in its output.
imb_job() {
    local name=$1 ranks=$2 log=$LOGS/$1.log rc
    shift 2
    FI_SCIF_STATS=1 run_mpi intel "$PROVIDER" "$ranks" 300 \
        "$BUILD/venv-intel/bin/$1" "${@:2}" >"$log" 2>&1
    rc=$?
    if ((rc != 0)) || grep -q 'CHECK FAILURES' "$log" ||
        ! grep -qE '^ +[0-9]+ +[0-9]+ +[0-9.]+' "$log"; then
        failed "$1, $ranks ranks (status $rc, $log)"
        grep 'CHECK FAILURES' "$log" | head -n 5
        tail -n 20 "$log"
    elif [ "$PROVIDER" = scif ] && (($(traffic "$log") < ranks)); then
        failed "$1, $ranks ranks: statistics of $(traffic "$log") endpoints ($log)"
    else
        passed "$1, $ranks ranks, $(grep -cE '^ +[0-9]+ +[0-9]+ +[0-9.]+' "$log") lines of results"
    fi
}

# Several threads of a rank call MPI concurrently, and every byte is checked.
imb_jobs() {
    local ranks
    for ranks; do
        OMP_NUM_THREADS=2 imb_job "imb-mt-$ranks" "$ranks" IMB-MT -thread_level multiple \
            -check on -datatype int -repeat 30 -warmup 2 -count 1,16,1000,5000,16384,262144
        imb_job "imb-mpi1-$ranks" "$ranks" IMB-MPI1 -npmin "$ranks" -iter 20 -time 0.1 -msglog 0:16
        imb_job "imb-rma-$ranks" "$ranks" IMB-RMA -npmin "$ranks" -iter 20 -time 0.1 -msglog 0:16
        imb_job "imb-p2p-$ranks" "$ranks" IMB-P2P -npmin "$ranks" -iter 20 -time 0.1 -msglog 0:16
        imb_job "imb-nbc-$ranks" "$ranks" IMB-NBC -npmin "$ranks" -iter 20 -time 0.1 -msglog 0:16
    done
}

# suite_jobs STACK RANKS...: a test that passes over the MPI's own shared memory must pass over the
# provider.
suite_jobs() {
    local stack=$1 ranks settings=()
    shift
    # Two window components of Debian's MPI crash without the provider: osc/ucx over shared memory,
    # and osc/rdma over BTL ofi on shm. Its mpirun loses jobs that spawn others ("Data unpack would
    # read past end of buffer"), over any transport.
    [[ $stack != debian* ]] || settings=(--env 'OMPI_MCA_osc=^rdma,ucx' --at-random test_spawn)
    case $stack in
    debian-btl)
        settings+=(--left-out OMPI_MCA_osc=ucx@own:test_win
            --left-out OMPI_MCA_osc=rdma@shm:test_rma)
        ;;
    # Its PML cm loses the address of MPI_BOTTOM on the way to the MTL (docs/adr/0008).
    debian) settings+=(--explained-by tcp) ;;
    esac
    [ "$stack" = debian ] || settings+=(--needs test_cco_vec)
    mend_mutex "$BUILD/venv-${stack%-btl}"
    echo "     mpi4py with its Mutex mended, here and in the control: docs/adr/0043"
    local name
    for ranks; do
        name=suite-$stack-$ranks
        cases_of "mpi4py, $ranks ranks" "$name" \
            "$(stack_python "$stack")" "$ROOT/fabtests/mpi/suite.py" --tests "$SUITE/test" \
            --reports "$LOGS/$name" "${settings[@]}" "$stack" "$PROVIDER" "$ranks"
        grep -E '^(left out|not ours|explained|compared|longest|[a-z0-9-]+ over )' \
            "$LOGS/$name.log" | sed 's/^/     /'
    done
}

# hosts_suite_jobs RANKS...: the same for MPICH between two hosts (../net/hosts.sh), half of the
# ranks on either. The control is libfabric's tcp.
hosts_suite_jobs() {
    local ranks name
    if ! hosts_possible; then
        failed "needs root and namespaces"
        return
    fi
    hosts_up 2 || die "jobs.sh: the hosts cannot be set up"
    export HOSTS_RUN HOSTS_SWITCH
    mend_mutex "$BUILD/venv-mpich5"
    for ranks; do
        name=suite-hosts-$ranks
        cases_of "mpi4py, $ranks ranks on two hosts" "$name" \
            "$(stack_python mpich5)" "$ROOT/fabtests/mpi/suite.py" --tests "$SUITE/test" \
            --reports "$LOGS/$name" --run "$ROOT/fabtests/net/run.sh" --control tcp \
            --silence 240 --needs test_cco_vec mpich5 "$PROVIDER" "$ranks"
        grep -E '^(not ours|compared|longest|[a-z0-9-]+ over )' "$LOGS/$name.log" | sed 's/^/     /'
    done
    hosts_down
}
