// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Bodies of records that are outside the ring, in the buffers in which they arrived.
//!
//! Not about their records, which the ring contains without a body (`stream`). The number of a
//! record finds its body. The window of a connection limits how many bodies wait.

use std::collections::VecDeque;
use std::ops::Range;

use crate::outside_body::OutsideBody;

/// Bodies of a connection, oldest first.
#[derive(Debug, Default)]
pub(super) struct OutsideBodies {
    waiting: VecDeque<OutsideBody>,
}

impl OutsideBodies {
    /// Adds the body of record `number`: that range of `message`, which is taken.
    pub(super) fn add(
        &mut self,
        (number, kind): (u64, u8),
        message: &mut Vec<u8>,
        range: Range<usize>,
    ) {
        self.waiting.push_back(OutsideBody::new((number, kind), std::mem::take(message), range));
    }

    /// Moves all bodies to `to`, behind those there.
    pub(super) fn move_to(&mut self, to: &mut OutsideBodies) {
        if !self.waiting.is_empty() {
            to.waiting.append(&mut self.waiting);
        }
    }

    /// Returns the body of record `number`. Drops those of earlier records.
    pub(super) fn take(&mut self, number: u64) -> Option<OutsideBody> {
        while let Some(body) = self.next_up_to(number) {
            if body.number() == number {
                return Some(body);
            }
        }
        None
    }

    /// Removes all bodies.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = OutsideBody> {
        self.waiting.drain(..)
    }

    fn next_up_to(&mut self, number: u64) -> Option<OutsideBody> {
        self.waiting
            .front()
            .is_some_and(|body| body.number() <= number)
            .then(|| self.waiting.pop_front())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_found_by_the_number_of_their_record() {
        let (mut bodies, mut own) = (OutsideBodies::default(), OutsideBodies::default());
        for number in [2, 3, 5, 6] {
            let mut message = vec![number; 100];
            bodies.add((u64::from(number), 7), &mut message, 10..40);
            assert!(message.is_empty());
        }
        bodies.move_to(&mut own);
        assert!(bodies.take(2).is_none() && own.take(1).is_none());
        let body = own.take(3).unwrap();
        assert_eq!((body.kind(), body.bytes()), (7, &[3; 30][..]));
        assert!(own.take(2).is_none() && own.take(4).is_none());
        assert_eq!(own.take(6).unwrap().bytes(), [6; 30]);
        assert!(own.take(5).is_none());
        own.add((8, 9), &mut vec![8; 100], 0..100);
        let left: Vec<u64> = own.drain().map(|body| body.number()).collect();
        assert_eq!(left, [8]);
    }
}
