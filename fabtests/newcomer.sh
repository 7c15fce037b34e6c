#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Runs the commands of the README's section "A program of your own" as a new user would: an ordinary
# user with sudo in a clean root of Debian 13, with the unpacked release and a program not in
# it. The commands and the names of each MPI are read from the README. Prints the seconds that each
# MPI took from the first command on.
set -u -o pipefail
. "$(dirname "$0")/mpi/setup.sh"
. "$(dirname "$0")/mpi/jobs.sh"
. "$(dirname "$0")/gates.sh"
. "$(dirname "$0")/roots.sh"
cd "$ROOT" || exit 1
SECTION='### A program of your own'
# Largest number of commands for one MPI. With more, the first steps of a user take too long.
MOST_COMMANDS=4
RELEASE=$BUILD/dist/scif-fi-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml).tar.xz
SUITES=trixie

section() { sed -n "/^$SECTION\$/,/^## /p" README.md; }
# The first block of code of the section.
commands() { section | awk '/^```/ { blocks++; next } blocks == 1'; }
# mpi_column MPI NUMBER: a column of the row of that MPI.
mpi_column() {
    section | grep "^| $1 |" | cut -d '|' -f $(($2 + 1)) | grep -o '`.*`' | tr -d '`'
}
mapfile -t COMMANDS < <(commands)

are_few() { ((${#COMMANDS[@]} > 0 && ${#COMMANDS[@]} <= MOST_COMMANDS)); }

# A root with a user that may call sudo, the unpacked release, and a program.
machine() {
    rooted trixie "$RELEASE" && in_root apt-get update &&
        in_root apt-get install -y --no-install-recommends sudo xz-utils ca-certificates &&
        in_root useradd --create-home --shell /bin/bash newcomer || return 1
    echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$CLEAN/etc/sudoers.d/newcomer"
    echo '127.0.0.1 localhost' >"$CLEAN/etc/hosts"
    # The certificates by which pip works here.
    cp "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$CLEAN/packages/certificates"
    cat >"$CLEAN/home/newcomer/program.py" <<'END'
from mpi4py import MPI

world = MPI.COMM_WORLD
left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
for round in range(100):
    got = world.sendrecv((world.rank, "x" * 7 ** (round % 7)), dest=right, source=left)
    assert got == (left, "x" * 7 ** (round % 7)), got
print("the ring is closed for rank", world.rank)
END
    mkdir "$CLEAN/home/newcomer/scif" &&
        in_root tar -C /home/newcomer/scif --strip-components=1 -xJf "/packages/${RELEASE##*/}" &&
        in_root chown -R newcomer:newcomer /home/newcomer &&
        ! in_root sh -c 'command -v cc cargo make fi_info mpirun mpiexec'
}

# typed COMMAND: by the new user, in the directory of the release.
typed() {
    echo "\$ $1"
    in_root setpriv --reuid=newcomer --regid=newcomer --init-groups \
        env HOME=/home/newcomer PIP_CERT=/packages/certificates \
        bash -c 'cd ~/scif && [ ! -e mpi/bin/activate ] || . mpi/bin/activate; eval "$1"' \
        bash "$1" 2>&1
}

# Prints the seconds since START, in nanoseconds, with one decimal.
seconds_since() { awk "BEGIN { printf \"%.1f\", ($(date +%s%N) - $1) / 1e9 }"; }

# The commands that do not depend on the MPI.
built() {
    local start
    start=$(date +%s%N)
    typed "${COMMANDS[0]}" && typed "${COMMANDS[1]}" || return 1
    seconds_since "$start" >"$BUILD/newcomer-built"
}

# own_program MPI: the other commands, with the packages and the launcher of that MPI.
own_program() {
    local start log=$LOGS/newcomer-job packages launcher install run
    packages=$(mpi_column "$1" 2) launcher=$(mpi_column "$1" 3)
    install=${COMMANDS[2]/ mpich / $packages } run=${COMMANDS[3]/mpiexec/$launcher}
    run=${run/program.py/'~/program.py'}
    [ -n "$packages" ] && [ -n "$launcher" ] || return 1
    in_root rm -rf /home/newcomer/scif/mpi
    start=$(date +%s%N)
    typed "$install" && typed "$run" >"$log" || { cat "$log" && return 1; }
    cat "$log"
    echo "$1: $(cat "$BUILD/newcomer-built") s to build," \
        "$(seconds_since "$start") s from there to the end of the job"
    (($(grep -c '^the ring is closed for rank [01]$' "$log") == 2 && $(traffic "$log") >= 2))
}

# Without the provider the last command fails, so no other transport stepped in.
control() { ! typed "export FI_PROVIDER=nosuch && ${COMMANDS[3]/program.py/'~/program.py'}"; }

gate "a newcomer"
case_of "the README has at most $MOST_COMMANDS commands" newcomer-commands are_few
find_cargo
need_roots
if [ -n "$SUITES" ]; then
    case_of "make dist" newcomer-dist packaging/dist.sh
    case_of "a clean root with a user" newcomer-root machine
    case_of "the commands that build" newcomer-built built
    case_of "MPICH" newcomer-mpich own_program MPICH
    case_of "FI_PROVIDER=nosuch fails" newcomer-control control
    case_of "Open MPI" newcomer-openmpi own_program 'Open MPI'
    case_of "Intel MPI" newcomer-intel own_program 'Intel MPI'
    grep -h ' s to build, ' "$LOGS"/newcomer-{mpich,openmpi,intel}.log
fi
gate_end
verdict
