# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Short MPI job that checks every byte it moves.

Messages of 0 to 4 MiB to both neighbours (expected, unexpected, synchronous, probed, from any
source), a burst of small ones, reductions, and windows: put and accumulate under a fence, get and
fetch-and-op under a lock.

Rank 0 ends with "exchange: N checks, errors 0"; any difference aborts the job. The only module is
mpi4py.
"""

import sys
from array import array

from mpi4py import MPI

SIZES = [0, 1, 7, 8, 56, 57, 64, 1000, 4096, 8192, 8193, 16384, 16385, 65536, 100_003,
         1 << 18, 1 << 20, 4 << 20]
BURST = 500

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
checks = 0


def pattern(owner, salt, length):
    """Returns bytes that depend on sender, message and position; 251 is prime."""
    unit = bytes((owner * 37 + salt * 11 + i) % 251 for i in range(251))
    return (unit * (length // 251 + 1))[:length]


def check(what, got, want):
    global checks
    if got != want:
        where = ""
        if isinstance(want, (bytes, bytearray)) and len(got) == len(want):
            first = next(i for i, (a, b) in enumerate(zip(got, want)) if a != b)
            where = f" at byte {first} of {len(want)}"
        print(f"exchange: rank {rank}: {what}: wrong data{where}", file=sys.stderr, flush=True)
        comm.Abort(3)
    checks += 1


def neighbours():
    for salt, length in enumerate(SIZES):
        out, into = pattern(rank, salt, length), bytearray(length)
        status = MPI.Status()
        comm.Sendrecv(out, right, salt, into, left, salt, status)
        check(f"sendrecv of {length}", into, pattern(left, salt, length))
        check("its length", status.Get_count(MPI.BYTE), length)


def synchronous():
    for salt, length in enumerate(SIZES):
        request = comm.Issend(pattern(rank, salt, length), left, 100 + salt)
        status = MPI.Status()
        comm.Probe(MPI.ANY_SOURCE, 100 + salt, status)
        check("probed source", status.Get_source(), right)
        check("probed length", status.Get_count(MPI.BYTE), length)
        into = bytearray(length)
        comm.Recv(into, status.Get_source(), 100 + salt)
        check(f"issend of {length}", into, pattern(right, salt, length))
        request.Wait()


def unexpected():
    """Sends all messages before the first receive, and receives in the reverse order."""
    requests = [
        comm.Isend(pattern(rank, salt, n), right, 200 + salt) for salt, n in enumerate(SIZES)
    ]
    comm.Barrier()
    for salt, length in reversed(list(enumerate(SIZES))):
        into = bytearray(length)
        comm.Recv(into, MPI.ANY_SOURCE, 200 + salt)
        check(f"unexpected {length}", into, pattern(left, salt, length))
    MPI.Request.Waitall(requests)


def burst():
    """Checks the order between two ranks, with more outstanding messages than slots of a ring."""
    out = [array("q", [rank, i]) for i in range(BURST)]
    into = [array("q", [0, 0]) for _ in range(BURST)]
    requests = [comm.Irecv([b, MPI.INT64_T], left, 300) for b in into]
    requests += [comm.Isend([b, MPI.INT64_T], right, 300) for b in out]
    MPI.Request.Waitall(requests)
    check("order of a burst", [b.tolist() for b in into], [[left, i] for i in range(BURST)])


def everyone():
    for length in (1, 1000, 100_000):
        mine, total = array("q", [rank + 1] * length), array("q", [0] * length)
        comm.Allreduce([mine, MPI.INT64_T], [total, MPI.INT64_T])
        check(f"allreduce of {length}", total, array("q", [size * (size + 1) // 2] * length))
    for length in (3, 70_000):
        blocks = b"".join(pattern(rank, peer, length) for peer in range(size))
        into = bytearray(size * length)
        comm.Alltoall(blocks, into)
        expected = b"".join(pattern(peer, rank, length) for peer in range(size))
        check(f"alltoall of {length}", into, expected)
    whole = bytearray(pattern(0, 9, 1 << 20) if rank == 0 else 1 << 20)
    comm.Bcast(whole)
    check("broadcast", whole, pattern(0, 9, 1 << 20))


def fenced():
    length = 1 << 18
    win = MPI.Win.Allocate(length + 64, 1, MPI.INFO_NULL, comm)
    memory = memoryview(win).cast("B")
    memory[:] = bytes(len(memory))
    win.Fence()
    out = pattern(rank, 5, length)
    win.Put(out, right, [64, length, MPI.BYTE])
    win.Fence()
    check("put under a fence", bytes(memory[64:]), pattern(left, 5, length))
    ones = array("q", [rank + 1] * 8)
    for peer in range(size):
        win.Accumulate([ones, MPI.INT64_T], peer, [0, 8, MPI.INT64_T], MPI.SUM)
    win.Fence()
    check("accumulate", memory[:64].cast("q").tolist(), [size * (size + 1) // 2] * 8)
    win.Free()


def locked():
    length = 100_000
    win = MPI.Win.Allocate(length + 8, 1, MPI.INFO_NULL, comm)
    memory = memoryview(win).cast("B")
    memory[:] = bytes(8) + pattern(rank, 6, length)
    comm.Barrier()
    win.Lock_all()
    for peer in range(size):
        into = bytearray(length)
        win.Get(into, peer, [8, length, MPI.BYTE])
        win.Flush(peer)
        check("get", into, pattern(peer, 6, length))
    rounds, seen = 50, []
    one, old = array("q", [1]), array("q", [0])
    for _ in range(rounds):
        win.Fetch_and_op([one, MPI.INT64_T], [old, MPI.INT64_T], 0, 0, MPI.SUM)
        win.Flush(0)
        seen.append(old[0])
    win.Unlock_all()
    check("fetch-and-op grows", seen, sorted(set(seen)))
    every = sorted(x for part in comm.allgather(seen) for x in part)
    check("every ticket drawn once", every, list(range(rounds * size)))
    win.Free()


for step in (neighbours, synchronous, unexpected, burst, everyone, fenced, locked):
    step()
    comm.Barrier()
total = comm.reduce(checks)
if rank == 0:
    print(f"exchange: {size} ranks, {total} checks, errors 0", flush=True)
