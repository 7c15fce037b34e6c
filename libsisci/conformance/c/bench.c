/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Benchmark of the library: each figure with a reference figure of the machine, measured in turns;
 * medians. No figure passes or fails. Two processes are two nodes, each pinned to one of the first
 * two allowed processors.
 *
 * | row | measured | reference |
 * |---|---|---|
 * | store | 8 bytes stored to a remote map, seen by a polling peer | the same in shared memory |
 * | copy | SCIMemCpy to a remote map | memcpy to it |
 * | copy, read by peer | the same, while the peer reads the map without a pause | the same |
 * | interrupt | data interrupt, from its trigger to the callback | eventfd, to a sleeping reader |
 * | dma | call of SCIStartDmaTransfer | write to an eventfd that no thread waits for |
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../examples/example.h"

#define SEGMENT 200
#define SIZE (1u << 20)
#define INTERRUPT 300
/* Rounds in turns of a figure and its reference. */
#define TURNS 21
/* Round trips of a turn, copies of a turn, wake-ups and starts of a turn. */
#define TRIPS 20000
#define COPIES 20000
#define EVENTS 50
/* Pause in microseconds before an event, so that its receiver sleeps. */
#define PAUSE 200
#define DMA_SIZE 65536
#define END UINT64_MAX

/* Words of a cache line. */
#define LINE 8

/* Words in memory that both processes share beside the library. A line each. */
struct shared {
    _Alignas(128) volatile uint64_t ping;
    _Alignas(128) volatile uint64_t pong;
    _Alignas(128) volatile uint64_t arrived;
    /* Whether node 8 has its objects, and whether node 4 is connected to them. */
    _Alignas(128) volatile int ready;
    volatile int connected;
    /* Bytes that node 8 reads without a pause: 0 while it waits, and END at the end. */
    volatile uint64_t read;
    volatile uint64_t sum;
};

static struct shared *shared;

static uint64_t now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static void pin(int index)
{
    cpu_set_t allowed, one;
    int cpu, found = -1;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (cpu = 0; cpu < CPU_SETSIZE && index >= 0; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) {
            found = cpu;
            index--;
        }
    }
    CPU_ZERO(&one);
    CPU_SET(found, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

/* Prints a row: nanoseconds of both medians, and their ratio. */
static void row(const char *what, double *ours, double *reference, size_t count)
{
    double a = median(ours, count), b = median(reference, count);
    printf("%-34s %10.1f ns   reference %10.1f ns   %.2f x\n", what, a, b, a / b);
    fflush(stdout);
}

static void wait_for(volatile uint64_t *word, uint64_t value)
{
    while (*word != value)
        relax();
}

/* Answers each number in `ping` by the same in `pong`, up to `last`. */
static void echo(volatile uint64_t *ping, volatile uint64_t *pong, uint64_t last)
{
    uint64_t n, seen = 0;
    while (seen != last) {
        n = *ping;
        if (n != seen)
            *pong = seen = n;
        else
            relax();
    }
}

/* Nanoseconds of one direction, in a turn of round trips behind number `from`. */
static double trips(volatile uint64_t *ping, volatile uint64_t *pong, uint64_t from)
{
    uint64_t n, begin = now();
    for (n = from + 1; n <= from + TRIPS; n++) {
        *ping = n;
        wait_for(pong, n);
    }
    return (double)(now() - begin) / TRIPS / 2;
}

static sci_callback_action_t arrived(void *arg, sci_local_data_interrupt_t interrupt, void *data,
    unsigned length, sci_error_t status)
{
    uint64_t at = now();
    (void)arg, (void)interrupt, (void)data, (void)length, (void)status;
    shared->arrived = at;
    return SCI_CALLBACK_CONTINUE;
}

static void *sleeper(void *arg)
{
    int event = *(int *)arg;
    uint64_t count;
    while (read(event, &count, sizeof count) == sizeof count)
        shared->arrived = now();
    return NULL;
}

/* One of the two nodes, with its segment and that of the other one. */
struct side {
    sci_desc_t sd;
    sci_local_segment_t local;
    sci_remote_segment_t remote;
    sci_map_t map, remote_map;
    volatile uint64_t *here, *there;
};

static void join(struct side *side, const char *node, int cpu, unsigned peer)
{
    setenv("SISCI_NODE", node, 1);
    pin(cpu);
    side->sd = example_open();
    side->local = example_export(side->sd, SEGMENT, SIZE, 0);
    side->here = example_map_local(side->local, &side->map, SIZE);
    side->remote = example_connect(side->sd, peer, SEGMENT, 0);
    side->there = example_map(side->remote, &side->remote_map, SIZE);
}

/* Node 8: returns what node 4 stores. */
static int respond(int event)
{
    struct side side;
    sci_local_data_interrupt_t interrupt;
    unsigned number = INTERRUPT;
    pthread_t thread;
    uint64_t n, sum = 0;
    int turn;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    join(&side, "8", 1, 4);
    CALL(SCICreateDataInterrupt, side.sd, &interrupt, ADAPTER, &number, arrived, NULL,
        SCI_FLAG_USE_CALLBACK | SCI_FLAG_FIXED_INTNO);
    if (pthread_create(&thread, NULL, sleeper, &event) != 0)
        return 1;
    shared->ready = 1;
    /* Sleeps, since the thread that admits the other node may have the same processor. */
    while (!shared->connected)
        usleep(PAUSE);
    for (turn = 1; turn <= TURNS; turn++) {
        echo(side.here, side.there, (uint64_t)turn * TRIPS);
        echo(&shared->ping, &shared->pong, (uint64_t)turn * TRIPS);
    }
    while (shared->read != END) {
        for (n = 0; n < shared->read / sizeof *side.here && shared->read != END; n += LINE)
            sum += side.here[n];
        shared->sum = sum;
        if (shared->read == 0)
            usleep(PAUSE);
    }
    /* Threads of this process handle the rest. It is killed at the end. */
    for (;;)
        pause();
}

/* Nanoseconds from an event to its arrival. */
static double wake(sci_remote_data_interrupt_t interrupt, int event)
{
    uint64_t begin, one = 1;
    usleep(PAUSE);
    shared->arrived = 0;
    begin = now();
    if (event >= 0 && write(event, &one, sizeof one) != sizeof one)
        return 0;
    if (event < 0)
        CALL(SCITriggerDataInterrupt, interrupt, &one, sizeof one, 0);
    while (shared->arrived == 0)
        relax();
    return (double)(shared->arrived - begin);
}

/* `read`: the peer reads the map meanwhile. */
static void copies(sci_sequence_t sequence, sci_map_t map, volatile void *there, size_t size,
    int read)
{
    double ours[TURNS], reference[TURNS];
    void *from = aligned_alloc(4096, size);
    sci_error_t error;
    uint64_t begin;
    char what[64];
    int turn, n;

    memset(from, 1, size);
    shared->read = read ? size : 0;
    for (turn = 0; turn < TURNS; turn++) {
        begin = now();
        for (n = 0; n < COPIES; n++)
            SCIMemCpy(sequence, from, map, 0, size, 0, &error);
        ours[turn] = (double)(now() - begin) / COPIES;
        example_check("SCIMemCpy", error);
        begin = now();
        for (n = 0; n < COPIES; n++) {
            memcpy((void *)(uintptr_t)there, from, size);
            __asm__ volatile("" ::: "memory");
        }
        reference[turn] = (double)(now() - begin) / COPIES;
    }
    shared->read = 0;
    snprintf(what, sizeof what, "copy of %zu bytes%s", size, read ? ", read by peer" : "");
    row(what, ours, reference, TURNS);
    free(from);
}

static void starts(sci_desc_t sd, sci_local_segment_t local, sci_remote_segment_t remote)
{
    double ours[TURNS * EVENTS], reference[TURNS * EVENTS];
    sci_dma_queue_t queue;
    uint64_t begin, one = 1;
    int n, event = eventfd(0, 0);

    CALL(SCICreateDMAQueue, sd, &queue, ADAPTER, 1, 0);
    for (n = 0; n < TURNS * EVENTS; n++) {
        usleep(PAUSE);
        begin = now();
        CALL(SCIStartDmaTransfer, queue, local, remote, 0, DMA_SIZE, 0, NULL, NULL, 0);
        ours[n] = (double)(now() - begin);
        CALL(SCIWaitForDMAQueue, queue, SCI_INFINITE_TIMEOUT, 0);
        begin = now();
        if (write(event, &one, sizeof one) != sizeof one)
            exit(1);
        reference[n] = (double)(now() - begin);
    }
    row("start of a DMA transfer", ours, reference, TURNS * EVENTS);
    CALL(SCIRemoveDMAQueue, queue, 0);
}

int main(void)
{
    double ours[TURNS * EVENTS], reference[TURNS * EVENTS];
    struct side side;
    sci_remote_data_interrupt_t interrupt;
    sci_sequence_t sequence;
    int turn, n, event = eventfd(0, 0);
    pid_t child;

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || event < 0)
        return 1;
    child = fork();
    if (child <= 0)
        return child < 0 ? 1 : respond(event);
    join(&side, "4", 0, 8);
    CALL(SCICreateMapSequence, side.remote_map, &sequence, 0);
    while (!shared->ready)
        usleep(PAUSE);
    CALL(SCIConnectDataInterrupt, side.sd, &interrupt, 8, ADAPTER, INTERRUPT,
        SCI_INFINITE_TIMEOUT, 0);
    shared->connected = 1;

    for (turn = 0; turn < TURNS; turn++) {
        ours[turn] = trips(side.there, side.here, (uint64_t)turn * TRIPS);
        reference[turn] = trips(&shared->ping, &shared->pong, (uint64_t)turn * TRIPS);
    }
    row("8 bytes stored, then seen", ours, reference, TURNS);
    for (n = 0; n < 2; n++) {
        copies(sequence, side.remote_map, side.there, 4096, n);
        copies(sequence, side.remote_map, side.there, 65536, n);
    }
    shared->read = END;
    for (n = 0; n < TURNS * EVENTS; n++) {
        ours[n] = wake(interrupt, -1);
        reference[n] = wake(interrupt, event);
    }
    row("data interrupt to callback", ours, reference, TURNS * EVENTS);
    starts(side.sd, side.local, side.remote);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
