# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""MPI job with a known traffic, for the test of reports: traffic.py ROUNDS.

In each round every rank sends to every other one messages of the sizes below, and one more whose
size names both ranks. With another number of rounds only these messages differ. The only module is
mpi4py.
"""

import sys

from mpi4py import MPI

SIZES = [0, 8, 200, 5000, 20_000, 300_000]


def extra(sender, receiver):
    """Returns the size of the message that names the pair."""
    return 1000 * (sender + 1) + 10 * (receiver + 1)


def main(rounds):
    comm = MPI.COMM_WORLD
    others = [other for other in range(comm.size) if other != comm.rank]
    room = bytearray(max(SIZES) * len(others) * (len(SIZES) + 1))
    for _ in range(rounds):
        requests, at = [], 0
        for other in others:
            for tag, size in enumerate([*SIZES, extra(other, comm.rank)]):
                place = memoryview(room)[at:at + size]
                requests.append(comm.Irecv([place, MPI.BYTE], source=other, tag=tag))
                at += size
        for other in others:
            for tag, size in enumerate([*SIZES, extra(comm.rank, other)]):
                requests.append(comm.Isend([bytes(size), MPI.BYTE], dest=other, tag=tag))
        MPI.Request.Waitall(requests)
    if comm.rank == 0:
        print(f"traffic: {comm.size} ranks, {rounds} rounds")


if __name__ == "__main__":
    main(int(sys.argv[1]))
