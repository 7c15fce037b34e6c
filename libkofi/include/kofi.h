/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * kofi.h - providers of fabrics, registered at run time.
 *
 * A provider hands over a dispatch vector; from then on programs in the same process find it by fi_getinfo() and open
 * its fabrics by fi_fabric(), through libkofi.so or through the libfabric.so.1 that comes with it. Programs that use a
 * real libfabric find it there as well, as a fabric "NAME/FABRIC" of the provider "kofi", when libkofi-fi.so is where
 * that libfabric looks for providers and libkofi.so is in the process before that libfabric is first asked; the infos
 * that the provider's objects are opened with have those names then.
 * (libkofi.so has all of libfabric's own functions: a program that wants the real one names -lfabric before -lkofi.)
 *
 * Link with -lkofi. All functions may be called from any thread and from inside a provider's own functions; the library
 * holds no lock while it calls a provider. All return 0 or a negative error number.
 */
#ifndef KOFI_H
#define KOFI_H

#include <stdint.h>

#include <rdma/fabric.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The version of kofi_provider_register() and struct kofi_provider. */
#define KOFI_VERSION FI_VERSION(1, 0)

/** The version of struct kfi_provider, for its member kfi_version. */
#define KFI_VERSION FI_VERSION(1, 7)

/**
 * The dispatch vector of a provider.
 *
 * It is read when it is registered; its address tells providers apart. The functions may be called from then on, by any
 * number of threads at once, until kofi_provider_deregister() has returned 0.
 */
struct kofi_provider {
	/** Not empty; copied. Of two providers with one name the newer version is meant. Letter by letter. */
	const char *name;
	/** The provider's own version, FI_VERSION(major, minor). */
	uint32_t version;
	/**
	 * What the provider offers to somebody who asks so: a list of infos, made with fi_allocinfo() or fi_dupinfo() (or
	 * by freeinfo's counterpart). The arguments are those of fi_getinfo(3), but the service is a number: 0 for none;
	 * with a service that is no number the provider is not asked. The hints may be NULL, or are a copy for this call; the
	 * library fills in fabric_attr->api_version, and where prov_name is left empty that and prov_version. A program
	 * gets copies that need nothing of the provider, with zeroes for attributes that are left out; of a NIC what
	 * libfabric itself describes. May be NULL: then the provider is found by name only. Returns 0, -FI_ENODATA for
	 * nothing, or another negative number.
	 */
	int (*getinfo)(uint32_t version, const char *node, const int service, uint64_t flags, struct fi_info *hints,
		       struct fi_info **info);
	/** Frees a list of getinfo. NULL: the pieces are malloc()ed and the library frees them. */
	int (*freeinfo)(struct fi_info *info);
	/**
	 * Opens the fabric that attr->name names. The library refers to the provider until that fabric is closed. Not
	 * NULL. Returns 0 or a negative number.
	 */
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
};

/**
 * Registers a provider.
 *
 * It stands behind those registered before in fi_getinfo()'s lists; a newer version of a name takes the older one's
 * place, which keeps serving the fabrics that are open and has still to be deregistered by its owner.
 *
 * @param version  KOFI_VERSION, as the caller was compiled with it.
 * @param provider stays, with its functions, until it is deregistered.
 *
 * @retval 0
 * @retval -FI_EINVAL  no provider, no name, no function that opens fabrics.
 * @retval -FI_ENOSYS  version: another major one than the library's, or a newer minor one; nothing else was looked at.
 * @retval -EEXIST     this provider is registered already, or its name is, in this version or a newer one.
 * @retval -FI_EBUSY   it was deregistered, but is still in use.
 */
int kofi_provider_register(uint32_t version, struct kofi_provider *provider);

/**
 * Deregisters a provider: it is unlinked at once, so that nobody finds it any more; then this waits until every call
 * into it has returned and every fabric of it is closed.
 *
 * Waits FI_KOFI_DEREGISTER_TIMEOUT milliseconds at most (3000 when that is not set, -1 for no limit).
 *
 * @retval 0           nothing of the provider is called any more; it may go.
 * @retval -FI_EBUSY   it is unlinked, and still in use: it has to stay. Call again to wait again.
 * @retval -EDEADLK    called from inside the provider's own getinfo, fabric or cleanup, or where it closes a fabric: as
 *                     for -FI_EBUSY.
 * @retval -FI_ENODATA it is not registered.
 * @retval -FI_EINVAL  no provider.
 */
int kofi_provider_deregister(struct kofi_provider *provider);

/** The same, with a limit of its own in milliseconds: 0 does not wait, a negative one means no limit. */
int kofi_provider_deregister_timed(struct kofi_provider *provider, int timeout_ms);

/**
 * The shape in which the kernel's kfabric ended, in user space: laid out as struct fi_provider of libfabric, so that a
 * provider made for libfabric can be registered as it is, once kfi_version is set to KFI_VERSION.
 */
struct kfi_provider {
	/** The provider's own version, FI_VERSION(major, minor). */
	uint32_t version;
	/** KFI_VERSION, as the caller was compiled with it. */
	uint32_t kfi_version;
	/** The library's. */
	struct fi_context context;
	/** As in struct kofi_provider. */
	const char *name;
	/** As in struct kofi_provider, with the service as fi_getinfo() has it. The pieces are malloc()ed. */
	int (*kgetinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
			const struct fi_info *hints, struct fi_info **info);
	/** As in struct kofi_provider. */
	int (*kfabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
	/**
	 * Called once for each registration that succeeded, after the last reference is gone: by whoever deregisters,
	 * registers a newer version, or ends the last call or closes the last fabric after that; or at the end of the
	 * process, unless a fabric is open then. May be NULL.
	 */
	void (*cleanup)(void);
};

/** As kofi_provider_register(); the version is the member kfi_version. */
int kfi_provider_register(struct kfi_provider *provider);
/** As kofi_provider_deregister(); 0 means that cleanup has returned as well. */
int kfi_provider_deregister(struct kfi_provider *provider);
/** As kofi_provider_deregister_timed(). */
int kfi_provider_deregister_timed(struct kfi_provider *provider, int timeout_ms);

/**
 * Takes in a provider made for libfabric from its file (*fi.so), as FI_PROVIDER_PATH does at the first call of a
 * program. It stays until the end of the process. Layers over other providers are not taken.
 *
 * @retval 0
 * @retval -FI_EINVAL  no name of a file, or nothing in the file.
 * @retval -FI_ENOENT  the file cannot be loaded, or is no provider.
 * @retval -FI_ENOSYS  a layer, or made for a libfabric before 1.3.
 * @retval -EEXIST     its name is registered already, in this version or a newer one.
 * @retval -FI_EBUSY   a newer version has replaced it, and it is still in use.
 */
int kofi_provider_adopt(const char *file);

#ifdef __cplusplus
}
#endif

#endif /* KOFI_H */
