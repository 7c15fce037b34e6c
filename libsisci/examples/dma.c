/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Transfer by a DMA queue with a callback. The sender computes meanwhile:
 * dma receiver | dma sender RECEIVER. */
#include <pthread.h>

#include "example.h"

#define SEGMENT 110
#define SIZE (4u << 20)
/* Word of the receiver's segment that says that all bytes before it have arrived. */
#define LAST (SIZE / sizeof(unsigned) - 1)

struct transfer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ended;
    sci_error_t status;
};

static sci_callback_action_t on_end(void *arg, sci_dma_queue_t queue, sci_error_t status)
{
    struct transfer *transfer = (struct transfer *)arg;
    (void)queue;
    pthread_mutex_lock(&transfer->lock);
    transfer->ended = 1;
    transfer->status = status;
    pthread_cond_signal(&transfer->changed);
    pthread_mutex_unlock(&transfer->lock);
    return SCI_CALLBACK_CONTINUE;
}

static void receive(sci_desc_t sd)
{
    sci_map_t map;
    sci_local_segment_t local = example_export(sd, SEGMENT, SIZE, 0);
    volatile unsigned *here = (volatile unsigned *)example_map_local(local, &map, SIZE);
    unsigned word;

    example_poll(&here[LAST], LAST);
    for (word = 0; word < LAST; word++) {
        if (here[word] != word) {
            fprintf(stderr, "word %u is %u\n", word, here[word]);
            exit(1);
        }
    }
    printf("received %u bytes\n", SIZE);
    CALL(SCIUnmapSegment, map, 0);
    example_remove(local);
}

static void send_to(sci_desc_t sd, unsigned node)
{
    struct transfer transfer = {
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, SCI_ERR_OK};
    sci_local_segment_t local;
    sci_remote_segment_t remote = example_connect(sd, node, SEGMENT, 0);
    sci_dma_queue_t queue;
    sci_map_t map;
    unsigned *here, word;

    CALL(SCICreateSegment, sd, &local, SEGMENT + 1, SIZE, NULL, NULL, SCI_FLAG_PRIVATE);
    CALL(SCIPrepareSegment, local, ADAPTER, 0);
    here = (unsigned *)example_map_local(local, &map, SIZE);
    for (word = 0; word <= LAST; word++)
        here[word] = word;
    CALL(SCICreateDMAQueue, sd, &queue, ADAPTER, 1, 0);
    CALL(SCIStartDmaTransfer, queue, local, remote, 0, SIZE, 0, on_end, &transfer,
        SCI_FLAG_USE_CALLBACK);
    /* A real program computes here. */
    pthread_mutex_lock(&transfer.lock);
    while (!transfer.ended)
        pthread_cond_wait(&transfer.changed, &transfer.lock);
    pthread_mutex_unlock(&transfer.lock);
    example_check("transfer", transfer.status);
    printf("sent %u bytes to node %u\n", SIZE, node);
    CALL(SCIRemoveDMAQueue, queue, 0);
    CALL(SCIUnmapSegment, map, 0);
    CALL(SCIRemoveSegment, local, 0);
    CALL(SCIDisconnectSegment, remote, 0);
}

int main(int argc, char **argv)
{
    const char *usage = "receiver | sender RECEIVER";
    sci_desc_t sd = example_open();
    if (argc > 1 && strcmp(argv[1], "receiver") == 0)
        receive(sd);
    else
        send_to(sd, example_number(argc, argv, 2, usage));
    example_close(sd);
    return 0;
}
