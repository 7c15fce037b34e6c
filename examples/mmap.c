/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Mapped memory of a peer. Two processes pass a number back and forth, without a call, through a
 * page that one has registered and the other has mapped. The mapping outlives the window and the
 * connection. The mapping process is a child of the other.
 */
#include <errno.h>
#include <scif.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 2054
#define PAGE 4096
#define OFFSET 0x10000
#define TURNS 1000
#define BOTH (SCIF_PROT_READ | SCIF_PROT_WRITE)

struct ball {
	_Alignas(64) _Atomic unsigned int turn;
	_Alignas(64) char text[64];
};

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* Takes every second turn. */
static void play(struct ball *ball, unsigned int first)
{
	for (unsigned int turn = first; turn < TURNS; turn += 2) {
		while (atomic_load_explicit(&ball->turn, memory_order_acquire) != turn)
			sched_yield();
		atomic_store_explicit(&ball->turn, turn + 1, memory_order_release);
	}
}

static int who_maps(void)
{
	struct scif_portID dst = { 0, PORT };
	scif_epd_t epd = scif_open();
	while (scif_connect(epd, &dst) < 0) {
		if (errno != ECONNREFUSED)
			fail("scif_connect");
		usleep(10000);
	}
	char byte;
	if (scif_recv(epd, &byte, 1, SCIF_RECV_BLOCK) != 1)
		fail("scif_recv");
	/* More than the window allows is refused. */
	if (scif_mmap(NULL, 2 * PAGE, BOTH, 0, epd, OFFSET) != SCIF_MMAP_FAILED || errno != ENXIO)
		fail("scif_mmap of a page that is not there");
	struct ball *ball = scif_mmap(NULL, PAGE, BOTH, 0, epd, OFFSET);
	if (ball == SCIF_MMAP_FAILED)
		fail("scif_mmap");
	play(ball, 1);
	/* The owner deletes the window and closes. */
	if (scif_recv(epd, &byte, 1, SCIF_RECV_BLOCK) != -1 || errno != ECONNRESET)
		fail("scif_recv");
	printf("mmap: after the end of the connection: %s\n", ball->text);
	int bad = strcmp(ball->text, "still here") != 0;
	if (scif_munmap(ball, PAGE) != 0)
		fail("scif_munmap");
	scif_close(epd);
	return bad;
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0)
		return who_maps();
	scif_epd_t listener = scif_open(), epd;
	struct scif_portID peer;
	if (scif_bind(listener, PORT) != PORT || scif_listen(listener, 1) != 0)
		fail("scif_listen");
	if (scif_accept(listener, &peer, &epd, SCIF_ACCEPT_SYNC) != 0)
		fail("scif_accept");
	void *memory;
	if (posix_memalign(&memory, PAGE, PAGE) != 0)
		fail("posix_memalign");
	memset(memory, 0, PAGE);
	struct ball *ball = memory;
	if (scif_register(epd, ball, PAGE, OFFSET, BOTH, SCIF_MAP_FIXED) != OFFSET)
		fail("scif_register");
	char byte = 0;
	if (scif_send(epd, &byte, 1, SCIF_SEND_BLOCK) != 1)
		fail("scif_send");
	play(ball, 0);
	while (atomic_load_explicit(&ball->turn, memory_order_acquire) != TURNS)
		sched_yield();
	printf("mmap: %d turns\n", TURNS);
	strcpy(ball->text, "still here");
	if (scif_unregister(epd, OFFSET, PAGE) != 0)
		fail("scif_unregister");
	scif_close(epd);
	scif_close(listener);
	int status = 0;
	if (wait(&status) != child)
		fail("wait");
	free(memory);
	return status ? 1 : 0;
}
