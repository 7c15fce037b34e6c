/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Registration of a provider in C, by argument:
 *	registry kofi	linked with libkofi alone: registers, finds, opens and deregisters a
 *			provider, and adopts libtoy-fi.so
 *	registry bridge	linked with a real libfabric before libkofi: finds the provider through
 *			libfabric, as kofi
 *	registry path	finds the libtoy-fi.so in FI_PROVIDER_PATH, which calls fi_getinfo while
 *			it is adopted
 *	registry end	leaves a provider registered until the process ends, and its clean-up
 *			reports that
 */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fi_errno.h>

#include "toy.h"

/* Infos by provider name and by fabric name. */
static struct fi_info *find(const char *provider, const char *fabric)
{
	struct fi_info *hints = fi_allocinfo(), *found = NULL;

	hints->fabric_attr->prov_name = strdup(provider);
	if (fabric)
		hints->fabric_attr->name = strdup(fabric);
	if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found) != 0)
		found = NULL;
	fi_freeinfo(hints);
	return found;
}

static int finds(const char *provider, const char *fabric)
{
	struct fi_info *found = find(provider, fabric);
	int there = found != NULL;

	fi_freeinfo(found);
	return there;
}

/* Open, deregister while open, close, deregister. */
static void life(const char *provider, const char *fabric, int (*deregister)(int))
{
	struct fi_info *found = find(provider, fabric);
	struct fi_fabric_attr gone = { 0 };
	struct fid_fabric *opened = NULL, *again = NULL;

	CASE(found != NULL);
	if (!found)
		return;
	CASE(strcmp(found->fabric_attr->prov_name, provider) == 0);
	CASE(strcmp(found->fabric_attr->name, fabric) == 0);
	CASE(fi_fabric(found->fabric_attr, &opened, NULL) == 0 && opened != NULL);
	CASE(toy_open_fabrics == 1);
	CASE(opened && opened->api_version == FI_VERSION(1, 17));
	CASE(deregister(0) == -FI_EBUSY);
	CASE(!finds(provider, fabric));
	CASE(fi_fabric(found->fabric_attr, &again, NULL) == -FI_ENODEV && again == NULL);
	gone.prov_name = found->fabric_attr->prov_name;
	CASE(fi_fabric(&gone, &again, NULL) == -FI_EINVAL);
	CASE(toy_open_fabrics == 1 && toy_cleanups == 0);
	CASE(opened && fi_close(&opened->fid) == 0);
	CASE(toy_open_fabrics == 0);
	CASE(deregister(-1) == 0);
	CASE(deregister(0) == -FI_ENODATA);
	CASE(toy_lists >= 0);
	fi_freeinfo(found);
}

static int slides(int ms)
{
	return kofi_provider_deregister_timed(&toy_slides, ms);
}

static int final(int ms)
{
	return kfi_provider_deregister_timed(&toy_final, ms);
}

static void both(const char *provider, const char *fabric)
{
	CASE(kofi_provider_register(KOFI_VERSION, &toy_slides) == 0);
	CASE(kofi_provider_register(KOFI_VERSION, &toy_slides) == -EEXIST);
	life(provider, fabric, slides);
	CASE(toy_lists == 0);
	CASE(kfi_provider_register(&toy_final) == 0);
	life(provider, fabric, final);
	CASE(toy_cleanups == 1);
}

/* A newer toy replaces the adopted one, which is in use and not cleaned up by another adoption. */
static void replace(const char *file)
{
	static struct kfi_provider newer;
	struct fi_info *found = find("toy", TOY_FABRIC);
	struct fid_fabric *opened = NULL;
	void *handle = dlopen(file, RTLD_NOW | RTLD_NOLOAD);
	const int *cleanups = handle ? dlsym(handle, "toy_cleanups") : NULL;

	newer = toy_final;
	newer.version = FI_VERSION(1, 3);
	CASE(cleanups != NULL && cleanups != &toy_cleanups);
	CASE(found && fi_fabric(found->fabric_attr, &opened, NULL) == 0);
	CASE(kfi_provider_register(&newer) == 0);
	CASE(kofi_provider_adopt(file) == -FI_EBUSY);
	CASE(cleanups && *cleanups == 0);
	CASE(opened && fi_close(&opened->fid) == 0);
	CASE(cleanups && *cleanups == 1);
	CASE(kfi_provider_deregister(&newer) == 0);
	fi_freeinfo(found);
}

static void say_so(void)
{
	static const char text[] = "cleaned up\n";

	if (write(STDOUT_FILENO, text, sizeof text - 1) < 0)
		_exit(1);
}

static int leave_to_the_end(void)
{
	static struct kfi_provider left;

	left = toy_final;
	left.cleanup = say_so;
	return kfi_provider_register(&left) != 0;
}

int main(int argc, char **argv)
{
	int bridge = argc > 1 && strcmp(argv[1], "bridge") == 0;

	if (bridge) {
		/* No provider is registered yet, and libfabric is initialised before the first. */
		CASE(!finds("kofi", NULL));
		both("kofi", "toy/" TOY_FABRIC);
		/* A provider that libfabric itself can load is not listed twice. */
		CASE(!finds("kofi", "scif/scif"));
		CASE(finds("scif", NULL));
		return toy_verdict();
	}
	if (argc > 1 && strcmp(argv[1], "end") == 0)
		return leave_to_the_end();
	CASE(finds("scif", NULL));
	if (argc > 1 && strcmp(argv[1], "path") == 0) {
		CASE(finds("toy", TOY_FABRIC));
		return toy_verdict();
	}
	CASE(!finds("toy", NULL));
	both("toy", TOY_FABRIC);
	CASE(kofi_provider_adopt(NULL) == -FI_EINVAL);
	CASE(kofi_provider_adopt("/nowhere/libno-fi.so") == -FI_ENOENT);
	if (argc > 2) {
		/* A newer toy, from a file, which stays. */
		CASE(kofi_provider_adopt(argv[2]) == 0);
		CASE(kofi_provider_adopt(argv[2]) == -EEXIST);
		CASE(finds("toy", TOY_FABRIC));
		CASE(kofi_provider_register(KOFI_VERSION, &toy_slides) == -EEXIST);
		replace(argv[2]);
	}
	if (argc > 3)
		/* The bridge would list this library to itself. */
		CASE(kofi_provider_adopt(argv[3]) == -FI_EINVAL);
	return toy_verdict();
}
