# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""MPIs by their launchers, and the variables with which each MPI sends by scif."""
import ctypes.util
import os
import pathlib
import shutil
import subprocess

from scif_fi import LIBFABRIC_DIRECTORY, PROVIDER_DIRECTORY

# Variables by MPI. Between ranks of one host each MPI prefers its own shared memory without them.
SETTINGS = {
    "Open MPI": {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi"},
    "MPICH": {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"},
    "Intel MPI": {"I_MPI_FABRICS": "ofi"},
}
# Words in the first lines of a launcher's --version. Intel MPI's and MPICH's are both Hydra.
WORDS = [
    ("Intel MPI", ("Intel(R) MPI Library",)),
    ("Open MPI", ("(Open MPI)", "(OpenRTE)", "PRRTE")),
    ("MPICH", ("HYDRA build details",)),
]
# Time that a launcher has to print its version, in seconds. A slower one counts as no launcher.
VERSION_SECONDS = 20
NAMES = ("mpirun", "mpiexec", "orterun", "prterun", "prun")


class NoLibfabric(Exception):
    """An MPI that was built without libfabric."""


def is_launcher(command):
    return pathlib.Path(command).name.split(".")[0].split("-")[0] in NAMES


def version(program):
    try:
        done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=VERSION_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def mpi_of(program):
    """Name of the MPI of a launcher, or None."""
    text = version(program)
    for name, words in WORDS:
        if any(word in text for word in words):
            if name == "MPICH" and "device=ch4:" in text and "ofi" not in device(text):
                raise NoLibfabric(f"{program} is of an MPICH without libfabric "
                                  f"({device(text)}): install the wheel, pip install mpich")
            return name
    return None


def device(text):
    """Device of MPICH in the text of its launcher, such as ch4:ucx,ofi."""
    return text.split("device=", 1)[1].split("'")[0].split()[0]


def libfabric_directory(root, environment):
    """Directory with a libfabric.so.1 for Intel MPI, whose wheel contains none."""
    known = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    inside = [root / "opt" / "mpi" / "libfabric" / "lib", root / "lib" / "mpich"]
    for directory in [pathlib.Path(entry) for entry in known if entry] + inside:
        if (directory / "libfabric.so.1").exists():
            return directory
    return LIBFABRIC_DIRECTORY


def intel_paths(program, environment):
    """Variables by which Intel MPI finds itself and a libfabric."""
    home = pathlib.Path(program).absolute().parents[1]
    root = pathlib.Path(environment.get("I_MPI_ROOT") or home)
    wanted = [str(root / "lib"), str(libfabric_directory(root, environment))]
    had = [entry for entry in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    return {"I_MPI_ROOT": str(root),
            "LD_LIBRARY_PATH": os.pathsep.join(wanted + [e for e in had if e not in wanted])}


def doctor_changes(environment):
    """Variables for scifctl doctor, which examines every MPI that it finds, and a libfabric."""
    chosen = changes([], environment)
    if ctypes.util.find_library("fabric"):
        return chosen
    program = shutil.which("mpiexec.hydra", path=environment.get("PATH"))
    if program and mpi_of(program) == "Intel MPI":
        chosen.update(intel_paths(program, environment))
    else:
        # The doctor loads the provider by the wheel's libfabric where the system has none.
        had = environment.get("LD_LIBRARY_PATH")
        chosen["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [had, str(LIBFABRIC_DIRECTORY)]))
    return chosen


def changes(command, environment):
    """Variables to set for a command. A value that the user chose stays."""
    had = [entry for entry in environment.get("FI_PROVIDER_PATH", "").split(os.pathsep) if entry]
    ours = str(PROVIDER_DIRECTORY)
    path = os.pathsep.join([ours] + [entry for entry in had if entry != ours])
    wanted = {"FI_PROVIDER": "scif"}
    program = command and is_launcher(command[0]) and shutil.which(
        command[0], path=environment.get("PATH"))
    mpi = mpi_of(program) if program else None
    for name, settings in SETTINGS.items():
        if mpi in (None, name):
            wanted.update(settings)
    chosen = {name: value for name, value in wanted.items() if name not in environment}
    chosen["FI_PROVIDER_PATH"] = path
    if mpi == "Intel MPI":
        chosen.update(intel_paths(program, environment))
    return chosen
