/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * An endpoint shared by parent and child after a fork, as in section 3.5.1 of the SCIF User
 * Guide. Each registers a window in the single registered address space and fills the window of
 * the other by an RMA from the peer. The program chooses the offsets, which requires
 * SCIF_MAP_FIXED.
 */
#include <errno.h>
#include <scif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 2052
#define PAGE 0x1000
#define PARENTS 0x10000
#define CHILDS 0x20000
#define PEERS 0x40000

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* Allocates pages that no fork shares by copy-on-write: see section 3.5.2. */
static char *pages(size_t bytes)
{
	char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || madvise(at, bytes, MADV_DONTFORK) != 0)
		fail("mmap");
	return at;
}

/* Runs the peer: a window of two pages, one for each sharer. */
static int peer(scif_epd_t listener)
{
	struct scif_portID from;
	scif_epd_t epd;
	char *memory = pages(2 * PAGE);
	strcpy(memory, "for the child");
	strcpy(memory + PAGE, "for the parent");
	if (scif_accept(listener, &from, &epd, SCIF_ACCEPT_SYNC) != 0)
		fail("scif_accept");
	if (scif_register(epd, memory, 2 * PAGE, PEERS, SCIF_PROT_READ, SCIF_MAP_FIXED) != PEERS)
		fail("scif_register");
	char byte = 0;
	if (scif_send(epd, &byte, 1, SCIF_SEND_BLOCK) != 1)
		fail("scif_send");
	/* Returns once the last of the two has closed. */
	if (scif_recv(epd, &byte, 1, SCIF_RECV_BLOCK) != -1 || errno != ECONNRESET)
		fail("scif_recv");
	return scif_close(epd);
}

/* Runs one sharer: announces its window, fills the window of the other, and checks its own. */
static int holder(scif_epd_t epd, off_t own, off_t other, off_t source, const char *expected,
		  int out, int in)
{
	char *memory = pages(PAGE), byte = 0;
	if (scif_register(epd, memory, PAGE, own, SCIF_PROT_READ | SCIF_PROT_WRITE, SCIF_MAP_FIXED) != own)
		fail("scif_register");
	if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1)
		fail("pipe");
	if (scif_readfrom(epd, other, PAGE, source, SCIF_RMA_SYNC) != 0)
		fail("scif_readfrom");
	if (write(out, &byte, 1) != 1 || read(in, &byte, 1) != 1)
		fail("pipe");
	printf("fork: the window at 0x%lx holds: %s\n", (long)own, memory);
	int right = strcmp(memory, expected) == 0;
	if (scif_close(epd) != 0)
		fail("scif_close");
	return right ? 0 : 1;
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	int here[2], there[2], ready[2];
	if (pipe(here) != 0 || pipe(there) != 0 || pipe(ready) != 0)
		fail("pipe");
	pid_t other = fork();
	if (other < 0)
		fail("fork");
	if (other == 0) {
		scif_epd_t listener = scif_open();
		if (scif_bind(listener, PORT) != PORT || scif_listen(listener, 1) != 0 ||
		    write(ready[1], "", 1) != 1)
			fail("scif_listen");
		return peer(listener);
	}
	char byte;
	if (read(ready[0], &byte, 1) != 1)
		fail("read");
	struct scif_portID dst = { 0, PORT };
	scif_epd_t epd = scif_open();
	if (scif_connect(epd, &dst) < 0)
		fail("scif_connect");
	if (scif_recv(epd, &byte, 1, SCIF_RECV_BLOCK) != 1)
		fail("scif_recv");

	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (child == 0)
		return holder(epd, CHILDS, PARENTS, PEERS + PAGE, "for the child", there[1], here[0]);
	int bad = holder(epd, PARENTS, CHILDS, PEERS, "for the parent", here[1], there[0]);
	int status;
	while (wait(&status) > 0)
		bad |= status;
	return bad ? 1 : 0;
}
