// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Announcement of a large message (`RTS`): its payload stays with the sender until it is fetched.

use scif::{AccessError, ConnId, PeerMemory, RemoteMem, WireMemory};
use scif_ring::copy::Mem;

use crate::engine::types::envelope::RecordError;
use crate::engine::types::iov::{Iov, sub_iov};
use crate::engine::types::wire::Words;

/// Bytes from which a message is announced with a claim block for a cooperative copy. A shorter one
/// is pulled.
pub(crate) const BOTH_SIDES_MIN: usize = 48 * 1024;
/// Largest number of elements of an announced scatter list. A record with more of them is invalid.
const REMOTE_MAX: usize = 64;
/// Bytes of one list element in a record: address and length.
const PIECE_BYTES: usize = 16;

/// Bit in the last word of an announcement: a key of the network follows, by which the payload can
/// be read.
pub(crate) const NETWORK_KEY: u64 = 1 << 8;

/// Announced message, with the location of its payload in the sender.
#[derive(Debug)]
pub(crate) struct Rts {
    pub(crate) conn: ConnId,
    pub(crate) op: u64,
    len: u64,
    pub(crate) block: Option<(usize, u32)>,
    /// Payload as the engine of a network reads it.
    pub(crate) network: Option<WireMemory>,
    pieces: Pieces,
}

/// Memory of an announced message: one range, or a scatter list.
#[derive(Debug)]
enum Pieces {
    One(RemoteMem),
    List(Vec<RemoteMem>),
}

impl Rts {
    /// Decodes {op, len, addr, block and generation, key of the network} and the scatter list, if
    /// there is one.
    pub(crate) fn decode(
        conn: ConnId,
        words: &mut Words<'_>,
        body: Mem,
    ) -> Result<Rts, RecordError> {
        let (op, len, addr, misc) = (words.word(), words.word(), words.word(), words.word());
        if len > isize::MAX as u64 {
            return Err(RecordError::ProtocolError);
        }
        let block = match usize::from(misc.to_le_bytes()[0]) {
            0 => None,
            n if n <= scif_ring::CLAIM_BLOCKS => {
                Some((n - 1, u32::try_from(misc >> 16 & 0xffff).unwrap_or(0)))
            }
            _ => return Err(RecordError::ProtocolError),
        };
        let network = (misc & NETWORK_KEY != 0).then(|| WireMemory { addr, key: words.word() });
        let pieces = if body.is_empty() {
            Pieces::One(RemoteMem { addr, len })
        } else {
            Pieces::List(Rts::list(body, len)?)
        };
        Ok(Rts { conn, op, len, block, network, pieces })
    }

    /// Decodes a scatter list of `len` bytes in total.
    fn list(body: Mem, len: u64) -> Result<Vec<RemoteMem>, RecordError> {
        if body.len() % PIECE_BYTES != 0 || body.len() / PIECE_BYTES > REMOTE_MAX {
            return Err(RecordError::ProtocolError);
        }
        let mut room = [0; REMOTE_MAX * PIECE_BYTES];
        let bytes = room.get_mut(..body.len()).ok_or(RecordError::ProtocolError)?;
        body.copy_to_slice(bytes);
        let pairs = bytes.chunks_exact(PIECE_BYTES);
        let mut pieces = Vec::new();
        pieces.try_reserve_exact(pairs.len()).map_err(|_| RecordError::NoMemory)?;
        let mut sum = 0u64;
        for pair in pairs {
            let (a, l) = pair.split_at(8);
            let word = |b: &[u8]| b.first_chunk::<8>().map_or(0, |w| u64::from_ne_bytes(*w));
            sum = sum.checked_add(word(l)).ok_or(RecordError::ProtocolError)?;
            pieces.push(RemoteMem { addr: word(a), len: word(l) });
        }
        if sum == len { Ok(pieces) } else { Err(RecordError::ProtocolError) }
    }

    /// Returns the heap bytes that this message occupies.
    pub(crate) fn kept(&self) -> usize {
        match &self.pieces {
            Pieces::One(_) => 0,
            Pieces::List(list) => list.len() * PIECE_BYTES,
        }
    }

    pub(crate) fn len(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    pub(crate) fn op(&self) -> u64 {
        self.op
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    /// Copies bytes `off..off+len` of the message into `iov`.
    pub(crate) fn fetch(
        &self,
        from: &PeerMemory,
        iov: &Iov,
        off: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        match (&self.pieces, iov.contiguous().and_then(|to| to.sub(off, len))) {
            (Pieces::One(piece), Some(to)) => {
                let remote = RemoteMem {
                    addr: piece.addr.wrapping_add(off as u64),
                    // The kernel pins the whole remote range, however little is copied.
                    len: piece.len.saturating_sub(off as u64).min(len as u64),
                };
                from.read(&[to], &[remote])
            }
            _ => {
                from.read(&sub_iov(iov.as_slice(), off, len), &self.remote(off as u64, len as u64))
            }
        }
    }

    /// Returns the first `len` bytes of the message, if its memory is one range.
    pub(crate) fn piece(&self, len: usize) -> Option<RemoteMem> {
        let Pieces::One(RemoteMem { addr, .. }) = self.pieces else { return None };
        Some(RemoteMem { addr, len: len as u64 })
    }

    /// Returns the memory of the sender that holds bytes `off..off+len` of the message.
    fn remote(&self, mut off: u64, mut len: u64) -> Vec<RemoteMem> {
        let pieces = match &self.pieces {
            Pieces::One(piece) => core::slice::from_ref(piece),
            Pieces::List(list) => list,
        };
        let mut out = Vec::new();
        for piece in pieces {
            if len == 0 {
                break;
            }
            if off >= piece.len {
                off -= piece.len;
                continue;
            }
            let n = (piece.len - off).min(len);
            out.push(RemoteMem { addr: piece.addr.wrapping_add(off), len: n });
            len -= n;
            off = 0;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::head_of;

    #[test]
    fn an_announcement_names_memory_of_a_network_only_with_its_bit() {
        let conn = ConnId { index: 0, generation: 1 };
        let decode = |misc| {
            let head = head_of(&[7, 100, 0x1000, misc, 0xfeed]);
            Rts::decode(conn, &mut Words::new(&head, 40), Mem::empty()).unwrap()
        };
        let memory = WireMemory { addr: 0x1000, key: 0xfeed };
        assert_eq!(decode(NETWORK_KEY).network, Some(memory));
        assert_eq!(decode(3 | 5 << 16).network, None);
        assert_eq!(decode(3 | NETWORK_KEY | 5 << 16).block, Some((2, 5)));
    }
}
