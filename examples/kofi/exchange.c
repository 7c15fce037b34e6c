/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * exchange.c - client and server over a fabric, from discovery to shutdown, in libfabric's own
 * calls.
 *
 *	cc -o exchange exchange.c -L$libdir/kofi -lfabric
 *		(or -lkofi, or any libfabric from 1.17 on)
 *	./exchange server 9300 &
 *	./exchange client 9300 [HOST]
 *
 * Linked against the libfabric.so.1 of libkofi it needs no libfabric, and still runs with any.
 * The provider is "scif" unless EXCHANGE_PROVIDER names another. Every program has these steps:
 *
 *	discovery	fi_getinfo
 *	resources	fi_fabric, fi_domain, fi_cq_open, fi_av_open, fi_mr_reg
 *	endpoint	fi_endpoint, fi_ep_bind, fi_enable, fi_av_insert
 *	data		fi_send, fi_recv, fi_write, fi_read, and fi_cq_sread to wait for each
 *	shutdown	fi_close
 *
 * The endpoints are reliable datagrams (FI_EP_RDM), without listen, connect and accept: each side
 * puts the address of the other into its address vector. The client sends its address and the key
 * of its memory. The server writes a text into this memory, reads it back, and sends a message.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define TEXT "written by the server"
#define WINDOW 4096
#define PATIENCE_MS 20000

/* First message of the client: its name, and the memory that the server may write. */
struct hello {
	uint64_t key;
	uint64_t address;
	uint64_t name_len;
	char name[64];
};

struct side {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	struct fid_mr *mr;
	/* Memory for messages and the window that the peer accesses, in one region. */
	struct {
		struct hello message;
		char window[WINDOW];
	} memory;
};

static void check(int code, const char *what)
{
	if (code < 0) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror(-code));
		exit(1);
	}
}

/* Finds a provider with the required features. A null name accepts any. */
static struct fi_info *discover(int is_server, const char *host, const char *port)
{
	struct fi_info *hints = fi_allocinfo(), *found = NULL;
	const char *provider = getenv("EXCHANGE_PROVIDER");

	if (!hints)
		check(-FI_ENOMEM, "fi_allocinfo");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA;
	/* Memory registration modes that this program supports. */
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	/* fi_freeinfo() passes it to free(). */
	hints->fabric_attr->prov_name = strdup(provider ? provider : "scif");

	/* With FI_SOURCE node and service name this side, without it the peer. */
	check(fi_getinfo(FI_VERSION(1, 17), host, port, is_server ? FI_SOURCE : 0, hints, &found),
	      "fi_getinfo");
	fi_freeinfo(hints);
	return found;
}

/* Opens all objects. Parents are opened before their children, and closed after them. */
static void open_side(struct side *side, int is_server, const char *host, const char *port)
{
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_av_attr av_attr = { .type = FI_AV_UNSPEC };

	side->info = discover(is_server, host, port);
	/* The fabric is the network; the domain is one access to it, with its memory keys. */
	check(fi_fabric(side->info->fabric_attr, &side->fabric, NULL), "fi_fabric");
	check(fi_domain(side->fabric, side->info, &side->domain, NULL), "fi_domain");
	/* The queue reports completions; the address vector maps addresses to numbers. */
	check(fi_cq_open(side->domain, &cq_attr, &side->cq, NULL), "fi_cq_open");
	check(fi_av_open(side->domain, &av_attr, &side->av, NULL), "fi_av_open");
	/* The endpoint sends and receives. It is bound to both objects, then enabled. */
	check(fi_endpoint(side->domain, side->info, &side->ep, NULL), "fi_endpoint");
	check(fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind(cq)");
	check(fi_ep_bind(side->ep, &side->av->fid, 0), "fi_ep_bind(av)");
	check(fi_enable(side->ep), "fi_enable");
	/* Memory for messages and for reads and writes of the peer. */
	check(fi_mr_reg(side->domain, &side->memory, sizeof side->memory,
			FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &side->mr,
			NULL),
	      "fi_mr_reg");
}

static void close_side(struct side *side)
{
	check(fi_close(&side->ep->fid), "fi_close(ep)");
	check(fi_close(&side->mr->fid), "fi_close(mr)");
	check(fi_close(&side->av->fid), "fi_close(av)");
	check(fi_close(&side->cq->fid), "fi_close(cq)");
	check(fi_close(&side->domain->fid), "fi_close(domain)");
	check(fi_close(&side->fabric->fid), "fi_close(fabric)");
	fi_freeinfo(side->info);
}

/* Waits for one operation to complete; there is never more than one outstanding. */
static void wait_for(struct side *side, const char *what)
{
	struct fi_cq_entry entry;
	struct fi_cq_err_entry error = { 0 };
	ssize_t got;

	do
		got = fi_cq_sread(side->cq, &entry, 1, NULL, PATIENCE_MS);
	while (got == -FI_EINTR);
	if (got == -FI_EAVAIL && fi_cq_readerr(side->cq, &error, 0) == 1) {
		fprintf(stderr, "%s: %s\n", what, fi_strerror(error.err));
		exit(1);
	}
	check((int)got, what);
}

/* A post can find a full queue, which reads of the completion queue empty. */
#define POST(side, what, call)                                  \
	do {                                                    \
		ssize_t posted;                                 \
		while ((posted = (call)) == -FI_EAGAIN)         \
			fi_cq_read((side)->cq, NULL, 0);        \
		check((int)posted, what);                       \
		wait_for(side, what);                           \
	} while (0)

static void receive(struct side *side)
{
	POST(side, "fi_recv", fi_recv(side->ep, &side->memory.message, sizeof side->memory.message,
				      fi_mr_desc(side->mr), FI_ADDR_UNSPEC, NULL));
}

static void send_to(struct side *side, fi_addr_t peer, size_t len)
{
	POST(side, "fi_send", fi_send(side->ep, &side->memory.message, len, fi_mr_desc(side->mr),
				      peer, NULL));
}

static fi_addr_t insert(struct side *side, const void *name)
{
	fi_addr_t peer;

	if (fi_av_insert(side->av, name, 1, &peer, 0, NULL) != 1)
		check(-FI_EADDRNOTAVAIL, "fi_av_insert");
	return peer;
}

static void serve(struct side *side)
{
	struct hello hello;
	fi_addr_t peer;
	char *window = side->memory.window;

	receive(side);
	hello = side->memory.message;
	peer = insert(side, hello.name);

	/* Both operations need no call of the client: they access its memory directly. */
	memcpy(window, TEXT, sizeof TEXT);
	POST(side, "fi_write", fi_write(side->ep, window, sizeof TEXT, fi_mr_desc(side->mr), peer,
					hello.address, hello.key, NULL));
	memset(window, 0, WINDOW);
	POST(side, "fi_read", fi_read(side->ep, window, sizeof TEXT, fi_mr_desc(side->mr), peer,
				      hello.address, hello.key, NULL));
	if (strcmp(window, TEXT) != 0)
		check(-FI_EIO, "the text read back");

	send_to(side, peer, 1);
	/* The client replies, so that no operation is outstanding when this side closes. */
	receive(side);
}

static void visit(struct side *side)
{
	fi_addr_t server = insert(side, side->info->dest_addr);
	struct hello *hello = &side->memory.message;
	size_t name_len = sizeof hello->name;

	memset(hello, 0, sizeof *hello);
	check(fi_getname(&side->ep->fid, hello->name, &name_len), "fi_getname");
	hello->name_len = name_len;
	hello->key = fi_mr_key(side->mr);
	/* Without FI_MR_VIRT_ADDR addresses count from the start of the region. */
	hello->address = side->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR
				 ? (uint64_t)(uintptr_t)side->memory.window
				 : (uint64_t)(side->memory.window - (char *)&side->memory);
	send_to(side, server, sizeof *hello);
	receive(side);
	if (strcmp(side->memory.window, TEXT) != 0)
		check(-FI_EIO, "the text in the window");
	send_to(side, server, 1);
}

int main(int argc, char **argv)
{
	static struct side side;
	int is_server = argc > 1 && strcmp(argv[1], "server") == 0;

	if (argc < 3 || (!is_server && strcmp(argv[1], "client") != 0)) {
		fprintf(stderr, "usage: exchange server PORT [HOST] | exchange client PORT [HOST]\n");
		return 2;
	}
	open_side(&side, is_server, argc > 3 ? argv[3] : "127.0.0.1", argv[2]);
	if (is_server)
		serve(&side);
	else
		visit(&side);
	printf("%s: \"%s\" over %s, libfabric %u.%u\n", argv[1], side.memory.window,
	       side.info->fabric_attr->prov_name, FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
	close_side(&side);
	return 0;
}
