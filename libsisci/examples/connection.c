/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Data interrupts as a connection manager: a client tells a server its node, segment and interrupt.
 * The server connects to that segment, writes a greeting, and answers by the interrupt:
 * connection server | connection client SERVER. */
#include "example.h"

#define SERVICE 42
#define SIZE 4096

struct request {
    unsigned node, segment, interrupt;
};

static sci_remote_data_interrupt_t connect_to(sci_desc_t sd, unsigned node, unsigned number)
{
    sci_remote_data_interrupt_t interrupt;
    sci_error_t error;
    do {
        SCIConnectDataInterrupt(sd, &interrupt, node, ADAPTER, number, SCI_INFINITE_TIMEOUT, 0,
            &error);
        if (error == SCI_ERR_NO_SUCH_INTNO)
            sched_yield();
    } while (error == SCI_ERR_NO_SUCH_INTNO);
    example_check("SCIConnectDataInterrupt", error);
    return interrupt;
}

/* Sends data. A full queue of the receiver is tried again. */
static void send_data(sci_remote_data_interrupt_t interrupt, void *data, unsigned length)
{
    sci_error_t error;
    do {
        SCITriggerDataInterrupt(interrupt, data, length, 0, &error);
        if (error == SCI_ERR_NOSPC)
            sched_yield();
    } while (error == SCI_ERR_NOSPC);
    example_check("SCITriggerDataInterrupt", error);
}

static void serve(sci_desc_t sd)
{
    sci_local_data_interrupt_t service;
    sci_remote_data_interrupt_t reply;
    sci_remote_segment_t remote;
    sci_map_t map;
    struct request request;
    unsigned number = SERVICE, length = sizeof request;
    char greeting[] = "hello";

    CALL(SCICreateDataInterrupt, sd, &service, ADAPTER, &number, NULL, NULL,
        SCI_FLAG_FIXED_INTNO);
    CALL(SCIWaitForDataInterrupt, service, &request, &length, SCI_INFINITE_TIMEOUT, 0);
    remote = example_connect(sd, request.node, request.segment, 0);
    example_map(remote, &map, SIZE);
    CALL(SCIMemCpy, NULL, greeting, map, 0, sizeof greeting, SCI_FLAG_ERROR_CHECK);
    CALL(SCIUnmapSegment, map, 0);
    CALL(SCIDisconnectSegment, remote, 0);
    reply = connect_to(sd, request.node, request.interrupt);
    length = sizeof greeting;
    send_data(reply, &length, sizeof length);
    printf("served node %u\n", request.node);
    CALL(SCIDisconnectDataInterrupt, reply, 0);
    CALL(SCIRemoveDataInterrupt, service, 0);
}

static void ask(sci_desc_t sd, unsigned node)
{
    struct request request;
    sci_local_data_interrupt_t answer;
    sci_remote_data_interrupt_t service;
    sci_local_segment_t local;
    sci_map_t map;
    unsigned written = 0, length = sizeof written;
    const char *here;

    CALL(SCIGetLocalNodeId, ADAPTER, &request.node, 0);
    local = example_export(sd, 1, SIZE, SCI_FLAG_AUTO_ID);
    request.segment = SCIGetLocalSegmentId(local);
    here = (const char *)example_map_local(local, &map, SIZE);
    CALL(SCICreateDataInterrupt, sd, &answer, ADAPTER, &request.interrupt, NULL, NULL, 0);
    service = connect_to(sd, node, SERVICE);
    send_data(service, &request, sizeof request);
    CALL(SCIWaitForDataInterrupt, answer, &written, &length, SCI_INFINITE_TIMEOUT, 0);
    printf("node %u wrote %u bytes: %s\n", node, written, here);
    CALL(SCIDisconnectDataInterrupt, service, 0);
    CALL(SCIRemoveDataInterrupt, answer, 0);
    CALL(SCIUnmapSegment, map, 0);
    example_remove(local);
}

int main(int argc, char **argv)
{
    const char *usage = "server | client SERVER";
    sci_desc_t sd = example_open();
    if (argc > 1 && strcmp(argv[1], "server") == 0)
        serve(sd);
    else
        ask(sd, example_number(argc, argv, 2, usage));
    example_close(sd);
    return 0;
}
