/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Data-checked messages and collectives of MPI, for machines without mpi4py. Prints one line:
 * "exchange: N ranks, N checks, errors N". Exit status 1 after an error. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH_MAX = 1 << 20 };

static int rank, ranks;
static long checks, errors;

static unsigned char pattern(int from, int length, int at)
{
    return (unsigned char)(from * 31 + length * 7 + at * 3 + (at >> 8));
}

static void fill(unsigned char *bytes, int from, int length)
{
    for (int at = 0; at < length; at++)
        bytes[at] = pattern(from, length, at);
}

static void check(const unsigned char *bytes, int from, int length)
{
    int wrong = 0;
    for (int at = 0; at < length; at++)
        wrong += bytes[at] != pattern(from, length, at);
    checks++;
    errors += wrong != 0;
}

/* Each rank sends to the next one and receives from the one before. */
static void ring(unsigned char *out, unsigned char *in, int length)
{
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    fill(out, rank, length);
    memset(in, 0, LENGTH_MAX);
    MPI_Sendrecv(out, length, MPI_BYTE, next, 5, in, length, MPI_BYTE, before, 5, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    check(in, before, length);
}

static void collectives(void)
{
    long mine = rank + 1, sum = 0, all[64];
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    checks++;
    errors += sum != (long)ranks * (ranks + 1) / 2;
    MPI_Allgather(&mine, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
    for (int of = 0; of < ranks; of++) {
        checks++;
        errors += all[of] != of + 1;
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    unsigned char *out = malloc(LENGTH_MAX), *in = malloc(LENGTH_MAX);
    if (!out || !in || ranks > 64)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int length = 1; length <= LENGTH_MAX; length *= 4) {
        ring(out, in, length);
        collectives();
    }
    long counts[2] = {checks, errors}, sums[2];
    MPI_Reduce(counts, sums, 2, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("exchange: %d ranks, %ld checks, errors %ld\n", ranks, sums[0], sums[1]);
    MPI_Finalize();
    free(out);
    free(in);
    return errors != 0;
}
