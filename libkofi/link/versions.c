/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * libfabric's symbols, each with its versions: thin wrappers of kofi_abi_*. Rust cannot express
 * several versions of one name, nor variable arguments. Linked into libkofi.so, and alone into
 * libfabric.so.1.
 *
 * The default version (@@), to which a program is linked, is the oldest node with the layout of the
 * headers of 1.17. Every libfabric from 1.17 on has it, so the program runs with any of them.
 * Programs linked with newer libraries find their nodes as well.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct fi_info;
struct fi_fabric_attr;
struct fi_param;
struct fi_provider;
struct fid;
struct fid_fabric;

int kofi_abi_getinfo(uint32_t at, uint32_t version, const char *node, const char *service,
		     uint64_t flags, const struct fi_info *hints, struct fi_info **info);
struct fi_info *kofi_abi_dupinfo(uint32_t at, const struct fi_info *info);
void kofi_abi_freeinfo(struct fi_info *info);
int kofi_abi_fabric(uint32_t at, struct fi_fabric_attr *attr, struct fid_fabric **fabric,
		    void *context);
int kofi_abi_fabric2(struct fi_info *info, struct fid_fabric **fabric, uint64_t flags,
		     void *context);
uint32_t kofi_abi_version(void);
int kofi_abi_open(uint32_t version, const char *name, void *attr, size_t attr_len, uint64_t flags,
		  struct fid **fid, void *context);
const char *kofi_abi_strerror(int errnum);
char *kofi_abi_tostr(const void *data, uint32_t type);
char *kofi_abi_tostr_r(char *buf, size_t len, const void *data, uint32_t type);
int kofi_abi_log_enabled(const struct fi_provider *prov, uint32_t level, uint32_t subsys);
int kofi_abi_log_ready(const struct fi_provider *prov, uint32_t level, uint32_t subsys,
		       uint64_t *showtime);
void kofi_abi_log(const struct fi_provider *prov, uint32_t level, uint32_t subsys, const char *func,
		  int line, const char *text);
int kofi_abi_param_define(const struct fi_provider *prov, const char *name, uint32_t type,
			  const char *help);
int kofi_abi_param_get(const struct fi_provider *prov, const char *name, void *value);
int kofi_abi_getparams(struct fi_param **params, int *count);
void kofi_abi_freeparams(struct fi_param *params);

/* The version script determines the exported symbols. */
#define VERSION(function, name, node) __asm__(".symver " #function "," name "@" node)

/* The three functions with changed layouts, at node FABRIC_1.<minor>; mark "@": the default. */
#define INFO(minor, mark)                                                                       \
	int fi_getinfo_1_##minor(uint32_t version, const char *node, const char *service,       \
				 uint64_t flags, const struct fi_info *hints,                   \
				 struct fi_info **info);                                        \
	VERSION(fi_getinfo_1_##minor, "fi_getinfo", mark "FABRIC_1." #minor);                   \
	int fi_getinfo_1_##minor(uint32_t version, const char *node, const char *service,       \
				 uint64_t flags, const struct fi_info *hints,                   \
				 struct fi_info **info)                                         \
	{                                                                                       \
		return kofi_abi_getinfo(minor, version, node, service, flags, hints, info);     \
	}                                                                                       \
	struct fi_info *fi_dupinfo_1_##minor(const struct fi_info *info);                       \
	VERSION(fi_dupinfo_1_##minor, "fi_dupinfo", mark "FABRIC_1." #minor);                   \
	struct fi_info *fi_dupinfo_1_##minor(const struct fi_info *info)                        \
	{                                                                                       \
		return kofi_abi_dupinfo(minor, info);                                           \
	}                                                                                       \
	void fi_freeinfo_1_##minor(struct fi_info *info);                                       \
	VERSION(fi_freeinfo_1_##minor, "fi_freeinfo", mark "FABRIC_1." #minor);                 \
	void fi_freeinfo_1_##minor(struct fi_info *info)                                        \
	{                                                                                       \
		kofi_abi_freeinfo(info);                                                        \
	}

INFO(0, "")
INFO(1, "")
INFO(2, "")
INFO(3, "@")
INFO(7, "")
INFO(8, "")
INFO(9, "")

#define FABRIC(minor, mark)                                                                     \
	int fi_fabric_1_##minor(struct fi_fabric_attr *attr, struct fid_fabric **fabric,        \
				void *context);                                                 \
	VERSION(fi_fabric_1_##minor, "fi_fabric", mark "FABRIC_1." #minor);                     \
	int fi_fabric_1_##minor(struct fi_fabric_attr *attr, struct fid_fabric **fabric,        \
				void *context)                                                  \
	{                                                                                       \
		return kofi_abi_fabric(minor, attr, fabric, context);                           \
	}

FABRIC(0, "")
FABRIC(1, "@")

/* The other functions have one version each, set by the version script. */
#define PROTOTYPE(type, name, ...) type name(__VA_ARGS__); type name(__VA_ARGS__)

PROTOTYPE(int, fi_fabric2, struct fi_info *info, struct fid_fabric **fabric, uint64_t flags,
	  void *context)
{
	return kofi_abi_fabric2(info, fabric, flags, context);
}

PROTOTYPE(uint32_t, fi_version, void)
{
	return kofi_abi_version();
}

PROTOTYPE(int, fi_open, uint32_t version, const char *name, void *attr, size_t attr_len,
	  uint64_t flags, struct fid **fid, void *context)
{
	return kofi_abi_open(version, name, attr, attr_len, flags, fid, context);
}

PROTOTYPE(const char *, fi_strerror, int errnum)
{
	return kofi_abi_strerror(errnum);
}

PROTOTYPE(char *, fi_tostr, const void *data, uint32_t type)
{
	return kofi_abi_tostr(data, type);
}

PROTOTYPE(char *, fi_tostr_r, char *buf, size_t len, const void *data, uint32_t type)
{
	return kofi_abi_tostr_r(buf, len, data, type);
}

PROTOTYPE(int, fi_log_enabled, const struct fi_provider *prov, uint32_t level, uint32_t subsys)
{
	return kofi_abi_log_enabled(prov, level, subsys);
}

PROTOTYPE(int, fi_log_ready, const struct fi_provider *prov, uint32_t level, uint32_t subsys,
	  uint64_t *showtime)
{
	return kofi_abi_log_ready(prov, level, subsys, showtime);
}

PROTOTYPE(void, fi_log, const struct fi_provider *prov, uint32_t level, uint32_t subsys,
	  const char *func, int line, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	if (vsnprintf(text, sizeof text, fmt, args) < 0)
		text[0] = '\0';
	va_end(args);
	kofi_abi_log(prov, level, subsys, func, line, text);
}

PROTOTYPE(int, fi_param_define, const struct fi_provider *prov, const char *name, uint32_t type,
	  const char *fmt, ...)
{
	char help[1024];
	va_list args;

	if (fmt == NULL)
		return kofi_abi_param_define(prov, name, type, NULL);
	va_start(args, fmt);
	if (vsnprintf(help, sizeof help, fmt, args) < 0)
		help[0] = '\0';
	va_end(args);
	return kofi_abi_param_define(prov, name, type, help);
}

PROTOTYPE(int, fi_param_get, const struct fi_provider *prov, const char *name, void *value)
{
	return kofi_abi_param_get(prov, name, value);
}

PROTOTYPE(int, fi_getparams, struct fi_param **params, int *count)
{
	return kofi_abi_getparams(params, count);
}

PROTOTYPE(void, fi_freeparams, struct fi_param *params)
{
	kofi_abi_freeparams(params);
}
