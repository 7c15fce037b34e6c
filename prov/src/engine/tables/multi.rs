// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Multi-receive buffers (`FI_MULTI_RECV`): the parts that messages get, and the release of a
//! buffer.
//!
//! A buffer belongs to an endpoint or to its shared receive context. In a shared buffer several
//! endpoints may fill parts, and the endpoint that finishes the last part releases the buffer.
//!
//! Not here: matching of messages and buffers (`recv`, `srx`).
//!
//! Semantics: fi_msg(3), "FI_MULTI_RECV".

use scif_ring::copy::Mem;

use crate::engine::types::envelope::{MultiRecvId, RecvTarget};
use crate::engine::types::iov::Iov;

/// Multi-receive buffer. Released when its list entry is gone and no message is being copied into
/// it.
#[derive(Debug)]
pub(crate) struct Multi {
    base: Mem,
    used: usize,
    pub(crate) in_flight: u32,
    pub(crate) retired: bool,
    pub(crate) context: usize,
}

/// Part of a buffer for one message.
#[derive(Debug)]
pub(crate) struct Piece {
    mem: Mem,
    context: usize,
    /// Whether the next message gets no part, so that the list entry is removed.
    pub(crate) last: bool,
}

impl Multi {
    pub(crate) fn new(base: Mem, context: usize) -> Multi {
        Multi { base, used: 0, in_flight: 0, retired: false, context }
    }

    /// Whether messages are being copied into the buffer.
    pub(crate) fn is_filling(&self) -> bool {
        self.in_flight > 0
    }

    /// Reserves `len` bytes, or fewer if even the whole buffer is shorter. `min`: free bytes below
    /// which the buffer is full.
    pub(crate) fn reserve(&mut self, len: usize, min: usize) -> Option<Piece> {
        let left = self.base.len() - self.used;
        if len > left && self.used > 0 {
            return None;
        }
        let mem = self.base.sub(self.used, len.min(left))?;
        self.used += mem.len();
        self.in_flight += 1;
        Some(Piece { mem, context: self.context, last: self.base.len() - self.used < min.max(1) })
    }
}

impl Piece {
    /// Returns the part as the destination of a message.
    pub(crate) fn target(&self, tagged: bool, flags: u64, many: MultiRecvId) -> RecvTarget {
        RecvTarget {
            multi: Some(many),
            ..RecvTarget::new(tagged, Iov::new(&[self.mem]), self.mem.len(), self.context, flags)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::buffer;

    #[test]
    fn messages_get_parts_until_the_minimum_is_reached() {
        let mut multi = Multi::new(buffer(vec![0; 100]), 3);
        let first = multi.reserve(60, 30).unwrap();
        assert!(!first.last && multi.is_filling());
        assert!(multi.reserve(41, 30).is_none(), "the rest is too short");
        let second = multi.reserve(20, 30).unwrap();
        assert!(second.last, "less than the minimum is left");
        let target = second.target(true, 0, MultiRecvId::Own(0));
        assert_eq!((target.room, target.context), (20, 3));
        let whole = Multi::new(buffer(vec![0; 100]), 3).reserve(200, 1).unwrap();
        assert_eq!(whole.mem.len(), 100, "a long message is cut");
    }
}
