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

const HEADER: &str = include_str!("../include/sisci_api.h");
/// Number of arguments with which functions are called by their prototype. A C function ignores
/// further ones than its own.
const ARGUMENTS: usize = 12;

/// Argument of a function of the header.
#[derive(Clone)]
pub(crate) struct Argument {
    /// Type in C; a pointer ends with ` *`.
    pub(crate) kind: String,
    pub(crate) name: String,
}

impl Argument {
    fn of(declared: &str) -> Argument {
        let words = declared.replace('*', " * ");
        let words: Vec<&str> = words.split_whitespace().collect();
        let (name, kind) = words.split_last().unwrap();
        Argument { kind: kind.join(" "), name: (*name).to_owned() }
    }
}

/// Function of the header.
pub(crate) struct Prototype {
    pub(crate) name: String,
    /// Arguments before the place for the code.
    pub(crate) arguments: Vec<Argument>,
    /// Whether its last argument is the place for the code.
    pub(crate) has_code: bool,
}

/// Returns the functions that the header declares.
pub(crate) fn prototypes() -> Vec<Prototype> {
    let declared = HEADER.split("SISCI_FUNCTION(").filter_map(|text| {
        let (name, rest) = text.split_once(")(")?;
        let (arguments, _) = rest.split_once(");")?;
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        (is_name && name != "name").then_some((name, arguments))
    });
    let prototype = |(name, arguments): (&str, &str)| {
        let mut arguments: Vec<Argument> =
            arguments.split(',').filter(|one| *one != "void").map(Argument::of).collect();
        let is_code = |last: &Argument| last.kind == "sci_error_t *" && last.name == "error";
        let has_code = arguments.last().is_some_and(is_code);
        if has_code {
            arguments.pop();
        }
        assert!(arguments.len() < ARGUMENTS, "{name} has {} arguments", arguments.len());
        Prototype { name: name.to_owned(), arguments, has_code }
    };
    declared.map(prototype).collect()
}

/// Returns the names of numbers of the header that begin so, without their beginning.
pub(crate) fn numbers(begin: &str) -> Vec<&'static str> {
    let begin = format!("extern const unsigned int _SISCI_PUBLIC_CONST_{begin}");
    let names = HEADER.lines().filter_map(|line| line.strip_prefix(&begin)?.strip_suffix(';'));
    names.collect()
}

/// Sets errno of this thread.
pub(crate) fn set_errno(value: i32) {
    // SAFETY: takes no argument.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the address of errno of this thread.
    unsafe { at.write(value) };
}

/// Returns errno of this thread.
pub(crate) fn errno() -> i32 {
    // SAFETY: takes no argument.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: the address of errno of this thread.
    unsafe { at.read() }
}

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

    /// Calls a function that orders stores.
    pub(crate) fn order(&self, name: &str, sequence: Handle, flags: u32) {
        // SAFETY: the library promises this signature, or one without the flags, under these names.
        let call: extern "C" fn(Handle, u32) = unsafe { std::mem::transmute(self.function(name)) };
        call(sequence, flags);
    }

    fn call_words(&self, function: &Prototype, words: [usize; ARGUMENTS]) {
        let at = self.function(&function.name);
        // SAFETY: all arguments of the header are integers or pointers of at most a word, in
        // registers and on the stack as these words are.
        let call: extern "C" fn(
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
            usize,
        ) = unsafe { std::mem::transmute(at) };
        let [a, b, c, d, e, f, g, h, i, j, k, l] = words;
        call(a, b, c, d, e, f, g, h, i, j, k, l);
    }

    /// Calls a function with one value for all arguments. Returns its code without the mask.
    pub(crate) fn call_with(&self, function: &Prototype, value: usize) -> u32 {
        self.call_with_words(function, &[value; ARGUMENTS][..function.arguments.len()])
    }

    /// Calls a function with its arguments. Returns its code without the mask.
    pub(crate) fn call_with_words(&self, function: &Prototype, arguments: &[usize]) -> u32 {
        assert_eq!(arguments.len(), function.arguments.len(), "{}", function.name);
        let mut error = UNWRITTEN;
        let mut words = [0; ARGUMENTS];
        words[..arguments.len()].copy_from_slice(arguments);
        words[arguments.len()] = (&raw mut error).expose_provenance();
        self.call_words(function, words);
        assert_ne!(error, UNWRITTEN, "{} wrote no code", function.name);
        error & !MASK
    }

    /// Calls a function with zeros for all arguments, the place for its code too.
    pub(crate) fn call_without_code(&self, function: &Prototype) {
        self.call_words(function, [0; ARGUMENTS]);
    }

    /// Calls a function of one number without an error argument.
    pub(crate) fn number(&self, name: &str, number: u32) -> usize {
        // SAFETY: the callers name functions with this signature, or with a shorter one.
        let call: extern "C" fn(u32) -> usize = unsafe { std::mem::transmute(self.function(name)) };
        call(number)
    }

    /// Returns the text of an adapter's type or family.
    pub(crate) fn text(&self, name: &str, number: u32) -> String {
        // SAFETY: the library promises this signature under these names.
        let call: extern "C" fn(u32) -> *const c_char =
            unsafe { std::mem::transmute(self.function(name)) };
        // SAFETY: the library returns a C string that it never changes.
        unsafe { CStr::from_ptr(call(number)) }.to_str().unwrap().to_owned()
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
