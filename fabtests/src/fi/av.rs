// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address vectors (fi_av(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::object::{Object, is_fid};

/// An open address vector.
#[derive(Debug)]
pub struct Av {
    pub(super) object: Object<sys::fid_av>,
    _domain: Arc<Domain>,
}

is_fid!(Av);

impl Av {
    /// `fi_av_open`.
    ///
    /// # Errors
    /// The call's.
    pub fn open(domain: &Arc<Domain>, av_type: u32, count: usize) -> Result<Arc<Av>> {
        Av::open_named(domain, av_type, count, None, 0)
    }

    /// `fi_av_open` with a name and flags.
    ///
    /// # Errors
    /// The call's.
    pub fn open_named(
        domain: &Arc<Domain>,
        av_type: u32,
        count: usize,
        name: Option<&str>,
        flags: u64,
    ) -> Result<Arc<Av>> {
        let (raw, ops) = domain.ops()?;
        let name = name.map(CString::new).transpose().map_err(|_| Errno::EINVAL)?;
        let mut attr = sys::fi_av_attr {
            type_: av_type,
            rx_ctx_bits: 0,
            count,
            ep_per_node: 0,
            name: name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            map_addr: ptr::null_mut(),
            flags,
        };
        let mut av = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `av`.
        Errno::check_int(unsafe { (ops.av_open)(raw, &raw mut attr, &raw mut av, ptr::null_mut()) })?;
        // SAFETY: the provider has just opened it for us.
        let object = unsafe { Object::adopt(av) }?;
        Ok(Arc::new(Av {
            object,
            _domain: Arc::clone(domain),
        }))
    }

    fn ops(&self) -> Result<(*mut sys::fid_av, &sys::fi_ops_av)> {
        let raw = self.object.raw()?;
        // SAFETY: the object is open.
        let ops = unsafe { (*raw).ops };
        // SAFETY: an open vector has its operations, and they live as long as it.
        Ok((raw, unsafe { &*ops }))
    }

    /// `fi_av_insert` of `count` addresses that lie one after the other: how many went in, and their numbers.
    ///
    /// # Errors
    /// The call's.
    pub fn insert_many(&self, addrs: &[u8], count: usize, flags: u64) -> Result<(usize, Vec<u64>)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0; count];
        // SAFETY: the vector is open; `addrs` is what the caller says holds `count` addresses, `out` has room for them.
        let code = unsafe {
            (ops.insert)(
                av,
                addrs.as_ptr().cast(),
                count,
                out.as_mut_ptr(),
                flags,
                ptr::null_mut(),
            )
        };
        Ok((Errno::check_int(code)?, out))
    }

    /// `fi_av_insert` of one address.
    ///
    /// # Errors
    /// The call's; `EADDRNOTAVAIL` when none went in.
    pub fn insert(&self, addr: &[u8]) -> Result<u64> {
        let (done, out) = self.insert_many(addr, 1, 0)?;
        out.first()
            .copied()
            .filter(|_| done == 1)
            .ok_or(Errno::EADDRNOTAVAIL)
    }

    /// `fi_av_insert` of `count` addresses without asking for their numbers.
    ///
    /// # Errors
    /// The call's.
    pub fn insert_blind(&self, addrs: &[u8], count: usize) -> Result<usize> {
        let (av, ops) = self.ops()?;
        // SAFETY: as in `insert_many`; a null array asks for no numbers.
        let code = unsafe {
            (ops.insert)(
                av,
                addrs.as_ptr().cast(),
                count,
                ptr::null_mut(),
                0,
                ptr::null_mut(),
            )
        };
        Errno::check_int(code)
    }

    /// `fi_av_insert` with `FI_SYNC_ERR`: how many went in, their numbers, and an error number for each.
    ///
    /// # Errors
    /// The call's.
    pub fn insert_sync(&self, addrs: &[u8], count: usize) -> Result<(usize, Vec<u64>, Vec<i32>)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0; count];
        let mut errors = vec![-1_i32; count];
        // SAFETY: as in `insert_many`; with this flag the context is an array of `count` int (fi_av(3)).
        let code = unsafe {
            (ops.insert)(
                av,
                addrs.as_ptr().cast(),
                count,
                out.as_mut_ptr(),
                sys::FI_SYNC_ERR,
                errors.as_mut_ptr().cast(),
            )
        };
        Ok((Errno::check_int(code)?, out, errors))
    }

    /// `fi_av_insertsvc`.
    ///
    /// # Errors
    /// The call's.
    pub fn insert_service(&self, node: &str, service: &str) -> Result<(usize, u64)> {
        let (av, ops) = self.ops()?;
        let node = CString::new(node).map_err(|_| Errno::EINVAL)?;
        let service = CString::new(service).map_err(|_| Errno::EINVAL)?;
        let mut out = 0;
        // SAFETY: the vector is open, both words are C strings, `out` takes one address.
        let code = unsafe {
            (ops.insertsvc)(
                av,
                node.as_ptr(),
                service.as_ptr(),
                &raw mut out,
                0,
                ptr::null_mut(),
            )
        };
        Ok((Errno::check_int(code)?, out))
    }

    /// `fi_av_remove`.
    ///
    /// # Errors
    /// The call's.
    pub fn remove(&self, addrs: &[u64], flags: u64) -> Result {
        let (av, ops) = self.ops()?;
        let mut list = addrs.to_vec();
        // SAFETY: the vector is open and `list` holds that many numbers.
        Errno::check_int(unsafe { (ops.remove)(av, list.as_mut_ptr(), list.len(), flags) }).map(drop)
    }

    /// `fi_av_lookup` with room for `room` bytes: the bytes written and the true length.
    ///
    /// # Errors
    /// The call's.
    pub fn lookup(&self, addr: u64, room: usize) -> Result<(Vec<u8>, usize)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0_u8; room];
        let mut len = room;
        // SAFETY: the vector is open and `out` has `len` bytes.
        Errno::check_int(unsafe { (ops.lookup)(av, addr, out.as_mut_ptr().cast(), &raw mut len) })?;
        out.truncate(len);
        Ok((out, len))
    }

    /// `fi_av_straddr` with room for `room` bytes: the text and the length it needs with its end.
    ///
    /// # Errors
    /// `EBADF` after a close.
    pub fn straddr(&self, addr: &[u8], room: usize) -> Result<(String, usize)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0_u8; room.max(1)];
        let mut len = room;
        // SAFETY: the vector is open, `addr` is an address of it, `out` has at least `len` bytes.
        let _ = unsafe {
            (ops.straddr)(
                av,
                addr.as_ptr().cast(),
                out.as_mut_ptr().cast::<c_char>(),
                &raw mut len,
            )
        };
        let end = out.iter().position(|&byte| byte == 0).unwrap_or(out.len());
        let text = String::from_utf8_lossy(out.get(..end).unwrap_or_default()).into_owned();
        Ok((text, len))
    }
}
