# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""MPI job that hangs: after a large message rank 0 waits for a message that nobody sends.

Rank 0 prints "waiting: PID" before. The only module is mpi4py.
"""

import os

from mpi4py import MPI

TAG = 77

comm = MPI.COMM_WORLD
large = bytearray(300_000)
if comm.rank == 0:
    comm.Recv([large, MPI.BYTE], source=1, tag=5)
    print(f"waiting: {os.getpid()}", flush=True)
    comm.Recv([bytearray(8), MPI.BYTE], source=1, tag=TAG)
else:
    comm.Send([large, MPI.BYTE], dest=0, tag=5)
    comm.Recv([bytearray(8), MPI.BYTE], source=0, tag=TAG)
