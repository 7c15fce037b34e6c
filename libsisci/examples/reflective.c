/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Reflective memory: a store to the group arrives at each member. Member n writes word n, and waits
 * for the words of all others: reflective MEMBER MEMBERS. */
#include "example.h"

#define GROUP 5
#define SIZE 4096

/* Waits until words from `first` on, one for each member, are not 0. */
static void wait_for_all(volatile unsigned *words, unsigned first, unsigned members)
{
    unsigned member;
    for (member = 0; member < members; member++) {
        while (words[first + member] == 0)
            sched_yield();
    }
}

int main(int argc, char **argv)
{
    const char *usage = "MEMBER MEMBERS";
    unsigned member = example_number(argc, argv, 1, usage);
    unsigned members = example_number(argc, argv, 2, usage);
    sci_desc_t sd = example_open();
    sci_local_segment_t local = example_export(sd, GROUP, SIZE, SCI_FLAG_BROADCAST);
    sci_remote_segment_t group;
    sci_map_t map, group_map;
    volatile unsigned *here, *all;

    here = (volatile unsigned *)example_map_local(local, &map, SIZE);
    group = example_connect(sd, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, SCI_FLAG_BROADCAST);
    all = (volatile unsigned *)example_map(group, &group_map, SIZE);
    all[member] = member + 1;
    SCIFlush(NULL, 0);
    wait_for_all(here, 0, members);
    printf("member %u has the words of all %u\n", member, members);
    CALL(SCIUnmapSegment, group_map, 0);
    CALL(SCIUnmapSegment, map, 0);
    CALL(SCIDisconnectSegment, group, 0);
    example_remove(local);
    example_close(sd);
    return 0;
}
