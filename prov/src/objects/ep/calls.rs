// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "C calls in, with pointers")]
//! Calls on an endpoint or a context: close, binding, control and options.
//!
//! Mirrors fi_endpoint(3).

use std::ffi::{c_int, c_void};

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep, fid_t};

use super::enable::enable;
use super::{bind, opt};
use crate::base::entry::{self, CreatedBy, guard, guard_int, own};
use crate::base::log::Subsys;
use crate::domain::triggered;
use crate::objects::endpoint::ep::{Ep, Handle};

pub(super) const fn fid_ops<H: Handle + CreatedBy>() -> fi::fi_ops {
    fi::fi_ops { close: close::<H>, bind: bind::<H>, control: control::<H>, ..fi::FI_OPS_NOSYS }
}

pub(super) const fn ep_ops<H: Handle + CreatedBy>() -> fi::fi_ops_ep {
    fi::fi_ops_ep {
        cancel: cancel::<H>,
        getopt: getopt::<H>,
        setopt: setopt::<H>,
        rx_size_left: rx_size_left::<H>,
        ..fi::FI_OPS_EP_NOSYS
    }
}

/// `fi_close`
///
/// With aliases, only the last close releases the endpoint.
unsafe extern "C" fn close<H: Handle + CreatedBy>(fid: *mut fid) -> c_int {
    guard_int("fi_close of an endpoint", || {
        // SAFETY: C passes an open endpoint.
        unsafe { own::<H, _>(fid) }?;
        // SAFETY: returned by `open` or `alias`, and not used by C any more.
        let ep = unsafe { entry::take::<H, _>(fid) }?;
        ep.ep().core.release(fid.addr());
        Ok(())
    })
}

/// `fi_ep_bind`
///
/// # Errors
/// `-FI_EINVAL` for objects that are not bound to endpoints, or a binding that exists.
/// `-FI_EBADFLAGS` for flags that do not apply to the object, `-FI_EDOMAIN` for an object of
/// another domain. `-FI_EOPBADSTATE` once enabled, for any object but a counter.
unsafe extern "C" fn bind<H: Handle + CreatedBy>(
    fid: *mut fid,
    bfid: *mut fid,
    flags: u64,
) -> c_int {
    guard_int("fi_ep_bind", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        let subject = bind::EventSubject {
            fid: fid.expose_provenance(),
            context: ep.fid.fid.context.expose_provenance(),
        };
        // SAFETY: C passes null or an open object.
        let bound = unsafe { bind::bind(&ep.core, subject, bfid, flags) };
        // SAFETY: as above.
        let class = unsafe { entry::class_of(bfid) }.unwrap_or(fi::FI_CLASS_UNSPEC);
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_ep_bind of an object of class {class} with flags {flags:#x}"),
            bound,
        )
    })
}

/// `fi_control`
///
/// # Errors
/// `-FI_ENOSYS` for commands that do not apply to endpoints; see [`enable`] for `FI_ENABLE`.
unsafe extern "C" fn control<H: Handle + CreatedBy>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    guard_int("fi_control of an endpoint", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        match command {
            fi::FI_ENABLE => {
                entry::log_err(Subsys::EpCtrl, format_args!("fi_enable"), enable(&ep.core))
            }
            fi::FI_GETOPSFLAG => {
                // SAFETY: null or the argument of this command.
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(fi::FI_EINVAL)?;
                *flags = ep.op_flags(*flags)?.get_relaxed();
                Ok(())
            }
            fi::FI_SETOPSFLAG => {
                // SAFETY: null or the argument of this command.
                let flags = unsafe { arg.cast::<u64>().as_ref() }.ok_or(fi::FI_EINVAL)?;
                ep.set_op_flags(*flags)
            }
            fi::FI_ALIAS => {
                // SAFETY: null or the argument of this command.
                let alias = unsafe { arg.cast::<fi::fi_alias>().as_ref() }.ok_or(fi::FI_EINVAL)?;
                if alias.fid.is_null() {
                    return Err(fi::FI_EINVAL);
                }
                let made = entry::give::<Ep, fid>(ep.alias(alias.flags)?);
                ep.core.add_handle(fid.addr(), made.addr());
                // SAFETY: not null; space for the new object.
                unsafe { entry::put(alias.fid, made) }
            }
            _ => Err(fi::FI_ENOSYS),
        }
    })
}

/// `fi_cancel`
unsafe extern "C" fn cancel<H: Handle + CreatedBy>(fid: fid_t, context: *mut c_void) -> isize {
    guard("fi_cancel", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        triggered::cancel_operation(
            &mut ep.core.dom.gate.lock(),
            ep.core.idx(),
            context.expose_provenance(),
        )?;
        Ok(0)
    })
}

/// `fi_getopt`
///
/// # Errors
/// `-FI_ENOPROTOOPT` for an option that cannot be read, `-FI_ETOOSMALL` when its value does not
/// fit.
unsafe extern "C" fn getopt<H: Handle + CreatedBy>(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut usize,
) -> c_int {
    guard_int("fi_getopt", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        let value = opt::option(&ep.core, level, optname);
        entry::log_err(
            Subsys::EpCtrl,
            format_args!("fi_getopt of option {optname} at level {level}"),
            // SAFETY: null, or the caller's buffer and its length.
            value.and_then(|value| unsafe { entry::put_option(value, optval, optlen) }),
        )
    })
}

/// `fi_setopt`
///
/// # Errors
/// `-FI_ENOPROTOOPT` for an option that cannot be set, `-FI_ETOOSMALL` for a value that is too
/// short, `-FI_EINVAL` or `-FI_EOPNOTSUPP` for one that cannot be.
unsafe extern "C" fn setopt<H: Handle + CreatedBy>(
    fid: fid_t,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: usize,
) -> c_int {
    guard_int("fi_setopt", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(fid) }?.ep();
        // SAFETY: null or a value of the given length.
        let value = unsafe { entry::slice(optval.cast::<u8>(), optlen) }?;
        entry::log_err(
            Subsys::EpCtrl,
            format_args!(
                "fi_setopt of option {optname} at level {level} to {:02x?}",
                value.get(..16).unwrap_or(value)
            ),
            opt::set_option(&ep.core, level, optname, value),
        )
    })
}

/// `fi_rx_size_left`
///
/// Receives are never refused, so the requested size is always left. The counterpart for transmits
/// is not supported: the number left depends on the peer.
unsafe extern "C" fn rx_size_left<H: Handle + CreatedBy>(ep: *mut fid_ep) -> isize {
    guard("fi_rx_size_left", || {
        // SAFETY: C passes an open endpoint.
        let ep = unsafe { own::<H, _>(ep) }?.ep();
        let st = ep.core.dom.gate.lock();
        let ep = st.eps.get(ep.core.idx()).filter(|ep| ep.enabled).ok_or(fi::FI_EOPBADSTATE)?;
        isize::try_from(ep.cfg.rx_size).map_err(|_| fi::FI_EINVAL)
    })
}
