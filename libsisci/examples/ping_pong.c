/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Ping-pong over shared memory. Each side stores to the segment of the other, and polls its own:
 * ping_pong PEER first|second. */
#include "example.h"

#define SEGMENT(node) (100 + (node))
#define SIZE 4096
#define ROUNDS 1000

int main(int argc, char **argv)
{
    const char *usage = "PEER first|second";
    unsigned peer = example_number(argc, argv, 1, usage);
    int first = argc > 2 && strcmp(argv[2], "first") == 0;
    sci_desc_t sd = example_open();
    sci_local_segment_t local;
    sci_remote_segment_t remote;
    sci_sequence_t sequence;
    sci_map_t map, remote_map;
    volatile unsigned *here, *there;
    unsigned node, round;
    sci_error_t error;

    CALL(SCIGetLocalNodeId, ADAPTER, &node, 0);
    local = example_export(sd, SEGMENT(node), SIZE, 0);
    here = (volatile unsigned *)example_map_local(local, &map, SIZE);
    remote = example_connect(sd, peer, SEGMENT(peer), 0);
    there = (volatile unsigned *)example_map(remote, &remote_map, SIZE);
    CALL(SCICreateMapSequence, remote_map, &sequence, 0);
    do {
        sci_sequence_status_t status = SCIStartSequence(sequence, 0, &error);
        example_check("SCIStartSequence", error);
        if (status == SCI_SEQ_OK)
            break;
    } while (1);

    for (round = 1; round <= ROUNDS; round++) {
        if (!first)
            example_poll(here, round);
        *there = round;
        SCIFlush(sequence, 0);
        if (first)
            example_poll(here, round);
    }
    if (SCICheckSequence(sequence, 0, &error) != SCI_SEQ_OK)
        example_check("SCICheckSequence", SCI_ERR_TRANSFER_FAILED);
    printf("node %u: %u rounds with node %u\n", node, ROUNDS, peer);

    CALL(SCIRemoveSequence, sequence, 0);
    CALL(SCIUnmapSegment, remote_map, 0);
    CALL(SCIDisconnectSegment, remote, 0);
    CALL(SCIUnmapSegment, map, 0);
    example_remove(local);
    example_close(sd);
    return 0;
}
