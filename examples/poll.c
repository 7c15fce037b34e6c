/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A server that waits for requests and messages of several clients at once with scif_poll, and
 * clients that wait with poll(2) on the descriptor. The clients are children of the server.
 */
#include <errno.h>
#include <poll.h>
#include <scif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLIENTS 3
#define PORT 2051

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static int client(int who)
{
	struct scif_portID dst = { 0, PORT };
	scif_epd_t epd = scif_open();
	while (scif_connect(epd, &dst) < 0) {
		if (errno != ECONNREFUSED)
			fail("scif_connect");
		usleep(10000);
	}
	char byte = (char)who;
	if (scif_send(epd, &byte, 1, SCIF_SEND_BLOCK) != 1)
		fail("scif_send");
	struct pollfd entry = { scif_get_fd(epd), POLLIN, 0 };
	if (poll(&entry, 1, -1) != 1)
		fail("poll");
	/* Not blocking, because the byte has arrived. */
	if (scif_recv(epd, &byte, 1, 0) != 1 || byte != who + 100)
		fail("scif_recv");
	scif_close(epd);
	return 0;
}

int main(void)
{
	for (int who = 1; who <= CLIENTS; who++) {
		pid_t pid = fork();
		if (pid < 0)
			fail("fork");
		if (pid == 0)
			return client(who);
	}
	struct scif_pollepd set[1 + CLIENTS];
	set[0].epd = scif_open();
	set[0].events = SCIF_POLLIN;
	if (scif_bind(set[0].epd, PORT) != PORT || scif_listen(set[0].epd, CLIENTS) != 0)
		fail("scif_listen");
	unsigned int n = 1;
	int done = 0;
	while (done < CLIENTS) {
		if (scif_poll(set, n, -1) < 0)
			fail("scif_poll");
		for (unsigned int i = n; i-- > 1;) {
			char byte;
			if ((set[i].revents & SCIF_POLLIN) && scif_recv(set[i].epd, &byte, 1, 0) == 1) {
				byte = (char)(byte + 100);
				if (scif_send(set[i].epd, &byte, 1, SCIF_SEND_BLOCK) != 1)
					fail("scif_send");
			} else if (set[i].revents & SCIF_POLLHUP) {
				scif_close(set[i].epd);
				set[i] = set[--n];
				done++;
			}
		}
		struct scif_portID peer;
		if ((set[0].revents & SCIF_POLLIN) && scif_accept(set[0].epd, &peer, &set[n].epd, 0) == 0) {
			set[n].events = SCIF_POLLIN;
			set[n].revents = 0;
			n++;
		}
	}
	scif_close(set[0].epd);
	int bad = 0, status;
	while (wait(&status) > 0)
		bad |= status;
	printf("poll: %d clients served\n", done);
	return bad ? 1 : 0;
}
