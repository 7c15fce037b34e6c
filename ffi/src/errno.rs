// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Error numbers of `rdma/fi_errno.h`, positive. Functions of libfabric return them negated.
//!
//! Numbers below 256 belong to the system. Values in the installed header are compared with it at
//! build time.

use core::ffi::c_int;

/// No error.
pub const FI_SUCCESS: c_int = 0;

pub const FI_EPERM: c_int = libc::EPERM;
pub const FI_ENOENT: c_int = libc::ENOENT;
pub const FI_EINTR: c_int = libc::EINTR;
pub const FI_EIO: c_int = libc::EIO;
pub const FI_E2BIG: c_int = libc::E2BIG;
pub const FI_EBADF: c_int = libc::EBADF;
pub const FI_EAGAIN: c_int = libc::EAGAIN;
pub const FI_ENOMEM: c_int = libc::ENOMEM;
pub const FI_EACCES: c_int = libc::EACCES;
pub const FI_EFAULT: c_int = libc::EFAULT;
pub const FI_EBUSY: c_int = libc::EBUSY;
pub const FI_ENODEV: c_int = libc::ENODEV;
pub const FI_EINVAL: c_int = libc::EINVAL;
pub const FI_EMFILE: c_int = libc::EMFILE;
pub const FI_ENOSPC: c_int = libc::ENOSPC;
pub const FI_ENOSYS: c_int = libc::ENOSYS;
pub const FI_EWOULDBLOCK: c_int = libc::EWOULDBLOCK;
pub const FI_ENOMSG: c_int = libc::ENOMSG;
pub const FI_ENODATA: c_int = libc::ENODATA;
pub const FI_EPROTO: c_int = libc::EPROTO;
pub const FI_EOVERFLOW: c_int = libc::EOVERFLOW;
pub const FI_EMSGSIZE: c_int = libc::EMSGSIZE;
pub const FI_ENOPROTOOPT: c_int = libc::ENOPROTOOPT;
pub const FI_EOPNOTSUPP: c_int = libc::EOPNOTSUPP;
pub const FI_EADDRINUSE: c_int = libc::EADDRINUSE;
pub const FI_EADDRNOTAVAIL: c_int = libc::EADDRNOTAVAIL;
pub const FI_ENETDOWN: c_int = libc::ENETDOWN;
pub const FI_ENETUNREACH: c_int = libc::ENETUNREACH;
pub const FI_ECONNABORTED: c_int = libc::ECONNABORTED;
pub const FI_ECONNRESET: c_int = libc::ECONNRESET;
pub const FI_ENOBUFS: c_int = libc::ENOBUFS;
pub const FI_EISCONN: c_int = libc::EISCONN;
pub const FI_ENOTCONN: c_int = libc::ENOTCONN;
pub const FI_ESHUTDOWN: c_int = libc::ESHUTDOWN;
pub const FI_ETIMEDOUT: c_int = libc::ETIMEDOUT;
pub const FI_ECONNREFUSED: c_int = libc::ECONNREFUSED;
pub const FI_EHOSTDOWN: c_int = libc::EHOSTDOWN;
pub const FI_EHOSTUNREACH: c_int = libc::EHOSTUNREACH;
pub const FI_EALREADY: c_int = libc::EALREADY;
pub const FI_EINPROGRESS: c_int = libc::EINPROGRESS;
pub const FI_EREMOTEIO: c_int = libc::EREMOTEIO;
pub const FI_ECANCELED: c_int = libc::ECANCELED;
pub const FI_EKEYREJECTED: c_int = libc::EKEYREJECTED;

/// First number that only libfabric defines.
pub const FI_ERRNO_OFFSET: c_int = 256;
pub const FI_EOTHER: c_int = 256;
pub const FI_ETOOSMALL: c_int = 257;
pub const FI_EOPBADSTATE: c_int = 258;
pub const FI_EAVAIL: c_int = 259;
pub const FI_EBADFLAGS: c_int = 260;
pub const FI_ENOEQ: c_int = 261;
pub const FI_EDOMAIN: c_int = 262;
pub const FI_ENOCQ: c_int = 263;
pub const FI_ECRC: c_int = 264;
pub const FI_ETRUNC: c_int = 265;
pub const FI_ENOKEY: c_int = 266;
pub const FI_ENOAV: c_int = 267;
pub const FI_EOVERRUN: c_int = 268;
pub const FI_ENORX: c_int = 269;
/// Since 1.20.
pub const FI_ENOMR: c_int = 270;
/// Since 2.2.
pub const FI_EFIREWALLADDR: c_int = 271;
