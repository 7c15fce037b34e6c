// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Names of libfabric's flags and enumerations.
//!
//! The table for each type is in `mod`.

use libfabric_sys as fi;

/// Names with their numbers.
pub(super) type NameTable = &'static [(u64, &'static str)];

/// Defines a table of constants with their names.
macro_rules! table {
    ($($name:ident)*) => {
        &[$((widen(fi::$name as i128), stringify!($name)),)*]
    };
}

/// Converts a constant. Constants have several types in C; none is negative.
const fn widen(value: i128) -> u64 {
    assert!(value >= 0 && value <= u64::MAX as i128);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "asserted above")]
    {
        value as u64
    }
}

/// Returns the known flags that are set, as in `[ A, B ]` without the brackets.
pub(super) fn flags(table: NameTable, value: u64) -> String {
    let set = table.iter().filter(|(flag, _)| *flag != 0 && value & flag == *flag);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(", ")
}

pub(super) fn one(table: NameTable, value: u64) -> &'static str {
    let known = table.iter().find(|(number, _)| *number == value);
    known.map_or("Unknown", |(_, name)| *name)
}

pub(super) const CAPS: NameTable = table! {
    FI_MSG FI_RMA FI_TAGGED FI_ATOMIC FI_MULTICAST FI_COLLECTIVE FI_READ FI_WRITE FI_RECV FI_SEND
    FI_REMOTE_READ FI_REMOTE_WRITE FI_MULTI_RECV FI_REMOTE_CQ_DATA FI_TRIGGER FI_FENCE FI_RMA_PMEM
    FI_SOURCE_ERR FI_LOCAL_COMM FI_REMOTE_COMM FI_SHARED_AV FI_RMA_EVENT FI_SOURCE FI_NAMED_RX_CTX
    FI_DIRECTED_RECV FI_AV_USER_ID FI_PEER FI_HMEM
};
pub(super) const OP_FLAGS: NameTable = table! {
    FI_MULTICAST FI_MULTI_RECV FI_REMOTE_CQ_DATA FI_MORE FI_PEEK FI_TRIGGER FI_FENCE FI_COMPLETION
    FI_INJECT FI_INJECT_COMPLETE FI_TRANSMIT_COMPLETE FI_DELIVERY_COMPLETE FI_MATCH_COMPLETE
    FI_AFFINITY FI_CLAIM FI_DISCARD
};
pub(super) const MSG_ORDER: NameTable = table! {
    FI_ORDER_RAR FI_ORDER_RAW FI_ORDER_RAS FI_ORDER_WAR FI_ORDER_WAW FI_ORDER_WAS FI_ORDER_SAR
    FI_ORDER_SAW FI_ORDER_SAS FI_ORDER_RMA_RAR FI_ORDER_RMA_RAW FI_ORDER_RMA_WAR FI_ORDER_RMA_WAW
    FI_ORDER_ATOMIC_RAR FI_ORDER_ATOMIC_RAW FI_ORDER_ATOMIC_WAR FI_ORDER_ATOMIC_WAW
};
pub(super) const MODE: NameTable = table! {
    FI_CONTEXT FI_MSG_PREFIX FI_ASYNC_IOV FI_RX_CQ_DATA FI_LOCAL_MR FI_CONTEXT2
};
pub(super) const MR_MODE: NameTable = table! {
    FI_MR_BASIC FI_MR_SCALABLE FI_MR_LOCAL FI_MR_RAW FI_MR_VIRT_ADDR FI_MR_ALLOCATED FI_MR_PROV_KEY
    FI_MR_MMU_NOTIFY FI_MR_RMA_EVENT FI_MR_ENDPOINT FI_MR_HMEM FI_MR_COLLECTIVE
};
pub(super) const CQ_EVENT: NameTable = table! {
    FI_SEND FI_RECV FI_RMA FI_ATOMIC FI_MSG FI_TAGGED FI_READ FI_WRITE FI_REMOTE_READ
    FI_REMOTE_WRITE FI_REMOTE_CQ_DATA FI_MULTI_RECV FI_MORE FI_CLAIM
};
pub(super) const AV_FLAGS: NameTable = table! {
    FI_EVENT FI_READ FI_SYMMETRIC
};
pub(super) const CQ_FLAGS: NameTable = table! {
    FI_AFFINITY
};
pub(super) const ACCESS: NameTable = table! {
    FI_RECV FI_SEND FI_READ FI_WRITE FI_REMOTE_READ FI_REMOTE_WRITE FI_COLLECTIVE
};
pub(super) const ADDR_FORMAT: NameTable = table! {
    FI_FORMAT_UNSPEC FI_SOCKADDR FI_SOCKADDR_IP FI_SOCKADDR_IN FI_SOCKADDR_IN6 FI_SOCKADDR_IB
    FI_ADDR_PSMX2 FI_ADDR_MLX FI_ADDR_UCX FI_ADDR_STR FI_ADDR_IB_UD FI_ADDR_EFA FI_ADDR_PSMX3
    FI_ADDR_OPX FI_ADDR_CXI
};
pub(super) const PROGRESS: NameTable = table! {
    FI_PROGRESS_UNSPEC FI_PROGRESS_AUTO FI_PROGRESS_MANUAL FI_PROGRESS_CONTROL_UNIFIED
};
pub(super) const THREADING: NameTable = table! {
    FI_THREAD_UNSPEC FI_THREAD_SAFE FI_THREAD_FID FI_THREAD_DOMAIN FI_THREAD_COMPLETION
    FI_THREAD_ENDPOINT
};
pub(super) const EP_TYPE: NameTable = table! {
    FI_EP_UNSPEC FI_EP_MSG FI_EP_DGRAM FI_EP_RDM
};
pub(super) const PROTOCOL: NameTable = table! {
    FI_PROTO_UNSPEC FI_PROTO_RDMA_CM_IB_RC FI_PROTO_IWARP FI_PROTO_IB_UD FI_PROTO_PSMX2 FI_PROTO_UDP
    FI_PROTO_SOCK_TCP FI_PROTO_IB_RDM FI_PROTO_IWARP_RDM FI_PROTO_RXM FI_PROTO_RXD FI_PROTO_MLX
    FI_PROTO_UCX FI_PROTO_NETWORKDIRECT FI_PROTO_SHM FI_PROTO_RDMA_CM_IB_XRC FI_PROTO_EFA
    FI_PROTO_PSMX3 FI_PROTO_RXM_TCP FI_PROTO_OPX FI_PROTO_CXI FI_PROTO_XNET FI_PROTO_SM2
    FI_PROTO_CXI_RNR FI_PROTO_LPP FI_PROTO_LNX
};
pub(super) const RESOURCE_MGMT: NameTable = table! {
    FI_RM_UNSPEC FI_RM_DISABLED FI_RM_ENABLED
};
pub(super) const AV_TYPE: NameTable = table! {
    FI_AV_UNSPEC FI_AV_MAP FI_AV_TABLE
};
pub(super) const DATATYPE: NameTable = table! {
    FI_INT8 FI_UINT8 FI_INT16 FI_UINT16 FI_INT32 FI_UINT32 FI_INT64 FI_UINT64 FI_INT128 FI_UINT128
    FI_FLOAT FI_DOUBLE FI_FLOAT_COMPLEX FI_DOUBLE_COMPLEX FI_LONG_DOUBLE FI_LONG_DOUBLE_COMPLEX
};
pub(super) const ATOMIC_OP: NameTable = table! {
    FI_MIN FI_MAX FI_SUM FI_PROD FI_LOR FI_LAND FI_BOR FI_BAND FI_LXOR FI_BXOR FI_ATOMIC_READ
    FI_ATOMIC_WRITE FI_CSWAP FI_CSWAP_NE FI_CSWAP_LE FI_CSWAP_LT FI_CSWAP_GE FI_CSWAP_GT FI_MSWAP
    FI_DIFF
};
/// `enum fi_op_type` of `rdma/fi_trigger.h`.
pub(super) const OP_TYPE: NameTable = &[
    (0, "FI_OP_RECV"),
    (1, "FI_OP_SEND"),
    (2, "FI_OP_TRECV"),
    (3, "FI_OP_TSEND"),
    (4, "FI_OP_READ"),
    (5, "FI_OP_WRITE"),
    (6, "FI_OP_ATOMIC"),
    (7, "FI_OP_FETCH_ATOMIC"),
    (8, "FI_OP_COMPARE_ATOMIC"),
    (9, "FI_OP_CNTR_SET"),
    (10, "FI_OP_CNTR_ADD"),
];
/// `enum fi_bus_type`
pub(super) const BUS_TYPE: NameTable = table! {
    FI_BUS_UNKNOWN FI_BUS_PCI
};
/// `enum fi_link_state`
pub(super) const LINK_STATE: NameTable = table! {
    FI_LINK_UNKNOWN FI_LINK_DOWN FI_LINK_UP
};
pub(super) const COLLECTIVE_OP: NameTable = table! {
    FI_BARRIER FI_BROADCAST FI_ALLTOALL FI_ALLREDUCE FI_ALLGATHER FI_REDUCE_SCATTER FI_REDUCE
    FI_SCATTER FI_GATHER
};
pub(super) const EQ_EVENT: NameTable = table! {
    FI_NOTIFY FI_CONNREQ FI_CONNECTED FI_SHUTDOWN FI_MR_COMPLETE FI_AV_COMPLETE FI_JOIN_COMPLETE
};
pub(super) const HMEM_IFACE: NameTable = table! {
    FI_HMEM_SYSTEM FI_HMEM_CUDA FI_HMEM_ROCR FI_HMEM_ZE FI_HMEM_NEURON FI_HMEM_SYNAPSEAI
};
pub(super) const CQ_FORMAT: NameTable = table! {
    FI_CQ_FORMAT_UNSPEC FI_CQ_FORMAT_CONTEXT FI_CQ_FORMAT_MSG FI_CQ_FORMAT_DATA FI_CQ_FORMAT_TAGGED
};
pub(super) const WAIT_OBJ: NameTable = table! {
    FI_WAIT_NONE FI_WAIT_UNSPEC FI_WAIT_SET FI_WAIT_FD FI_WAIT_MUTEX_COND FI_WAIT_YIELD
    FI_WAIT_POLLFD
};
pub(super) const CQ_COND: NameTable = table! {
    FI_CQ_COND_NONE FI_CQ_COND_THRESHOLD
};
pub(super) const CNTR_EVENTS: NameTable = table! {
    FI_CNTR_EVENTS_COMP FI_CNTR_EVENTS_BYTES
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_names() {
        assert_eq!(one(EP_TYPE, fi::FI_EP_RDM.into()), "FI_EP_RDM");
        assert_eq!(one(EP_TYPE, 77), "Unknown");
        assert_eq!(flags(CAPS, fi::FI_MSG | fi::FI_TAGGED | 1 << 63), "FI_MSG, FI_TAGGED");
        assert_eq!(flags(CAPS, 0), "");
    }
}
