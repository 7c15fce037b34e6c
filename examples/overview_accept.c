/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Process A of the overview of SCIF: listens on port 2050 and exchanges messages. It registers a
 * page that the peer writes by RMA, maps a page of the peer, and waits for the peer's fence
 * signal.
 */
#include <errno.h>
#include <scif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PORT 2050
#define PAGE 4096
#define OFFSET 0x10000

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

int main(void)
{
	uint16_t nodes[16], self;
	int n = scif_get_nodeIDs(nodes, 16, &self);
	if (n < 1)
		fail("scif_get_nodeIDs");
	printf("accept: node %u, %d online\n", self, n);

	scif_epd_t listener = scif_open(), epd;
	struct scif_portID peer;
	if (listener == SCIF_OPEN_FAILED)
		fail("scif_open");
	if (scif_bind(listener, PORT) != PORT)
		fail("scif_bind");
	if (scif_listen(listener, 1) != 0)
		fail("scif_listen");
	if (scif_accept(listener, &peer, &epd, SCIF_ACCEPT_SYNC) != 0)
		fail("scif_accept");

	char message[6];
	if (scif_recv(epd, message, sizeof(message), SCIF_RECV_BLOCK) != (int)sizeof(message))
		fail("scif_recv");
	printf("accept: node %u says %s\n", peer.node, message);

	/* A page that the peer writes: data at the front, the signal at its end. */
	void *memory;
	if (posix_memalign(&memory, PAGE, PAGE) != 0)
		fail("posix_memalign");
	char *page = memory;
	memset(page, 0, PAGE);
	if (scif_register(epd, page, PAGE, OFFSET, SCIF_PROT_READ | SCIF_PROT_WRITE,
			  SCIF_MAP_FIXED) != OFFSET)
		fail("scif_register");
	char ready = 1;
	if (scif_send(epd, &ready, 1, SCIF_SEND_BLOCK) != 1)
		fail("scif_send");

	volatile uint64_t *signal = (volatile uint64_t *)(page + PAGE - 8);
	while (*signal != 42)
		usleep(100);
	printf("accept: written by RMA: %s\n", page);
	if (strcmp(page, "through the window") != 0)
		return 1;

	/* Maps the page of the peer. */
	if (scif_recv(epd, &ready, 1, SCIF_RECV_BLOCK) != 1)
		fail("scif_recv");
	char *mapped = scif_mmap(NULL, PAGE, SCIF_PROT_READ | SCIF_PROT_WRITE, 0, epd, OFFSET);
	if (mapped == SCIF_MMAP_FAILED)
		fail("scif_mmap");
	printf("accept: seen through the mapping: %s\n", mapped);
	int right = strcmp(mapped, "through the window") == 0;
	mapped[PAGE - 1] = 7;
	if (scif_munmap(mapped, PAGE) != 0)
		fail("scif_munmap");
	if (scif_send(epd, &ready, 1, SCIF_SEND_BLOCK) != 1)
		fail("scif_send");

	if (scif_unregister(epd, OFFSET, PAGE) != 0)
		fail("scif_unregister");
	scif_close(epd);
	scif_close(listener);
	free(memory);
	return right ? 0 : 1;
}
