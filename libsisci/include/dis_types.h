/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Node ids and adapters of SISCI. */
#ifndef DIS_TYPES_H
#define DIS_TYPES_H

/* Node id of connections to all members of a reflective memory group. */
#define DIS_BROADCAST_NODEID_GROUP_ALL 252

#define DIS_NODEID_LIST_LENGTH 8

/* Node ids of an adapter; 0 ends the list. */
typedef unsigned int dis_nodeId_list_t[DIS_NODEID_LIST_LENGTH];

typedef enum {
    DIS_PHYSICAL_ADAPTER,
    DIS_VIRTUAL_ADAPTER
} dis_virt_adapter_t;

#endif
