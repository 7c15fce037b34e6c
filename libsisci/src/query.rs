// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Numbers of the commands of `SCIQuery`, and the answers that need no C structure.

use crate::context::Context;
use crate::error::{Outcome, SciError, fail};

// Commands.
pub(crate) const VENDORID: u32 = 1;
pub(crate) const API: u32 = 2;
pub(crate) const ADAPTER: u32 = 3;
pub(crate) const SYSTEM: u32 = 4;
pub(crate) const LOCAL_SEGMENT: u32 = 5;
pub(crate) const REMOTE_SEGMENT: u32 = 6;
pub(crate) const MAP: u32 = 7;
pub(crate) const DMA: u32 = 8;
pub(crate) const DEVICE: u32 = 9;
pub(crate) const SISCI_DRIVER_VERSION: u32 = 10;

// Subcommands of `SCI_Q_ADAPTER`.
pub(crate) const ADAPTER_DMA_SIZE_ALIGNMENT: u32 = 1;
pub(crate) const ADAPTER_DMA_OFFSET_ALIGNMENT: u32 = 2;
pub(crate) const ADAPTER_DMA_MTU: u32 = 3;
pub(crate) const ADAPTER_SUGGESTED_MIN_DMA_SIZE: u32 = 4;
pub(crate) const ADAPTER_SUGGESTED_MIN_BLOCK_SIZE: u32 = 5;
pub(crate) const ADAPTER_NODEID: u32 = 6;
pub(crate) const ADAPTER_SERIAL_NUMBER: u32 = 7;
pub(crate) const ADAPTER_CARD_TYPE: u32 = 8;
pub(crate) const ADAPTER_CONFIGURED: u32 = 9;
pub(crate) const ADAPTER_LINK_OPERATIONAL: u32 = 10;
pub(crate) const ADAPTER_NUMBER_OF_STREAMS: u32 = 11;
pub(crate) const ADAPTER_STREAM_BUFFER_SIZE: u32 = 12;
pub(crate) const ADAPTER_HW_LINK_STATUS_IS_OK: u32 = 13;
pub(crate) const ADAPTER_NUMBER: u32 = 14;
pub(crate) const ADAPTER_INSTANCE_NUMBER: u32 = 15;
pub(crate) const ADAPTER_FIRMWARE_OK: u32 = 16;
pub(crate) const ADAPTER_CONNECTED_TO_SWITCH: u32 = 17;
pub(crate) const ADAPTER_LOCAL_SWITCH_TYPE: u32 = 18;
pub(crate) const ADAPTER_LOCAL_SWITCH_PORT_NUMBER: u32 = 19;
pub(crate) const ADAPTER_CONNECTED_TO_EXPECTED_SWITCH_PORT: u32 = 20;
pub(crate) const ADAPTER_ATT_PAGE_SIZE: u32 = 21;
pub(crate) const ADAPTER_ATT_NUMBER_OF_ENTRIES: u32 = 22;
pub(crate) const ADAPTER_ATT_AVAILABLE_ENTRIES: u32 = 23;
pub(crate) const ADAPTER_PHYS_MEM_NODEID: u32 = 24;
pub(crate) const ADAPTER_PHYS_MBX_NODEID: u32 = 25;
pub(crate) const ADAPTER_PHYS_LINK_PORT_NODEID: u32 = 26;
pub(crate) const ADAPTER_SCI_LINK_FREQUENCY: u32 = 27;
pub(crate) const ADAPTER_B_LINK_FREQUENCY: u32 = 28;
pub(crate) const ADAPTER_IO_BUS_FREQUENCY: u32 = 29;
pub(crate) const ADAPTER_NUMBER_OF_LINKS: u32 = 30;
pub(crate) const ADAPTER_LINK_WIDTH: u32 = 31;
pub(crate) const ADAPTER_LINK_SPEED: u32 = 32;
pub(crate) const ADAPTER_LINK_UPTIME: u32 = 33;
pub(crate) const ADAPTER_LINK_DOWNTIME: u32 = 34;
pub(crate) const ADAPTER_LINK_CABLE_INSERTED: u32 = 35;
pub(crate) const ADAPTER_LINK_ENABLED: u32 = 36;
pub(crate) const ADAPTER_LINK_PARTNER_PORT_NO: u32 = 37;
pub(crate) const ADAPTER_MCAST_MAX_GROUPS: u32 = 38;
pub(crate) const ADAPTER_BDF: u32 = 39;

// Subcommands of `SCI_Q_SYSTEM`.
pub(crate) const SYSTEM_HOSTBRIDGE: u32 = 1;
pub(crate) const SYSTEM_WRITE_POSTING_ENABLED: u32 = 2;
pub(crate) const SYSTEM_WRITE_COMBINING_ENABLED: u32 = 3;
pub(crate) const SYSTEM_CPU_CACHE_LINE_SIZE: u32 = 4;

// Subcommands of `SCI_Q_LOCAL_SEGMENT`.
pub(crate) const LOCAL_SEGMENT_IOADDR: u32 = 1;
pub(crate) const LOCAL_SEGMENT_VIRTUAL_KERNEL_ADDR: u32 = 2;
pub(crate) const LOCAL_SEGMENT_PHYS_ADDR: u32 = 3;

// Subcommands of `SCI_Q_REMOTE_SEGMENT`.
pub(crate) const REMOTE_SEGMENT_IOADDR: u32 = 1;

// Subcommands of `SCI_Q_MAP`.
pub(crate) const MAP_MAPPED_TO_LOCAL_TARGET: u32 = 1;
pub(crate) const MAP_IOADDR: u32 = 2;
pub(crate) const MAP_PHYS_ADDR: u32 = 3;
pub(crate) const MAP_QUERY_REMOTE_MAPPED_TO_LOCAL_TARGET: u32 = 1;

// Subcommands of `SCI_Q_DMA`.
pub(crate) const DMA_AVAILABLE: u32 = 1;
pub(crate) const DMA_CAPABILITIES: u32 = 2;

// Subcommands of `SCI_Q_DEVICE`.
pub(crate) const DEVICE_INFO: u32 = 1;

/// Alignment in bytes that a DMA transfer needs: any.
pub(crate) const DMA_ALIGN: u32 = 1;
/// Length in bytes from which a DMA transfer is faster than a copy by the caller.
const MIN_DMA_BYTES: u32 = 64 << 10;
/// Length in bytes of one cache line, the smallest block that is worth a copy function.
const CACHE_LINE: u32 = 64;
/// Length in bytes of the largest DMA transfer.
pub(crate) const DMA_MAX: u32 = u32::MAX;
/// Number of reflective memory groups: all segment ids, as far as the type of the answer goes.
const GROUPS: u32 = u32::MAX;

/// Returns the answer to a subcommand of `SCI_Q_ADAPTER`.
///
/// # Errors
/// `IllegalQuery` for a subcommand without meaning in software; those of the adapter number.
pub(crate) fn adapter(context: &Context, adapter: u32, subcommand: u32) -> Outcome<u32> {
    context.check_adapter(adapter)?;
    let node = context.settings.node.number();
    Ok(match subcommand {
        ADAPTER_NODEID => node,
        ADAPTER_SERIAL_NUMBER => node << 8 | adapter & 0xFF,
        ADAPTER_NUMBER | ADAPTER_INSTANCE_NUMBER => adapter,
        ADAPTER_CONFIGURED
        | ADAPTER_LINK_OPERATIONAL
        | ADAPTER_HW_LINK_STATUS_IS_OK
        | ADAPTER_FIRMWARE_OK
        | ADAPTER_NUMBER_OF_LINKS
        | ADAPTER_LINK_CABLE_INSERTED
        | ADAPTER_LINK_ENABLED => 1,
        ADAPTER_CARD_TYPE
        | ADAPTER_CONNECTED_TO_SWITCH
        | ADAPTER_LINK_DOWNTIME
        | ADAPTER_LINK_PARTNER_PORT_NO
        | ADAPTER_BDF => 0,
        ADAPTER_DMA_SIZE_ALIGNMENT | ADAPTER_DMA_OFFSET_ALIGNMENT => DMA_ALIGN,
        ADAPTER_DMA_MTU => DMA_MAX,
        ADAPTER_SUGGESTED_MIN_DMA_SIZE => MIN_DMA_BYTES,
        ADAPTER_SUGGESTED_MIN_BLOCK_SIZE => CACHE_LINE,
        ADAPTER_MCAST_MAX_GROUPS => GROUPS,
        _ => return fail(SciError::IllegalQuery),
    })
}

/// Returns the answer to a subcommand of `SCI_Q_SYSTEM`.
///
/// # Errors
/// `IllegalQuery`.
pub(crate) fn system(subcommand: u32) -> Outcome<u32> {
    match subcommand {
        SYSTEM_HOSTBRIDGE => Ok(0),
        SYSTEM_WRITE_POSTING_ENABLED | SYSTEM_WRITE_COMBINING_ENABLED => Ok(1),
        SYSTEM_CPU_CACHE_LINE_SIZE => Ok(CACHE_LINE),
        _ => fail(SciError::IllegalQuery),
    }
}
