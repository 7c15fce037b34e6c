# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The commands scif-fi-run and scifctl."""
import os
import shlex
import sys

from scif_fi import SCIFCTL
from scif_fi.launchers import NoLibfabric, changes, doctor_changes

USAGE = """\
scif-fi-run [--stats] COMMAND [ARGUMENT...]   runs a command whose MPI sends by scif
scif-fi-run --env [COMMAND]                   prints the variables that it sets, for a shell
scif-fi-run --doctor [OPTION...]              is scifctl doctor with these variables
scif-fi-run --version

COMMAND is mpirun or mpiexec with its arguments, or an MPI program. --stats makes each endpoint
print its counters when it closes. Variables that are set already keep their values.
"""
# Exit status of a usage error, of a command that is missing, and of one that cannot be executed.
USAGE_STATUS, MISSING_STATUS, REFUSED_STATUS = 2, 127, 126


def fail(status, text):
    print(f"scif-fi-run: {text}", file=sys.stderr)
    sys.exit(status)


def execute(command, environment):
    """Replaces this process, so that signals and the status are those of the command."""
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        fail(MISSING_STATUS, f"{command[0]}: no such command; install an MPI, such as pip install "
             "mpich, and activate its environment")
    except OSError as error:
        fail(REFUSED_STATUS, f"{command[0]}: {error.strerror}")


def doctor(options):
    environment = {**os.environ, **doctor_changes(os.environ)}
    if sys.prefix != sys.base_prefix:
        # The doctor examines the MPIs of the virtual environment, also when it is not activated.
        environment.setdefault("VIRTUAL_ENV", sys.prefix)
    execute([str(SCIFCTL), "doctor", *options], environment)


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if arguments else sys.stderr)
        sys.exit(0 if arguments else USAGE_STATUS)
    stats = {}
    if arguments[0] == "--stats":
        stats = {"FI_SCIF_STATS": "1"}
        arguments = arguments[1:]
    if arguments[:1] == ["--version"]:
        execute([str(SCIFCTL), "--version"], os.environ)
    if arguments[:1] == ["--doctor"]:
        doctor(arguments[1:])
    printed = arguments[:1] == ["--env"]
    command = arguments[1:] if printed else arguments
    if not (command or printed) or (command and command[0].startswith("-")):
        print(USAGE, end="", file=sys.stderr)
        sys.exit(USAGE_STATUS)
    try:
        chosen = {**changes(command, os.environ), **stats}
    except NoLibfabric as error:
        fail(1, error)
    if printed:
        for name, value in sorted(chosen.items()):
            print(f"export {name}={shlex.quote(value)}")
        return
    execute(command, {**os.environ, **chosen})


def scifctl():
    execute([str(SCIFCTL), *sys.argv[1:]], os.environ)
