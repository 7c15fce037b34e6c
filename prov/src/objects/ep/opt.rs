// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Options of an endpoint: `fi_getopt` and `fi_setopt` at the level `FI_OPT_ENDPOINT`.
//!
//! The size limits may be lowered. The endpoint takes a lower limit as a promise and does not check
//! it.
//!
//! Mirrors fi_endpoint(3), "fi_getopt / fi_setopt".

use std::ffi::c_int;

use libfabric_sys as fi;

use crate::base::attr;
use crate::base::errno::Errno;
use crate::objects::endpoint::ep::EpCore;

/// Returns the value of an option; all readable options are sizes.
pub(super) fn option(core: &EpCore, level: c_int, optname: c_int) -> Result<usize, Errno> {
    if level != fi::FI_OPT_ENDPOINT {
        return Err(fi::FI_ENOPROTOOPT);
    }
    if optname == fi::FI_OPT_CM_DATA_SIZE && connected(core) {
        return Ok(attr::CM_DATA_SIZE);
    }
    if optname == fi::FI_OPT_MIN_MULTI_RECV {
        let st = core.dom.gate.lock();
        return st.eps.get(core.idx()).map(|ep| ep.cfg.min_multi_recv).ok_or(fi::FI_EINVAL);
    }
    let limit = core.limits.of(optname).ok_or(fi::FI_ENOPROTOOPT)?;
    usize::try_from(limit.get_relaxed()).map_err(|_| fi::FI_EOVERFLOW)
}

fn connected(core: &EpCore) -> bool {
    let st = core.dom.gate.lock();
    st.eps.get(core.idx()).is_some_and(|ep| ep.cfg.connected)
}

pub(super) fn set_option(
    core: &EpCore,
    level: c_int,
    optname: c_int,
    value: &[u8],
) -> Result<(), Errno> {
    if level != fi::FI_OPT_ENDPOINT {
        return Err(fi::FI_ENOPROTOOPT);
    }
    match optname {
        fi::FI_OPT_MIN_MULTI_RECV => {
            let size = size(value)?;
            let mut st = core.dom.gate.lock();
            st.eps.get_mut(core.idx()).ok_or(fi::FI_EINVAL)?.cfg.min_multi_recv = size;
            Ok(())
        }
        // Shared memory is the only means of transfer.
        fi::FI_OPT_SHARED_MEMORY_PERMITTED if truth(value)? => Ok(()),
        fi::FI_OPT_SHARED_MEMORY_PERMITTED => Err(fi::FI_EOPNOTSUPP),
        // fi_endpoint(3) requires this error from a provider without CUDA.
        fi::FI_OPT_CUDA_API_PERMITTED => truth(value).and(Err(fi::FI_EINVAL)),
        _ => {
            let limit = core.limits.of(optname).ok_or(fi::FI_ENOPROTOOPT)?;
            let size = size(value)? as u64;
            if size > limit.get_relaxed() {
                return Err(fi::FI_EINVAL);
            }
            limit.set_relaxed(size);
            Ok(())
        }
    }
}

/// Returns the value of an option of type `size_t`.
///
/// # Errors
/// `FI_ETOOSMALL` for fewer bytes than a `size_t`.
pub(crate) fn size(value: &[u8]) -> Result<usize, Errno> {
    value.first_chunk().copied().map(usize::from_ne_bytes).ok_or(fi::FI_ETOOSMALL)
}

/// Returns the value of an option of type `bool`.
fn truth(value: &[u8]) -> Result<bool, Errno> {
    value.first().map(|v| *v != 0).ok_or(fi::FI_ETOOSMALL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_too_short_are_refused() {
        assert_eq!(size(&[1, 2, 3]), Err(fi::FI_ETOOSMALL));
        assert_eq!(truth(&[]), Err(fi::FI_ETOOSMALL));
        assert_eq!(size(&7usize.to_ne_bytes()), Ok(7));
        assert_eq!(truth(&[2]), Ok(true));
    }
}
