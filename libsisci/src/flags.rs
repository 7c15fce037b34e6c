// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Values of flags. Each function has a set of its own, so equal values of different sets are
//! normal. Programs read them from exported objects (`ffi::constants`).

// Segments.
pub(crate) const USE_CALLBACK: u32 = 0x1;
pub(crate) const EMPTY: u32 = 0x2;
pub(crate) const PRIVATE: u32 = 0x4;
pub(crate) const DMA_SOURCE_ONLY: u32 = 0x8;
pub(crate) const FORCE_REMOVE: u32 = 0x20;
pub(crate) const DMA_GLOBAL: u32 = 0x40;
pub(crate) const ALLOW_UNICAST: u32 = 0x80;
pub(crate) const ASYNCHRONOUS_CONNECT: u32 = 0x100;
pub(crate) const LOCK_USER_MEM: u32 = 0x400;
pub(crate) const PHYSICAL: u32 = 0x1000;
pub(crate) const CUDA_BUFFER: u32 = 0x2000;
pub(crate) const SCIF_BUFFER: u32 = 0x4000;
pub(crate) const BROADCAST: u32 = 0x40000;
pub(crate) const AUTO_ID: u32 = 0x2000_0000;
pub(crate) const FORCE_DISCONNECT: u32 = 0x1;
pub(crate) const NOTIFY: u32 = 0x2;

// DMA.
pub(crate) const DMA_CHANNEL_SHARED: u32 = 0x1;
pub(crate) const DMA_POST: u32 = 0x2;
pub(crate) const DMA_WAIT: u32 = 0x4;
pub(crate) const DMA_RESET: u32 = 0x8;
pub(crate) const DMA_READ: u32 = 0x10;
pub(crate) const DMA_PHDMA: u32 = 0x20;
pub(crate) const DMA_SYSDMA: u32 = 0x100;
pub(crate) const DMA_USER_MEM: u32 = 0x200;
pub(crate) const DMA_ADAPTER: u32 = 0x800;

// Interrupts.
pub(crate) const FIXED_INTNO: u32 = 0x2;
pub(crate) const SHARED_INT: u32 = 0x4;
pub(crate) const CONDITIONAL_INTERRUPT: u32 = 0x8;
pub(crate) const COUNTING_INT: u32 = 0x20;
pub(crate) const SHARE_EXTERNAL: u32 = 0x40;

// Mappings.
pub(crate) const FIXED_MAP_ADDR: u32 = 0x1;
pub(crate) const READONLY_MAP: u32 = 0x2;
pub(crate) const LOCK_OPERATION: u32 = 0x4;
pub(crate) const CONDITIONAL_INTERRUPT_MAP: u32 = 0x8;
pub(crate) const UNCONDITIONAL_DATA_INTERRUPT_MAP: u32 = 0x10;
pub(crate) const READ_PREFETCH_AGGR_HOLD_MAP: u32 = 0x20;
pub(crate) const READ_PREFETCH_NO_HOLD_MAP: u32 = 0x40;
pub(crate) const IO_MAP_IOSPACE: u32 = 0x80;
pub(crate) const DMOVE_MAP: u32 = 0x100;
pub(crate) const WRITES_DISABLE_GATHER_MAP: u32 = 0x200;
pub(crate) const DISABLE_128_BYTES_PACKETS: u32 = 0x400;
pub(crate) const NO_MEMORY_LOOPBACK_MAP: u32 = 0x800;
pub(crate) const SHARED_MAP: u32 = 0x2000;
pub(crate) const WRITE_BACK_CACHE_MAP: u32 = 0x0800_0000;

// Sequences and copies.
pub(crate) const FAST_BARRIER: u32 = 0x1;
pub(crate) const NO_FLUSH: u32 = 0x1;
pub(crate) const NO_STORE_BARRIER: u32 = 0x2;
pub(crate) const FLUSH_CPU_BUFFERS_ONLY: u32 = 0x1;
pub(crate) const ERROR_CHECK: u32 = 0x4;
pub(crate) const BLOCK_READ: u32 = 0x2;
pub(crate) const CACHE_FLUSH: u32 = 0x10_0000;
pub(crate) const CACHE_INVALIDATE: u32 = 0x20_0000;

// Devices.
pub(crate) const PCIE_REQUESTER_GLOBAL: u32 = 0x1;
pub(crate) const EXCLUSIVE: u32 = 0x0100_0000;
pub(crate) const DEVICE_SIDE_ONLY: u32 = 0x0200_1000;
pub(crate) const LOCAL_ONLY: u32 = 0x0200_2000;
pub(crate) const DEVICE_PREFER_BANDWIDTH: u32 = 0x0400_0001;
pub(crate) const HOST_PREFER_BANDWIDTH: u32 = 0x0400_0002;
pub(crate) const SPECIFY_PATH: u32 = 0x1000_0000;
pub(crate) const SPECIFY_SLOT: u32 = 0x2000_0000;

// Descriptors.
pub(crate) const THREAD_SAFE: u32 = 0x1;
