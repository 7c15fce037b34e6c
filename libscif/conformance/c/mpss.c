/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Parts of the header of MPSS on which programs rely without another include: system headers, older
 * names, reserved ports. Compiled as C and as C++.
 */
#include <scif.h>

#define TEN(name) { name##_0, name##_1, name##_2, name##_3, name##_4, \
		    name##_5, name##_6, name##_7, name##_8, name##_9 }

static const int first[] = { 40, 60, 80, 100, 120, 130, 1025, 1044 };
static const int ports[][10] = {
	TEN(SCIF_COI_PORT),
	TEN(SCIF_OFED_PORT),
	TEN(SCIF_NETDEV_PORT),
	TEN(SCIF_RAS_PORT),
	TEN(SCIF_PM_PORT),
	TEN(SCIF_BT_PORT),
	TEN(SCIF_MYO_PORT),
	TEN(SCIF_ST_PORT),
};
static const int mpssd[] = { MPSSD_MONRECV, MIC_NOTIFY, MPSSD_CRED, MPSSD_MONSEND, MPSSD_MICCTRL,
			     MPSSD_RESV5, MPSSD_RESV6, MPSSD_RESV7, MPSSD_RESV8, MPSSD_RESV9 };

int main(void)
{
	struct portID old;
	portID_t older;
	struct scif_portID *now = &old;
	scif_epd_t epd;
	fd_set readable;
	struct timeval none = { 0, 0 };
	char byte = 0;
	unsigned set;
	int i;

	for (set = 0; set < sizeof ports / sizeof ports[0]; set++)
		for (i = 0; i < 10; i++)
			if (ports[set][i] != first[set] + i)
				return 1;
	for (i = 0; i < 10; i++)
		if (mpssd[i] != 160 + i)
			return 2;
	if (SCIF_ADMIN_PORT_END != 1024 || SCIF_PORT_RSVD != 1088)
		return 3;

	now->node = 0;
	older = *now;
	older.port = SCIF_MYO_PORT_0;
	epd = scif_open();
	if (epd == SCIF_OPEN_FAILED || scif_bind(epd, older.port) != SCIF_MYO_PORT_0)
		return 4;
	errno = 0;
	if (scif_send(epd, &byte, 1, SEND_BLOCK) != -1 || errno != ENOTCONN)
		return 5;
	FD_ZERO(&readable);
	FD_SET(scif_get_fd(epd), &readable);
	if (select(epd + 1, &readable, NULL, NULL, &none) < 0)
		return 6;
	usleep(1);
	return close(epd) == 0 ? 0 : 7;
}
