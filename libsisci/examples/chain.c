/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Producer, filter and consumer on three nodes. Items go through a ring in the segment of the next
 * node, which reports its progress in the segment of the former one:
 * chain producer NEXT | chain filter FORMER NEXT | chain consumer FORMER. */
#include "example.h"

/* Segments with the ring of the input, and with the progress of the output. */
#define INPUT 120
#define OUTPUT 121
#define ITEMS 10000u
#define SLOTS 64u

struct ring {
    /* Number of items that were written. */
    volatile unsigned written;
    volatile unsigned items[SLOTS];
};

struct progress {
    /* Number of items that the next node has taken. */
    volatile unsigned taken;
};

struct input {
    sci_local_segment_t local;
    sci_remote_segment_t former;
    sci_map_t map, former_map;
    volatile struct ring *ring;
    volatile struct progress *progress;
    unsigned taken;
};

struct output {
    sci_local_segment_t local;
    sci_remote_segment_t next;
    sci_map_t map, next_map;
    volatile struct progress *progress;
    volatile struct ring *ring;
    unsigned written;
};

static void open_input(sci_desc_t sd, struct input *input, unsigned former)
{
    input->local = example_export(sd, INPUT, sizeof(struct ring), 0);
    input->ring = (volatile struct ring *)example_map_local(input->local, &input->map,
        sizeof(struct ring));
    input->former = example_connect(sd, former, OUTPUT, 0);
    input->progress = (volatile struct progress *)example_map(input->former, &input->former_map,
        sizeof(struct progress));
    input->taken = 0;
}

static void open_output(sci_desc_t sd, struct output *output, unsigned next)
{
    output->local = example_export(sd, OUTPUT, sizeof(struct progress), 0);
    output->progress = (volatile struct progress *)example_map_local(output->local, &output->map,
        sizeof(struct progress));
    output->next = example_connect(sd, next, INPUT, 0);
    output->ring = (volatile struct ring *)example_map(output->next, &output->next_map,
        sizeof(struct ring));
    output->written = 0;
}

static void close_input(struct input *input)
{
    CALL(SCIUnmapSegment, input->former_map, 0);
    CALL(SCIDisconnectSegment, input->former, 0);
    CALL(SCIUnmapSegment, input->map, 0);
    example_remove(input->local);
}

static void close_output(struct output *output)
{
    CALL(SCIUnmapSegment, output->next_map, 0);
    CALL(SCIDisconnectSegment, output->next, 0);
    CALL(SCIUnmapSegment, output->map, 0);
    example_remove(output->local);
}

static unsigned take(struct input *input)
{
    unsigned item;
    while (input->ring->written == input->taken)
        sched_yield();
    SCIFlush(NULL, 0);
    item = input->ring->items[input->taken % SLOTS];
    input->taken++;
    input->progress->taken = input->taken;
    return item;
}

static void put(struct output *output, unsigned item)
{
    while (output->written - output->progress->taken == SLOTS)
        sched_yield();
    output->ring->items[output->written % SLOTS] = item;
    SCIStoreBarrier(NULL, 0);
    output->written++;
    output->ring->written = output->written;
}

int main(int argc, char **argv)
{
    const char *usage = "producer NEXT | filter FORMER NEXT | consumer FORMER";
    const char *role = argc > 1 ? argv[1] : "";
    unsigned peer = example_number(argc, argv, 2, usage);
    sci_desc_t sd = example_open();
    struct input input;
    struct output output;
    unsigned item;

    if (strcmp(role, "producer") == 0) {
        open_output(sd, &output, peer);
        for (item = 0; item < ITEMS; item++)
            put(&output, item);
        close_output(&output);
    } else if (strcmp(role, "filter") == 0) {
        unsigned next = example_number(argc, argv, 3, usage);
        open_input(sd, &input, peer);
        open_output(sd, &output, next);
        for (item = 0; item < ITEMS; item++)
            put(&output, 2 * take(&input));
        close_input(&input);
        close_output(&output);
    } else {
        open_input(sd, &input, peer);
        for (item = 0; item < ITEMS; item++) {
            if (take(&input) != 2 * item) {
                fprintf(stderr, "item %u is wrong\n", item);
                return 1;
            }
        }
        close_input(&input);
    }
    printf("%s: %u items\n", role, ITEMS);
    example_close(sd);
    return 0;
}
