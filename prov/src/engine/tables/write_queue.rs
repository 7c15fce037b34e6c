// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Posted writes in the ring that the target has not executed, as far as known: a queue of fixed
//! capacity, because each post and each completion uses it.
//!
//! Not about: the limit of the number of writes in a ring (`posted_writes`).

use crate::engine::tables::op_table::{CompletionInfo, OpKind};
use crate::engine::types::args::{RmaArgs, RmaIov};

/// Largest number of writes in a queue. It is a power of two, so that a position is a mask.
pub(crate) const CAPACITY: u64 = SLOTS as u64;
const SLOTS: usize = 256;
const _: () = assert!(CAPACITY.is_power_of_two());

/// Write in the ring that the target has not executed, as far as known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedWrite {
    /// Number of its record.
    pub(crate) number: u64,
    pub(crate) segment: RmaIov,
    /// Position of the body; `None` if the payload is in the head.
    pub(crate) body: Option<u64>,
    pub(crate) data: Option<u64>,
    context: usize,
    flags: u64,
}

impl PostedWrite {
    const NONE: PostedWrite = PostedWrite {
        number: 0,
        segment: RmaIov { addr: 0, len: 0, key: 0 },
        body: None,
        data: None,
        context: 0,
        flags: 0,
    };

    /// Returns the properties that its completion reports.
    #[inline(always)]
    pub(crate) fn info(&self) -> CompletionInfo {
        let PostedWrite { context, flags, segment, .. } = *self;
        CompletionInfo { op_kind: OpKind::Write, context, flags, tag: 0, len: segment.len }
    }
}

/// Posted writes to one peer, oldest first.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    /// `None` before the first write.
    slots: Option<Box<[PostedWrite; SLOTS]>>,
    /// Number of writes that were removed.
    begin: u64,
    /// Number of writes that were appended.
    end: u64,
    /// Number of writes up to the last one whose end is reported.
    reported: u64,
}

/// Returns the slot of write `number` of the queue.
#[inline(always)]
const fn slot(number: u64) -> usize {
    (number % CAPACITY) as usize
}

impl WriteQueue {
    /// Returns the number of writes.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most CAPACITY, a usize")]
    pub(crate) fn len(&self) -> usize {
        (self.end - self.begin) as usize
    }

    /// Whether there is no write.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Whether the end of a write is to be reported: by a completion or a counter.
    #[inline(always)]
    pub(crate) fn has_reported(&self) -> bool {
        self.begin < self.reported
    }

    /// Returns the oldest write.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&PostedWrite> {
        let slots = self.slots.as_ref().filter(|_| !self.is_empty())?;
        slots.get(slot(self.begin))
    }

    /// Removes the oldest write.
    #[inline(always)]
    pub(crate) fn drop_front(&mut self) {
        self.begin += u64::from(!self.is_empty());
    }

    /// Appends write `a` to `segment`, which is record `number` of the ring. `is_reported`: its end
    /// is to be reported. The caller makes sure that there are less than `CAPACITY` writes.
    ///
    /// The fields are written in place. A new value that is moved here is read by wider loads than
    /// its stores. Such a load waits until all earlier stores, those of the record too, have left
    /// this core (store-forwarding stall).
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        number: u64,
        a: &RmaArgs<'_>,
        segment: &RmaIov,
        body: Option<u64>,
        is_reported: bool,
    ) {
        debug_assert!(self.end - self.begin < CAPACITY, "more writes than slots");
        let slots = self.slots.get_or_insert_with(new_slots);
        let Some(write) = slots.get_mut(slot(self.end)) else { return };
        write.number = number;
        write.segment = *segment;
        write.body = body;
        write.data = a.data;
        write.context = a.context;
        write.flags = a.flags;
        self.end += 1;
        if is_reported {
            self.reported = self.end;
        }
    }
}

#[cold]
fn new_slots() -> Box<[PostedWrite; SLOTS]> {
    Box::new([PostedWrite::NONE; SLOTS])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(queue: &mut WriteQueue, number: u64) {
        let segment = RmaIov { addr: number, len: 8, key: 5 };
        let args = RmaArgs {
            write: true,
            iov: &[],
            rma: &[],
            dest: 0,
            data: Some(number + 1),
            context: 3,
            flags: 4,
        };
        queue.push(number, &args, &segment, Some(number + 2), number % 2 == 0);
    }

    #[test]
    fn writes_leave_in_their_order_in_every_slot() {
        let mut queue = WriteQueue::default();
        assert!(queue.is_empty() && queue.front().is_none());
        queue.drop_front();
        let (mut pushed, mut dropped) = (0, 0);
        for batch in [1, 255, 256, 3, 256] {
            for _ in 0..batch {
                push(&mut queue, pushed);
                pushed += 1;
            }
            assert_eq!(queue.len(), batch);
            for _ in 0..batch {
                let write = queue.front().copied().unwrap();
                let seen = (write.number, write.segment.addr, write.data, write.body);
                assert_eq!(seen, (dropped, dropped, Some(dropped + 1), Some(dropped + 2)));
                let info = write.info();
                assert_eq!((info.context, info.flags, info.len), (3, 4, 8));
                queue.drop_front();
                dropped += 1;
            }
            assert!(queue.is_empty() && queue.front().is_none());
        }
    }
}
