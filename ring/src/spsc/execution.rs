// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Execution of one-sided records by the consumer, and their withdrawal by the producer.
//!
//! A one-sided record asks the consumer for an access to its memory and has no reply. The consumer
//! publishes how many records it has executed. A producer whose consumer stays silent withdraws its
//! records and does the work itself. Each record is executed exactly once:
//!
//! * The consumer announces that it executes, fences, and loads the number of withdrawn records.
//! * The producer stores that number, fences, and waits while the consumer executes.
//!
//! The consumer does not pass a withdrawn record before the producer has executed it or given it
//! back, so that later records keep their order. A hostile peer can only hold up its own ring, or
//! have its own memory written wrongly.
//!
//! Not about: the meaning of the records, and the decision to withdraw.

#![expect(unsafe_code, reason = "names heads in raw shared memory")]

use super::consumer::ConsumerOf;
use super::producer::ProducerOf;
use crate::copy::Mem;
use crate::layout::{HEAD_MAX, body_start};
use crate::shared_word::full_fence;
use crate::sync::Ordering;

/// Bits of a failure that hold the error number; the others hold the number of the record plus 1.
const ERROR_BITS: u32 = 16;

/// Permission to handle the next one-sided record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Permission for this record and all later ones, until
    /// [`end_execution`](crate::Consumer::end_execution).
    Execute,
    /// The producer has done the work: the record is to be freed.
    Skip,
    /// The producer is about to do the work: the record must stay.
    Hold,
}

impl<const SLOTS: usize, const DATA: usize> ConsumerOf<SLOTS, DATA> {
    /// Asks for permission to handle the next record, which is one-sided.
    #[inline]
    pub fn begin_execution(&mut self) -> Execution {
        self.begin(true)
    }

    #[inline(always)]
    fn begin(&mut self, is_fenced: bool) -> Execution {
        let (producer, executing) =
            (&self.region.lines().producer, &self.region.credits().executing);
        // SYNC POINT: pairs with `ProducerOf::end_withdrawal`, which may give records back.
        let may_execute = || self.next >= producer.withdrawn.load(Ordering::Acquire);
        if may_execute() {
            executing.busy.store(1, Ordering::Relaxed);
            if is_fenced {
                // SYNC POINT: pairs with `ProducerOf::begin_withdrawal` (store buffer litmus test).
                full_fence();
            }
            if may_execute() {
                return Execution::Execute;
            }
            // SYNC POINT: as in `end_execution`; nothing was executed.
            executing.busy.store(0, Ordering::Release);
        }
        if self.is_settled() { Execution::Skip } else { Execution::Hold }
    }

    /// Whether the producer has done the work of the next record.
    #[inline]
    pub fn is_settled(&self) -> bool {
        // SYNC POINT: pairs with `ProducerOf::end_withdrawal`: the producer has done the work.
        self.next < self.region.lines().producer.settled.load(Ordering::Acquire)
    }

    /// Reports that the record just freed has failed with `error`. Called before
    /// [`publish_executed`](Self::publish_executed).
    pub fn note_failure(&mut self, error: u16) {
        let line = &self.region.credits().executed;
        let failure = self.next << ERROR_BITS | u64::from(error);
        // Both are ordered by the publication that follows.
        self.region.failure::<SLOTS>(self.next.wrapping_sub(1)).store(failure, Ordering::Relaxed);
        let failures = line.failures.load(Ordering::Relaxed);
        line.failures.store(failures.wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the kind of the next record, if it is published in a slot.
    #[inline]
    pub fn next_kind(&self) -> Option<u8> {
        // SYNC POINT: pairs with `ProducerOf::publish`; `peek` and the other polls load again.
        let word = self.region.slot::<SLOTS>(self.next).word.load(Ordering::Relaxed);
        let [s0, s1, kind, ..] = word.to_le_bytes();
        (u16::from_le_bytes([s0, s1]) == self.lap).then_some(kind)
    }

    /// Publishes that all one-sided records freed so far were executed.
    #[inline]
    pub fn publish_executed(&mut self) {
        // SYNC POINT: pairs with `ProducerOf::executed`: the accesses have ended.
        self.region.credits().executed.count.store(self.next, Ordering::Release);
    }

    /// Ends an execution.
    #[inline]
    pub fn end_execution(&mut self) {
        // SYNC POINT: pairs with `ProducerOf::is_consumer_executing`: the accesses have ended, and
        // what was executed is published.
        self.region.credits().executing.busy.store(0, Ordering::Release);
    }

    /// Variant of `begin_execution` without its fence, for a loom model that must fail.
    #[cfg(loom)]
    pub fn begin_execution_without_fence(&mut self) -> Execution {
        self.begin(false)
    }
}

impl<const SLOTS: usize, const DATA: usize> ProducerOf<SLOTS, DATA> {
    /// Returns a number of records below which the consumer has executed all one-sided ones; at
    /// most the number of records published.
    #[inline]
    pub fn executed(&self) -> u64 {
        // SYNC POINT: pairs with `ConsumerOf::publish_executed`.
        let count = self.region.credits().executed.count.load(Ordering::Acquire);
        count.min(self.produced())
    }

    /// Returns the number of executed records that have failed, modulo 2^64. Valid for the records
    /// that [`executed`](Self::executed) last counted.
    #[inline]
    pub fn failures(&self) -> u64 {
        self.region.credits().executed.failures.load(Ordering::Relaxed)
    }

    /// Returns the error of record `number`, if it has failed. Only the last records are known, as
    /// many as the ring has slots.
    pub fn failure(&self, number: u64) -> Option<u16> {
        let failure = self.region.failure::<SLOTS>(number).load(Ordering::Relaxed);
        let is_it = failure >> ERROR_BITS == number.wrapping_add(1) & u64::MAX >> ERROR_BITS;
        u16::try_from(failure & u64::from(u16::MAX)).ok().filter(|_| is_it)
    }

    /// Withdraws all records that the consumer has not executed. The producer then waits while
    /// [`is_consumer_executing`](Self::is_consumer_executing), executes the records from
    /// [`executed`](Self::executed) on, and calls [`end_withdrawal`](Self::end_withdrawal).
    pub fn begin_withdrawal(&mut self) {
        self.start_withdrawal(true);
    }

    #[inline(always)]
    fn start_withdrawal(&mut self, is_fenced: bool) {
        self.region.lines().producer.withdrawn.store(self.produced(), Ordering::Relaxed);
        if is_fenced {
            // SYNC POINT: pairs with `ConsumerOf::begin_execution` (store buffer litmus test).
            full_fence();
        }
    }

    /// Whether the consumer may be executing records.
    #[inline]
    pub fn is_consumer_executing(&self) -> bool {
        // SYNC POINT: pairs with `ConsumerOf::end_execution`.
        self.region.credits().executing.busy.load(Ordering::Acquire) != 0
    }

    /// Ends a withdrawal. This side has executed the one-sided records below `number`. The others
    /// are given back to the consumer.
    pub fn end_withdrawal(&mut self, number: u64) {
        let line = &self.region.lines().producer;
        // SYNC POINT: pairs with `ConsumerOf::begin_execution`: our accesses have ended.
        line.settled.store(number, Ordering::Release);
        // SYNC POINT: as above, for the records that are given back.
        line.withdrawn.store(number, Ordering::Release);
    }

    /// Returns the head of record `number`, which was published and is not freed. A hostile
    /// consumer may change it.
    pub fn published_head(&self, number: u64) -> Mem {
        let head = self.region.slot::<SLOTS>(number).head.with_mut(|p| p.cast());
        // SAFETY: the head of a slot: HEAD_MAX bytes, mapped as the contract of `new` requires.
        unsafe { Mem::new(head, HEAD_MAX) }
    }

    /// Returns the position of the next body, if it has `len` bytes.
    #[inline]
    pub const fn body_position(&self, len: usize) -> u64 {
        body_start(self.data, len, DATA)
    }

    /// Returns a published body of `len` bytes at a position from
    /// [`body_position`](Self::body_position); `None` if it would not fit there.
    pub fn published_body(&self, position: u64, len: usize) -> Option<Mem> {
        let fits = len <= DATA && body_start(position, len, DATA) == position;
        fits.then(|| self.region.area.body::<DATA>(position, len))
    }

    /// Variant of `begin_withdrawal` without its fence, for a loom model that must fail.
    #[cfg(loom)]
    pub fn begin_withdrawal_without_fence(&mut self) {
        self.start_withdrawal(false);
    }
}
