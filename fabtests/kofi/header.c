/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Test by compilation: kofi.h is valid C11 and C++17, can be included twice, and has the layouts
 * of the library.
 */
#include <kofi.h>
#include <kofi.h>

#include <errno.h>
#include <stddef.h>

#include <rdma/providers/fi_prov.h>

#ifdef __cplusplus
#define HOLDS(condition) static_assert(condition, #condition)
#else
#define HOLDS(condition) _Static_assert(condition, #condition)
#endif

HOLDS(sizeof(struct kofi_provider) == 40);
HOLDS(offsetof(struct kofi_provider, name) == 0);
HOLDS(offsetof(struct kofi_provider, version) == 8);
HOLDS(offsetof(struct kofi_provider, getinfo) == 16);
HOLDS(offsetof(struct kofi_provider, freeinfo) == 24);
HOLDS(offsetof(struct kofi_provider, fabric) == 32);
HOLDS(sizeof(struct kfi_provider) == sizeof(struct fi_provider));
HOLDS(offsetof(struct kfi_provider, kfi_version) == offsetof(struct fi_provider, fi_version));
HOLDS(offsetof(struct kfi_provider, context) == offsetof(struct fi_provider, context));
HOLDS(offsetof(struct kfi_provider, name) == offsetof(struct fi_provider, name));
HOLDS(offsetof(struct kfi_provider, kgetinfo) == offsetof(struct fi_provider, getinfo));
HOLDS(offsetof(struct kfi_provider, kfabric) == offsetof(struct fi_provider, fabric));
HOLDS(offsetof(struct kfi_provider, cleanup) == offsetof(struct fi_provider, cleanup));
HOLDS(EEXIST == 17 && EDEADLK == 35);
HOLDS(KOFI_VERSION == FI_VERSION(1, 0) && KFI_VERSION == FI_VERSION(1, 7));
