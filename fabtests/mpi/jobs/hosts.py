# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Times messages and collective operations of a job with at least two ranks on each of two hosts.

hosts.py [SECONDS]: time for each line, by default 0.25. Rank 0 prints lines
"hosts: OPERATION BYTES SECONDS" when they are measured: half a round trip of a message, or one
collective operation. The figure is the median of several loops. Ranks that take no part in a round
trip sleep. The only module is mpi4py.
"""

import statistics
import sys
import time
from array import array

from mpi4py import MPI

SIZES = (8, 1 << 10, 16 << 10, 256 << 10)
LOOPS = 7

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.25


def sleep_until_all_arrive():
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.002)


def loop(repeat, count):
    began = time.perf_counter()
    repeat(count)
    return (time.perf_counter() - began) / count


def timed(repeat, ranks):
    """Returns the time of one operation; `repeat(count)` does that many.

    The first of `ranks` decides the length of a loop, after short ones."""
    took = 0.0
    if rank in ranks:
        probed = min(loop(repeat, 3) for _ in range(3))
        count = array("q", [min(20_000, max(1, int(seconds / LOOPS / probed)))])
        # Not by pickled objects, which Open MPI receives by a probe that few providers have.
        for peer in ranks[1:]:
            if rank == ranks[0]:
                comm.Send(count, peer)
            elif rank == peer:
                comm.Recv(count, ranks[0])
        took = statistics.median(loop(repeat, count[0]) for _ in range(LOOPS))
    sleep_until_all_arrive()
    return took


def ping_pong(pair):
    def of_size(length):
        mine, other = bytearray(length), bytearray(length)
        peer = pair[1] if rank == pair[0] else pair[0]

        def repeat(count):
            for _ in range(count):
                if rank == pair[0]:
                    comm.Send(mine, peer)
                    comm.Recv(other, peer)
                else:
                    comm.Recv(other, peer)
                    comm.Send(mine, peer)
        return repeat
    return of_size


def alltoall(length):
    mine, others = bytearray(length * size), bytearray(length * size)

    def repeat(count):
        for _ in range(count):
            comm.Alltoall([mine, length, MPI.BYTE], [others, length, MPI.BYTE])
    return repeat


def allreduce(length):
    mine, total = bytearray(length), bytearray(length)

    def repeat(count):
        for _ in range(count):
            comm.Allreduce([mine, length // 8, MPI.INT64_T], [total, length // 8, MPI.INT64_T])
    return repeat


def main():
    host = comm.allgather(MPI.Get_processor_name())
    inside = next((r for r in range(1, size) if host[r] == host[0]), None)
    outside = next((r for r in range(size) if host[r] != host[0]), None)
    if inside is None or outside is None:
        sys.exit(f"hosts.py needs two ranks on a host and one on another, not {' '.join(host)}")
    operations = (
        ("pingpong-between", ping_pong((0, outside)), (0, outside), 2),
        ("pingpong-within", ping_pong((0, inside)), (0, inside), 2),
        ("alltoall", alltoall, range(size), 1),
        ("allreduce", allreduce, range(size), 1),
    )
    for name, of_size, ranks, parts in operations:
        for length in SIZES:
            took = timed(of_size(length), ranks) / parts
            if rank == 0:
                print(f"hosts: {name} {length} {took:.4e}", flush=True)


main()
