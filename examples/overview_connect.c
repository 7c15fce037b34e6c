/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Process B of the overview of SCIF: connects to port 2050 of the node given on the command line
 * and sends a message. It writes into the peer's window by RMA, and signals the end of the write
 * by a fence.
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

int main(int argc, char **argv)
{
	struct scif_portID dst = { (uint16_t)(argc > 1 ? atoi(argv[1]) : 0), PORT };
	scif_epd_t epd = scif_open();
	if (epd == SCIF_OPEN_FAILED)
		fail("scif_open");
	/* The other program may not listen yet. */
	while (scif_connect(epd, &dst) < 0) {
		if (errno != ECONNREFUSED && errno != ENODEV)
			fail("scif_connect");
		usleep(10000);
	}
	char message[6] = "hello";
	if (scif_send(epd, message, sizeof(message), SCIF_SEND_BLOCK) != (int)sizeof(message))
		fail("scif_send");

	void *memory;
	if (posix_memalign(&memory, PAGE, PAGE) != 0)
		fail("posix_memalign");
	char *page = memory;
	memset(page, 0, PAGE);
	strcpy(page, "through the window");
	if (scif_register(epd, page, PAGE, OFFSET, SCIF_PROT_READ | SCIF_PROT_WRITE,
			  SCIF_MAP_FIXED) != OFFSET)
		fail("scif_register");

	/* The peer's byte announces its window. */
	char ready;
	if (scif_recv(epd, &ready, 1, SCIF_RECV_BLOCK) != 1)
		fail("scif_recv");
	if (scif_writeto(epd, OFFSET, 64, OFFSET, 0) != 0)
		fail("scif_writeto");
	int mark;
	if (scif_fence_mark(epd, SCIF_FENCE_INIT_SELF, &mark) != 0 || scif_fence_wait(epd, mark) != 0)
		fail("scif_fence_wait");
	if (scif_fence_signal(epd, 0, 0, OFFSET + PAGE - 8, 42,
			      SCIF_FENCE_INIT_SELF | SCIF_SIGNAL_REMOTE) != 0)
		fail("scif_fence_signal");

	/* The peer now maps the page of this process and writes its last byte. */
	if (scif_send(epd, &ready, 1, SCIF_SEND_BLOCK) != 1 ||
	    scif_recv(epd, &ready, 1, SCIF_RECV_BLOCK) != 1)
		fail("scif_send");
	int right = page[PAGE - 1] == 7;
	printf("connect: the peer wrote %d through its mapping\n", page[PAGE - 1]);
	scif_close(epd);
	free(memory);
	return right ? 0 : 1;
}
