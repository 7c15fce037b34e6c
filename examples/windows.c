/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Windows, RMA and fences. A producer writes blocks into the peer's window without waiting for
 * each, and updates a counter behind them by a fence. The consumer polls the counter only. Then
 * the producer reads the last block back, and an access to a deleted window fails. The consumer
 * is its child.
 */
#include <errno.h>
#include <scif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 2053
#define PAGE 4096
#define BLOCK (256 * 1024)
#define BLOCKS 4
#define DATA 0x100000
#define COUNTER 0x10000
#define BOTH (SCIF_PROT_READ | SCIF_PROT_WRITE)

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static unsigned char *pages(size_t bytes)
{
	void *at;
	if (posix_memalign(&at, PAGE, bytes) != 0)
		fail("posix_memalign");
	memset(at, 0, bytes);
	return at;
}

static void window(scif_epd_t epd, void *at, size_t bytes, off_t offset, int prot)
{
	if (scif_register(epd, at, bytes, offset, prot, SCIF_MAP_FIXED) != offset)
		fail("scif_register");
}

static void tell(scif_epd_t epd)
{
	char byte = 0;
	if (scif_send(epd, &byte, 1, SCIF_SEND_BLOCK) != 1)
		fail("scif_send");
}

static void hear(scif_epd_t epd)
{
	char byte;
	if (scif_recv(epd, &byte, 1, SCIF_RECV_BLOCK) != 1)
		fail("scif_recv");
}

static int consumer(void)
{
	struct scif_portID dst = { 0, PORT };
	scif_epd_t epd = scif_open();
	while (scif_connect(epd, &dst) < 0) {
		if (errno != ECONNREFUSED)
			fail("scif_connect");
		usleep(10000);
	}
	unsigned char *data = pages(BLOCKS * BLOCK), *counter = pages(PAGE);
	window(epd, data, BLOCKS * BLOCK, DATA, BOTH);
	window(epd, counter, PAGE, COUNTER, SCIF_PROT_WRITE);
	tell(epd);
	int bad = 0;
	for (uint64_t n = 1; n <= BLOCKS; n++) {
		while (*(volatile uint64_t *)counter < n)
			usleep(50);
		unsigned char *block = data + (n - 1) * BLOCK;
		for (size_t i = 0; i < BLOCK; i++)
			bad |= block[i] != (unsigned char)(n + i);
	}
	printf("windows: %d blocks came %s\n", BLOCKS, bad ? "damaged" : "whole");
	hear(epd);
	if (scif_unregister(epd, DATA, BLOCKS * BLOCK) != 0)
		fail("scif_unregister");
	tell(epd);
	hear(epd);
	scif_close(epd);
	free(data);
	free(counter);
	return bad;
}

static int producer(scif_epd_t epd)
{
	unsigned char *data = pages(BLOCK), *back = pages(BLOCK);
	window(epd, data, BLOCK, DATA, SCIF_PROT_READ);
	hear(epd);
	for (uint64_t n = 1; n <= BLOCKS; n++) {
		off_t to = DATA + (off_t)(n - 1) * BLOCK;
		for (size_t i = 0; i < BLOCK; i++)
			data[i] = (unsigned char)(n + i);
		/* Started without a wait; the fence writes the counter after the block. */
		if (scif_writeto(epd, DATA, BLOCK, to, 0) != 0)
			fail("scif_writeto");
		if (scif_fence_signal(epd, 0, 0, COUNTER, n, SCIF_FENCE_INIT_SELF | SCIF_SIGNAL_REMOTE) != 0)
			fail("scif_fence_signal");
		/*
		 * The program could do other work at this point. Before the next block the buffer
		 * must be free again.
		 */
		int mark;
		if (scif_fence_mark(epd, SCIF_FENCE_INIT_SELF, &mark) != 0 || scif_fence_wait(epd, mark) != 0)
			fail("scif_fence_wait");
	}
	/* Into memory that is no window. */
	if (scif_vreadfrom(epd, back, BLOCK, DATA + (BLOCKS - 1) * BLOCK, SCIF_RMA_SYNC) != 0)
		fail("scif_vreadfrom");
	int bad = memcmp(back, data, BLOCK) != 0;
	/* The counter may only be written. */
	bad |= scif_vreadfrom(epd, back, 8, COUNTER, SCIF_RMA_SYNC) != -1 || errno != EPERM;
	tell(epd);
	hear(epd);
	bad |= scif_vreadfrom(epd, back, 8, DATA, SCIF_RMA_SYNC) != -1 || errno != ENXIO;
	printf("windows: read back, refused and gone: %s\n", bad ? "no" : "yes");
	tell(epd);
	scif_close(epd);
	free(data);
	free(back);
	return bad;
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0)
		return consumer();
	scif_epd_t listener = scif_open(), epd;
	struct scif_portID peer;
	if (scif_bind(listener, PORT) != PORT || scif_listen(listener, 1) != 0)
		fail("scif_listen");
	if (scif_accept(listener, &peer, &epd, SCIF_ACCEPT_SYNC) != 0)
		fail("scif_accept");
	scif_close(listener);
	int bad = producer(epd), status = 0;
	if (wait(&status) != child)
		fail("wait");
	return bad || status ? 1 : 0;
}
