/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * kofi.h - providers of fabrics, registered at run time.
 *
 * A provider registers a dispatch vector. From then on programs in the same process find it by
 * fi_getinfo() and open its fabrics by fi_fabric(), through libkofi.so or the libfabric.so.1 of the
 * same build.
 *
 * Programs that use a real libfabric find it as a fabric "NAME/FABRIC" of the provider "kofi". For
 * that, libkofi-fi.so must be in the provider path of that libfabric, and libkofi.so must be in the
 * process before the first query. The infos from which the provider's objects are opened then have
 * these names. (libkofi.so has all functions of libfabric: to use the real one, a program is linked
 * with -lfabric before -lkofi.)
 *
 * Link with -lkofi. All functions may be called from any thread and from inside a provider's own
 * functions; the library holds no lock while it calls a provider. All return 0 or a negative error
 * number.
 */
#ifndef KOFI_H
#define KOFI_H

#include <stdint.h>

#include <rdma/fabric.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of kofi_provider_register() and struct kofi_provider. */
#define KOFI_VERSION FI_VERSION(1, 0)

/** Version of struct kfi_provider, for its member kfi_version. */
#define KFI_VERSION FI_VERSION(1, 7)

/**
 * Dispatch vector of a provider.
 *
 * It is read when it is registered; its address identifies the provider. The functions may be
 * called from then on, by any number of threads at once, until kofi_provider_deregister() has
 * returned 0.
 */
struct kofi_provider {
	/** Name, not empty; copied. Of two providers with one exact name the newer is used. */
	const char *name;
	/** The provider's own version, FI_VERSION(major, minor). */
	uint32_t version;
	/**
	 * Returns the provider's answer to a query: a list of infos, made with fi_allocinfo() or
	 * fi_dupinfo() (or by the counterpart of freeinfo).
	 *
	 * The arguments are those of fi_getinfo(3), but the service is a number: 0 for none. The
	 * provider is not queried for a service that is not a number. The hints are NULL or a copy
	 * for this call. The library sets fabric_attr->api_version, and an empty prov_name together
	 * with prov_version.
	 *
	 * A program gets copies that are independent of the provider, with zeroes for missing
	 * attributes; a NIC is copied without prov_attr. The member may be NULL: then the provider
	 * is found by name only. Returns 0, -FI_ENODATA without an answer, or another negative
	 * number.
	 */
	int (*getinfo)(uint32_t version, const char *node, const int service, uint64_t flags,
		       struct fi_info *hints, struct fi_info **info);
	/** Frees a list of getinfo. NULL: its parts are from malloc(); the library frees them. */
	int (*freeinfo)(struct fi_info *info);
	/**
	 * Opens the fabric with the name attr->name. The library keeps a reference to the provider
	 * until that fabric is closed. Not NULL. Returns 0 or a negative number.
	 */
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
};

/**
 * Registers a provider.
 *
 * It follows the providers registered before in the lists of fi_getinfo(). A newer version of a
 * name takes the place of the older one, which still serves its open fabrics and must still be
 * deregistered by its owner.
 *
 * @param version  KOFI_VERSION with which the caller was compiled.
 * @param provider must stay valid, with its functions, until it is deregistered.
 *
 * @retval 0
 * @retval -FI_EINVAL  no provider, no name, no function that opens fabrics.
 * @retval -FI_ENOSYS  version differs in its major number from the library's, or has a newer minor
 *                     number. The provider was not read.
 * @retval -EEXIST     this provider is registered already, or its name is, in this version or a
 *                     newer one.
 * @retval -FI_EBUSY   it was deregistered, but is still in use.
 */
int kofi_provider_register(uint32_t version, struct kofi_provider *provider);

/**
 * Deregisters a provider: it is unlinked at once, so that no query finds it any more. Then the call
 * waits until every call into it has returned and every fabric of it is closed.
 *
 * Waits at most FI_KOFI_DEREGISTER_TIMEOUT milliseconds (default 3000, -1 for no limit).
 *
 * @retval 0           no function of the provider is called any more; it may be unloaded.
 * @retval -FI_EBUSY   it is unlinked and still in use, so it must stay valid. Call again to wait
 *                     again.
 * @retval -EDEADLK    called inside the provider's own getinfo, fabric or cleanup, or while it
 *                     closes a fabric; otherwise as for -FI_EBUSY.
 * @retval -FI_ENODATA it is not registered.
 * @retval -FI_EINVAL  no provider.
 */
int kofi_provider_deregister(struct kofi_provider *provider);

/** Like kofi_provider_deregister(), with a limit in milliseconds (0: no wait, negative: none). */
int kofi_provider_deregister_timed(struct kofi_provider *provider, int timeout_ms);

/**
 * Dispatch vector in the final form of the kernel's kfabric, in user space. The layout is that of
 * struct fi_provider of libfabric, so that a provider made for libfabric can be registered
 * unchanged, once kfi_version is set to KFI_VERSION.
 */
struct kfi_provider {
	/** The provider's own version, FI_VERSION(major, minor). */
	uint32_t version;
	/** KFI_VERSION with which the caller was compiled. */
	uint32_t kfi_version;
	/** Reserved for the library. */
	struct fi_context context;
	/** As in struct kofi_provider. */
	const char *name;
	/** As in struct kofi_provider, with a service as in fi_getinfo(). malloc()ed parts. */
	int (*kgetinfo)(uint32_t version, const char *node, const char *service, uint64_t flags,
			const struct fi_info *hints, struct fi_info **info);
	/** As in struct kofi_provider. */
	int (*kfabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
	/**
	 * Called once for each successful registration, after the last reference is gone. The
	 * caller is the thread that deregisters, registers a newer version, or later ends the last
	 * call or closes the last fabric. Also called at the end of the process, unless a fabric is
	 * open then. May be NULL.
	 */
	void (*cleanup)(void);
};

/** Like kofi_provider_register(); the version is the member kfi_version. */
int kfi_provider_register(struct kfi_provider *provider);
/** Like kofi_provider_deregister(); 0 means that cleanup has returned as well. */
int kfi_provider_deregister(struct kfi_provider *provider);
/** Like kofi_provider_deregister_timed(). */
int kfi_provider_deregister_timed(struct kfi_provider *provider, int timeout_ms);

/**
 * Registers a provider made for libfabric from its file (*fi.so), as FI_PROVIDER_PATH does at the
 * first call of a program. It stays until the end of the process. Layers over other providers are
 * refused.
 *
 * @retval 0
 * @retval -FI_EINVAL  no name of a file, or no provider described in the file.
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
