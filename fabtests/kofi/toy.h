/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Interface of toy.c: its two descriptions and its counters. */
#ifndef TOY_H
#define TOY_H

#include <stdio.h>
#include <stdlib.h>

#include <kofi.h>

#define TOY_FABRIC "toynet"

extern struct kofi_provider toy_slides;
extern struct kfi_provider toy_final;
extern int toy_open_fabrics, toy_cleanups, toy_lists;

/* Case that must hold; the program reports their number at its end. */
static int toy_passed, toy_failed;

static inline void toy_case(int good, const char *what, int line)
{
	if (good) {
		toy_passed++;
	} else {
		toy_failed++;
		printf("FAIL line %d: %s\n", line, what);
	}
}

#define CASE(condition) toy_case((condition) != 0, #condition, __LINE__)

static inline int toy_verdict(void)
{
	printf("%d passed, %d failed\n", toy_passed, toy_failed);
	return toy_failed > 0 || toy_passed == 0;
}

#endif /* TOY_H */
