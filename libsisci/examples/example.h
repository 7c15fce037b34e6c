/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Steps that all examples begin and end with. A failed call ends the program. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sisci_api.h"

#define ADAPTER 0

/* CALL(function, argument, ...) calls a function whose last argument is the error. */
#define CALL(function, ...) \
    do { \
        sci_error_t example_error; \
        function(__VA_ARGS__, &example_error); \
        example_check(#function, example_error); \
    } while (0)

static inline void example_check(const char *call, sci_error_t error)
{
    if (error == SCI_ERR_OK)
        return;
    fprintf(stderr, "%s: %s\n", call, SCIGetErrorString(error));
    exit(1);
}

static inline sci_desc_t example_open(void)
{
    sci_desc_t sd;
    CALL(SCIInitialize, 0);
    CALL(SCIOpen, &sd, 0);
    return sd;
}

static inline void example_close(sci_desc_t sd)
{
    CALL(SCIClose, sd, 0);
    SCITerminate();
}

/* Creates a segment that other nodes can connect to. */
static inline sci_local_segment_t example_export(sci_desc_t sd, unsigned id, size_t size,
    unsigned flags)
{
    sci_local_segment_t segment;
    CALL(SCICreateSegment, sd, &segment, id, size, NULL, NULL, flags);
    CALL(SCIPrepareSegment, segment, ADAPTER, 0);
    CALL(SCISetSegmentAvailable, segment, ADAPTER, 0);
    return segment;
}

static inline void *example_map_local(sci_local_segment_t segment, sci_map_t *map, size_t size)
{
    sci_error_t error;
    void *at = SCIMapLocalSegment(segment, map, 0, size, NULL, 0, &error);
    example_check("SCIMapLocalSegment", error);
    return at;
}

static inline volatile void *example_map(sci_remote_segment_t segment, sci_map_t *map, size_t size)
{
    sci_error_t error;
    volatile void *at = SCIMapRemoteSegment(segment, map, 0, size, NULL, 0, &error);
    example_check("SCIMapRemoteSegment", error);
    return at;
}

/* Connects to a segment, as soon as its owner has made it available. */
static inline sci_remote_segment_t example_connect(sci_desc_t sd, unsigned node, unsigned id,
    unsigned flags)
{
    sci_remote_segment_t segment;
    sci_error_t error;
    do {
        SCIConnectSegment(sd, &segment, node, id, ADAPTER, NULL, NULL, SCI_INFINITE_TIMEOUT, flags,
            &error);
        if (error == SCI_ERR_NO_SUCH_SEGMENT)
            sched_yield();
    } while (error == SCI_ERR_NO_SUCH_SEGMENT);
    example_check("SCIConnectSegment", error);
    return segment;
}

/* Removes a segment, as soon as its last peer has disconnected. */
static inline void example_remove(sci_local_segment_t segment)
{
    sci_error_t error;
    do {
        SCIRemoveSegment(segment, 0, &error);
        if (error == SCI_ERR_BUSY)
            sched_yield();
    } while (error == SCI_ERR_BUSY);
    example_check("SCIRemoveSegment", error);
}

/* Waits until a word has a value. Other processors, or the peer's process, run meanwhile. */
static inline void example_poll(const volatile unsigned *word, unsigned value)
{
    while (*word != value)
        sched_yield();
}

/* Returns the number of argument `index`, or ends the program. */
static inline unsigned example_number(int argc, char **argv, int index, const char *usage)
{
    if (argc <= index) {
        fprintf(stderr, "usage: %s %s\n", argv[0], usage);
        exit(2);
    }
    return (unsigned)strtoul(argv[index], NULL, 0);
}

#endif
