# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""MPI job that prints what its start has cost: costs.py.

Each rank prints "costs: rank R init_ms T resident_kib N private_kib P": the time from the begin to
the end of MPI_Init, and the memory of the process behind it, after a barrier that connects the
ranks. Private memory belongs to no file.
"""

import os
import time

import mpi4py

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402, after the setting that it reads

begun = time.monotonic()
MPI.Init()
ms = 1000 * (time.monotonic() - begun)
MPI.COMM_WORLD.Barrier()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
kib = {name: int(status[name].split()[0]) for name in ("VmRSS", "RssAnon")}
rank = MPI.COMM_WORLD.rank
# One write for a line, since the launcher may merge parts of lines.
os.write(1, f"costs: rank {rank} init_ms {ms:.1f} resident_kib {kib['VmRSS']} "
         f"private_kib {kib['RssAnon']}\n".encode())
MPI.COMM_WORLD.Barrier()
MPI.Finalize()
