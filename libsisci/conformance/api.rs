// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Library under test, opened by name as by a program's loader. The functions are found under the
//! spelling for threads.
#![expect(unsafe_code, reason = "calls C functions found by name")]

use std::ffi::{CStr, CString, c_char, c_void};

pub(crate) type Handle = *mut c_void;
/// Result of a call: its value, or the code without the mask of SISCI codes.
pub(crate) type Answer<T> = Result<T, u32>;
/// Name and function of a case.
pub(crate) type Case = (&'static str, fn(&Api));
pub(crate) type LocalFunction =
    Option<unsafe extern "C" fn(*mut c_void, Handle, u32, u32, u32, u32) -> u32>;
pub(crate) type RemoteFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, u32, u32) -> u32>;
pub(crate) type PlainFunction = Option<unsafe extern "C" fn(*mut c_void, Handle, u32) -> u32>;
pub(crate) type DataFunction =
    Option<unsafe extern "C" fn(*mut c_void, Handle, *mut c_void, u32, u32) -> u32>;

/// Bits of all codes.
const MASK: u32 = 0x4000_0000;
/// Value of `error` before a call, which every call overwrites.
const UNWRITTEN: u32 = 0xABCD;

/// Opened library.
#[derive(Clone, Copy)]
pub(crate) struct Api(*mut c_void);

// SAFETY: the handle of a library that is never closed.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    pub(crate) fn open_library(path: &str) -> Api {
        let path = CString::new(path).unwrap();
        // SAFETY: a C string.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failure it is a C string.
            let why: *const c_char = unsafe { libc::dlerror() };
            // SAFETY: as above.
            panic!("{}", unsafe { CStr::from_ptr(why) }.to_string_lossy());
        }
        Api(handle)
    }

    /// Returns the address of a symbol, if the library has it.
    pub(crate) fn symbol(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).unwrap();
        // SAFETY: an open handle and a C string.
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    }

    fn function(&self, name: &str) -> *mut c_void {
        let name = format!("_SISCI_PUBLIC_FUNC_MT_{name}");
        self.symbol(&name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Returns a constant by its name in C.
    pub(crate) fn constant(&self, name: &str) -> u32 {
        let name = format!("_SISCI_PUBLIC_CONST_{name}");
        let at = self.symbol(&name).unwrap_or_else(|| panic!("no {name}"));
        // SAFETY: the library promises a number under this name.
        unsafe { at.cast::<u32>().read() }
    }

    /// Returns a flag by its name in C, without the prefix of flags.
    pub(crate) fn flag(&self, name: &str) -> u32 {
        self.constant(&format!("SCI_FLAG_{name}"))
    }

    /// Returns the name of a code.
    pub(crate) fn error_string(&self, code: u32) -> String {
        let at = self.function("SCIGetErrorString");
        // SAFETY: the library promises this signature under this name.
        let call: extern "C" fn(u32) -> *const c_char = unsafe { std::mem::transmute(at) };
        // SAFETY: the library returns a C string that it never changes.
        unsafe { CStr::from_ptr(call(MASK | code)) }.to_str().unwrap().to_owned()
    }

    pub(crate) fn terminate(&self) {
        // SAFETY: the library promises this signature under this name.
        let call: extern "C" fn() = unsafe { std::mem::transmute(self.function("SCITerminate")) };
        call();
    }

    /// Orders all stores.
    pub(crate) fn flush(&self) {
        // SAFETY: the library promises this signature under this name.
        let call: extern "C" fn(Handle, u32) =
            unsafe { std::mem::transmute(self.function("SCIFlush")) };
        call(std::ptr::null_mut(), 0);
    }

    /// Calls a function of one handle without an error argument.
    pub(crate) fn ask<T>(&self, name: &str, handle: Handle) -> T {
        // SAFETY: the callers name functions with this signature.
        let call: extern "C" fn(Handle) -> T = unsafe { std::mem::transmute(self.function(name)) };
        call(handle)
    }
}

macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        #[expect(non_snake_case, reason = "names of sisci_api.h")]
        impl Api {
            $(
                #[allow(clippy::too_many_arguments, reason = "signatures of sisci_api.h")]
                pub(crate) fn $name(&self, $($arg: $type),*) -> Answer<$result> {
                    type Call = unsafe extern "C" fn($($type,)* *mut u32) -> $result;
                    // SAFETY: the library promises this signature under this name.
                    let call = unsafe {
                        std::mem::transmute::<*mut c_void, Call>(self.function(stringify!($name)))
                    };
                    let mut error = UNWRITTEN;
                    // SAFETY: live pointers of the case, or wrong ones for which the library
                    // promises a code.
                    let value = unsafe { call($($arg,)* &raw mut error) };
                    assert_ne!(error, UNWRITTEN, concat!(stringify!($name), " wrote no code"));
                    if error == 0 { Ok(value) } else { Err(error ^ MASK) }
                }
            )*
        }
    };
}

functions! {
    SCIInitialize(flags: u32) -> ();
    SCIOpen(sd: *mut Handle, flags: u32) -> ();
    SCIClose(sd: Handle, flags: u32) -> ();
    SCIProbeNode(sd: Handle, adapter: u32, node: u32, flags: u32) -> i32;
    SCIGetLocalNodeId(adapter: u32, node: *mut u32, flags: u32) -> ();
    SCIGetNodeIdByAdapterName(name: *const c_char, list: *mut [u32; 8], kind: *mut u32,
        flags: u32) -> ();
    SCIQuery(command: u32, data: *mut c_void, flags: u32) -> ();
    SCICreateSegment(sd: Handle, segment: *mut Handle, id: u32, size: usize,
        callback: LocalFunction, arg: *mut c_void, flags: u32) -> ();
    SCIPrepareSegment(segment: Handle, adapter: u32, flags: u32) -> ();
    SCISetSegmentAvailable(segment: Handle, adapter: u32, flags: u32) -> ();
    SCISetSegmentUnavailable(segment: Handle, adapter: u32, flags: u32) -> ();
    SCIRemoveSegment(segment: Handle, flags: u32) -> ();
    SCIWaitForLocalSegmentEvent(segment: Handle, node: *mut u32, adapter: *mut u32, timeout: u32,
        flags: u32) -> u32;
    SCIShareSegment(segment: Handle, flags: u32) -> ();
    SCIAttachLocalSegment(sd: Handle, segment: *mut Handle, id: u32, size: *mut usize,
        callback: LocalFunction, arg: *mut c_void, flags: u32) -> ();
    SCIConnectSegment(sd: Handle, segment: *mut Handle, node: u32, id: u32, adapter: u32,
        callback: RemoteFunction, arg: *mut c_void, timeout: u32, flags: u32) -> ();
    SCIDisconnectSegment(segment: Handle, flags: u32) -> ();
    SCIWaitForRemoteSegmentEvent(segment: Handle, status: *mut u32, timeout: u32,
        flags: u32) -> u32;
    SCIMapRemoteSegment(segment: Handle, map: *mut Handle, offset: usize, size: usize,
        address: *mut c_void, flags: u32) -> *mut c_void;
    SCIMapLocalSegment(segment: Handle, map: *mut Handle, offset: usize, size: usize,
        address: *mut c_void, flags: u32) -> *mut c_void;
    SCIUnmapSegment(map: Handle, flags: u32) -> ();
    SCICreateMapSequence(map: Handle, sequence: *mut Handle, flags: u32) -> ();
    SCIRemoveSequence(sequence: Handle, flags: u32) -> ();
    SCIStartSequence(sequence: Handle, flags: u32) -> u32;
    SCICheckSequence(sequence: Handle, flags: u32) -> u32;
    SCIMemCpy(sequence: Handle, memory: *mut c_void, map: Handle, offset: usize, size: usize,
        flags: u32) -> ();
    SCIMemCopy(memory: *mut c_void, map: Handle, offset: usize, size: usize, flags: u32) -> ();
    SCIMemWrite(memory: *mut c_void, remote: *mut c_void, size: usize, flags: u32) -> ();
    SCITransferBlock(source: Handle, from: usize, target: Handle, to: usize, size: usize,
        flags: u32) -> ();
    SCICacheSync(map: Handle, address: *mut c_void, size: usize, flags: u32) -> ();
    SCICreateInterrupt(sd: Handle, interrupt: *mut Handle, adapter: u32, number: *mut u32,
        callback: PlainFunction, arg: *mut c_void, flags: u32) -> ();
    SCIRemoveInterrupt(interrupt: Handle, flags: u32) -> ();
    SCIWaitForInterrupt(interrupt: Handle, timeout: u32, flags: u32) -> ();
    SCIConnectInterrupt(sd: Handle, interrupt: *mut Handle, node: u32, adapter: u32, number: u32,
        timeout: u32, flags: u32) -> ();
    SCIDisconnectInterrupt(interrupt: Handle, flags: u32) -> ();
    SCITriggerInterrupt(interrupt: Handle, flags: u32) -> ();
    SCICreateDataInterrupt(sd: Handle, interrupt: *mut Handle, adapter: u32, number: *mut u32,
        callback: DataFunction, arg: *mut c_void, flags: u32) -> ();
    SCIRemoveDataInterrupt(interrupt: Handle, flags: u32) -> ();
    SCIWaitForDataInterrupt(interrupt: Handle, data: *mut c_void, length: *mut u32, timeout: u32,
        flags: u32) -> ();
    SCIConnectDataInterrupt(sd: Handle, interrupt: *mut Handle, node: u32, adapter: u32,
        number: u32, timeout: u32, flags: u32) -> ();
    SCIDisconnectDataInterrupt(interrupt: Handle, flags: u32) -> ();
    SCITriggerDataInterrupt(interrupt: Handle, data: *mut c_void, length: u32, flags: u32) -> ();
    SCICreateDMAQueue(sd: Handle, queue: *mut Handle, adapter: u32, entries: u32,
        flags: u32) -> ();
    SCIRemoveDMAQueue(queue: Handle, flags: u32) -> ();
    SCIStartDmaTransfer(queue: Handle, local: Handle, remote: Handle, from: usize, size: usize,
        to: usize, callback: PlainFunction, arg: *mut c_void, flags: u32) -> ();
    SCIStartDmaTransferVec(queue: Handle, local: Handle, remote: Handle, count: usize,
        vector: *const [u32; 4], callback: PlainFunction, arg: *mut c_void, flags: u32) -> ();
    SCIStartDmaTransferMem(queue: Handle, memory: *mut c_void, remote: Handle, size: usize,
        to: usize, callback: PlainFunction, arg: *mut c_void, flags: u32) -> ();
    SCIWaitForDMAQueue(queue: Handle, timeout: u32, flags: u32) -> u32;
    SCIAbortDMAQueue(queue: Handle, flags: u32) -> ();
    SCIEnqueueDMATransfer(queue: Handle, local: Handle, remote: Handle, from: usize, to: usize,
        size: usize, flags: u32) -> u32;
    SCIPostDMAQueue(queue: Handle, callback: PlainFunction, arg: *mut c_void, flags: u32) -> ();
    SCIResetDMAQueue(queue: Handle, flags: u32) -> ();
    SCIRegisterSegmentMemory(address: *mut c_void, size: usize, segment: Handle, flags: u32) -> ();
}
