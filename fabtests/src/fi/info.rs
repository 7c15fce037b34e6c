// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Hints of a program and the infos returned for them (fi_getinfo(3)).
//!
//! The library allocates an info at its own size, so fields newer than libfabric 1.17 are never
//! accessed.
#![expect(unsafe_code, reason = "infos are C structures of the library")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use libfabric_sys as sys;

use super::errno::{self, Errno, Result};
use super::library::Lib;
use super::object::Fid;

/// Set by the first fi_getinfo(3) of this process.
static LOADED: OnceLock<()> = OnceLock::new();

/// Hints as plain data; zero matches any value.
#[derive(Debug, Clone, Default)]
pub struct Hints {
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub ep_type: u32,
    pub protocol: u32,
    pub max_msg_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub tx: sys::fi_tx_attr,
    pub rx: sys::fi_rx_attr,
    pub threading: u32,
    pub control_progress: u32,
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: i32,
    pub cq_data_size: usize,
    pub mr_iov_limit: usize,
    pub cntr_cnt: usize,
    pub mr_cnt: usize,
    pub max_err_data: usize,
    pub auth_key_size: usize,
    pub protocol_version: u32,
    pub prov_version: u32,
    pub api_version: u32,
    pub domain_caps: u64,
    pub domain_mode: u64,
    pub prov: Option<String>,
    pub fabric: Option<String>,
    pub domain: Option<String>,
    pub src_addr: Vec<u8>,
    pub dest_addr: Vec<u8>,
}

/// Attributes of a domain that every supported library has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainAttr {
    pub name: String,
    pub threading: u32,
    pub control_progress: u32,
    pub data_progress: u32,
    pub resource_mgmt: u32,
    pub av_type: u32,
    pub mr_mode: i32,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub max_err_data: usize,
    pub mr_cnt: usize,
}

/// One info that the library returned.
#[derive(Debug)]
pub struct Info {
    lib: &'static Lib,
    info: NonNull<sys::fi_info>,
}

// SAFETY: an info is plain memory, bound to no thread.
unsafe impl Send for Info {}
// SAFETY: through `&Info` the client, the library and the provider only read it.
unsafe impl Sync for Info {}

impl Hints {
    /// Builds the hints as an info of the library.
    pub(super) fn build(&self, lib: &'static Lib) -> Result<Info> {
        let info = NonNull::new(lib.dup(ptr::null())).ok_or(Errno::ENOMEM)?;
        let owned = Info { lib, info };
        // SAFETY: a new info without another owner.
        let top = unsafe { &mut *info.as_ptr() };
        // A new info has all its attributes allocated (fi_allocinfo).
        let (ep, domain, fabric) = (top.ep_attr, top.domain_attr, top.fabric_attr);
        top.caps = self.caps;
        top.mode = self.mode;
        top.addr_format = self.addr_format;
        (top.src_addr, top.src_addrlen) = (malloc_copy(&self.src_addr), self.src_addr.len());
        (top.dest_addr, top.dest_addrlen) = (malloc_copy(&self.dest_addr), self.dest_addr.len());
        // SAFETY: allocated with the info; the structure has the same size in all versions.
        unsafe { *top.tx_attr = self.tx };
        // SAFETY: as above.
        unsafe { *top.rx_attr = self.rx };
        // SAFETY: as above; the fields written exist since 1.5.
        let ep = unsafe { &mut *ep };
        ep.type_ = self.ep_type;
        ep.protocol = self.protocol;
        ep.protocol_version = self.protocol_version;
        ep.max_msg_size = self.max_msg_size;
        ep.max_order_raw_size = self.max_order_raw_size;
        ep.max_order_war_size = self.max_order_war_size;
        ep.max_order_waw_size = self.max_order_waw_size;
        ep.mem_tag_format = self.mem_tag_format;
        ep.tx_ctx_cnt = self.tx_ctx_cnt;
        ep.rx_ctx_cnt = self.rx_ctx_cnt;
        macro_rules! set {
            ($($field:ident = $value:expr;)*) => {
                // SAFETY: as above; these fields exist in 1.17, and no reference to the possibly
                // shorter structure is made.
                $(unsafe { (*domain).$field = $value };)*
            };
        }
        set! {
            threading = self.threading;
            control_progress = self.control_progress;
            data_progress = self.data_progress;
            resource_mgmt = self.resource_mgmt;
            av_type = self.av_type;
            mr_mode = self.mr_mode;
            cq_data_size = self.cq_data_size;
            mr_iov_limit = self.mr_iov_limit;
            cntr_cnt = self.cntr_cnt;
            mr_cnt = self.mr_cnt;
            max_err_data = self.max_err_data;
            auth_key_size = self.auth_key_size;
            caps = self.domain_caps;
            mode = self.domain_mode;
            name = malloc_text(self.domain.as_deref());
        }
        // SAFETY: as above.
        let fabric = unsafe { &mut *fabric };
        fabric.prov_name = malloc_text(self.prov.as_deref());
        fabric.name = malloc_text(self.fabric.as_deref());
        (fabric.prov_version, fabric.api_version) = (self.prov_version, self.api_version);
        Ok(owned)
    }
}

impl Info {
    /// Splits a list into its infos.
    pub(super) fn list(lib: &'static Lib, list: *mut sys::fi_info) -> Vec<Info> {
        let mut out = Vec::new();
        let mut at = NonNull::new(list);
        while let Some(info) = at {
            // SAFETY: an element of a list that the library has just returned.
            let next = unsafe { std::mem::replace(&mut (*info.as_ptr()).next, ptr::null_mut()) };
            out.push(Info { lib, info });
            at = NonNull::new(next);
        }
        out
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::fi_info {
        self.info.as_ptr()
    }

    fn top(&self) -> &sys::fi_info {
        // SAFETY: an allocated info of the library; the structure has the same size in all
        // versions, and only `&self` reaches it.
        unsafe { self.info.as_ref() }
    }

    pub(super) fn fabric_attr(&self) -> *mut sys::fi_fabric_attr {
        self.top().fabric_attr
    }

    /// Library that allocated the info.
    pub const fn lib(&self) -> &'static Lib {
        self.lib
    }

    /// Returns a copy (`fi_dupinfo`).
    pub fn dup(&self) -> Result<Info> {
        let info = NonNull::new(self.lib.dup(self.as_ptr())).ok_or(Errno::ENOMEM)?;
        Ok(Info { lib: self.lib, info })
    }

    pub fn caps(&self) -> u64 {
        self.top().caps
    }

    pub fn mode(&self) -> u64 {
        self.top().mode
    }

    pub fn addr_format(&self) -> u32 {
        self.top().addr_format
    }

    /// Whether the info carries a handle.
    pub fn has_handle(&self) -> bool {
        !self.top().handle.is_null()
    }

    /// Handle with which a connection request is accepted or rejected.
    pub(super) fn handle(&self) -> sys::fid_t {
        self.top().handle
    }

    /// Requests the port of a passive endpoint.
    pub fn set_handle(&mut self, pep: &dyn Fid) -> Result {
        let handle = pep.raw_fid()?;
        // SAFETY: this object owns the info.
        unsafe { self.info.as_mut() }.handle = handle;
        Ok(())
    }

    /// Clears the handle.
    pub fn clear_handle(&mut self) {
        // SAFETY: this object owns the info.
        unsafe { self.info.as_mut() }.handle = ptr::null_mut();
    }

    pub fn src_addr(&self) -> Vec<u8> {
        bytes(self.top().src_addr, self.top().src_addrlen)
    }

    pub fn dest_addr(&self) -> Vec<u8> {
        bytes(self.top().dest_addr, self.top().dest_addrlen)
    }

    /// Replaces the source address, as a program does for an endpoint at another address.
    pub fn set_src_addr(&mut self, addr: &[u8]) {
        // SAFETY: this object owns the info.
        let top = unsafe { self.info.as_mut() };
        // SAFETY: the address is null or was allocated by malloc(3).
        unsafe { libc::free(top.src_addr) };
        (top.src_addr, top.src_addrlen) = (malloc_copy(addr), addr.len());
    }

    /// Requests other operation flags than the info offers.
    pub fn set_op_flags(&mut self, tx: u64, rx: u64) {
        // SAFETY: an info from the library has its attributes, and this object owns it.
        unsafe { (*self.top().tx_attr).op_flags = tx };
        // SAFETY: as above.
        unsafe { (*self.top().rx_attr).op_flags = rx };
    }

    /// Requests another memory registration mode than the info offers.
    pub fn set_mr_mode(&mut self, mr_mode: i32) {
        let domain = self.top().domain_attr;
        // SAFETY: an info from the library has its attributes, this field exists in 1.17, and this
        // object owns it.
        unsafe { (*domain).mr_mode = mr_mode };
    }

    /// Requests a scalable endpoint with these numbers of contexts.
    pub fn set_contexts(&mut self, tx: usize, rx: usize) {
        let ep = self.top().ep_attr;
        // SAFETY: an info from the library has its attributes, and this object owns it.
        unsafe { (*ep).tx_ctx_cnt = tx };
        // SAFETY: as above.
        unsafe { (*ep).rx_ctx_cnt = rx };
    }

    pub fn tx(&self) -> sys::fi_tx_attr {
        // SAFETY: an info from the library has its attributes.
        unsafe { *self.top().tx_attr }
    }

    pub fn rx(&self) -> sys::fi_rx_attr {
        // SAFETY: an info from the library has its attributes.
        unsafe { *self.top().rx_attr }
    }

    pub fn ep(&self) -> sys::fi_ep_attr {
        // SAFETY: an info from the library has its attributes; the structure is at least as long as
        // in 1.17.
        unsafe { *self.top().ep_attr }
    }

    pub fn domain(&self) -> DomainAttr {
        let p = self.top().domain_attr;
        macro_rules! read {
            ($field:ident) => {
                // SAFETY: an info from the library has its attributes, and this field exists in
                // 1.17.
                unsafe { (*p).$field }
            };
        }
        DomainAttr {
            name: text(read!(name)),
            threading: read!(threading),
            control_progress: read!(control_progress),
            data_progress: read!(data_progress),
            resource_mgmt: read!(resource_mgmt),
            av_type: read!(av_type),
            mr_mode: read!(mr_mode),
            mr_key_size: read!(mr_key_size),
            cq_data_size: read!(cq_data_size),
            max_ep_tx_ctx: read!(max_ep_tx_ctx),
            max_ep_rx_ctx: read!(max_ep_rx_ctx),
            cntr_cnt: read!(cntr_cnt),
            mr_iov_limit: read!(mr_iov_limit),
            caps: read!(caps),
            mode: read!(mode),
            max_err_data: read!(max_err_data),
            mr_cnt: read!(mr_cnt),
        }
    }

    pub fn prov_name(&self) -> String {
        // SAFETY: an info from the library has its attributes.
        text(unsafe { (*self.top().fabric_attr).prov_name })
    }

    /// Whether the info refers to this open fabric and to this open domain.
    pub fn names(&self, fabric: &dyn Fid, domain: &dyn Fid) -> Result<(bool, bool)> {
        // SAFETY: an info from the library has its attributes.
        let open = unsafe { (*self.top().fabric_attr).fabric };
        // SAFETY: as above; the field exists in 1.17.
        let inside = unsafe { (*self.top().domain_attr).domain };
        Ok((open.cast() == fabric.raw_fid()?, inside.cast() == domain.raw_fid()?))
    }

    pub fn prov_version(&self) -> u32 {
        // SAFETY: an info from the library has its attributes.
        unsafe { (*self.top().fabric_attr).prov_version }
    }

    pub fn fabric_name(&self) -> String {
        // SAFETY: an info from the library has its attributes.
        text(unsafe { (*self.top().fabric_attr).name })
    }
}

impl Lib {
    /// `fi_getinfo(3)`.
    pub fn getinfo(
        &'static self,
        version: u32,
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
        hints: Option<&Hints>,
    ) -> Result<Vec<Info>> {
        let hints = hints.map(|hints| hints.build(self)).transpose()?;
        self.getinfo_like(version, node, service, flags, hints.as_ref())
    }

    /// `fi_getinfo(3)` with an info as hints, as for a repeated query.
    pub fn getinfo_like(
        &'static self,
        version: u32,
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
        hints: Option<&Info>,
    ) -> Result<Vec<Info>> {
        let text =
            |word: Option<&str>| word.map(CString::new).transpose().map_err(|_| Errno::EINVAL);
        let (node, service) = (text(node)?, text(service)?);
        let pointer =
            |word: &Option<CString>| word.as_ref().map_or(ptr::null(), |word| word.as_ptr());
        // Without a provider name other providers are queried too, and the first call loads them.
        // These may change `errno`.
        let asks_one = hints.is_some_and(|hints| !hints.prov_name().is_empty());
        let hints = hints.map_or(ptr::null(), |hints| hints.as_ptr().cast_const());
        let mut list = ptr::null_mut();
        if LOADED.set(()).is_err() && asks_one {
            errno::mark();
        } else {
            // A dropped object has left its marker.
            errno::unmark();
        }
        // SAFETY: every pointer is null or outlives the call; the library writes one pointer to
        // `list`.
        let code = unsafe {
            (self.getinfo)(version, pointer(&node), pointer(&service), flags, hints, &raw mut list)
        };
        Errno::check_int(code)?;
        Ok(Info::list(self, list))
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: this object owns the info, which is not in a list and not used afterwards.
        unsafe { self.lib.free(self.info.as_ptr()) }
    }
}

fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: names in an info are C strings.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

fn bytes(p: *const c_void, len: usize) -> Vec<u8> {
    if p.is_null() {
        return Vec::new();
    }
    // SAFETY: the length of an address is stored beside it in the info.
    unsafe { std::slice::from_raw_parts(p.cast::<u8>(), len) }.to_vec()
}

/// Returns a copy that `fi_freeinfo` can free.
fn malloc_copy(bytes: &[u8]) -> *mut c_void {
    if bytes.is_empty() {
        return ptr::null_mut();
    }
    // SAFETY: malloc takes any size.
    let to = unsafe { libc::malloc(bytes.len()) };
    if !to.is_null() {
        // SAFETY: `to` is a new allocation of the length of `bytes`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), bytes.len()) };
    }
    to
}

fn malloc_text(word: Option<&str>) -> *mut c_char {
    word.map_or(ptr::null_mut(), |word| {
        let mut bytes = word.as_bytes().to_vec();
        bytes.push(0);
        malloc_copy(&bytes).cast()
    })
}
