// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints: opening, binding, names, options and connections (fi_endpoint(3), fi_cm(3)). The data
//! calls are in `messages` and `one_sided`.
//!
//! Scalable endpoints, their contexts and shared receive contexts are endpoints in C, and so are
//! they in this client.
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::info::Info;
use super::object::{Fid, Object, is_fid, table};

/// An open endpoint.
pub struct Ep {
    pub(super) object: Object<sys::fid_ep>,
    /// Bound objects, which stay open at least as long as the endpoint.
    bound: Mutex<Vec<Arc<dyn Fid + Send + Sync>>>,
    _domain: Arc<Domain>,
}

is_fid!(Ep);

impl Ep {
    /// `fi_endpoint`.
    pub fn open(domain: &Arc<Domain>, info: &Info) -> Result<Arc<Ep>> {
        let (raw, ops) = domain.ops()?;
        let mut ep = ptr::null_mut();
        // SAFETY: the domain is open, the info outlives the call, and one pointer is written to
        // `ep`.
        Errno::check_int(unsafe {
            (ops.endpoint)(raw, info.as_ptr(), &raw mut ep, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { Ep::adopt(domain, ep) }
    }

    /// # Safety
    /// `ep` is null or was just opened in `domain`, and only the result closes it.
    pub(super) unsafe fn adopt(domain: &Arc<Domain>, ep: *mut sys::fid_ep) -> Result<Arc<Ep>> {
        // SAFETY: the caller's contract.
        let object = unsafe { Object::adopt(ep) }?;
        Ok(Arc::new(Ep { object, bound: Mutex::new(Vec::new()), _domain: Arc::clone(domain) }))
    }

    /// Adopts a context of this scalable endpoint, which stays open with the context.
    ///
    /// # Safety
    /// As for [`Ep::adopt`].
    pub(super) unsafe fn adopt_context(self: &Arc<Ep>, ep: *mut sys::fid_ep) -> Result<Arc<Ep>> {
        // SAFETY: the caller's contract.
        let context = unsafe { Ep::adopt(&self._domain, ep) }?;
        context.bound.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(self) as _);
        Ok(context)
    }

    /// `fi_ep_bind`; the bound object stays open with the endpoint.
    pub fn attach<T: Fid + Send + Sync + 'static>(&self, other: &Arc<T>, flags: u64) -> Result {
        self.bind(other.as_ref(), flags)?;
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(other) as _);
        Ok(())
    }

    table!(pub(super) fn ops: fid_ep.ops -> fi_ops_ep);

    table!(pub(super) fn cm: fid_ep.cm -> fi_ops_cm);

    /// `fi_enable`.
    pub fn enable(&self) -> Result {
        self.control_null(sys::FI_ENABLE)
    }

    /// `fi_getname` into a buffer of `room` bytes. Returns the bytes written and the true length.
    ///
    /// # Errors
    /// Errors of the call, with the length that the provider requires.
    pub fn name_with_room(
        &self,
        room: usize,
    ) -> std::result::Result<(Vec<u8>, usize), (Errno, usize)> {
        let (ep, cm) = self.cm().map_err(|e| (e, 0))?;
        let mut out = vec![0_u8; room];
        let mut len = room;
        let at = if room == 0 { ptr::null_mut() } else { out.as_mut_ptr().cast() };
        // SAFETY: the endpoint is open, and `out` has `len` bytes.
        let code = unsafe { (cm.getname)(ep.cast(), at, &raw mut len) };
        Errno::check_int(code).map_err(|e| (e, len))?;
        out.truncate(len);
        Ok((out, len))
    }

    /// `fi_getname`.
    pub fn name(&self) -> Result<Vec<u8>> {
        self.name_with_room(256).map(|(name, _)| name).map_err(|(e, _)| e)
    }

    /// `fi_setname`.
    pub fn set_name(&self, name: &[u8]) -> Result {
        let (ep, cm) = self.cm()?;
        let mut name = name.to_vec();
        // SAFETY: the endpoint is open, and `name` has the stated length.
        let code = unsafe { (cm.setname)(ep.cast(), name.as_mut_ptr().cast(), name.len()) };
        Errno::check_int(code).map(drop)
    }

    /// `fi_cancel`.
    pub fn cancel(&self, context: usize) -> Result {
        let (ep, ops) = self.ops()?;
        // SAFETY: the endpoint is open; the context is only compared.
        let code = unsafe { (ops.cancel)(ep.cast(), ptr::without_provenance_mut(context)) };
        Errno::check(code).map(drop)
    }

    /// `fi_getopt` of a `size_t` at level `FI_OPT_ENDPOINT`. Returns the value and the length
    /// written.
    pub fn getopt(&self, option: i32) -> Result<(usize, usize)> {
        let (ep, ops) = self.ops()?;
        let (mut value, mut len) = (0_usize, size_of::<usize>());
        // SAFETY: the endpoint is open and `value` has `len` bytes.
        let code = unsafe {
            (ops.getopt)(
                ep.cast(),
                sys::FI_OPT_ENDPOINT,
                option,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        Errno::check_int(code)?;
        Ok((value, len))
    }

    /// `fi_setopt` of `len` bytes of a `size_t` at a level.
    pub fn setopt_raw(&self, level: i32, option: i32, value: usize, len: usize) -> Result {
        let (ep, ops) = self.ops()?;
        let len = len.min(size_of::<usize>());
        // SAFETY: the endpoint is open and `value` has at least `len` bytes.
        let code =
            unsafe { (ops.setopt)(ep.cast(), level, option, (&raw const value).cast(), len) };
        Errno::check_int(code).map(drop)
    }

    /// `fi_setopt` of a `size_t` at level `FI_OPT_ENDPOINT`.
    pub fn setopt(&self, option: i32, value: usize) -> Result {
        self.setopt_raw(sys::FI_OPT_ENDPOINT, option, value, size_of::<usize>())
    }

    /// `fi_control(FI_GETOPSFLAG)`; `which` has `FI_TRANSMIT` or `FI_RECV`.
    pub fn op_flags(&self, which: u64) -> Result<u64> {
        let mut flags = which;
        self.control_u64(sys::FI_GETOPSFLAG, &mut flags)?;
        Ok(flags)
    }

    /// `fi_control(FI_SETOPSFLAG)`; the flags have `FI_TRANSMIT` or `FI_RECV` besides.
    pub fn set_op_flags(&self, flags: u64) -> Result {
        let mut flags = flags;
        self.control_u64(sys::FI_SETOPSFLAG, &mut flags)
    }

    /// `fi_ep_alias`: a second handle of the endpoint with other operation flags.
    pub fn alias(self: &Arc<Ep>, flags: u64) -> Result<Arc<Ep>> {
        let fid = self.object.raw_fid()?;
        let mut other: *mut sys::fid = ptr::null_mut();
        let mut arg = sys::fi_alias { fid: &raw mut other, flags };
        let control = self.base_ops()?.control;
        // SAFETY: the endpoint is open; the argument and its pointers outlive the call.
        let code = unsafe { control(fid, sys::FI_ALIAS, (&raw mut arg).cast()) };
        Errno::check_int(code)?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(other.cast::<sys::fid_ep>()) }?;
        let bound: Vec<Arc<dyn Fid + Send + Sync>> = vec![Arc::clone(self) as _];
        Ok(Arc::new(Ep { object, bound: Mutex::new(bound), _domain: Arc::clone(&self._domain) }))
    }

    /// `fi_tx_size_left` and `fi_rx_size_left`.
    pub fn sizes_left(&self) -> Result<(usize, usize)> {
        let (ep, ops) = self.ops()?;
        // SAFETY: the endpoint is open.
        let tx = unsafe { (ops.tx_size_left)(ep) };
        // SAFETY: the endpoint is open.
        let rx = unsafe { (ops.rx_size_left)(ep) };
        Ok((Errno::check(tx)?, Errno::check(rx)?))
    }

    /// `fi_connect`.
    pub fn connect(&self, addr: &[u8], data: &[u8]) -> Result {
        let (ep, cm) = self.cm()?;
        // SAFETY: the endpoint is open, the address has its format, and `data` has the stated
        // length.
        Errno::check_int(unsafe {
            (cm.connect)(ep, addr.as_ptr().cast(), data.as_ptr().cast(), data.len())
        })
        .map(drop)
    }

    /// `fi_accept`.
    pub fn accept(&self, data: &[u8]) -> Result {
        let (ep, cm) = self.cm()?;
        // SAFETY: the endpoint is open, and `data` has the stated length.
        Errno::check_int(unsafe { (cm.accept)(ep, data.as_ptr().cast(), data.len()) }).map(drop)
    }

    /// `fi_shutdown`.
    pub fn shutdown(&self, flags: u64) -> Result {
        let (ep, cm) = self.cm()?;
        // SAFETY: the endpoint is open.
        Errno::check_int(unsafe { (cm.shutdown)(ep, flags) }).map(drop)
    }

    /// `fi_getpeer`.
    pub fn peer(&self) -> Result<Vec<u8>> {
        let (ep, cm) = self.cm()?;
        let mut out = vec![0_u8; 64];
        let mut len = out.len();
        // SAFETY: the endpoint is open and `out` has `len` bytes.
        Errno::check_int(unsafe { (cm.getpeer)(ep, out.as_mut_ptr().cast(), &raw mut len) })?;
        out.truncate(len);
        Ok(out)
    }

    /// Address of the object, as reported in events.
    pub fn address(&self) -> Result<usize> {
        Ok(self.object.raw()?.addr())
    }

    /// `fi_scalable_ep`.
    pub fn scalable(domain: &Arc<Domain>, info: &Info) -> Result<Arc<Ep>> {
        let (raw, ops) = domain.ops()?;
        let mut ep = ptr::null_mut();
        // SAFETY: the domain is open, the info outlives the call, and one pointer is written to
        // `ep`.
        Errno::check_int(unsafe {
            (ops.scalable_ep)(raw, info.as_ptr(), &raw mut ep, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { Ep::adopt(domain, ep) }
    }

    /// `fi_tx_context` of a scalable endpoint.
    pub fn tx_context(
        self: &Arc<Ep>,
        index: i32,
        attr: Option<sys::fi_tx_attr>,
    ) -> Result<Arc<Ep>> {
        let (sep, ops) = self.ops()?;
        let mut attr = attr;
        let attr = attr.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let mut ep = ptr::null_mut();
        // SAFETY: the endpoint is open, the attributes outlive the call, and one pointer is written
        // to `ep`.
        Errno::check_int(unsafe { (ops.tx_ctx)(sep, index, attr, &raw mut ep, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { self.adopt_context(ep) }
    }

    /// `fi_rx_context` of a scalable endpoint.
    pub fn rx_context(
        self: &Arc<Ep>,
        index: i32,
        attr: Option<sys::fi_rx_attr>,
    ) -> Result<Arc<Ep>> {
        let (sep, ops) = self.ops()?;
        let mut attr = attr;
        let attr = attr.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let mut ep = ptr::null_mut();
        // SAFETY: the endpoint is open, the attributes outlive the call, and one pointer is written
        // to `ep`.
        Errno::check_int(unsafe { (ops.rx_ctx)(sep, index, attr, &raw mut ep, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { self.adopt_context(ep) }
    }

    /// `fi_srx_context` with `FI_PEER`.
    ///
    /// # Safety
    /// `context` is a `struct fi_peer_srx_context` whose receive context outlives this one.
    pub(super) unsafe fn open_peer_srx(
        domain: &Arc<Domain>,
        context: *mut std::ffi::c_void,
    ) -> Result<Arc<Ep>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_rx_attr { op_flags: sys::FI_PEER, ..sys::fi_rx_attr::default() };
        let mut srx = ptr::null_mut();
        // SAFETY: the domain is open, the context is the caller's, and one pointer is written to
        // `srx`.
        Errno::check_int(unsafe { (ops.srx_ctx)(raw, &raw mut attr, &raw mut srx, context) })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { Ep::adopt(domain, srx) }
    }

    /// `fi_srx_context`.
    pub fn shared_receive(domain: &Arc<Domain>) -> Result<Arc<Ep>> {
        Ep::shared_receive_with(domain, 0)
    }

    /// `fi_srx_context` with these operation flags.
    pub fn shared_receive_with(domain: &Arc<Domain>, op_flags: u64) -> Result<Arc<Ep>> {
        let (raw, ops) = domain.ops()?;
        let mut attr = sys::fi_rx_attr { op_flags, ..sys::fi_rx_attr::default() };
        let mut srx = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `srx`.
        Errno::check_int(unsafe {
            (ops.srx_ctx)(raw, &raw mut attr, &raw mut srx, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        unsafe { Ep::adopt(domain, srx) }
    }
}

/// `fi_rx_addr`: address of context `index` of the endpoint `addr`, in a vector with `bits` context
/// bits.
pub fn rx_addr(addr: u64, index: u64, bits: u32) -> u64 {
    index << (u64::BITS - bits) | addr
}
