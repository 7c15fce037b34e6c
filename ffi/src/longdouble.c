/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Arithmetic of C's long double, for which Rust has no type. Operands and results are passed by
 * address. The padding bytes of a result, if the format has any, are zero.
 */
#include <float.h>
#include <string.h>

_Static_assert(sizeof(long double) == 16, "the Rust side holds a long double in 16 bytes");

/* An 80-bit value occupies 10 of 16 bytes. */
#define VALUE_BYTES (LDBL_MANT_DIG == 64 ? 10 : sizeof(long double))

static void store(long double *out, long double value)
{
	memcpy(out, &value, VALUE_BYTES);
	memset((char *)out + VALUE_BYTES, 0, sizeof(*out) - VALUE_BYTES);
}

void scif_fi_long_double_add(long double *out, const long double *a, const long double *b)
{
	store(out, *a + *b);
}

void scif_fi_long_double_sub(long double *out, const long double *a, const long double *b)
{
	store(out, *a - *b);
}

void scif_fi_long_double_mul(long double *out, const long double *a, const long double *b)
{
	store(out, *a * *b);
}

/* Returns -1, 0 or 1 if a is less than, equal to or greater than b; 2 if either is not a number. */
int scif_fi_long_double_order(const long double *a, const long double *b)
{
	if (*a < *b)
		return -1;
	if (*a > *b)
		return 1;
	return *a == *b ? 0 : 2;
}

void scif_fi_long_double_from_i64(long double *out, long long value)
{
	store(out, (long double)value);
}
