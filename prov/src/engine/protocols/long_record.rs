// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Records to peers on other hosts whose bodies go past the ring.
//!
//! Not here: messages (`send`), which fall back to an announcement.

use scif::{Connection, LONG_BODY_MAX, LongSend};

/// Length in bytes from which a payload to a peer on another host is sent past the ring, with one
/// copy on each side. With a shorter one, short payloads keep whole buffers of their receiver.
pub(crate) const LONG_MIN: usize = 1024;

/// Sends a record past the ring, with a body of `len` bytes that `append` appends. Returns false if
/// the record has to take the ring.
pub(crate) fn send(
    c: &mut Connection,
    (kind, head): (u8, &[u8]),
    len: usize,
    append: &mut dyn FnMut(&mut Vec<u8>),
) -> bool {
    (LONG_MIN..=LONG_BODY_MAX).contains(&len)
        && c.peer().place != 0
        && c.send_long(kind, head, len, append) == LongSend::Sent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, connect};
    use crate::engine::types::wire;

    #[test]
    fn records_to_peers_of_this_host_take_the_ring() {
        let mut pair = Bed::pair();
        connect(&mut pair);
        let links = &mut pair[0].ep.links;
        let conn = links.active[0].conn;
        let c = links.conn(conn).unwrap();
        for len in [0, LONG_MIN - 1, LONG_MIN, LONG_BODY_MAX, LONG_BODY_MAX + 1] {
            let mut append = |_: &mut Vec<u8>| panic!("not sent");
            assert!(!send(c, (wire::WRITE, &[]), len, &mut append), "{len}");
        }
    }
}
