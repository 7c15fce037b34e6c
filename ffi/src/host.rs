// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Host: the libfabric that loaded this provider, with the functions that a provider calls.
//!
//! No library is linked, since a process may hold several copies of libfabric under any name. The
//! right one is the one that called. Each function is optional; its user provides the fallback (no
//! log, parameters from the environment).
//!
//! The prototypes are from `rdma/fabric.h`, `rdma/providers/fi_log.h` and
//! `rdma/providers/fi_prov.h`.
#![expect(unsafe_code, reason = "calls functions found by name")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem::transmute;
use core::ptr::NonNull;
use std::ffi::CString;

use crate::dl::{self, Object};
use crate::{
    FI_EALREADY, FI_EINVAL, FI_ENOENT, FI_ENOSYS, FI_PARAM_BOOL, FI_PARAM_INT, FI_PARAM_SIZE_T,
    Provider, fabric_fn, fi_info, fi_log_level, fi_log_subsys, fi_param_type, fi_provider,
    getinfo_fn,
};

type VersionFn = unsafe extern "C" fn() -> u32;
type LogEnabledFn = unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys) -> c_int;
type LogReadyFn =
    unsafe extern "C" fn(*const fi_provider, fi_log_level, fi_log_subsys, *mut u64) -> c_int;
type FreeInfoFn = unsafe extern "C" fn(*mut fi_info);
type DupInfoFn = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type ParamGetFn = unsafe extern "C" fn(*mut fi_provider, *const c_char, *mut c_void) -> c_int;
/// Function with variable arguments: only C calls it.
type AnyFn = unsafe extern "C" fn();

unsafe extern "C" {
    fn scif_ffi_log(
        log: AnyFn,
        prov: *const fi_provider,
        level: c_uint,
        subsys: c_uint,
        func: *const c_char,
        line: c_int,
        msg: *const c_char,
    );
    fn scif_ffi_param_define(
        define: AnyFn,
        prov: *const fi_provider,
        name: *const c_char,
        kind: c_uint,
        help: *const c_char,
    ) -> c_int;
}

/// Functions of the libfabric that loaded this provider.
///
/// `Host` doesn't keep that library loaded. libfabric cleans up its providers when it is unloaded,
/// so a provider that held it would change the time at which that happens. The constructors that
/// find a library are `unsafe` for that reason.
#[derive(Clone, Debug, Default)]
pub struct Host {
    object: Option<Object>,
    version: Option<VersionFn>,
    log: Option<AnyFn>,
    log_enabled: Option<LogEnabledFn>,
    log_ready: Option<LogReadyFn>,
    param_define: Option<AnyFn>,
    param_get: Option<ParamGetFn>,
    linked: Option<Linked>,
}

/// Functions of a library into which this code is linked, so that no search is needed.
#[derive(Clone, Copy, Debug)]
pub struct Linked {
    pub version: u32,
    pub log_enabled:
        fn(prov: &'static Provider, level: fi_log_level, subsys: fi_log_subsys) -> bool,
    pub log: fn(
        prov: &'static Provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
        place: (&CStr, u32),
        msg: &CStr,
    ),
    /// Defines a parameter. Errors are positive numbers, as for [`Host::param_define`].
    pub param_define: fn(
        prov: &'static Provider,
        name: &CStr,
        kind: fi_param_type,
        help: &CStr,
    ) -> Result<(), c_int>,
    /// Returns the value of a parameter, like [`Host::param_get`].
    pub param_get: fn(prov: &'static Provider, name: &CStr) -> Result<ParamValue, c_int>,
}

/// Functions of a host by which a provider opens objects of another one.
#[derive(Clone, Copy, Debug)]
pub struct Openers {
    /// `int fi_getinfo(version, node, service, flags, hints, info)`
    pub getinfo: getinfo_fn,
    /// `void fi_freeinfo(info)`
    pub freeinfo: FreeInfoFn,
    /// `struct fi_info *fi_dupinfo(info)`; null creates an empty one.
    pub dupinfo: DupInfoFn,
    /// `int fi_fabric(attr, fabric, context)`
    pub fabric: fabric_fn,
}

/// Value of a parameter, by the type with which it was defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParamValue {
    String(CString),
    Int(c_int),
    Bool(bool),
    Size(usize),
}

impl Host {
    /// Oldest supported version of libfabric, which is assumed for an unknown host.
    pub const OLDEST: u32 = crate::fi_version(1, 17);

    /// Absent host: no version, no log, no parameters.
    pub const NONE: Self = Self {
        object: None,
        version: None,
        log: None,
        log_enabled: None,
        log_ready: None,
        param_define: None,
        param_get: None,
        linked: None,
    };

    /// Returns the library into which this code is linked.
    #[must_use]
    pub const fn linked(functions: Linked) -> Self {
        Self { linked: Some(functions), ..Self::NONE }
    }

    /// Returns the library that called: the one on the stack, else the first one mapped, else
    /// [`Host::NONE`].
    ///
    /// # Safety
    /// Neither the result nor a copy is used after the library was unloaded: for a provider, after
    /// its `cleanup` returned.
    pub unsafe fn find() -> Self {
        // SAFETY: the caller's contract.
        let caller = unsafe { Self::from_stack() };
        // SAFETY: the caller's contract.
        caller.or_else(|| unsafe { Self::from_mapped() }).unwrap_or(Self::NONE)
    }

    /// Returns the library whose code contains `addr`, if it is a libfabric.
    ///
    /// # Safety
    /// The contract of [`Host::find`].
    pub unsafe fn from_return_address(addr: *const c_void) -> Option<Self> {
        Self::in_object(Object::containing(addr)?)
    }

    /// Returns the innermost libfabric on this thread's stack that isn't the object of this code.
    ///
    /// # Safety
    /// The contract of [`Host::find`].
    pub unsafe fn from_stack() -> Option<Self> {
        Self::first(dl::frames().into_iter().filter_map(Object::containing))
    }

    /// Returns the first mapped libfabric that isn't the object of this code.
    ///
    /// # Safety
    /// The contract of [`Host::find`].
    pub unsafe fn from_mapped() -> Option<Self> {
        Self::first(Object::all().into_iter())
    }

    fn first(objects: impl Iterator<Item = Object>) -> Option<Self> {
        let own = Object::own();
        let mut tried: Option<Object> = None;
        for object in objects {
            if own.as_ref() == Some(&object) || tried.as_ref() == Some(&object) {
                continue;
            }
            let host = Self::in_object(object.clone());
            if host.is_some() {
                return host;
            }
            tried = Some(object);
        }
        None
    }

    /// Finds the functions of `object`, which must define `fi_getinfo` and `fi_version`.
    fn in_object(object: Object) -> Option<Self> {
        let handle = object.handle()?;
        let find = |name: &CStr| handle.own_symbol(&object, name);
        find(c"fi_getinfo")?;
        let version = find(c"fi_version")?;
        // SAFETY: the address is that of `uint32_t fi_version(void)`.
        let version = unsafe { transmute::<NonNull<c_void>, VersionFn>(version) };
        // SAFETY: the address is that of a function; it is only called by C through its real type.
        let log = find(c"fi_log").map(|f| unsafe { transmute::<NonNull<c_void>, AnyFn>(f) });
        let log_enabled = find(c"fi_log_enabled");
        // SAFETY: the type is that of `fi_log_enabled`, whose enumerations are passed as `unsigned
        // int`.
        let log_enabled =
            log_enabled.map(|f| unsafe { transmute::<NonNull<c_void>, LogEnabledFn>(f) });
        let log_ready = find(c"fi_log_ready");
        // SAFETY: the type is that of `fi_log_ready`, whose enumerations are passed as `unsigned
        // int`.
        let log_ready = log_ready.map(|f| unsafe { transmute::<NonNull<c_void>, LogReadyFn>(f) });
        // SAFETY: the address is that of a function; it is only called by C through its real type.
        let param_define =
            find(c"fi_param_define").map(|f| unsafe { transmute::<NonNull<c_void>, AnyFn>(f) });
        let param_get = find(c"fi_param_get");
        // SAFETY: the type is that of `fi_param_get`.
        let param_get = param_get.map(|f| unsafe { transmute::<NonNull<c_void>, ParamGetFn>(f) });
        Some(Self {
            object: Some(object),
            version: Some(version),
            log,
            log_enabled,
            log_ready,
            param_define,
            param_get,
            linked: None,
        })
    }

    /// Returns the functions that open objects of other providers; `None` for a library into which
    /// this code is linked.
    pub fn openers(&self) -> Option<Openers> {
        let handle = self.object.as_ref()?.handle()?;
        let find = |name: &CStr| handle.own_symbol(self.object.as_ref()?, name);
        let (getinfo, freeinfo) = (find(c"fi_getinfo")?, find(c"fi_freeinfo")?);
        let (dupinfo, fabric) = (find(c"fi_dupinfo")?, find(c"fi_fabric")?);
        Some(Openers {
            // SAFETY: the type is that of `fi_getinfo`.
            getinfo: unsafe { transmute::<NonNull<c_void>, getinfo_fn>(getinfo) },
            // SAFETY: the type is that of `fi_freeinfo`.
            freeinfo: unsafe { transmute::<NonNull<c_void>, FreeInfoFn>(freeinfo) },
            // SAFETY: the type is that of `fi_dupinfo`.
            dupinfo: unsafe { transmute::<NonNull<c_void>, DupInfoFn>(dupinfo) },
            // SAFETY: the type is that of `fi_fabric`.
            fabric: unsafe { transmute::<NonNull<c_void>, fabric_fn>(fabric) },
        })
    }

    /// Returns the file from which the host was loaded.
    pub fn path(&self) -> Option<&CStr> {
        self.object.as_ref().map(|o| o.path.as_c_str())
    }

    /// `uint32_t fi_version(void)`: the interface version of the host, or [`Host::OLDEST`].
    pub fn version(&self) -> u32 {
        if let Some(linked) = &self.linked {
            return linked.version;
        }
        // SAFETY: the host is loaded by the constructor's contract; the function has no
        // requirement.
        self.version.map_or(Self::OLDEST, |f| unsafe { f() })
    }

    /// Whether messages can reach the host's log at all.
    pub fn has_log(&self) -> bool {
        self.log.is_some() || self.linked.is_some()
    }

    /// `int fi_log_enabled(prov, level, subsys)`
    pub fn log_enabled(
        &self,
        prov: &'static Provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
    ) -> bool {
        if let Some(linked) = &self.linked {
            return (linked.log_enabled)(prov, level, subsys);
        }
        // SAFETY: the host is loaded by the constructor's contract; `prov` is a provider's
        // description.
        let enabled = self.log_enabled.map(|f| unsafe { f(prov.as_ptr(), level, subsys) });
        enabled.is_some_and(|e| e != 0)
    }

    /// `int fi_log_ready(prov, level, subsys, showtime)`: like [`Host::log_enabled`], but rarely
    /// true for a frequent message. `showtime` starts at 0 and belongs to that message.
    pub fn log_ready(
        &self,
        prov: &'static Provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
        showtime: &mut u64,
    ) -> bool {
        let Some(ready) = self.log_ready else {
            return self.log_enabled(prov, level, subsys);
        };
        // SAFETY: the host is loaded by the constructor's contract; `prov` is a provider's
        // description, `showtime` is writable.
        unsafe { ready(prov.as_ptr(), level, subsys, showtime) != 0 }
    }

    /// `void fi_log(prov, level, subsys, func, line, "%s\n", msg)`; `place` is function and line.
    /// Does not check that the level is enabled.
    pub fn log(
        &self,
        prov: &'static Provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
        (func, line): (&CStr, u32),
        msg: &CStr,
    ) {
        if let Some(linked) = &self.linked {
            return (linked.log)(prov, level, subsys, (func, line), msg);
        }
        let Some(log) = self.log else { return };
        let line = c_int::try_from(line).unwrap_or(c_int::MAX);
        // SAFETY: `log` is the loaded host's `fi_log`; `prov` is a provider's description; the
        // texts are C strings that it copies.
        unsafe {
            scif_ffi_log(log, prov.as_ptr(), level, subsys, func.as_ptr(), line, msg.as_ptr())
        };
    }

    /// `int fi_param_define(prov, name, type, "%s", help)`: registers `FI_<PROV>_<NAME>` with the
    /// host and its tools.
    ///
    /// # Errors
    /// `FI_EALREADY` when this provider has defined the name before, `FI_EINVAL` for an unknown
    /// type, `FI_ENOSYS` without a host, and errors of the host; all positive.
    pub fn param_define(
        &self,
        prov: &'static Provider,
        name: &CStr,
        kind: fi_param_type,
        help: &CStr,
    ) -> Result<Param, c_int> {
        if kind > FI_PARAM_SIZE_T {
            return Err(FI_EINVAL);
        }
        if let Some(linked) = &self.linked {
            (linked.param_define)(prov, name, kind, help)?;
            let name = name.to_owned();
            return Ok(Param { prov, name, kind });
        }
        let define = self.param_define.ok_or(FI_ENOSYS)?;
        // The host returns the first definition of a name, so a second one of another type would be
        // misread.
        if self.param_word(prov, name).err() != Some(FI_ENOENT) {
            return Err(FI_EALREADY);
        }
        // SAFETY: `define` is the loaded host's `fi_param_define`. `prov` is static, as the host
        // keeps its address; the texts are copied.
        let code = unsafe {
            scif_ffi_param_define(define, prov.as_ptr(), name.as_ptr(), kind, help.as_ptr())
        };
        if code < 0 {
            return Err(-code);
        }
        let name = name.to_owned();
        Ok(Param { prov, name, kind })
    }

    /// `int fi_param_get(prov, name, value)`: returns the value that a user set for a parameter.
    ///
    /// # Errors
    /// `FI_ENODATA` when it isn't set, `FI_EINVAL` when its value is invalid, `FI_ENOENT` when
    /// another host defined it; all positive.
    pub fn param_get(&self, param: &Param) -> Result<ParamValue, c_int> {
        if let Some(linked) = &self.linked {
            return (linked.param_get)(param.prov, &param.name);
        }
        let word = self.param_word(param.prov, &param.name)?;
        match param.kind {
            // SAFETY: all bytes of the union are initialised.
            FI_PARAM_INT => Ok(ParamValue::Int(unsafe { word.int })),
            // SAFETY: all bytes of the union are initialised.
            FI_PARAM_BOOL => Ok(ParamValue::Bool(unsafe { word.int } != 0)),
            // SAFETY: all bytes of the union are initialised.
            FI_PARAM_SIZE_T => Ok(ParamValue::Size(unsafe { word.size })),
            _ => {
                // SAFETY: all bytes of the union are initialised.
                let text = unsafe { word.text };
                if text.is_null() {
                    return Err(FI_EINVAL);
                }
                // SAFETY: for a parameter defined as a string (`Param` is proof) the host returns
                // its own C string, valid at least until the environment changes.
                Ok(ParamValue::String(unsafe { CStr::from_ptr(text) }.to_owned()))
            }
        }
    }

    /// Returns the word that the host writes for the parameter, of any type.
    fn param_word(&self, prov: &'static Provider, name: &CStr) -> Result<Word, c_int> {
        let get = self.param_get.ok_or(FI_ENOSYS)?;
        let mut word = Word { size: 0 };
        // SAFETY: the host is loaded by the constructor's contract; `prov` is a provider's
        // description, `name` a C string and `word` has space for a value of any type.
        let code = unsafe { get(prov.as_ptr(), name.as_ptr(), (&raw mut word).cast()) };
        if code < 0 { Err(-code) } else { Ok(word) }
    }
}

/// Parameter registered with a host.
#[derive(Clone, Debug)]
pub struct Param {
    prov: &'static Provider,
    name: CString,
    kind: fi_param_type,
}

/// Destination of `fi_param_get`, as large as the largest type.
#[repr(C)]
#[derive(Clone, Copy)]
union Word {
    size: usize,
    int: c_int,
    text: *const c_char,
}
