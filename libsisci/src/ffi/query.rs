// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! `SCIQuery`, whose argument has a structure of its own for each command.

#![expect(unsafe_code, reason = "structures of a C program")]

use std::ffi::{c_char, c_void};

use crate::dma::VECTOR_MAX;
use crate::error::{Outcome, SciError, fail};
use crate::ffi::entry::{Handle, check_flags, get, guard, memory, object, put};
use crate::flags;
use crate::local_segment::LocalSegment;
use crate::map::{Map, Mapped};
use crate::objects;
use crate::query;
use crate::remote_segment::RemoteSegment;

/// Version of the interface, for `SCI_Q_API`.
const API: &[u8] = b"SISCI_API 2\0";

/// `sci_query_string_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct QueryString {
    text: *mut c_char,
    length: u32,
}

/// `sci_query_adapter_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct QueryAdapter {
    adapter: u32,
    _port: u32,
    subcommand: u32,
    data: *mut u32,
}

/// `sci_query_system_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct QuerySystem {
    subcommand: u32,
    data: *mut u32,
}

/// `sci_query_dma_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct QueryDma {
    adapter: u32,
    subcommand: u32,
    data: *mut c_void,
}

/// `sci_query_local_segment_t`, `sci_query_remote_segment_t` and `sci_query_map_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct QueryObject {
    object: Handle,
    subcommand: u32,
    data: u64,
}

/// `sci_dma_capabilities_t`
#[repr(C)]
struct DmaCapabilities {
    channels: u32,
    max_transfer: u32,
    max_vector: u32,
    mem_to_io: u32,
    io_to_mem: u32,
    io_to_io: u32,
    min_align: u32,
    suggested_align: u32,
}

/// Writes a text, cut to the space of the program.
///
/// # Safety
/// `data` is NULL or a `sci_query_string_t`.
unsafe fn string(data: *mut c_void, text: &[u8]) -> Outcome<()> {
    // SAFETY: the caller's contract.
    let asked = unsafe { get(data.cast::<QueryString>()) }?;
    let room = asked.length as usize;
    if room == 0 {
        return fail(SciError::IllegalParameter);
    }
    // SAFETY: by the caller's contract `length` bytes.
    let space = unsafe { memory(asked.text.cast(), room) }?;
    let mut cut = text.get(..text.len().min(room)).unwrap_or_default().to_vec();
    if let Some(last) = cut.last_mut() {
        *last = 0;
    }
    space.copy_from_slice(&cut);
    Ok(())
}

/// Answers a query about an object.
///
/// # Safety
/// `data` is NULL or a [`QueryObject`].
unsafe fn of_object(
    data: *mut c_void,
    answer: impl FnOnce(&QueryObject) -> Outcome<u64>,
) -> Outcome<()> {
    let at = data.cast::<QueryObject>();
    // SAFETY: the caller's contract.
    let mut asked = unsafe { get(at) }?;
    asked.data = answer(&asked)?;
    // SAFETY: as above.
    unsafe { put(at, asked) }
}

/// Answers `SCI_Q_DMA`.
///
/// # Safety
/// `data` is NULL or a `sci_query_dma_t`.
unsafe fn dma(data: *mut c_void) -> Outcome<()> {
    // SAFETY: the caller's contract.
    let asked = unsafe { get(data.cast::<QueryDma>()) }?;
    objects::context()?.check_adapter(asked.adapter)?;
    match asked.subcommand {
        // SAFETY: by the caller's contract space for the answer.
        query::DMA_AVAILABLE => unsafe { put(asked.data.cast(), 1u32) },
        query::DMA_CAPABILITIES => {
            let capabilities = DmaCapabilities {
                channels: 1,
                max_transfer: query::DMA_MAX,
                max_vector: VECTOR_MAX,
                mem_to_io: 1,
                io_to_mem: 1,
                io_to_io: 0,
                min_align: query::DMA_ALIGN,
                suggested_align: 64,
            };
            // SAFETY: by the caller's contract space for the answer.
            unsafe { put(asked.data.cast(), capabilities) }
        }
        _ => fail(SciError::IllegalQuery),
    }
}

/// Returns an io address: software has none, but a program may print it.
fn io_address<T>(found: Outcome<T>, asked: &QueryObject) -> Outcome<u64> {
    found?;
    match asked.subcommand {
        query::LOCAL_SEGMENT_IOADDR => Ok(0),
        _ => fail(SciError::IllegalQuery),
    }
}

fn of_map(asked: &QueryObject) -> Outcome<u64> {
    let map = object::<Map>(asked.object)?;
    let context = objects::context()?;
    match asked.subcommand {
        query::MAP_MAPPED_TO_LOCAL_TARGET => Ok(u64::from(match &map.target {
            Mapped::Local(_) => true,
            Mapped::Remote(segment) => segment.target.node == context.settings.node.number(),
        })),
        query::MAP_IOADDR => Ok(0),
        _ => fail(SciError::IllegalQuery),
    }
}

/// `void SCIQuery(unsigned command, void *data, unsigned flags, sci_error_t *error)`
// SAFETY: sisci_api.h declares this name with this signature.
#[unsafe(no_mangle)]
unsafe extern "C" fn SCIQuery(command: u32, data: *mut c_void, flags: u32, error: *mut u32) {
    guard(error, (), || {
        let context = objects::context()?;
        let modes = flags::DMA_ADAPTER | flags::DMA_GLOBAL | flags::DMA_SYSDMA;
        check_flags(flags, if command == query::DMA { modes } else { 0 })?;
        match command {
            // SAFETY: by the caller's contract the structure of the command.
            query::VENDORID => unsafe { string(data, b"scif\0") },
            // SAFETY: as above.
            query::API => unsafe { string(data, API) },
            query::SISCI_DRIVER_VERSION => {
                let version = concat!("scif ", env!("CARGO_PKG_VERSION"), "\0");
                // SAFETY: as above.
                unsafe { string(data, version.as_bytes()) }
            }
            query::ADAPTER => {
                // SAFETY: as above.
                let asked = unsafe { get(data.cast::<QueryAdapter>()) }?;
                let answer = query::adapter(&context, asked.adapter, asked.subcommand)?;
                // SAFETY: by the caller's contract space for a number.
                unsafe { put(asked.data, answer) }
            }
            query::SYSTEM => {
                // SAFETY: as above.
                let asked = unsafe { get(data.cast::<QuerySystem>()) }?;
                let answer = query::system(asked.subcommand)?;
                // SAFETY: by the caller's contract space for a number.
                unsafe { put(asked.data, answer) }
            }
            // SAFETY: as above.
            query::LOCAL_SEGMENT => unsafe {
                of_object(data, |asked| io_address(object::<LocalSegment>(asked.object), asked))
            },
            // SAFETY: as above.
            query::REMOTE_SEGMENT => unsafe {
                of_object(data, |asked| io_address(object::<RemoteSegment>(asked.object), asked))
            },
            // SAFETY: as above.
            query::MAP => unsafe { of_object(data, of_map) },
            // SAFETY: as above.
            query::DMA => unsafe { dma(data) },
            query::DEVICE => fail(SciError::NotSupported),
            _ => fail(SciError::IllegalQuery),
        }
    });
}
