// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Size limits of an endpoint, which its options can lower.

use std::ffi::c_int;

use libfabric_sys as fi;
use scif_ring::AtomicCounter;

use crate::base::atomic_ops::MAX_ATOMIC_BYTES;

/// Options that limit sizes, in the order of their numbers from `FI_OPT_MAX_MSG_SIZE` on.
#[derive(Debug)]
pub(crate) struct SizeLimits([AtomicCounter; 8]);

impl SizeLimits {
    pub(crate) fn new(inject_size: usize) -> SizeLimits {
        let all = [
            usize::MAX,
            usize::MAX,
            usize::MAX,
            MAX_ATOMIC_BYTES,
            inject_size,
            inject_size,
            inject_size,
            inject_size.min(MAX_ATOMIC_BYTES),
        ];
        SizeLimits(all.map(|limit| AtomicCounter::new(limit as u64)))
    }

    /// Returns the limit that an option sets.
    pub(crate) fn of(&self, optname: c_int) -> Option<&AtomicCounter> {
        let at = optname.checked_sub(fi::FI_OPT_MAX_MSG_SIZE)?;
        self.0.get(usize::try_from(at).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_numbers_of_the_options() {
        let limits = SizeLimits::new(4096);
        let get = |opt| limits.of(opt).map(AtomicCounter::get_relaxed);
        assert_eq!(get(fi::FI_OPT_MAX_RMA_SIZE), Some(u64::MAX));
        assert_eq!(get(fi::FI_OPT_MAX_ATOMIC_SIZE), Some(MAX_ATOMIC_BYTES as u64));
        assert_eq!(get(fi::FI_OPT_INJECT_MSG_SIZE), Some(4096));
        assert_eq!(get(fi::FI_OPT_INJECT_ATOMIC_SIZE), Some(4096));
        assert_eq!(get(fi::FI_OPT_FIREWALL_ADDR), None);
        assert_eq!(get(fi::FI_OPT_SHARED_MEMORY_PERMITTED), None);
        assert_eq!(get(c_int::MIN), None);
    }
}
