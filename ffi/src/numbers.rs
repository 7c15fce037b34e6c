// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Enumerations of libfabric, as plain integers of the type in which they are used.
//!
//! Bit masks are in `flags`, error numbers in `errno`. Values in the installed headers are compared
//! with them at build time. Enumerations only grow, so an older host may not know a number.

use core::ffi::c_int;

use crate::flags::constants;
use crate::{
    fi_av_type, fi_bus_type, fi_cntr_events, fi_collective_op, fi_cq_format, fi_cq_wait_cond,
    fi_datatype, fi_ep_type, fi_hmem_iface, fi_link_state, fi_log_level, fi_log_subsys, fi_op,
    fi_param_type, fi_progress, fi_resource_mgmt, fi_threading, fi_type, fi_wait_obj,
};

/// `FI_VERSION(major, minor)`
pub const fn fi_version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// `FI_MAJOR(version)`
pub const fn fi_major(version: u32) -> u32 {
    version >> 16
}

/// `FI_MINOR(version)`
pub const fn fi_minor(version: u32) -> u32 {
    version & 0xFFFF
}

/// Maximum length of a name in old applications.
pub const FI_NAME_MAX: usize = 64;

constants! {
    // Address formats (fabric.h).
    u32 {
        FI_FORMAT_UNSPEC = 0, FI_SOCKADDR = 1, FI_SOCKADDR_IN = 2, FI_SOCKADDR_IN6 = 3,
        FI_SOCKADDR_IB = 4, FI_ADDR_PSMX = 5, FI_ADDR_GNI = 6, FI_ADDR_BGQ = 7, FI_ADDR_MLX = 8,
        FI_ADDR_STR = 9, FI_ADDR_PSMX2 = 10, FI_ADDR_IB_UD = 11, FI_ADDR_EFA = 12,
        FI_ADDR_PSMX3 = 13, FI_ADDR_OPX = 14, FI_ADDR_CXI = 15,
        // Since 1.18.
        FI_ADDR_UCX = 16,
        // Since 2.3.
        FI_SOCKADDR_IP = 17,
    }
    fi_av_type {
        FI_AV_UNSPEC = 0, FI_AV_MAP = 1, FI_AV_TABLE = 2,
    }
    fi_progress {
        FI_PROGRESS_UNSPEC = 0, FI_PROGRESS_AUTO = 1, FI_PROGRESS_MANUAL = 2,
        // Since 1.21.
        FI_PROGRESS_CONTROL_UNIFIED = 3,
    }
    fi_threading {
        FI_THREAD_UNSPEC = 0, FI_THREAD_SAFE = 1, FI_THREAD_FID = 2, FI_THREAD_DOMAIN = 3,
        FI_THREAD_COMPLETION = 4, FI_THREAD_ENDPOINT = 5,
    }
    fi_resource_mgmt {
        FI_RM_UNSPEC = 0, FI_RM_DISABLED = 1, FI_RM_ENABLED = 2,
    }
    fi_ep_type {
        FI_EP_UNSPEC = 0, FI_EP_MSG = 1, FI_EP_DGRAM = 2, FI_EP_RDM = 3,
    }
    // Protocols (fabric.h).
    u32 {
        FI_PROTO_UNSPEC = 0, FI_PROTO_RDMA_CM_IB_RC = 1, FI_PROTO_IWARP = 2, FI_PROTO_IB_UD = 3,
        FI_PROTO_PSMX = 4, FI_PROTO_UDP = 5, FI_PROTO_SOCK_TCP = 6, FI_PROTO_MXM = 7,
        FI_PROTO_IWARP_RDM = 8, FI_PROTO_IB_RDM = 9, FI_PROTO_GNI = 10, FI_PROTO_RXM = 11,
        FI_PROTO_RXD = 12, FI_PROTO_MLX = 13, FI_PROTO_NETWORKDIRECT = 14, FI_PROTO_PSMX2 = 15,
        FI_PROTO_SHM = 16, FI_PROTO_MRAIL = 17, FI_PROTO_RSTREAM = 18, FI_PROTO_RDMA_CM_IB_XRC = 19,
        FI_PROTO_EFA = 20, FI_PROTO_PSMX3 = 21, FI_PROTO_RXM_TCP = 22, FI_PROTO_OPX = 23,
        FI_PROTO_CXI = 24, FI_PROTO_XNET = 25,
        // Since 1.18.
        FI_PROTO_COLL = 26, FI_PROTO_UCX = 27,
        // Since 1.19.
        FI_PROTO_SM2 = 28,
        // Since 1.21.
        FI_PROTO_CXI_RNR = 29,
        // Since 2.0.
        FI_PROTO_LPP = 30, FI_PROTO_LNX = 31,
    }
    // Tag formats (fabric.h).
    u64 {
        // Since 2.0.
        FI_TAG_BITS = 0, FI_TAG_MPI = 1, FI_TAG_CCL = 2, FI_TAG_MAX_FORMAT = 65536,
    }
    // Traffic classes (fabric.h).
    u32 {
        FI_TC_UNSPEC = 0, FI_TC_DSCP = 256, FI_TC_LABEL = 512, FI_TC_BEST_EFFORT = 512,
        FI_TC_LOW_LATENCY = 513, FI_TC_DEDICATED_ACCESS = 514, FI_TC_BULK_DATA = 515,
        FI_TC_SCAVENGER = 516, FI_TC_NETWORK_CTRL = 517,
    }
    fi_bus_type {
        FI_BUS_UNSPEC = 0, FI_BUS_UNKNOWN = FI_BUS_UNSPEC, FI_BUS_PCI = 1,
    }
    fi_link_state {
        FI_LINK_UNKNOWN = 0, FI_LINK_DOWN = 1, FI_LINK_UP = 2,
    }
    // Classes of objects: the values of `fid::fclass` (fabric.h).
    usize {
        FI_CLASS_UNSPEC = 0, FI_CLASS_FABRIC = 1, FI_CLASS_DOMAIN = 2, FI_CLASS_EP = 3,
        FI_CLASS_SEP = 4, FI_CLASS_RX_CTX = 5, FI_CLASS_SRX_CTX = 6, FI_CLASS_TX_CTX = 7,
        FI_CLASS_STX_CTX = 8, FI_CLASS_PEP = 9, FI_CLASS_INTERFACE = 10, FI_CLASS_AV = 11,
        FI_CLASS_MR = 12, FI_CLASS_EQ = 13, FI_CLASS_CQ = 14, FI_CLASS_CNTR = 15,
        FI_CLASS_WAIT = 16, FI_CLASS_POLL = 17, FI_CLASS_CONNREQ = 18, FI_CLASS_MC = 19,
        FI_CLASS_NIC = 20, FI_CLASS_AV_SET = 21, FI_CLASS_MR_CACHE = 22, FI_CLASS_MEM_MONITOR = 23,
        FI_CLASS_PEER_CQ = 24, FI_CLASS_PEER_SRX = 25, FI_CLASS_LOG = 26, FI_CLASS_PEER_AV = 27,
        FI_CLASS_PEER_AV_SET = 28,
        // Since 1.19.
        FI_CLASS_PEER_CNTR = 29,
        // Since 1.20.
        FI_CLASS_PROFILE = 30,
    }
    // Commands of `fi_control` (fabric.h).
    c_int {
        FI_GETFIDFLAG = 0, FI_SETFIDFLAG = 1, FI_GETOPSFLAG = 2, FI_SETOPSFLAG = 3, FI_ALIAS = 4,
        FI_GETWAIT = 5, FI_ENABLE = 6, FI_BACKLOG = 7, FI_GET_RAW_MR = 8, FI_MAP_RAW_MR = 9,
        FI_UNMAP_KEY = 10, FI_QUEUE_WORK = 11, FI_CANCEL_WORK = 12, FI_FLUSH_WORK = 13,
        FI_REFRESH = 14, FI_DUP = 15, FI_GETWAITOBJ = 16, FI_GET_VAL = 17, FI_SET_VAL = 18,
        FI_EXPORT_FID = 19,
        // Since 2.2.
        FI_GET_FD = 20,
    }
    // enum fi_type: the kinds that `fi_tostr` prints
    fi_type {
        FI_TYPE_INFO = 0, FI_TYPE_EP_TYPE = 1, FI_TYPE_CAPS = 2, FI_TYPE_OP_FLAGS = 3,
        FI_TYPE_ADDR_FORMAT = 4, FI_TYPE_TX_ATTR = 5, FI_TYPE_RX_ATTR = 6, FI_TYPE_EP_ATTR = 7,
        FI_TYPE_DOMAIN_ATTR = 8, FI_TYPE_FABRIC_ATTR = 9, FI_TYPE_THREADING = 10,
        FI_TYPE_PROGRESS = 11, FI_TYPE_PROTOCOL = 12, FI_TYPE_MSG_ORDER = 13, FI_TYPE_MODE = 14,
        FI_TYPE_AV_TYPE = 15, FI_TYPE_ATOMIC_TYPE = 16, FI_TYPE_ATOMIC_OP = 17,
        FI_TYPE_VERSION = 18, FI_TYPE_EQ_EVENT = 19, FI_TYPE_CQ_EVENT_FLAGS = 20,
        FI_TYPE_MR_MODE = 21, FI_TYPE_OP_TYPE = 22, FI_TYPE_FID = 23, FI_TYPE_COLLECTIVE_OP = 24,
        FI_TYPE_HMEM_IFACE = 25, FI_TYPE_CQ_FORMAT = 26, FI_TYPE_LOG_LEVEL = 27,
        FI_TYPE_LOG_SUBSYS = 28,
        // Since 1.19.
        FI_TYPE_AV_ATTR = 29, FI_TYPE_CQ_ATTR = 30, FI_TYPE_MR_ATTR = 31, FI_TYPE_CNTR_ATTR = 32,
        // Since 1.20.
        FI_TYPE_CQ_ERR_ENTRY = 33,
        // Since 2.5.
        FI_TYPE_CQ_WAIT_COND = 34, FI_TYPE_WAIT_OBJ = 35,
    }
    fi_param_type {
        FI_PARAM_STRING = 0, FI_PARAM_INT = 1, FI_PARAM_BOOL = 2, FI_PARAM_SIZE_T = 3,
    }
    // Level of an endpoint option (fi_endpoint.h).
    c_int {
        FI_OPT_ENDPOINT = 0,
    }
    // Endpoint options (fi_endpoint.h).
    c_int {
        FI_OPT_MIN_MULTI_RECV = 0, FI_OPT_CM_DATA_SIZE = 1, FI_OPT_BUFFERED_MIN = 2,
        FI_OPT_BUFFERED_LIMIT = 3, FI_OPT_SEND_BUF_SIZE = 4, FI_OPT_RECV_BUF_SIZE = 5,
        FI_OPT_TX_SIZE = 6, FI_OPT_RX_SIZE = 7, FI_OPT_FI_HMEM_P2P = 8, FI_OPT_XPU_TRIGGER = 9,
        // Since 1.18.
        FI_OPT_CUDA_API_PERMITTED = 10,
        // Since 1.21.
        FI_OPT_SHARED_MEMORY_PERMITTED = 11,
        // Since 1.22.
        FI_OPT_MAX_MSG_SIZE = 12, FI_OPT_MAX_TAGGED_SIZE = 13, FI_OPT_MAX_RMA_SIZE = 14,
        FI_OPT_MAX_ATOMIC_SIZE = 15, FI_OPT_INJECT_MSG_SIZE = 16, FI_OPT_INJECT_TAGGED_SIZE = 17,
        FI_OPT_INJECT_RMA_SIZE = 18, FI_OPT_INJECT_ATOMIC_SIZE = 19,
        // Since 2.2.
        FI_OPT_FIREWALL_ADDR = 20,
    }
    // Values of `FI_OPT_FI_HMEM_P2P` (fi_endpoint.h).
    c_int {
        FI_HMEM_P2P_ENABLED = 0, FI_HMEM_P2P_REQUIRED = 1, FI_HMEM_P2P_PREFERRED = 2,
        FI_HMEM_P2P_DISABLED = 3,
    }
    fi_wait_obj {
        FI_WAIT_NONE = 0, FI_WAIT_UNSPEC = 1, FI_WAIT_SET = 2, FI_WAIT_FD = 3,
        FI_WAIT_MUTEX_COND = 4, FI_WAIT_YIELD = 5, FI_WAIT_POLLFD = 6,
    }
    // Events of an event queue (fi_eq.h).
    u32 {
        FI_NOTIFY = 0, FI_CONNREQ = 1, FI_CONNECTED = 2, FI_SHUTDOWN = 3, FI_MR_COMPLETE = 4,
        FI_AV_COMPLETE = 5, FI_JOIN_COMPLETE = 6,
    }
    fi_cq_format {
        FI_CQ_FORMAT_UNSPEC = 0, FI_CQ_FORMAT_CONTEXT = 1, FI_CQ_FORMAT_MSG = 2,
        FI_CQ_FORMAT_DATA = 3, FI_CQ_FORMAT_TAGGED = 4,
    }
    fi_cq_wait_cond {
        FI_CQ_COND_NONE = 0, FI_CQ_COND_THRESHOLD = 1,
    }
    fi_cntr_events {
        FI_CNTR_EVENTS_COMP = 0,
        // Since 1.21.
        FI_CNTR_EVENTS_BYTES = 1,
    }
    fi_hmem_iface {
        FI_HMEM_SYSTEM = 0, FI_HMEM_CUDA = 1, FI_HMEM_ROCR = 2, FI_HMEM_ZE = 3, FI_HMEM_NEURON = 4,
        FI_HMEM_SYNAPSEAI = 5,
    }
    fi_datatype {
        FI_INT8 = 0, FI_UINT8 = 1, FI_INT16 = 2, FI_UINT16 = 3, FI_INT32 = 4, FI_UINT32 = 5,
        FI_INT64 = 6, FI_UINT64 = 7, FI_FLOAT = 8, FI_DOUBLE = 9, FI_FLOAT_COMPLEX = 10,
        FI_DOUBLE_COMPLEX = 11, FI_LONG_DOUBLE = 12, FI_LONG_DOUBLE_COMPLEX = 13, FI_INT128 = 14,
        FI_UINT128 = 15, FI_VOID = 256,
        // Since 2.0.
        FI_FLOAT16 = 16, FI_BFLOAT16 = 17, FI_FLOAT8_E4M3 = 18, FI_FLOAT8_E5M2 = 19,
    }
    fi_op {
        FI_MIN = 0, FI_MAX = 1, FI_SUM = 2, FI_PROD = 3, FI_LOR = 4, FI_LAND = 5, FI_BOR = 6,
        FI_BAND = 7, FI_LXOR = 8, FI_BXOR = 9, FI_ATOMIC_READ = 10, FI_ATOMIC_WRITE = 11,
        FI_CSWAP = 12, FI_CSWAP_NE = 13, FI_CSWAP_LE = 14, FI_CSWAP_LT = 15, FI_CSWAP_GE = 16,
        FI_CSWAP_GT = 17, FI_MSWAP = 18, FI_NOOP = 256,
        // Since 2.0.
        FI_DIFF = 19,
    }
    fi_collective_op {
        FI_BARRIER = 0, FI_BROADCAST = 1, FI_ALLTOALL = 2, FI_ALLREDUCE = 3, FI_ALLGATHER = 4,
        FI_REDUCE_SCATTER = 5, FI_REDUCE = 6, FI_SCATTER = 7, FI_GATHER = 8,
    }
    fi_log_subsys {
        FI_LOG_CORE = 0, FI_LOG_FABRIC = 1, FI_LOG_DOMAIN = 2, FI_LOG_EP_CTRL = 3,
        FI_LOG_EP_DATA = 4, FI_LOG_AV = 5, FI_LOG_CQ = 6, FI_LOG_EQ = 7, FI_LOG_MR = 8,
        FI_LOG_CNTR = 9,
    }
    fi_log_level {
        FI_LOG_WARN = 0, FI_LOG_TRACE = 1, FI_LOG_INFO = 2, FI_LOG_DEBUG = 3,
    }
}
