/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A provider with one fabric, "toynet", which can only be opened and closed. As the file
 * libtoy-fi.so it is a provider of libfabric (fi_prov_ini), which queries fi_getinfo when it is
 * loaded; toy_slides and toy_final are for kofi.h.
 */
#include <stdlib.h>
#include <string.h>

#include <kofi.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#include "toy.h"

int toy_open_fabrics, toy_cleanups, toy_lists;

static int close_fabric(struct fid *fid)
{
	toy_open_fabrics--;
	free(fid);
	return 0;
}

static int no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return -FI_ENOSYS;
}

static int no_control(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)command, (void)arg;
	return -FI_ENOSYS;
}

static struct fi_ops fid_ops = {
	.size = sizeof(struct fi_ops),
	.close = close_fabric,
	.bind = no_bind,
	.control = no_control,
};

static struct fi_ops_fabric fabric_ops = { .size = sizeof(struct fi_ops_fabric) };

static int open_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	struct fid_fabric *new;

	/* The provider does not know the name that a bridge gives to the fabric. */
	if (strcmp(attr->name, TOY_FABRIC) != 0)
		return -FI_ENODATA;
	new = calloc(1, sizeof *new);
	if (!new)
		return -FI_ENOMEM;
	new->fid.fclass = FI_CLASS_FABRIC;
	new->fid.context = context;
	new->fid.ops = &fid_ops;
	new->ops = &fabric_ops;
	toy_open_fabrics++;
	*fabric = new;
	return 0;
}

static int answer(const struct fi_info *hints, struct fi_info **info)
{
	const struct fi_fabric_attr *asked = hints ? hints->fabric_attr : NULL;
	struct fi_info *new;

	if (asked && asked->name && strcmp(asked->name, TOY_FABRIC) != 0)
		return -FI_ENODATA;
	new = fi_allocinfo();
	if (!new)
		return -FI_ENOMEM;
	new->ep_attr->type = FI_EP_RDM;
	new->fabric_attr->name = strdup(TOY_FABRIC);
	new->domain_attr->name = strdup("toydom");
	toy_lists++;
	*info = new;
	return 0;
}

static int slides_getinfo(uint32_t version, const char *node, const int service, uint64_t flags,
			  struct fi_info *hints, struct fi_info **info)
{
	(void)version, (void)node, (void)service, (void)flags;
	return answer(hints, info);
}

static int final_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
			 const struct fi_info *hints, struct fi_info **info)
{
	(void)version, (void)node, (void)service, (void)flags;
	return answer(hints, info);
}

static int slides_freeinfo(struct fi_info *info)
{
	toy_lists--;
	fi_freeinfo(info);
	return 0;
}

static void cleanup(void)
{
	toy_cleanups++;
}

struct kofi_provider toy_slides = {
	.name = "toy",
	.version = FI_VERSION(1, 0),
	.getinfo = slides_getinfo,
	.freeinfo = slides_freeinfo,
	.fabric = open_fabric,
};

struct kfi_provider toy_final = {
	.name = "toy",
	.version = FI_VERSION(1, 1),
	.kfi_version = KFI_VERSION,
	.kgetinfo = final_getinfo,
	.kfabric = open_fabric,
	.cleanup = cleanup,
};

FI_EXT_INI
{
	static struct fi_provider provider = {
		.name = "toy",
		.version = FI_VERSION(1, 2),
		.fi_version = FI_VERSION(1, 17),
		.getinfo = final_getinfo,
		.fabric = open_fabric,
		.cleanup = cleanup,
	};

	struct fi_info *others = NULL;

	if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &others) == 0)
		fi_freeinfo(others);
	return &provider;
}
