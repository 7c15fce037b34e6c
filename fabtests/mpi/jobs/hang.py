# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""MPI job of 4 ranks that hangs: hang.py unmatched | deadlock | stopped | loop | storm | exit.

unmatched  rank 1 receives tag 77 from rank 2, which never sends it; the others wait in a barrier
deadlock   ranks 0 and 3 send 4 MiB to each other, tags 5 and 6, before they receive
stopped    rank 2 stops itself; rank 0 receives tag 9 from it
loop       rank 3 computes forever; rank 0 receives tag 11 from it
storm      exchanges 8-byte messages for 60 seconds
exit       each rank calls exit(3) without the end of MPI

Each rank first prints "hang: rank R pid P", after a barrier that connects all ranks.
"""

import ctypes
import os
import signal
import sys
import time

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
mode = sys.argv[1]
buffer = bytearray(4 << 20)

for peer in range(size):
    if peer != rank:
        comm.Sendrecv(bytes(8), peer, 1, bytearray(8), peer, 1)
comm.Barrier()
# One write for a line, since the launcher may merge parts of lines.
os.write(1, f"hang: rank {rank} pid {os.getpid()}\n".encode())

if mode == "unmatched" and rank == 1:
    comm.Recv([buffer, 1024, MPI.BYTE], 2, 77)
elif mode == "deadlock" and rank in (0, 3):
    comm.Send(buffer, 3 - rank, 5 if rank == 0 else 6)
    comm.Recv(buffer, 3 - rank)
elif mode == "stopped" and rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
elif mode == "stopped" and rank == 0:
    comm.Recv([buffer, 64, MPI.BYTE], 2, 9)
elif mode == "loop" and rank == 3:
    while True:
        pass
elif mode == "loop" and rank == 0:
    comm.Recv([buffer, 64, MPI.BYTE], 3, 11)
elif mode == "exit":
    ctypes.CDLL(None).exit(5)
elif mode == "storm":
    word, out = bytearray(8), bytes(8)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        comm.Sendrecv(out, (rank + 1) % size, 2, word, (rank - 1) % size, 2)
comm.Barrier()
