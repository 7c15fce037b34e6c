// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Bit masks of libfabric: capabilities, operation flags, modes, registration modes, orders.
//!
//! Enumerations are in `numbers`, error numbers in `errno`. libfabric uses the same bit with
//! different meanings in different contexts. Values in the installed headers are compared with them
//! at build time.

use core::ffi::c_int;

// Capabilities, operation flags and completion flags (fabric.h).
pub const FI_MSG: u64 = 1 << 1;
pub const FI_RMA: u64 = 1 << 2;
pub const FI_TAGGED: u64 = 1 << 3;
pub const FI_ATOMIC: u64 = 1 << 4;
pub const FI_ATOMICS: u64 = FI_ATOMIC;
pub const FI_MULTICAST: u64 = 1 << 5;
pub const FI_COLLECTIVE: u64 = 1 << 6;
pub const FI_READ: u64 = 1 << 8;
pub const FI_WRITE: u64 = 1 << 9;
pub const FI_RECV: u64 = 1 << 10;
pub const FI_SEND: u64 = 1 << 11;
pub const FI_TRANSMIT: u64 = FI_SEND;
pub const FI_REMOTE_READ: u64 = 1 << 12;
pub const FI_REMOTE_WRITE: u64 = 1 << 13;
pub const FI_MULTI_RECV: u64 = 1 << 16;
pub const FI_REMOTE_CQ_DATA: u64 = 1 << 17;
pub const FI_MORE: u64 = 1 << 18;
pub const FI_PEEK: u64 = 1 << 19;
pub const FI_TRIGGER: u64 = 1 << 20;
pub const FI_FENCE: u64 = 1 << 21;
/// Until 1.x.
pub const FI_PRIORITY: u64 = 1 << 22;
pub const FI_COMPLETION: u64 = 1 << 24;
pub const FI_EVENT: u64 = FI_COMPLETION;
pub const FI_INJECT: u64 = 1 << 25;
pub const FI_INJECT_COMPLETE: u64 = 1 << 26;
pub const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub const FI_AFFINITY: u64 = 1 << 29;
pub const FI_COMMIT_COMPLETE: u64 = 1 << 30;
pub const FI_MATCH_COMPLETE: u64 = 1 << 31;
/// Since 2.2.
pub const FI_RESCAN: u64 = 1 << 35;
pub const FI_PEER_TRANSFER: u64 = 1 << 36;
pub const FI_AV_USER_ID: u64 = 1 << 41;
/// Since 2.2.
pub const FI_FIREWALL_ADDR: u64 = 1 << 42;
pub const FI_PEER: u64 = 1 << 43;
/// Since 2.0.
pub const FI_TAGGED_DIRECTED_RECV: u64 = 1 << 45;
/// Since 2.0.
pub const FI_TAGGED_MULTI_RECV: u64 = 1 << 46;
pub const FI_HMEM: u64 = 1 << 47;
/// Since 2.0.
pub const FI_EXACT_DIRECTED_RECV: u64 = 1 << 48;
pub const FI_RMA_PMEM: u64 = 1 << 49;
pub const FI_SOURCE_ERR: u64 = 1 << 50;
pub const FI_LOCAL_COMM: u64 = 1 << 51;
pub const FI_REMOTE_COMM: u64 = 1 << 52;
pub const FI_SHARED_AV: u64 = 1 << 53;
pub const FI_PROV_ATTR_ONLY: u64 = 1 << 54;
pub const FI_NUMERICHOST: u64 = 1 << 55;
pub const FI_RMA_EVENT: u64 = 1 << 56;
pub const FI_SOURCE: u64 = 1 << 57;
pub const FI_NAMED_RX_CTX: u64 = 1 << 58;
pub const FI_DIRECTED_RECV: u64 = 1 << 59;
pub const FI_CLAIM: u64 = 1 << 59;
pub const FI_DISCARD: u64 = 1 << 58;
/// Since 1.20.
pub const FI_AUTH_KEY: u64 = 1 << 57;
/// Flag of `fi_ep_bind`.
pub const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

// Flags that the library adds to its queries of providers (not in an installed header; unchanged
// since 1.17).
pub const OFI_GETINFO_INTERNAL: u64 = 1 << 58;
pub const OFI_CORE_PROV_ONLY: u64 = 1 << 59;
pub const OFI_GETINFO_HIDDEN: u64 = 1 << 60;
pub const OFI_OFFLOAD_PROV_ONLY: u64 = 1 << 61;

// Address values (fabric.h).
pub const FI_ADDR_UNSPEC: u64 = u64::MAX;
pub const FI_ADDR_NOTAVAIL: u64 = u64::MAX;
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;

pub const FI_SHARED_CONTEXT: usize = usize::MAX;
/// Since 1.20.
pub const FI_AV_AUTH_KEY: usize = usize::MAX;

// Registration modes (fabric.h).
/// Deprecated since 2.0.
pub const FI_MR_UNSPEC: c_int = 0;
/// Deprecated since 2.0.
pub const FI_MR_BASIC: c_int = 1 << 0;
/// Deprecated since 2.0.
pub const FI_MR_SCALABLE: c_int = 1 << 1;
pub const FI_MR_LOCAL: c_int = 1 << 2;
pub const FI_MR_RAW: c_int = 1 << 3;
pub const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub const FI_MR_ALLOCATED: c_int = 1 << 5;
pub const FI_MR_PROV_KEY: c_int = 1 << 6;
pub const FI_MR_MMU_NOTIFY: c_int = 1 << 7;
pub const FI_MR_RMA_EVENT: c_int = 1 << 8;
pub const FI_MR_ENDPOINT: c_int = 1 << 9;
pub const FI_MR_HMEM: c_int = 1 << 10;
pub const FI_MR_COLLECTIVE: c_int = 1 << 11;

// Registration flags (fi_domain.h).
/// Since 1.20.
pub const FI_MR_DMABUF: u64 = 1 << 40;
/// Since 2.0.
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;
/// Flag of `fi_domain_bind`. Deprecated since 2.0.
pub const FI_REG_MR: u64 = 1 << 59;

// Orders (fabric.h).
pub const FI_ORDER_NONE: u64 = 0;
pub const FI_ORDER_RAR: u64 = 1 << 0;
pub const FI_ORDER_RAW: u64 = 1 << 1;
pub const FI_ORDER_RAS: u64 = 1 << 2;
pub const FI_ORDER_WAR: u64 = 1 << 3;
pub const FI_ORDER_WAW: u64 = 1 << 4;
pub const FI_ORDER_WAS: u64 = 1 << 5;
pub const FI_ORDER_SAR: u64 = 1 << 6;
pub const FI_ORDER_SAW: u64 = 1 << 7;
pub const FI_ORDER_SAS: u64 = 1 << 8;
/// Deprecated since 2.0.
pub const FI_ORDER_STRICT: u64 = 0x1FF;
/// Deprecated since 2.0.
pub const FI_ORDER_DATA: u64 = 1 << 16;
pub const FI_ORDER_RMA_RAR: u64 = 1 << 32;
pub const FI_ORDER_RMA_RAW: u64 = 1 << 33;
pub const FI_ORDER_RMA_WAR: u64 = 1 << 34;
pub const FI_ORDER_RMA_WAW: u64 = 1 << 35;
pub const FI_ORDER_ATOMIC_RAR: u64 = 1 << 36;
pub const FI_ORDER_ATOMIC_RAW: u64 = 1 << 37;
pub const FI_ORDER_ATOMIC_WAR: u64 = 1 << 38;
pub const FI_ORDER_ATOMIC_WAW: u64 = 1 << 39;

// Modes (fabric.h).
pub const FI_CONTEXT: u64 = 1 << 59;
pub const FI_MSG_PREFIX: u64 = 1 << 58;
pub const FI_ASYNC_IOV: u64 = 1 << 57;
pub const FI_RX_CQ_DATA: u64 = 1 << 56;
/// Deprecated since 2.0.
pub const FI_LOCAL_MR: u64 = 1 << 55;
/// Until 1.x, 0 in the headers of 2.0 and later.
pub const FI_NOTIFY_FLAGS_ONLY: u64 = 1 << 54;
/// Until 1.x, 0 in the headers of 2.0 and later.
pub const FI_RESTRICTED_COMP: u64 = 1 << 53;
pub const FI_CONTEXT2: u64 = 1 << 52;
/// Until 1.x.
pub const FI_BUFFERED_RECV: u64 = 1 << 51;

// Address vector flags (fi_domain.h).
pub const FI_SYMMETRIC: u64 = 1 << 59;
pub const FI_SYNC_ERR: u64 = 1 << 58;
pub const FI_UNIVERSE: u64 = 1 << 57;
pub const FI_BARRIER_SET: u64 = 1 << 40;
pub const FI_BROADCAST_SET: u64 = 1 << 41;
pub const FI_ALLTOALL_SET: u64 = 1 << 42;
pub const FI_ALLREDUCE_SET: u64 = 1 << 43;
pub const FI_ALLGATHER_SET: u64 = 1 << 44;
pub const FI_REDUCE_SCATTER_SET: u64 = 1 << 45;
pub const FI_REDUCE_SET: u64 = 1 << 46;
pub const FI_SCATTER_SET: u64 = 1 << 47;
pub const FI_GATHER_SET: u64 = 1 << 48;

// Flags of an atomic query (fi_atomic.h).
pub const FI_FETCH_ATOMIC: u64 = 1 << 58;
pub const FI_COMPARE_ATOMIC: u64 = 1 << 59;

// Tags of an MPI (fi_tagged.h).
/// Since 2.0.
pub const FI_MPI_IGNORE_TAG: u64 = 0xFFFF_FFFF;
/// Since 2.0.
pub const FI_MPI_IGNORE_PAYLOAD: u64 = 0xFF << 32;
