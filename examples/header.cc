/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The header as C++17 sees it, twice, and the layouts that programs were compiled for. */
#include <scif.h>
#include <scif.h>

#include <cerrno>
#include <cstddef>

static_assert(sizeof(scif_portID) == 4 && offsetof(scif_portID, port) == 2, "struct scif_portID");
static_assert(sizeof(scif_pollepd) == sizeof(pollfd) && offsetof(scif_pollepd, revents) == 6,
	      "struct scif_pollepd");
static_assert(sizeof(scif_epd_t) == 4 && sizeof(off_t) == 8, "types");
static_assert(SCIF_RMA_ORDER == 8 && SCIF_FENCE_RAS_PEER == 2 && SCIF_MAP_FIXED == 0x10, "values");
static_assert(SCIF_SIGNAL_LOCAL == 0x10 && SCIF_SIGNAL_REMOTE == 0x20 && SCIF_RMA_USECACHE == 2,
	      "values");

int main()
{
	scif_epd_t epd = scif_open();
	if (epd == SCIF_OPEN_FAILED)
		return 1;
	char byte = 0;
	bool refused = scif_send(epd, &byte, 1, SCIF_SEND_BLOCK) == -1 && errno == ENOTCONN;
	return scif_close(epd) == 0 && refused ? 0 : 1;
}
