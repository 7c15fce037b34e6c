/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Remote interrupt: one node sleeps until another triggers it:
 * interrupt waiter | interrupt trigger WAITER. */
#include "example.h"

#define NUMBER 7

static void wait_for_trigger(sci_desc_t sd)
{
    sci_local_interrupt_t interrupt;
    unsigned number = NUMBER;
    CALL(SCICreateInterrupt, sd, &interrupt, ADAPTER, &number, NULL, NULL, SCI_FLAG_FIXED_INTNO);
    CALL(SCIWaitForInterrupt, interrupt, SCI_INFINITE_TIMEOUT, 0);
    printf("interrupt %u came\n", number);
    CALL(SCIRemoveInterrupt, interrupt, 0);
}

static void trigger(sci_desc_t sd, unsigned node)
{
    sci_remote_interrupt_t interrupt;
    sci_error_t error;
    do {
        SCIConnectInterrupt(sd, &interrupt, node, ADAPTER, NUMBER, SCI_INFINITE_TIMEOUT, 0,
            &error);
        if (error == SCI_ERR_NO_SUCH_INTNO)
            sched_yield();
    } while (error == SCI_ERR_NO_SUCH_INTNO);
    example_check("SCIConnectInterrupt", error);
    CALL(SCITriggerInterrupt, interrupt, 0);
    printf("interrupt %d of node %u triggered\n", NUMBER, node);
    CALL(SCIDisconnectInterrupt, interrupt, 0);
}

int main(int argc, char **argv)
{
    const char *usage = "waiter | trigger WAITER";
    sci_desc_t sd = example_open();
    if (argc > 1 && strcmp(argv[1], "waiter") == 0)
        wait_for_trigger(sd);
    else
        trigger(sd, example_number(argc, argv, 2, usage));
    example_close(sd);
    return 0;
}
