# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""MPI job that starts further ranks on a host, given as ADDRESS NAME, and checks the data that both
exchange: between the two groups, and in the union of both.

Rank 0 ends with "spawn: N ranks on NAME, M checks, errors 0"; any difference aborts the job. The
only module is mpi4py.
"""

import socket
import sys

from mpi4py import MPI

SIZES = [0, 8, 5000, 100_000, 1 << 20]
COUNT = 2

checks = 0


def pattern(owner, length):
    unit = bytes((owner * 37 + i) % 251 for i in range(251))
    return (unit * (length // 251 + 1))[:length]


def check(what, got, want):
    global checks
    if got != want:
        print(f"spawn: {what}: wrong", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(3)
    checks += 1


def talk(between, me):
    """Exchanges messages with each rank of the other group."""
    for tag, length in enumerate(SIZES):
        out = pattern(me, length)
        sent = [between.Isend(out, other, tag) for other in range(between.remote_size)]
        for _ in range(between.remote_size):
            into, status = bytearray(length), MPI.Status()
            between.Recv(into, MPI.ANY_SOURCE, tag, status)
            theirs = pattern(status.source + (0 if me >= 100 else 100), length)
            check(f"message of {length}", into, theirs)
        MPI.Request.Waitall(sent)


def unite(between, is_late):
    everyone = between.Merge(is_late)
    check("sum", everyone.allreduce(1), everyone.size)
    everyone.Free()


parent = MPI.Comm.Get_parent()
if parent != MPI.COMM_NULL:
    parent.gather(socket.gethostname(), 0)
    talk(parent, 100 + MPI.COMM_WORLD.rank)
    unite(parent, True)
    parent.Disconnect()
    sys.exit()

address, name = sys.argv[1:]
comm = MPI.COMM_WORLD
info = MPI.Info.Create()
info["host"] = address
children = comm.Spawn(sys.executable, [__file__], COUNT, info)
hosts = children.gather(None, MPI.ROOT if comm.rank == 0 else MPI.PROC_NULL)
if comm.rank == 0:
    check(f"hosts {hosts}", hosts, [name] * COUNT)
talk(children, comm.rank)
unite(children, False)
children.Disconnect()
total = comm.allreduce(checks)
if comm.rank == 0:
    print(f"spawn: {COUNT} ranks on {name}, {total} checks, errors 0")
