/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Nodes whose objects scifctl shows: sisci_nodes owner|user. The owner has a segment and two
 * interrupts. The user connects and maps the segment, and triggers the interrupts. Each prints a
 * line once it has its objects, and keeps them until it is killed.
 */
#include <unistd.h>

#include "../../libsisci/examples/example.h"

#define SEGMENT 7
#define PRIVATE_SEGMENT 9
#define SIZE 70000
#define INTERRUPT 300
#define DATA 301
#define TRIGGERS 3

static sci_callback_action_t arrived(void *arg, sci_local_data_interrupt_t interrupt, void *data,
    unsigned length, sci_error_t status)
{
    (void)arg, (void)interrupt, (void)data, (void)length, (void)status;
    return SCI_CALLBACK_CONTINUE;
}

static void own(sci_desc_t sd)
{
    sci_local_segment_t segment;
    sci_local_interrupt_t plain;
    sci_local_data_interrupt_t data;
    sci_map_t map;
    unsigned number = DATA;

    CALL(SCICreateDataInterrupt, sd, &data, ADAPTER, &number, arrived, NULL,
        SCI_FLAG_USE_CALLBACK | SCI_FLAG_FIXED_INTNO);
    number = INTERRUPT;
    CALL(SCICreateInterrupt, sd, &plain, ADAPTER, &number, NULL, NULL,
        SCI_FLAG_FIXED_INTNO | SCI_FLAG_COUNTING_INT);
    CALL(SCICreateSegment, sd, &segment, PRIVATE_SEGMENT, SIZE, NULL, NULL, SCI_FLAG_PRIVATE);
    segment = example_export(sd, SEGMENT, SIZE, 0);
    (void)example_map_local(segment, &map, SIZE);
}

static void use(sci_desc_t sd)
{
    sci_remote_segment_t segment = example_connect(sd, 4, SEGMENT, 0);
    sci_remote_data_interrupt_t data;
    sci_remote_interrupt_t plain;
    sci_error_t error;
    sci_map_t map;
    int n;

    (void)SCIMapRemoteSegment(segment, &map, 4096, 4096, NULL, SCI_FLAG_READONLY_MAP, &error);
    example_check("SCIMapRemoteSegment", error);
    CALL(SCIConnectInterrupt, sd, &plain, 4, ADAPTER, INTERRUPT, SCI_INFINITE_TIMEOUT, 0);
    CALL(SCIConnectDataInterrupt, sd, &data, 4, ADAPTER, DATA, SCI_INFINITE_TIMEOUT, 0);
    for (n = 0; n < TRIGGERS; n++)
        CALL(SCITriggerDataInterrupt, data, &n, sizeof n, 0);
    CALL(SCITriggerInterrupt, plain, 0);
}

int main(int argc, char **argv)
{
    sci_desc_t sd = example_open();
    if (argc == 2 && strcmp(argv[1], "owner") == 0)
        own(sd);
    else
        use(sd);
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}
