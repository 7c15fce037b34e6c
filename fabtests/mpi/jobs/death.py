# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""MPI job of two ranks in which one does not answer.

"computes": rank 1 computes for SECONDS without a call of MPI; the send to it must not fail.
"stops":    the same, but the process is stopped, and continued by a child.
"dies":     rank 1 kills itself; the send to it must fail.
"vanishes": rank 1 takes the link of its host down; the send to it must fail within SECONDS.

Rank 0 writes the result, and the seconds until then, into FILE: a launcher drops output after the
death of a rank. The first line is "death: ok". Its standard error goes into FILE.err for the same
reason. The only module is mpi4py.
"""

import os
import signal
import subprocess
import sys
import time

from mpi4py import MPI

mode, seconds, file = sys.argv[1], float(sys.argv[2]), sys.argv[3]
fails = mode in ("dies", "vanishes")
comm = MPI.COMM_WORLD
comm.Set_errhandler(MPI.ERRORS_RETURN)
message = bytearray(b"x" * 100_000)

# Both are connected afterwards.
comm.Sendrecv(message, 1 - comm.rank, 0, bytearray(len(message)), 1 - comm.rank, 0)

if comm.rank == 1:
    if mode == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif mode == "vanishes":
        subprocess.run(["ip", "link", "set", "eth0", "down"], check=True)
        time.sleep(seconds)
        os._exit(0)
    elif mode == "stops":
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass
    into = bytearray(len(message))
    comm.Recv(into, 0, 1)
    assert into == message
    sys.exit()

with open(f"{file}.err", "w") as messages:
    os.dup2(messages.fileno(), 2)
begin = time.monotonic()
try:
    comm.Ssend(message, 1, 1)
    failed = None
except MPI.Exception as error:
    failed = error
taken = time.monotonic() - begin
with open(file, "w") as out:
    print("death:", "ok" if (failed is not None) == fails else "failed", file=out)
    print(f"rank 1 {mode}: the send ended after {taken:.1f} s: {failed or 'done'}", file=out)
if fails:
    # MPI_Finalize would wait for the dead rank.
    os._exit(0)
