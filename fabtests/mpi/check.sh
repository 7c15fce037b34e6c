#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# `make check-mpi`: every packaged MPI, Intel's benchmarks, and the tests of mpi4py. Arguments
# select gates: jobs, driver, imb, suite (or suite-mpich5, suite-debian-btl, suite-debian),
# suite-hosts; the default is all but the last, which takes as long as the others and needs root.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/setup.sh"
. "$here/stacks.sh"
. "$here/jobs.sh"
. "$here/../gates.sh"
. "$here/../net/hosts.sh"
cd "$ROOT" || exit 1
[ $# -gt 0 ] || set -- jobs driver imb suite

trap hosts_down EXIT
started=$SECONDS
find_cargo
need_build_packages
need_stack mpich5 debian openmpi5 mpich4 intel
need_suite
echo "building the provider"
build_release scifdev
install -D -m 755 "$TARGET/release/libscifdev.so" "$ROOT/build/lib/libscifdev.so"

for what; do
    case $what in
    jobs)
        for stack in debian debian-btl openmpi5 openmpi5-btl mpich5 mpich4 intel; do
            gate "MPI: $(stack_title $stack)"
            exchange_jobs $stack 2 4
            gate_end
        done
        gate "MPI: $(stack_title intel), Debian's libfabric"
        INTEL_LIBFABRIC=$(debian_libfabric) exchange_jobs intel 2
        gate_end
        ;;
    driver)
        gate "MPI over the driver's ioctls"
        driver_jobs debian debian-btl openmpi5 openmpi5-btl mpich5 mpich4 intel
        gate_end
        ;;
    imb)
        gate "Intel MPI benchmarks"
        need_openmp
        imb_jobs 2 4
        gate_end
        ;;
    suite | suite-mpich5 | suite-debian-btl | suite-debian)
        stacks=${what#suite}
        for stack in ${stacks:-mpich5 debian-btl debian}; do
            stack=${stack#-}
            gate "the tests of mpi4py, $(stack_title $stack)"
            suite_jobs $stack 2 4
            gate_end
        done
        ;;
    suite-hosts)
        gate "the tests of mpi4py, $(stack_title mpich5), two hosts"
        hosts_suite_jobs 2 4
        gate_end
        ;;
    *) die "check.sh: no gate $what" ;;
    esac
done

printf '\n%d seconds\n' $((SECONDS - started))
verdict
