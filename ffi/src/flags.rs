// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Bit masks of libfabric: capabilities, operation flags, modes, registration modes, orders.
//!
//! Enumerations are in `numbers`, error numbers in `errno`. libfabric uses the same bit with
//! different meanings in different contexts. Values in the installed headers are compared with them
//! at build time.

use core::ffi::c_int;

/// Defines the constants of each group, of the type before the braces.
///
/// The build reads the names from the text.
macro_rules! constants {
    ($($type:ty { $($name:ident = $value:expr,)* })*) => {$($(
        pub const $name: $type = $value;
    )*)*};
}
pub(crate) use constants;

constants! {
    // Capabilities, operation flags and completion flags (fabric.h).
    u64 {
        FI_MSG = 1 << 1, FI_RMA = 1 << 2, FI_TAGGED = 1 << 3, FI_ATOMIC = 1 << 4,
        FI_ATOMICS = FI_ATOMIC, FI_MULTICAST = 1 << 5, FI_COLLECTIVE = 1 << 6, FI_READ = 1 << 8,
        FI_WRITE = 1 << 9, FI_RECV = 1 << 10, FI_SEND = 1 << 11, FI_TRANSMIT = FI_SEND,
        FI_REMOTE_READ = 1 << 12, FI_REMOTE_WRITE = 1 << 13, FI_MULTI_RECV = 1 << 16,
        FI_REMOTE_CQ_DATA = 1 << 17, FI_MORE = 1 << 18, FI_PEEK = 1 << 19, FI_TRIGGER = 1 << 20,
        FI_FENCE = 1 << 21, FI_COMPLETION = 1 << 24, FI_EVENT = FI_COMPLETION, FI_INJECT = 1 << 25,
        FI_INJECT_COMPLETE = 1 << 26, FI_TRANSMIT_COMPLETE = 1 << 27,
        FI_DELIVERY_COMPLETE = 1 << 28, FI_AFFINITY = 1 << 29, FI_COMMIT_COMPLETE = 1 << 30,
        FI_MATCH_COMPLETE = 1 << 31, FI_PEER_TRANSFER = 1 << 36, FI_AV_USER_ID = 1 << 41,
        FI_PEER = 1 << 43, FI_HMEM = 1 << 47, FI_RMA_PMEM = 1 << 49, FI_SOURCE_ERR = 1 << 50,
        FI_LOCAL_COMM = 1 << 51, FI_REMOTE_COMM = 1 << 52, FI_SHARED_AV = 1 << 53,
        FI_PROV_ATTR_ONLY = 1 << 54, FI_NUMERICHOST = 1 << 55, FI_RMA_EVENT = 1 << 56,
        FI_SOURCE = 1 << 57, FI_NAMED_RX_CTX = 1 << 58, FI_DIRECTED_RECV = 1 << 59,
        FI_CLAIM = 1 << 59, FI_DISCARD = 1 << 58,
        // Until 1.x.
        FI_PRIORITY = 1 << 22,
        // Since 2.2.
        FI_RESCAN = 1 << 35, FI_FIREWALL_ADDR = 1 << 42,
        // Since 2.0.
        FI_TAGGED_DIRECTED_RECV = 1 << 45, FI_TAGGED_MULTI_RECV = 1 << 46,
        FI_EXACT_DIRECTED_RECV = 1 << 48,
        // Since 1.20.
        FI_AUTH_KEY = 1 << 57,
        // Flag of `fi_ep_bind`.
        FI_SELECTIVE_COMPLETION = 1 << 59,
    }
    // Flags that the library adds to its queries of providers (not in an installed header;
    // unchanged since 1.17).
    u64 {
        OFI_GETINFO_INTERNAL = 1 << 58, OFI_CORE_PROV_ONLY = 1 << 59, OFI_GETINFO_HIDDEN = 1 << 60,
        OFI_OFFLOAD_PROV_ONLY = 1 << 61,
    }
    // Address values (fabric.h).
    u64 {
        FI_ADDR_UNSPEC = u64::MAX, FI_ADDR_NOTAVAIL = u64::MAX, FI_KEY_NOTAVAIL = u64::MAX,
    }
    usize {
        FI_SHARED_CONTEXT = usize::MAX,
        // Since 1.20.
        FI_AV_AUTH_KEY = usize::MAX,
    }
    // Registration modes (fabric.h).
    c_int {
        FI_MR_LOCAL = 1 << 2, FI_MR_RAW = 1 << 3, FI_MR_VIRT_ADDR = 1 << 4,
        FI_MR_ALLOCATED = 1 << 5, FI_MR_PROV_KEY = 1 << 6, FI_MR_MMU_NOTIFY = 1 << 7,
        FI_MR_RMA_EVENT = 1 << 8, FI_MR_ENDPOINT = 1 << 9, FI_MR_HMEM = 1 << 10,
        FI_MR_COLLECTIVE = 1 << 11,
        // Deprecated since 2.0.
        FI_MR_UNSPEC = 0, FI_MR_BASIC = 1 << 0, FI_MR_SCALABLE = 1 << 1,
    }
    // Registration flags (fi_domain.h).
    u64 {
        FI_HMEM_HOST_ALLOC = 1 << 45, FI_HMEM_DEVICE_ONLY = 1 << 46,
        // Since 1.20.
        FI_MR_DMABUF = 1 << 40,
        // Since 2.0.
        FI_MR_SINGLE_USE = 1 << 41,
        // Flag of `fi_domain_bind`. Deprecated since 2.0.
        FI_REG_MR = 1 << 59,
    }
    // Orders (fabric.h).
    u64 {
        FI_ORDER_NONE = 0, FI_ORDER_RAR = 1 << 0, FI_ORDER_RAW = 1 << 1, FI_ORDER_RAS = 1 << 2,
        FI_ORDER_WAR = 1 << 3, FI_ORDER_WAW = 1 << 4, FI_ORDER_WAS = 1 << 5, FI_ORDER_SAR = 1 << 6,
        FI_ORDER_SAW = 1 << 7, FI_ORDER_SAS = 1 << 8, FI_ORDER_RMA_RAR = 1 << 32,
        FI_ORDER_RMA_RAW = 1 << 33, FI_ORDER_RMA_WAR = 1 << 34, FI_ORDER_RMA_WAW = 1 << 35,
        FI_ORDER_ATOMIC_RAR = 1 << 36, FI_ORDER_ATOMIC_RAW = 1 << 37, FI_ORDER_ATOMIC_WAR = 1 << 38,
        FI_ORDER_ATOMIC_WAW = 1 << 39,
        // Deprecated since 2.0.
        FI_ORDER_STRICT = 0x1FF, FI_ORDER_DATA = 1 << 16,
    }
    // Modes (fabric.h).
    u64 {
        FI_CONTEXT = 1 << 59, FI_MSG_PREFIX = 1 << 58, FI_ASYNC_IOV = 1 << 57,
        FI_RX_CQ_DATA = 1 << 56, FI_CONTEXT2 = 1 << 52,
        // Deprecated since 2.0.
        FI_LOCAL_MR = 1 << 55,
        // Until 1.x, 0 in the headers of 2.0 and later.
        FI_NOTIFY_FLAGS_ONLY = 1 << 54, FI_RESTRICTED_COMP = 1 << 53,
        // Until 1.x.
        FI_BUFFERED_RECV = 1 << 51,
    }
    // Address vector flags (fi_domain.h).
    u64 {
        FI_SYMMETRIC = 1 << 59, FI_SYNC_ERR = 1 << 58, FI_UNIVERSE = 1 << 57,
        FI_BARRIER_SET = 1 << 40, FI_BROADCAST_SET = 1 << 41, FI_ALLTOALL_SET = 1 << 42,
        FI_ALLREDUCE_SET = 1 << 43, FI_ALLGATHER_SET = 1 << 44, FI_REDUCE_SCATTER_SET = 1 << 45,
        FI_REDUCE_SET = 1 << 46, FI_SCATTER_SET = 1 << 47, FI_GATHER_SET = 1 << 48,
    }
    // Flags of an atomic query (fi_atomic.h).
    u64 {
        FI_FETCH_ATOMIC = 1 << 58, FI_COMPARE_ATOMIC = 1 << 59,
    }
    // Tags of an MPI (fi_tagged.h).
    u64 {
        // Since 2.0.
        FI_MPI_IGNORE_TAG = 0xFFFF_FFFF, FI_MPI_IGNORE_PAYLOAD = 0xFF << 32,
    }
}
