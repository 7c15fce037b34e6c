/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* One process plays both sides: a segment, a store through its remote map, and an interrupt. */
#include <stdio.h>
#include <string.h>

#include "sisci_api.h"
#include "sisci_demolib.h"

#define SEGMENT 7
#define SIZE 8192

static int failed;

#define CHECK(call) \
    do { \
        call; \
        if (error != SCI_ERR_OK) { \
            printf("%s: %s\n", #call, SCIGetErrorString(error)); \
            failed = 1; \
        } \
    } while (0)

static sci_callback_action_t on_data(void *arg, sci_local_data_interrupt_t interrupt, void *data,
    unsigned int length, sci_error_t status)
{
    (void)interrupt;
    (void)status;
    memcpy(arg, data, length);
    return SCI_CALLBACK_CONTINUE;
}

int main(void)
{
    sci_error_t error;
    sci_desc_t sd;
    sci_local_segment_t local;
    sci_remote_segment_t remote;
    sci_map_t map, remote_map;
    sci_sequence_t sequence;
    sci_local_interrupt_t interrupt;
    sci_remote_interrupt_t trigger;
    sci_local_data_interrupt_t data_interrupt;
    sci_query_adapter_t query = {0, 0, 0, NULL};
    volatile unsigned int *there;
    unsigned int *here;
    unsigned int node, asked, number = 0, data_number = 0;
    char text[16] = "";

    CHECK(SCIInitialize(0, &error));
    CHECK(SCIOpen(&sd, SCI_FLAG_THREAD_SAFE, &error));
    CHECK(error = GetLocalNodeId(0, &node));
    query.subcommand = SCI_Q_ADAPTER_NODEID;
    query.data = &asked;
    CHECK(SCIQuery(SCI_Q_ADAPTER, &query, 0, &error));
    if (asked != node)
        failed = 1;
    CHECK(SCICreateSegment(sd, &local, SEGMENT, SIZE, NULL, NULL, 0, &error));
    CHECK(SCIPrepareSegment(local, 0, 0, &error));
    CHECK(SCISetSegmentAvailable(local, 0, 0, &error));
    CHECK(here = (unsigned int *)SCIMapLocalSegment(local, &map, 0, SIZE, NULL, 0, &error));
    CHECK(SCIConnectSegment(sd, &remote, node, SEGMENT, 0, NULL, NULL, SCI_INFINITE_TIMEOUT, 0,
        &error));
    CHECK(there = (volatile unsigned int *)SCIMapRemoteSegment(remote, &remote_map, 0, SIZE, NULL,
        SCI_FLAG_IO_MAP_IOSPACE, &error));
    CHECK(SCICreateMapSequence(remote_map, &sequence, 0, &error));
    if (SCIStartSequence(sequence, 0, &error) != SCI_SEQ_OK)
        failed = 1;
    there[5] = 77;
    SCIFlush(NULL, SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY);
    if (SCICheckSequence(sequence, 0, &error) != SCI_SEQ_OK || here[5] != 77)
        failed = 1;
    CHECK(SCICreateInterrupt(sd, &interrupt, 0, &number, NULL, NULL, 0, &error));
    CHECK(SCIConnectInterrupt(sd, &trigger, node, 0, number, SCI_INFINITE_TIMEOUT, 0, &error));
    CHECK(SCITriggerInterrupt(trigger, 0, &error));
    CHECK(SCIWaitForInterrupt(interrupt, SCI_INFINITE_TIMEOUT, 0, &error));
    CHECK(SCICreateDataInterrupt(sd, &data_interrupt, 0, &data_number, on_data, text,
        SCI_FLAG_USE_CALLBACK, &error));
    CHECK(SCIRemoveDataInterrupt(data_interrupt, 0, &error));
    CHECK(SCIDisconnectInterrupt(trigger, 0, &error));
    CHECK(SCIRemoveInterrupt(interrupt, 0, &error));
    CHECK(SCIRemoveSequence(sequence, 0, &error));
    CHECK(SCIUnmapSegment(remote_map, 0, &error));
    CHECK(SCIDisconnectSegment(remote, 0, &error));
    CHECK(SCIUnmapSegment(map, 0, &error));
    CHECK(SCIRemoveSegment(local, 0, &error));
    CHECK(SCIClose(sd, 0, &error));
    SCITerminate();
    return failed;
}
