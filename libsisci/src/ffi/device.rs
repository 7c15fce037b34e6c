// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! SmartIO: functions for PCIe devices, which software has none of.

#![expect(unsafe_code, reason = "functions a C program calls by name")]

use std::ffi::{c_char, c_void};

use crate::ffi::entry::{Handle, guard, not_supported};

/// Defines functions that fail with `SCI_ERR_NOT_SUPPORTED`.
macro_rules! without_hardware {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty = $failed:expr;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: not supported.")]
            // SAFETY: sisci_api.h declares this name with this signature.
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $type,)* error: *mut u32) -> $result {
                guard(error, $failed, || not_supported(stringify!($name)))
            }
        )*
    };
}

/// `sci_cb_remote_segment_t`
type DeviceFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, u32, u32) -> u32>;

without_hardware! {
    SCIBorrowDevice(_sd: Handle, _device: *mut Handle, _fdid: u64, _flags: u32) -> () = ();
    SCIReturnDevice(_device: Handle, _flags: u32) -> () = ();
    SCIReleaseExclusiveBorrow(_device: Handle, _flags: u32) -> () = ();
    SCIGetDeviceList(_sd: Handle, _list: *mut u64, _length: u32, _filter: *const c_void,
        _flags: u32) -> i32 = 0;
    SCIGetFabricDeviceId(_device: Handle) -> u64 = 0;
    SCIConnectDeviceSegment(_device: Handle, _segment: *mut Handle, _id: u32, _memory: u32,
        _function: DeviceFunction, _arg: *mut c_void, _flags: u32) -> () = ();
    SCIConnectDeviceSegmentPath(_device: Handle, _segment: *mut Handle, _id: u32, _memory: u32,
        _path: *const c_char, _function: DeviceFunction, _arg: *mut c_void, _flags: u32) -> () = ();
    SCIConnectDeviceMemory(_sd: Handle, _segment: *mut Handle, _adapter: u32, _device: Handle,
        _number: u32, _function: DeviceFunction, _arg: *mut c_void, _timeout: u32,
        _flags: u32) -> () = ();
    SCICreateDeviceSegment(_device: Handle, _id: u32, _size: usize, _memory: u32, _access: u32,
        _flags: u32) -> () = ();
    SCIMapLocalSegmentForDevice(_segment: Handle, _adapter: u32, _device: Handle,
        _ioaddress: *mut u64, _offset: usize, _size: usize, _flags: u32) -> () = ();
    SCIUnmapLocalSegmentForDevice(_segment: Handle, _adapter: u32, _device: Handle,
        _flags: u32) -> () = ();
    SCIMapRemoteSegmentForDevice(_segment: Handle, _device: Handle, _ioaddress: *mut u64,
        _offset: usize, _size: usize, _flags: u32) -> () = ();
    SCIUnmapRemoteSegmentForDevice(_segment: Handle, _device: Handle, _flags: u32) -> () = ();
    SCIRegisterPCIeRequester(_sd: Handle, _adapter: u32, _bus: u32, _devfn: u32,
        _flags: u32) -> () = ();
    SCIUnregisterPCIeRequester(_sd: Handle, _adapter: u32, _bus: u32, _devfn: u32,
        _flags: u32) -> () = ();
}
