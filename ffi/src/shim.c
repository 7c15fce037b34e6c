/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Code that Rust cannot express: calls of the host library's functions with variable arguments,
 * through pointers found at run time, and a walk up the stack. The types come from the installed
 * headers, so a changed prototype does not compile. libfabric is not linked.
 */
#include <errno.h>
#include <stddef.h>
#include <unwind.h>

#include <rdma/fabric.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

typedef void any_fn(void);

/* Restores errno, as libfabric's own macros do. */
void scif_ffi_log(any_fn *fn, const struct fi_provider *prov, unsigned int level,
		  unsigned int subsys, const char *func, int line, const char *msg)
{
	int saved = errno;

	((__typeof__(&fi_log))fn)(prov, (enum fi_log_level)level, (enum fi_log_subsys)subsys, func,
				  line, "%s\n", msg);
	errno = saved;
}

int scif_ffi_param_define(any_fn *fn, const struct fi_provider *prov, const char *name,
			  unsigned int type, const char *help)
{
	return ((__typeof__(&fi_param_define))fn)(prov, name, (enum fi_param_type)type, "%s", help);
}

struct frames {
	void **ip;
	size_t count;
	size_t room;
};

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *arg)
{
	struct frames *frames = arg;

	if (frames->count == frames->room)
		return _URC_END_OF_STACK;
	frames->ip[frames->count++] = (void *)_Unwind_GetIP(context);
	return _URC_NO_REASON;
}

/* Writes the return addresses on the stack, innermost first. Returns their number. */
size_t scif_ffi_frames(void **ip, size_t room)
{
	struct frames frames = { .ip = ip, .count = 0, .room = room };

	_Unwind_Backtrace(add_frame, &frames);
	return frames.count;
}
