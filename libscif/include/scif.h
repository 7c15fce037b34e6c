/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * SCIF, the Symmetric Communication Interface, for user programs.
 *
 * Two programs, on two nodes or on one, connect endpoints. Over a connection they send messages,
 * register memory as windows, and read, write and map each other's windows. A node is a group of
 * processes with the same SCIF_NODE in their environment; without it every process is on node 0.
 *
 * Every function that can fail returns -1 (or the value named with it) and sets errno. Any number
 * of threads may call the functions. A function that succeeds leaves errno unchanged. README.md of
 * the library lists the differences between the documents and the drivers of SCIF, and the choices
 * of this library.
 */
#ifndef SCIF_H
#define SCIF_H

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/select.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Endpoint descriptor: a file descriptor, usable in poll, select and epoll, shared by fork and dup.
 */
typedef int scif_epd_t;

#define SCIF_OPEN_FAILED ((scif_epd_t)-1)
#define SCIF_REGISTER_FAILED ((off_t)-1)
#define SCIF_MMAP_FAILED ((void *)-1)

/* Port of a node. */
struct scif_portID {
	uint16_t node;
	uint16_t port;
};
typedef struct scif_portID scif_portID_t;
/* Older names, of the header of MPSS 3. */
#define portID scif_portID
typedef struct scif_portID portID_t;

/* Entry of scif_poll, with the layout of struct pollfd. */
struct scif_pollepd {
	scif_epd_t epd;
	short events;
	short revents;
};

#define SCIF_POLLIN POLLIN
#define SCIF_POLLOUT POLLOUT
#define SCIF_POLLERR POLLERR
#define SCIF_POLLHUP POLLHUP
#define SCIF_POLLNVAL POLLNVAL

/*
 * Ports below SCIF_ADMIN_PORT_END need CAP_SYS_ADMIN. Ports up to SCIF_PORT_RSVD are never assigned
 * for port 0.
 */
#define SCIF_ADMIN_PORT_END 1024
#define SCIF_PORT_RSVD 1088

/*
 * Ports reserved for services of MPSS. Without MPSS they have no listener, and any program may use
 * them.
 */
/* Offload (COI) */
#define SCIF_COI_PORT_0 40
#define SCIF_COI_PORT_1 41
#define SCIF_COI_PORT_2 42
#define SCIF_COI_PORT_3 43
#define SCIF_COI_PORT_4 44
#define SCIF_COI_PORT_5 45
#define SCIF_COI_PORT_6 46
#define SCIF_COI_PORT_7 47
#define SCIF_COI_PORT_8 48
#define SCIF_COI_PORT_9 49
/* InfiniBand (OFED) */
#define SCIF_OFED_PORT_0 60
#define SCIF_OFED_PORT_1 61
#define SCIF_OFED_PORT_2 62
#define SCIF_OFED_PORT_3 63
#define SCIF_OFED_PORT_4 64
#define SCIF_OFED_PORT_5 65
#define SCIF_OFED_PORT_6 66
#define SCIF_OFED_PORT_7 67
#define SCIF_OFED_PORT_8 68
#define SCIF_OFED_PORT_9 69
/* Network device */
#define SCIF_NETDEV_PORT_0 80
#define SCIF_NETDEV_PORT_1 81
#define SCIF_NETDEV_PORT_2 82
#define SCIF_NETDEV_PORT_3 83
#define SCIF_NETDEV_PORT_4 84
#define SCIF_NETDEV_PORT_5 85
#define SCIF_NETDEV_PORT_6 86
#define SCIF_NETDEV_PORT_7 87
#define SCIF_NETDEV_PORT_8 88
#define SCIF_NETDEV_PORT_9 89
/* Reliability (RAS) */
#define SCIF_RAS_PORT_0 100
#define SCIF_RAS_PORT_1 101
#define SCIF_RAS_PORT_2 102
#define SCIF_RAS_PORT_3 103
#define SCIF_RAS_PORT_4 104
#define SCIF_RAS_PORT_5 105
#define SCIF_RAS_PORT_6 106
#define SCIF_RAS_PORT_7 107
#define SCIF_RAS_PORT_8 108
#define SCIF_RAS_PORT_9 109
/* Power management */
#define SCIF_PM_PORT_0 120
#define SCIF_PM_PORT_1 121
#define SCIF_PM_PORT_2 122
#define SCIF_PM_PORT_3 123
#define SCIF_PM_PORT_4 124
#define SCIF_PM_PORT_5 125
#define SCIF_PM_PORT_6 126
#define SCIF_PM_PORT_7 127
#define SCIF_PM_PORT_8 128
#define SCIF_PM_PORT_9 129
/* Board tools */
#define SCIF_BT_PORT_0 130
#define SCIF_BT_PORT_1 131
#define SCIF_BT_PORT_2 132
#define SCIF_BT_PORT_3 133
#define SCIF_BT_PORT_4 134
#define SCIF_BT_PORT_5 135
#define SCIF_BT_PORT_6 136
#define SCIF_BT_PORT_7 137
#define SCIF_BT_PORT_8 138
#define SCIF_BT_PORT_9 139
/* Boot and configuration of cards */
#define MPSSD_MONRECV 160
#define MIC_NOTIFY 161
#define MPSSD_CRED 162
#define MPSSD_MONSEND 163
#define MPSSD_MICCTRL 164
#define MPSSD_RESV5 165
#define MPSSD_RESV6 166
#define MPSSD_RESV7 167
#define MPSSD_RESV8 168
#define MPSSD_RESV9 169
/* Shared virtual memory (MYO) */
#define SCIF_MYO_PORT_0 1025
#define SCIF_MYO_PORT_1 1026
#define SCIF_MYO_PORT_2 1027
#define SCIF_MYO_PORT_3 1028
#define SCIF_MYO_PORT_4 1029
#define SCIF_MYO_PORT_5 1030
#define SCIF_MYO_PORT_6 1031
#define SCIF_MYO_PORT_7 1032
#define SCIF_MYO_PORT_8 1033
#define SCIF_MYO_PORT_9 1034
/* Software tools (SSG) */
#define SCIF_ST_PORT_0 1044
#define SCIF_ST_PORT_1 1045
#define SCIF_ST_PORT_2 1046
#define SCIF_ST_PORT_3 1047
#define SCIF_ST_PORT_4 1048
#define SCIF_ST_PORT_5 1049
#define SCIF_ST_PORT_6 1050
#define SCIF_ST_PORT_7 1051
#define SCIF_ST_PORT_8 1052
#define SCIF_ST_PORT_9 1053

/* Flags of scif_accept, scif_send, scif_recv. */
#define SCIF_ACCEPT_SYNC 1
#define SCIF_SEND_BLOCK 1
#define SCIF_RECV_BLOCK 1

/* Protection of windows and mappings. */
#define SCIF_PROT_READ (1 << 0)
#define SCIF_PROT_WRITE (1 << 1)

/*
 * Flags of scif_register and scif_mmap. SCIF_MAP_KERNEL is for kernel clients: EINVAL in this
 * library.
 */
#define SCIF_MAP_FIXED 0x10
#define SCIF_MAP_KERNEL 0x20

/* Flags of the RMA functions. */
#define SCIF_RMA_USECPU (1 << 0)
#define SCIF_RMA_USECACHE (1 << 1)
#define SCIF_RMA_SYNC (1 << 2)
#define SCIF_RMA_ORDERED (1 << 3)

/* Flags of the fence functions. */
#define SCIF_FENCE_INIT_SELF (1 << 0)
#define SCIF_FENCE_INIT_PEER (1 << 1)
#define SCIF_SIGNAL_LOCAL (1 << 4)
#define SCIF_SIGNAL_REMOTE (1 << 5)

/* Other spellings, of the SCIF User Guide and of the headers of MPSS. */
#define SCIF_RMA_ORDER SCIF_RMA_ORDERED
#define SCIF_FENCE_RAS_SELF SCIF_FENCE_INIT_SELF
#define SCIF_FENCE_RAS_PEER SCIF_FENCE_INIT_PEER
#define ACCEPT_SYNC SCIF_ACCEPT_SYNC
#define SEND_BLOCK SCIF_SEND_BLOCK
#define RECV_BLOCK SCIF_RECV_BLOCK

/*
 * Opens an endpoint; its descriptor is close-on-exec. SCIF_OPEN_FAILED on failure: EMFILE, ENFILE,
 * ENOMEM.
 */
scif_epd_t scif_open(void);

/*
 * Closes a descriptor. The connection of an endpoint ends with its last descriptor, in any process.
 * The peer can still receive bytes sent before; its other calls then fail with ECONNRESET. EBADF.
 */
int scif_close(scif_epd_t epd);

/*
 * Binds to port pn, or for 0 to a free one of 1089..65535, until the endpoint is closed. Returns
 * the port.
 * EACCES: 0 < pn < 1024 without CAP_SYS_ADMIN. EINVAL: bound already, or the port is in use.
 * EISCONN: listening or connected. ENOSPC: no port is free. EBADF, ENOTTY.
 */
int scif_bind(scif_epd_t epd, uint16_t pn);

/*
 * Listens with a queue of backlog requests that wait for scif_accept; with backlog <= 0 every
 * request is refused.
 * EINVAL: not bound, or disconnected. EISCONN: listening or connected. EBADF, ENOTTY.
 */
int scif_listen(scif_epd_t epd, int backlog);

/*
 * Connects to a listening endpoint. Returns the local port once the peer has accepted. An unbound
 * endpoint is bound first. With O_NONBLOCK on the descriptor it returns -1 with EINPROGRESS; when
 * the descriptor is writable, the next call returns the result, once.
 * ECONNREFUSED: no listener at the port yet, its queue is full, or the request was not accepted
 * within 30 seconds; the endpoint is bound and may connect again. ENODEV: the node is lost, or has
 * a number above 128 and no process. EINVAL: dst is NULL, or the endpoint is disconnected. EISCONN:
 * connected or connecting. EOPNOTSUPP: listening. EINPROGRESS. ENOSPC, ENOMEM, EBADF, ENOTTY.
 */
int scif_connect(scif_epd_t epd, struct scif_portID *dst);

/*
 * Accepts a request. Sets *peer to the port of the opener and *newepd to the new endpoint, which is
 * not close-on-exec. With SCIF_ACCEPT_SYNC it waits for a request, regardless of O_NONBLOCK.
 * EAGAIN: no request, and no SCIF_ACCEPT_SYNC. EINVAL: not listening, other flags, NULL. EINTR: a
 * signal, or the endpoint was closed meanwhile. EMFILE, ENFILE, ENOMEM, EBADF, ENOTTY.
 */
int scif_accept(scif_epd_t epd, struct scif_portID *peer, scif_epd_t *newepd, int flags);

/*
 * Sends bytes of a stream and returns their number. With SCIF_SEND_BLOCK it sends all of them,
 * unless a signal or the peer's close interrupts it. Otherwise it sends the bytes that fit now,
 * possibly none. O_NONBLOCK has no effect.
 * ENOTCONN. ECONNRESET: the peer has closed. EINTR: a signal before any byte. EINVAL: len < 0,
 * other flags. EFAULT: msg is NULL. EBADF, ENOTTY. For len 0 it returns 0 and checks no other
 * argument.
 */
int scif_send(scif_epd_t epd, void *msg, int len, int flags);

/*
 * Receives bytes of a stream and returns their number. With SCIF_RECV_BLOCK it receives len bytes,
 * unless a signal or the peer's close interrupts it. Otherwise it receives the bytes that have
 * arrived, possibly none. Bytes that the peer sent before its close are received first.
 * Errors as of scif_send.
 */
int scif_recv(scif_epd_t epd, void *msg, int len, int flags);

/*
 * Registers the pages at addr as a window of the endpoint's registered address space and returns
 * its offset. With SCIF_MAP_FIXED this is the given offset. Otherwise it is the free offset nearest
 * to the given one if that is above 0, else one that the library chooses. addr, len and a fixed
 * offset are multiples of 4096. The window refers to these pages even after the program unmaps
 * them. SCIF_REGISTER_FAILED on failure.
 * EINVAL: an argument. EADDRINUSE: another window occupies the range. EFAULT: no memory at addr, or
 * a mapping of a peer's window. ENOMEM. ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
off_t scif_register(scif_epd_t epd, void *addr, size_t len, off_t offset, int prot_flags,
		    int map_flags);

/*
 * Deletes the windows in the range, which must begin and end at window boundaries. RMAs of the peer
 * then fail with ENXIO. Its mappings stay, and until they are removed the range cannot be
 * registered again (EADDRINUSE).
 * EINVAL: an argument. ENXIO: no window in the range, or it does not begin and end at window
 * boundaries. ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
int scif_unregister(scif_epd_t epd, off_t offset, size_t len);

/*
 * Maps a range of the peer's registered address space, like mmap(2) with MAP_SHARED; not inherited
 * by fork. Without SCIF_MAP_FIXED addr is a suggestion. The mapping outlives the window, the
 * connection and the peer. SCIF_MMAP_FAILED on failure.
 * EINVAL: len 0, or offset not a multiple of 4096. ENXIO: not within windows. EPERM: a window does
 * not allow the access. ENOMEM: no addresses, or pages that could not be moved when they were
 * registered. ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
void *scif_mmap(void *addr, size_t len, int prot_flags, int map_flags, scif_epd_t epd,
		off_t offset);

/*
 * Removes mappings, like munmap(2). A mapping that replaced private memory, such as a part of
 * malloc's heap, is replaced by private memory again.
 */
int scif_munmap(void *addr, size_t len);

/*
 * Copy len bytes from the peer's registered address space to the local one (scif_readfrom), or from
 * the local one to the peer's (scif_writeto). Any alignment is allowed, and a range may span
 * adjacent windows. Without SCIF_RMA_SYNC the copy may continue after the return, until a fence
 * completes. With SCIF_RMA_ORDERED the last cache line is written after all others.
 * EINVAL: len 0, or flags of which none is known. ENXIO: not within windows; the local range is
 * checked first. EPERM: a window does not allow the access. ENOTCONN, ECONNRESET, EIO, EBADF,
 * ENOTTY.
 */
int scif_readfrom(scif_epd_t epd, off_t loffset, size_t len, off_t roffset, int rma_flags);
int scif_writeto(scif_epd_t epd, off_t loffset, size_t len, off_t roffset, int rma_flags);

/*
 * Copy between the peer's registered address space and memory at addr, like scif_readfrom and
 * scif_writeto. EFAULT: no such memory.
 */
int scif_vreadfrom(scif_epd_t epd, void *addr, size_t len, off_t roffset, int rma_flags);
int scif_vwriteto(scif_epd_t epd, void *addr, size_t len, off_t roffset, int rma_flags);

/*
 * Marks the RMAs that this side (SCIF_FENCE_INIT_SELF) or the peer (SCIF_FENCE_INIT_PEER) has
 * issued over the connection.
 * EINVAL: not exactly one of the two flags. EFAULT: mark is NULL. ENOTCONN, ECONNRESET, EBADF,
 * ENOTTY.
 */
int scif_fence_mark(scif_epd_t epd, int flags, int *mark);

/*
 * Waits until the RMAs of a mark are finished. EINVAL: no such mark. EINTR. ENOTCONN, ECONNRESET,
 * EBADF, ENOTTY.
 */
int scif_fence_wait(scif_epd_t epd, int mark);

/*
 * Stores values when the RMAs issued so far by this side or the peer are finished, and returns
 * before that. Stores lval at loff of the local registered address space (SCIF_SIGNAL_LOCAL), rval
 * at roff of the peer's (SCIF_SIGNAL_REMOTE), or both. Offsets are multiples of 4; at a multiple of
 * 8 the store is atomic.
 * EINVAL: flags or an offset. ENXIO: the eight bytes are not within one window. EPERM: the window
 * does not allow writing; with SCIF_FENCE_INIT_PEER this is ENXIO as well. ENOTCONN, ECONNRESET,
 * EBADF, ENOTTY.
 */
int scif_fence_signal(scif_epd_t epd, off_t loff, uint64_t lval, off_t roff, uint64_t rval,
		      int flags);

/*
 * Writes the numbers of the online nodes, in ascending order and at most len of them, to nodes, and
 * the own number to self. Returns the number of online nodes.
 * EFAULT: self is NULL, or nodes is NULL and len > 0.
 */
int scif_get_nodeIDs(uint16_t *nodes, int len, uint16_t *self);

/*
 * Returns the file descriptor of an endpoint for poll, select and epoll, which is the same number.
 * Never fails.
 */
int scif_get_fd(scif_epd_t epd);

/*
 * Waits until an endpoint is ready or timeout milliseconds have passed (negative: for ever).
 * Returns the number of ready endpoints. Works like poll(2), with the bits of SCIF. A listening
 * endpoint shows IN when a request waits. A connected one shows IN when there are bytes to receive
 * and OUT when there is space to send. HUP: the peer has closed. ERR: all other states.
 * EFAULT, EINTR, EINVAL.
 */
int scif_poll(struct scif_pollepd *epds, unsigned int nepds, long timeout);

#ifdef __cplusplus
}
#endif

#endif /* SCIF_H */
