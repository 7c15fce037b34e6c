/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Registers buffers of malloc's heap, maps the peer's windows over them with SCIF_MAP_FIXED,
 * removes the mappings, and frees the buffers to malloc, which stores to them.
 */
#include <scif.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define ROUNDS 8

static struct scif_portID listening;
static scif_epd_t opener;

static void *connecting(void *unused)
{
	if (scif_connect(opener, &listening) < 0)
		exit(1);
	return unused;
}

static int check(int good, const char *what, int round)
{
	if (!good)
		printf("round %d: %s: %s\n", round, what, strerror(errno));
	return good;
}

#define MUST(call) do { if (!check(!!(call), #call, round)) return 1; } while (0)

/* Makes allocations of all sizes, so that malloc uses the heap around the buffers. */
static void use_heap(void)
{
	void *some[64];
	int i;

	for (i = 0; i < 64; i++) {
		some[i] = malloc((size_t)(i + 1) * 700);
		memset(some[i], i, (size_t)(i + 1) * 700);
	}
	for (i = 0; i < 64; i++)
		free(some[i]);
}

int main(void)
{
	const int prot = SCIF_PROT_READ | SCIF_PROT_WRITE;
	scif_epd_t listener = scif_open(), acceptor;
	struct scif_portID peer;
	pthread_t thread;
	int round = 0;

	opener = scif_open();
	listening.port = (uint16_t)scif_bind(listener, 0);
	scif_listen(listener, 1);
	pthread_create(&thread, NULL, connecting, NULL);
	MUST(scif_accept(listener, &peer, &acceptor, SCIF_ACCEPT_SYNC) == 0);
	pthread_join(thread, NULL);

	for (round = 0; round < ROUNDS; round++) {
		size_t len = (size_t)(1 + round % 4) * PAGE;
		void *buffer, *other, *behind;
		off_t at, from;

		MUST(posix_memalign(&other, PAGE, len) == 0);
		MUST(posix_memalign(&buffer, PAGE, len) == 0);
		behind = malloc(100);
		memset(buffer, 0xad, len);
		memset(other, 0xbc, len);
		/* With an own window over the buffer, and without. */
		at = round % 2 ? scif_register(acceptor, buffer, len, 0x80000, prot, SCIF_MAP_FIXED) : 0;
		MUST(at >= 0);
		MUST((from = scif_register(opener, other, len, 0, prot, 0)) >= 0);
		MUST(scif_mmap(buffer, len, prot, SCIF_MAP_FIXED, acceptor, from) == buffer);
		MUST(*(unsigned char *)buffer == 0xbc);
		MUST(scif_munmap(buffer, len) == 0);
		if (round % 2)
			MUST(scif_unregister(acceptor, at, len) == 0);
		MUST(scif_unregister(opener, from, len) == 0);
		free(buffer);
		free(behind);
		use_heap();
		MUST(*(unsigned char *)other == 0xbc);
		free(other);
		use_heap();
	}
	return scif_close(acceptor) || scif_close(opener) || scif_close(listener);
}
