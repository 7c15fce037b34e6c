// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Address vectors (fi_av(3)).
#![expect(unsafe_code, reason = "operations are C functions behind pointers")]

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as sys;

use super::errno::{Errno, Result};
use super::fabric::Domain;
use super::object::{Object, is_fid, table};

/// An open address vector.
#[derive(Debug)]
pub struct Av {
    pub(super) object: Object<sys::fid_av>,
    _domain: Arc<Domain>,
}

is_fid!(Av);

/// Attributes of an address vector to open.
#[derive(Debug, Clone, Copy, Default)]
pub struct AvAttr<'a> {
    pub av_type: u32,
    pub count: usize,
    /// Number of upper bits of an address that select a receive context.
    pub rx_ctx_bits: i32,
    pub name: Option<&'a str>,
    pub map_addr: usize,
    pub flags: u64,
}

impl Av {
    /// `fi_av_open`.
    pub fn open(domain: &Arc<Domain>, av_type: u32, count: usize) -> Result<Arc<Av>> {
        Av::open_named(domain, av_type, count, None, 0)
    }

    /// `fi_av_open` with a name and flags.
    pub fn open_named(
        domain: &Arc<Domain>,
        av_type: u32,
        count: usize,
        name: Option<&str>,
        flags: u64,
    ) -> Result<Arc<Av>> {
        let attr = AvAttr { av_type, count, name, flags, ..AvAttr::default() };
        Av::open_with(domain, &attr).map(|(av, _)| av)
    }

    /// `fi_av_open` with all attributes. Returns the vector and the resulting `map_addr`.
    pub fn open_with(domain: &Arc<Domain>, attr: &AvAttr<'_>) -> Result<(Arc<Av>, usize)> {
        let (raw, ops) = domain.ops()?;
        let name = attr.name.map(CString::new).transpose().map_err(|_| Errno::EINVAL)?;
        let mut attr = sys::fi_av_attr {
            type_: attr.av_type,
            rx_ctx_bits: attr.rx_ctx_bits,
            count: attr.count,
            ep_per_node: 0,
            name: name.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
            map_addr: ptr::without_provenance_mut(attr.map_addr),
            flags: attr.flags,
        };
        let mut av = ptr::null_mut();
        // SAFETY: the domain is open and one pointer is written to `av`.
        Errno::check_int(unsafe {
            (ops.av_open)(raw, &raw mut attr, &raw mut av, ptr::null_mut())
        })?;
        // SAFETY: the provider has just opened the object for this call.
        let object = unsafe { Object::adopt(av) }?;
        let av = Arc::new(Av { object, _domain: Arc::clone(domain) });
        Ok((av, attr.map_addr.addr()))
    }

    table!(fn ops: fid_av.ops -> fi_ops_av);

    /// `fi_av_insert` of `count` consecutive addresses. Returns the number inserted and their
    /// `fi_addr_t` values.
    pub fn insert_many(&self, addrs: &[u8], count: usize, flags: u64) -> Result<(usize, Vec<u64>)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0; count];
        // SAFETY: the vector is open; `addrs` holds `count` addresses by the caller's contract, and
        // `out` has `count` elements.
        let code = unsafe {
            (ops.insert)(av, addrs.as_ptr().cast(), count, out.as_mut_ptr(), flags, ptr::null_mut())
        };
        Ok((Errno::check_int(code)?, out))
    }

    /// `fi_av_insert` of one address.
    ///
    /// # Errors
    /// Errors of the call; `EADDRNOTAVAIL` when the address was not inserted.
    pub fn insert(&self, addr: &[u8]) -> Result<u64> {
        let (done, out) = self.insert_many(addr, 1, 0)?;
        out.first().copied().filter(|_| done == 1).ok_or(Errno::EADDRNOTAVAIL)
    }

    /// `fi_av_insert` of `count` addresses without a result array.
    pub fn insert_blind(&self, addrs: &[u8], count: usize) -> Result<usize> {
        let (av, ops) = self.ops()?;
        // SAFETY: as in `insert_many`; a null result array is allowed.
        let code = unsafe {
            (ops.insert)(av, addrs.as_ptr().cast(), count, ptr::null_mut(), 0, ptr::null_mut())
        };
        Errno::check_int(code)
    }

    /// `fi_av_insert` with `FI_SYNC_ERR`. Returns the number inserted, the `fi_addr_t` values, and
    /// an error number for each address.
    pub fn insert_sync(&self, addrs: &[u8], count: usize) -> Result<(usize, Vec<u64>, Vec<i32>)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0; count];
        let mut errors = vec![-1_i32; count];
        // SAFETY: as in `insert_many`; with this flag the context is an array of `count` int
        // (fi_av(3)).
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
    pub fn insert_service(&self, node: &str, service: &str) -> Result<(usize, u64)> {
        let (av, ops) = self.ops()?;
        let node = CString::new(node).map_err(|_| Errno::EINVAL)?;
        let service = CString::new(service).map_err(|_| Errno::EINVAL)?;
        let mut out = 0;
        // SAFETY: the vector is open, both texts are C strings, and `out` holds one address.
        let code = unsafe {
            (ops.insertsvc)(av, node.as_ptr(), service.as_ptr(), &raw mut out, 0, ptr::null_mut())
        };
        Ok((Errno::check_int(code)?, out))
    }

    /// `fi_av_remove`.
    pub fn remove(&self, addrs: &[u64], flags: u64) -> Result {
        let (av, ops) = self.ops()?;
        let mut list = addrs.to_vec();
        // SAFETY: the vector is open, and `list` has the stated length.
        Errno::check_int(unsafe { (ops.remove)(av, list.as_mut_ptr(), list.len(), flags) })
            .map(drop)
    }

    /// `fi_av_lookup` into a buffer of `room` bytes. Returns the bytes written and the true length.
    pub fn lookup(&self, addr: u64, room: usize) -> Result<(Vec<u8>, usize)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0_u8; room];
        let mut len = room;
        // SAFETY: the vector is open, and `out` has `len` bytes.
        Errno::check_int(unsafe { (ops.lookup)(av, addr, out.as_mut_ptr().cast(), &raw mut len) })?;
        out.truncate(len);
        Ok((out, len))
    }

    /// `fi_av_straddr` into a buffer of `room` bytes. Returns the text and its full length with the
    /// terminating zero.
    pub fn straddr(&self, addr: &[u8], room: usize) -> Result<(String, usize)> {
        let (av, ops) = self.ops()?;
        let mut out = vec![0_u8; room.max(1)];
        let mut len = room;
        // SAFETY: the vector is open, `addr` is an address of its format, and `out` has at least
        // `len` bytes.
        let _ = unsafe {
            (ops.straddr)(av, addr.as_ptr().cast(), out.as_mut_ptr().cast::<c_char>(), &raw mut len)
        };
        let end = out.iter().position(|&byte| byte == 0).unwrap_or(out.len());
        let text = String::from_utf8_lossy(out.get(..end).unwrap_or_default()).into_owned();
        Ok((text, len))
    }

    /// `fi_av_set_user_id`.
    ///
    /// # Errors
    /// Errors of the call; `ENOSYS` where the library has a shorter table.
    pub fn set_user_id(&self, addr: u64, user: u64, flags: u64) -> Result {
        let (av, ops) = self.ops()?;
        if ops.size < size_of::<sys::fi_ops_av>() {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the vector is open, and its table has this operation.
        Errno::check_int(unsafe { (ops.set_user_id)(av, addr, user, flags) }).map(drop)
    }

    /// `fi_av_insert` of one address with `FI_AV_USER_ID` and the id `user`. Returns the
    /// `fi_addr_t`.
    ///
    /// # Errors
    /// Errors of the call; `EADDRNOTAVAIL` when the address was not inserted.
    pub fn insert_told(&self, addr: &[u8], user: u64) -> Result<u64> {
        let (av, ops) = self.ops()?;
        let mut out = user;
        // SAFETY: the vector is open, `addr` is an address of its format, and `out` holds one
        // value.
        let code = unsafe {
            (ops.insert)(
                av,
                addr.as_ptr().cast(),
                1,
                &raw mut out,
                sys::FI_AV_USER_ID,
                ptr::null_mut(),
            )
        };
        match Errno::check_int(code)? {
            1 => Ok(out),
            _ => Err(Errno::EADDRNOTAVAIL),
        }
    }

    /// `fi_av_insertsym`.
    pub fn insert_range(
        &self,
        node: &str,
        nodes: usize,
        service: &str,
        services: usize,
    ) -> Result<Vec<u64>> {
        let (av, ops) = self.ops()?;
        let node = CString::new(node).map_err(|_| Errno::EINVAL)?;
        let service = CString::new(service).map_err(|_| Errno::EINVAL)?;
        let mut out = vec![0; nodes * services];
        // SAFETY: the vector is open, both texts are C strings, and `out` has an element for each
        // address.
        let code = unsafe {
            (ops.insertsym)(
                av,
                node.as_ptr(),
                nodes,
                service.as_ptr(),
                services,
                out.as_mut_ptr(),
                0,
                ptr::null_mut(),
            )
        };
        out.truncate(Errno::check_int(code)?);
        Ok(out)
    }
}
