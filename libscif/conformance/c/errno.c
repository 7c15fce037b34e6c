/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Calls every function of scif.h so that it succeeds, with errno set before, and checks that each
 * call leaves errno unchanged.
 */
#include <scif.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define BEFORE 4711
#define PAGES 16
#define PAGE 4096

static int bad;

static void report(const char *call, int good, int after)
{
	if (!good)
		printf("%s failed: errno %d\n", call, after);
	else if (after != BEFORE)
		printf("%s succeeded and left errno %d\n", call, after);
	bad += !good || after != BEFORE;
}

#define CALL(call, good) do {           \
	errno = BEFORE;                 \
	int good_ = (call) good;        \
	report(#call, good_, errno);    \
} while (0)

static struct scif_portID listening;
static scif_epd_t opener;

static void *connecting(void *unused)
{
	CALL(scif_connect(opener, &listening), > 0);
	return unused;
}

static void *memory(void)
{
	void *at = aligned_alloc(PAGE, PAGES * PAGE);
	if (!at)
		exit(1);
	for (int i = 0; i < PAGES * PAGE; i++)
		((char *)at)[i] = (char)i;
	return at;
}

int main(void)
{
	scif_epd_t listener, acceptor, other;
	uint16_t nodes[8], self;
	struct scif_portID peer;
	pthread_t thread;
	int port = 0, mark = 0;
	char bytes[9000] = {0};

	CALL(listener = scif_open(), >= 0);
	CALL(opener = scif_open(), >= 0);
	CALL(other = scif_open(), >= 0);
	CALL(scif_get_fd(listener), == listener);
	CALL(scif_get_nodeIDs(nodes, 8, &self), > 0);
	CALL(port = scif_bind(listener, 0), > 0);
	CALL(scif_listen(listener, 4), == 0);
	listening.node = self;
	listening.port = (uint16_t)port;
	pthread_create(&thread, NULL, connecting, NULL);
	CALL(scif_accept(listener, &peer, &acceptor, SCIF_ACCEPT_SYNC), == 0);
	pthread_join(thread, NULL);

	struct scif_pollepd polled[2] = {
		{ acceptor, SCIF_POLLIN | SCIF_POLLOUT, 0 },
		{ opener, SCIF_POLLIN, 0 },
	};
	CALL(scif_poll(polled, 2, 0), == 1);
	CALL(scif_poll(polled + 1, 1, 20), == 0);
	/* A short message, one longer than the queue, one into a full queue; then receives all. */
	CALL(scif_send(opener, bytes, 8, SCIF_SEND_BLOCK), == 8);
	CALL(scif_recv(acceptor, bytes, 8, SCIF_RECV_BLOCK), == 8);
	CALL(scif_recv(acceptor, bytes, 8, 0), == 0);
	CALL(scif_send(opener, bytes, sizeof bytes, 0), == 4095);
	CALL(scif_send(opener, bytes, 8, 0), == 0);
	CALL(scif_recv(acceptor, bytes, sizeof bytes, 0), == 4095);

	void *near = memory(), *far = memory(), *plain = memory(), *mapped;
	off_t from = 0, to = 0;
	CALL(from = scif_register(opener, near, PAGES * PAGE, 0,
				  SCIF_PROT_READ | SCIF_PROT_WRITE, 0), >= 0);
	CALL(to = scif_register(acceptor, far, PAGES * PAGE, 0x10000,
				SCIF_PROT_READ | SCIF_PROT_WRITE, SCIF_MAP_FIXED),
	     == 0x10000);
	for (int sync = 0; sync <= SCIF_RMA_SYNC; sync += SCIF_RMA_SYNC) {
		CALL(scif_writeto(opener, from, PAGES * PAGE, to, sync), == 0);
		CALL(scif_readfrom(opener, from, PAGES * PAGE, to, sync), == 0);
		CALL(scif_vwriteto(opener, plain, PAGES * PAGE, to, sync), == 0);
		CALL(scif_vreadfrom(opener, plain, PAGES * PAGE, to, sync), == 0);
	}
	CALL(scif_fence_mark(opener, SCIF_FENCE_INIT_SELF, &mark), == 0);
	CALL(scif_fence_wait(opener, mark), == 0);
	CALL(scif_fence_mark(opener, SCIF_FENCE_INIT_PEER, &mark), == 0);
	CALL(scif_fence_wait(opener, mark), == 0);
	CALL(scif_fence_signal(opener, from, 1, to, 2,
			       SCIF_FENCE_INIT_SELF | SCIF_SIGNAL_LOCAL | SCIF_SIGNAL_REMOTE), == 0);
	CALL(mapped = scif_mmap(NULL, PAGES * PAGE, SCIF_PROT_READ, 0, opener, to), != SCIF_MMAP_FAILED);
	CALL(scif_munmap(mapped, PAGES * PAGE), == 0);
	CALL(scif_unregister(opener, from, PAGES * PAGE), == 0);
	CALL(scif_unregister(acceptor, to, PAGES * PAGE), == 0);

	CALL(scif_close(opener), == 0);
	CALL(scif_close(acceptor), == 0);
	CALL(scif_close(listener), == 0);
	CALL(scif_close(other), == 0);
	return bad ? 1 : 0;
}
