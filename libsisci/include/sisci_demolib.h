/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Node queries in the form that small programs use. */
#ifndef SISCI_DEMOLIB_H
#define SISCI_DEMOLIB_H

#include "sisci_api.h"

/* Returns the node id of an adapter in *nodeId. */
static inline sci_error_t GetLocalNodeId(unsigned int localAdapterNo, unsigned int *nodeId)
{
    sci_error_t error;

    SCIGetLocalNodeId(localAdapterNo, nodeId, 0, &error);
    return error;
}

#endif
