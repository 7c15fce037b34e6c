/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * libkofi-fi.so: a provider for a real libfabric. It offers the providers that the process has
 * registered with libkofi.so. In a process without that library it offers none, at no cost.
 */
#include <dlfcn.h>
#include <stddef.h>

struct fi_provider;
struct fi_provider *fi_prov_ini(void);

struct fi_provider *fi_prov_ini(void)
{
	void *kofi = dlopen("libkofi.so", RTLD_NOW | RTLD_NOLOAD);
	void *found = kofi ? dlsym(kofi, "kofi_bridge") : NULL;
	struct fi_provider *(*bridge)(void) = NULL;

	*(void **)&bridge = found;
	return bridge ? bridge() : NULL;
}
