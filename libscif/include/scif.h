/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * SCIF, the Symmetric Communication Interface, for user programs.
 *
 * Two programs, on two nodes or on one, connect endpoints; over a connection they send messages, register memory as
 * windows, and read, write and map each other's windows. A node is a group of processes with the same SCIF_NODE in
 * their environment; without it every process is on node 0.
 *
 * Every function that can fail returns -1 (or the value named with it) and sets errno. Functions may be called by any
 * number of threads. A function that succeeds leaves errno as it was. README.md of the library says where the documents and
 * drivers of SCIF disagree and what is done here.
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

/* An endpoint descriptor: a file descriptor, to be used in poll, select and epoll, shared by fork and dup. */
typedef int scif_epd_t;

#define SCIF_OPEN_FAILED ((scif_epd_t)-1)
#define SCIF_REGISTER_FAILED ((off_t)-1)
#define SCIF_MMAP_FAILED ((void *)-1)

/* A port of a node. */
struct scif_portID {
	uint16_t node;
	uint16_t port;
};
typedef struct scif_portID scif_portID_t;
/* Older names, of the header of MPSS 3. */
#define portID scif_portID
typedef struct scif_portID portID_t;

/* One entry of scif_poll; the same as struct pollfd. */
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

/* Ports below this one need CAP_SYS_ADMIN; those up to SCIF_PORT_RSVD are never given out for port 0. */
#define SCIF_ADMIN_PORT_END 1024
#define SCIF_PORT_RSVD 1088

/* Ports reserved for services of MPSS. Nothing listens there without MPSS, and any program may use them. */
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

/* Flags of scif_register and scif_mmap. SCIF_MAP_KERNEL is for kernel clients: EINVAL here. */
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
 * Opens an endpoint; its descriptor is close-on-exec. SCIF_OPEN_FAILED on failure: EMFILE, ENFILE, ENOMEM.
 */
scif_epd_t scif_open(void);

/*
 * Closes a descriptor. With the last one of an endpoint, in whichever process, its connection ends: what was sent can
 * still be received by the peer, whose other calls then give ECONNRESET. EBADF.
 */
int scif_close(scif_epd_t epd);

/*
 * Binds to port pn, or with 0 to a free one of 1089..65535, until the endpoint is closed. Returns the port.
 * EACCES: 0 < pn < 1024 without CAP_SYS_ADMIN. EINVAL: bound already, or the port is in use. EISCONN: listening or
 * connected. ENOSPC: no port is free. EBADF, ENOTTY.
 */
int scif_bind(scif_epd_t epd, uint16_t pn);

/*
 * Listens, with room for backlog requests that nobody has accepted yet; with backlog <= 0 every request is refused.
 * EINVAL: not bound, or disconnected. EISCONN: listening or connected. EBADF, ENOTTY.
 */
int scif_listen(scif_epd_t epd, int backlog);

/*
 * Connects to a listening endpoint, and returns the local port once the peer has accepted; an endpoint that is not
 * bound is bound first. With O_NONBLOCK on the descriptor it returns -1 with EINPROGRESS; when the descriptor is
 * writable the next call gives the result, once.
 * ECONNREFUSED: nobody listens there yet, there is no room, or nobody accepted within 30 seconds; the endpoint is bound and
 * may connect again. ENODEV: the node is lost, or has a number above 128 and no process. EINVAL: dst is NULL, or the endpoint is disconnected. EISCONN: connected or
 * connecting. EOPNOTSUPP: listening. EINPROGRESS. ENOSPC, ENOMEM, EBADF, ENOTTY.
 */
int scif_connect(scif_epd_t epd, struct scif_portID *dst);

/*
 * Accepts a request: *peer is who connected, *newepd the new endpoint, which is not close-on-exec. With
 * SCIF_ACCEPT_SYNC it waits for one, whatever O_NONBLOCK says.
 * EAGAIN: no request, and no SCIF_ACCEPT_SYNC. EINVAL: not listening, other flags, NULL. EINTR: a signal, or the
 * endpoint was closed meanwhile. EMFILE, ENFILE, ENOMEM, EBADF, ENOTTY.
 */
int scif_accept(scif_epd_t epd, struct scif_portID *peer, scif_epd_t *newepd, int flags);

/*
 * Sends bytes of a stream and returns how many: with SCIF_SEND_BLOCK all of them, unless a signal came or the peer
 * closed after some; else as many as fit now, which may be 0. O_NONBLOCK says nothing here.
 * ENOTCONN, ECONNRESET: the peer has closed. EINTR: a signal before any byte. EINVAL: len < 0, other flags. EFAULT: msg
 * is NULL. EBADF, ENOTTY. With len 0 it returns 0 and looks at nothing else.
 */
int scif_send(scif_epd_t epd, void *msg, int len, int flags);

/*
 * Receives bytes of a stream and returns how many: with SCIF_RECV_BLOCK len of them, unless a signal came or the peer
 * closed after some; else as many as are there, which may be 0. What the peer sent before it closed is received first.
 * Errors as scif_send.
 */
int scif_recv(scif_epd_t epd, void *msg, int len, int flags);

/*
 * Registers the pages at addr as a window of the endpoint's registered address space and returns its offset: the given
 * one with SCIF_MAP_FIXED; else the free one nearest to it if it is above 0, or one chosen here. addr, len and a fixed offset are multiples of 4096. The window stands
 * for these pages, also when they are unmapped here. SCIF_REGISTER_FAILED on failure.
 * EINVAL: an argument. EADDRINUSE: another window is there. EFAULT: no memory there, or memory that is itself a mapping
 * of a peer's window. ENOMEM. ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
off_t scif_register(scif_epd_t epd, void *addr, size_t len, off_t offset, int prot_flags, int map_flags);

/*
 * Deletes the windows that the range covers, from a beginning to an end. RMAs of the peer then give ENXIO; its mappings
 * stay, and as long as one does the range cannot be registered again (EADDRINUSE).
 * EINVAL: an argument. ENXIO: no window there, or the range does not begin or end with one. ENOTCONN, ECONNRESET, EBADF,
 * ENOTTY.
 */
int scif_unregister(scif_epd_t epd, off_t offset, size_t len);

/*
 * Maps a range of the peer's registered address space, as mmap(2) with MAP_SHARED; not inherited by fork. Without
 * SCIF_MAP_FIXED addr is a suggestion. The mapping
 * outlives the window, the connection and the peer. SCIF_MMAP_FAILED on failure.
 * EINVAL: len 0, or offset not a multiple of 4096. ENXIO: not within windows. EPERM: a window does not allow it. ENOMEM:
 * no addresses, or pages that could not be moved when they were registered. ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
void *scif_mmap(void *addr, size_t len, int prot_flags, int map_flags, scif_epd_t epd, off_t offset);

/* Removes mappings, as munmap(2). Where one replaced a part of malloc's or other private memory, there is such memory again. */
int scif_munmap(void *addr, size_t len);

/*
 * Copy len bytes from the peer's registered address space to the local one, and from the local one to the peer's. Any
 * alignment, over windows that touch. Unless SCIF_RMA_SYNC is given the copy may go on after the return, until a fence
 * says otherwise. SCIF_RMA_ORDERED: the last cache line is written after all others.
 * EINVAL: len 0, or flags of which none is known. ENXIO: not within windows, the local range first. EPERM: a window does
 * not allow it. ENOTCONN, ECONNRESET, EIO, EBADF, ENOTTY.
 */
int scif_readfrom(scif_epd_t epd, off_t loffset, size_t len, off_t roffset, int rma_flags);
int scif_writeto(scif_epd_t epd, off_t loffset, size_t len, off_t roffset, int rma_flags);

/*
 * The same between the peer's registered address space and memory at addr. EFAULT: no such memory.
 */
int scif_vreadfrom(scif_epd_t epd, void *addr, size_t len, off_t roffset, int rma_flags);
int scif_vwriteto(scif_epd_t epd, void *addr, size_t len, off_t roffset, int rma_flags);

/*
 * Marks the RMAs that this side (SCIF_FENCE_INIT_SELF) or the peer (SCIF_FENCE_INIT_PEER) has begun over the connection.
 * EINVAL: not exactly one of the two. EFAULT: mark is NULL. ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
int scif_fence_mark(scif_epd_t epd, int flags, int *mark);

/*
 * Waits until the RMAs of a mark are finished. EINVAL: no such mark. EINTR. ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
int scif_fence_wait(scif_epd_t epd, int mark);

/*
 * When the RMAs begun so far by this side or the peer are finished, writes lval to loff of the local registered address
 * space (SCIF_SIGNAL_LOCAL), rval to roff of the peer's (SCIF_SIGNAL_REMOTE), or both; returns before. Offsets are
 * multiples of 4; the value is written at once where they are multiples of 8.
 * EINVAL: flags or an offset. ENXIO: eight bytes there are not in one window. EPERM: it does not allow writing.
 * ENOTCONN, ECONNRESET, EBADF, ENOTTY.
 */
int scif_fence_signal(scif_epd_t epd, off_t loff, uint64_t lval, off_t roff, uint64_t rval, int flags);

/*
 * Writes the numbers of the nodes that are online, in ascending order, as many as fit into len, and the own one to self.
 * Returns how many there are. EFAULT: self is NULL, or nodes is while len > 0.
 */
int scif_get_nodeIDs(uint16_t *nodes, int len, uint16_t *self);

/* The file descriptor of an endpoint, for poll, select and epoll: the same number. Never fails. */
int scif_get_fd(scif_epd_t epd);

/*
 * Waits until one of the endpoints is ready or timeout milliseconds have passed (negative: for ever); returns how many
 * are ready. As poll(2), with the bits SCIF says: a listening endpoint is IN when a request waits; a connected one IN
 * when there is something to receive and OUT when there is room; HUP when the peer has closed; ERR in all other states.
 * EFAULT, EINTR, EINVAL.
 */
int scif_poll(struct scif_pollepd *epds, unsigned int nepds, long timeout);

#ifdef __cplusplus
}
#endif

#endif /* SCIF_H */
