// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One direction of a byte stream: a queue of 4095 bytes without boundaries.
//!
//! Not about: how the side that waits is told (`waiting`), nor about the order of calls: each side is used by one thread at a
//! time, whichever process that is in. Source: `scif_send` and `scif_recv` of `scif.h`; queue of the SCIF driver.
//!
//! Both sides count bytes for ever and keep their own count in memory of their own, given at construction; the peer's
//! count is loaded once, checked against it, then used. A peer that writes nonsense is found out, or makes garbage of
//! its own stream.

#![expect(unsafe_code, reason = "lays words over raw shared memory")]

use core::ptr::NonNull;

use crate::copy::Mem;
use crate::short::{SHORT, SHORT_BYTES, Short, ShortBytes, WORDS};
use crate::waiting::{Settle, Tell, Waiting};
use crate::word::{Word32, Word64, Words, full_fence};

/// Bytes one direction takes.
pub const STREAM_BYTES: usize = 8192;
/// Bytes that fit into an empty queue: one less than its memory, as in the driver.
pub const STREAM_ROOM: usize = QUEUE - 1;

#[cfg(not(loom))]
const QUEUE: usize = 4096;
/// In the models.
#[cfg(loom)]
const QUEUE: usize = 4;
/// Written by the producer: bytes published.
const HEAD: usize = 0;
/// In the same line: what was pushed last, if it was short.
const SHORT_STAMP: usize = 8;
const SHORT_WORDS: usize = 16;
/// Written by the consumer: bytes taken.
const TAIL: usize = 128;
/// The consumer waits for bytes: bell, sleepers; and what a sleeping one sleeps on.
const DATA_BELL: usize = 256;
const DATA_SLEEPERS: usize = 260;
const DATA_SEQ: usize = 384;
/// The producer waits for space.
const SPACE_BELL: usize = 512;
const SPACE_SLEEPERS: usize = 516;
const SPACE_SEQ: usize = 640;
const BYTES: usize = 4096;

const _: () = assert!(SHORT_WORDS + 8 * WORDS <= 64);
const _: () = assert!(BYTES + QUEUE <= STREAM_BYTES && QUEUE.is_power_of_two());
#[cfg(not(loom))]
const _: () = assert!(BYTES + QUEUE == STREAM_BYTES);

/// The other side wrote a position that cannot be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadPosition;

/// The memory of one direction.
#[derive(Clone, Copy, Debug)]
struct Region {
    head: Word64,
    tail: Word64,
    short: Short,
    bytes: NonNull<u8>,
    data: Waiting,
    space: Waiting,
    #[cfg(loom)]
    cells: *const crate::sync::UnsafeCell<()>,
}

/// The words and bytes of a direction apart from each other, for the models.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Apart {
    pub(crate) positions: [crate::sync::AtomicU64; 2],
    pub(crate) short: [crate::sync::AtomicU64; 2],
    pub(crate) words: [crate::sync::AtomicU32; 6],
    pub(crate) bytes: core::cell::UnsafeCell<[u8; QUEUE]>,
    pub(crate) cells: [crate::sync::UnsafeCell<()>; QUEUE],
}

#[cfg(loom)]
impl Region {
    pub(crate) fn apart(apart: &Apart) -> Region {
        // SAFETY: atomics that whoever has the view keeps.
        let wide = |i: usize| unsafe { Word64::new(NonNull::from(&apart.positions[i]).cast()) };
        // SAFETY: as above.
        let word = |i: usize| unsafe { Word32::new(NonNull::from(&apart.words[i]).cast()) };
        let waiting = |i: usize| Waiting {
            bell: word(i),
            sleepers: word(i + 1),
            seq: word(i + 2),
        };
        Region {
            head: wide(0),
            tail: wide(1),
            short: Short {
                // SAFETY: as above.
                stamp: unsafe { Word64::new(NonNull::from(&apart.short[0]).cast()) },
                // SAFETY: as above: one word.
                words: unsafe { Words::new(NonNull::from(&apart.short[1]).cast(), WORDS) },
            },
            bytes: NonNull::from(&apart.bytes).cast(),
            data: waiting(0),
            space: waiting(3),
            cells: apart.cells.as_ptr(),
        }
    }

    /// Bytes are about to be written, or read: for loom to see whether that races.
    fn touch(&self, pos: u64, n: usize, write: bool) {
        for at in (pos..pos + n as u64).map(|pos| (pos % QUEUE as u64) as usize) {
            // SAFETY: one of the cells of `Apart`.
            let cell = unsafe { &*self.cells.add(at) };
            if write {
                cell.with_mut(|_| ());
            } else {
                cell.with(|_| ());
            }
        }
    }
}

impl Region {
    /// # Safety
    /// As `StreamTx::new`.
    unsafe fn new(base: NonNull<u8>) -> Region {
        // SAFETY: `at` is within the STREAM_BYTES of the caller's contract.
        let place = |at: usize| unsafe { base.add(at) };
        // SAFETY: mapped and aligned by the caller's contract: every offset is a multiple of 4.
        let word = |at: usize| unsafe { Word32::new(place(at)) };
        let waiting = |bell: usize, sleepers: usize, seq: usize| Waiting {
            bell: word(bell),
            sleepers: word(sleepers),
            seq: word(seq),
        };
        Region {
            // SAFETY: as above, a multiple of 8.
            head: unsafe { Word64::new(place(HEAD)) },
            // SAFETY: as above, a multiple of 8.
            tail: unsafe { Word64::new(place(TAIL)) },
            short: Short {
                // SAFETY: as above, a multiple of 8.
                stamp: unsafe { Word64::new(place(SHORT_STAMP)) },
                // SAFETY: as above, for each of them.
                words: unsafe { Words::new(place(SHORT_WORDS), WORDS) },
            },
            bytes: place(BYTES),
            data: waiting(DATA_BELL, DATA_SLEEPERS, DATA_SEQ),
            space: waiting(SPACE_BELL, SPACE_SLEEPERS, SPACE_SEQ),
            #[cfg(loom)]
            cells: core::ptr::null(),
        }
    }

    /// The two runs of memory that `n` bytes at `pos` lie in.
    #[inline]
    fn runs(&self, pos: u64, n: usize) -> (Mem, Mem) {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the queue")]
        let at = (pos % QUEUE as u64) as usize;
        let first = n.min(QUEUE - at);
        // SAFETY: `at + first` is at most QUEUE, and the queue is mapped by the contract of `new`.
        let a = unsafe { Mem::new(self.bytes.as_ptr().wrapping_add(at), first) };
        // SAFETY: `n - first` is at most QUEUE, likewise.
        let b = unsafe { Mem::new(self.bytes.as_ptr(), n - first) };
        (a, b)
    }
}

/// How many bytes lie between two positions, if they can.
#[inline]
fn distance(head: u64, tail: u64) -> Result<usize, BadPosition> {
    match usize::try_from(head.wrapping_sub(tail)) {
        Ok(n) if n <= STREAM_ROOM => Ok(n),
        _ => Err(BadPosition),
    }
}

/// The side that sends.
#[derive(Debug)]
pub struct StreamTx {
    region: Region,
    /// Bytes published, as we know it.
    own: Word64,
    /// The consumer's position as last seen.
    seen: Word64,
}

#[cfg(loom)]
impl StreamTx {
    pub(crate) fn apart(apart: &Apart, own: Word64, seen: Word64) -> StreamTx {
        let region = Region::apart(apart);
        StreamTx { region, own, seen }
    }

    /// `tell` as it must not be: to show that a model notices.
    pub fn tell_without_fence(&self) -> Tell {
        self.region.data.tell()
    }

    /// `push` of a byte that comes over the one in the line.
    pub fn push_over(&self, byte: &Mem) {
        self.publish(self.own.get_relaxed(), byte, 1, Short::leave_over);
    }

    /// `push` of a byte whose coming nothing orders after the end of the one in the line.
    pub fn push_without_fence(&self, byte: &Mem) {
        self.publish(self.own.get_relaxed(), byte, 1, Short::leave_without_fence);
    }
}

#[cfg(loom)]
impl StreamRx {
    pub(crate) fn apart(apart: &Apart, own: Word64) -> StreamRx {
        let region = Region::apart(apart);
        StreamRx { region, own }
    }
}

impl StreamTx {
    /// The producer of the direction laid over `base`. `own` and `seen` are words of ours, zero when the stream is new,
    /// that every producer of this direction shares.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins [`STREAM_BYTES`] bytes that stay mapped readable and writable for the life of
    /// the value and were zeroed when created.
    pub unsafe fn new(base: NonNull<u8>, own: Word64, seen: Word64) -> StreamTx {
        StreamTx {
            // SAFETY: the caller's contract.
            region: unsafe { Region::new(base) },
            own,
            seen,
        }
    }

    /// Bytes that fit now. Changes nothing: also for who does not produce.
    ///
    /// # Errors
    /// The consumer's position cannot be.
    #[inline]
    pub fn room(&self) -> Result<usize, BadPosition> {
        Ok(STREAM_ROOM - distance(self.own.get_relaxed(), self.region.tail.get())?)
    }

    /// Bytes that fit behind `head` as far as is known, which is looked up only if these are not `enough`.
    #[inline]
    fn known_room(&self, head: u64, enough: usize) -> Result<usize, BadPosition> {
        if let Ok(waiting) = distance(head, self.seen.get_relaxed())
            && STREAM_ROOM - waiting >= enough
        {
            return Ok(STREAM_ROOM - waiting);
        }
        let tail = self.region.tail.get();
        let waiting = distance(head, tail)?;
        self.seen.set_relaxed(tail);
        Ok(STREAM_ROOM - waiting)
    }

    /// Publishes as much of `src` as fits; returns how much.
    ///
    /// # Errors
    /// The consumer's position cannot be.
    #[inline]
    pub fn push(&self, src: &Mem) -> Result<usize, BadPosition> {
        let head = self.own.get_relaxed();
        let n = self.known_room(head, src.len())?.min(src.len());
        if n != 0 {
            self.publish(head, src, n, Short::leave);
        }
        Ok(n)
    }

    /// Publishes all of `src` if that leaves room for more; whether it did.
    #[inline]
    pub fn push_whole(&self, src: &Mem) -> bool {
        let (head, n) = (self.own.get_relaxed(), src.len());
        let fits = self.known_room(head, n + 1).is_ok_and(|room| room > n);
        if fits {
            self.publish(head, src, n, Short::leave);
        }
        fits
    }

    /// Publishes the first `n` bytes of `src`, for which there is room behind `head`.
    #[inline]
    fn publish(&self, head: u64, src: &Mem, n: usize, leave: impl FnOnce(&Short, u64, &ShortBytes, usize)) {
        #[cfg(loom)]
        self.region.touch(head, n, true);
        let (a, b) = self.region.runs(head, n);
        let mut bytes = [0; SHORT_BYTES];
        let short = bytes.get_mut(..n).filter(|_| n <= SHORT);
        // A short one is read once, and is the same in both places.
        let is_short = if let Some(bytes) = short {
            src.copy_to_slice(bytes);
            let done = a.copy_from_slice(bytes);
            b.copy_from_slice(bytes.get(done..).unwrap_or_default());
            true
        } else {
            let done = a.copy_from(src);
            if let Some(rest) = src.sub(done, n - done) {
                b.copy_from(&rest);
            }
            false
        };
        let head = head.wrapping_add(n as u64);
        // SYNC POINT: pairs with `retell`, which publishes it for one that was killed here.
        self.own.set(head);
        if is_short {
            leave(&self.region.short, head, &bytes, n);
        }
        // SYNC POINT: pairs with `StreamRx::ready`.
        self.region.head.set(head);
    }

    /// Whether nothing fitted when it was last looked.
    #[inline]
    pub fn looks_full(&self) -> bool {
        distance(self.own.get_relaxed(), self.seen.get_relaxed()) == Ok(STREAM_ROOM)
    }

    /// After a push: whether anybody waits for bytes. If so, `tell` is to follow.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        full_fence();
        self.region.data.is_awaited()
    }

    /// After a push: who waits for bytes and is to be told.
    #[inline]
    pub fn tell(&self) -> Tell {
        full_fence();
        self.region.data.tell()
    }

    /// One that produced died, perhaps between publishing and telling: what it left undone, to be done under the same lock.
    pub fn retell(&self) -> Tell {
        let head = self.own.get();
        // SYNC POINT: as in `push`, which it may not have come to the end of.
        self.region.head.set(head);
        full_fence();
        self.region.data.retell(self.region.tail.get() != head)
    }

    /// What the descriptor's room for writing needs.
    #[inline]
    pub fn settle(&self) -> Settle {
        self.region.space.settle(|| self.room() != Ok(0))
    }

    /// The consumer's waiting for bytes.
    #[inline]
    pub fn data(&self) -> Waiting {
        self.region.data
    }

    /// Our waiting for space.
    #[inline]
    pub fn space(&self) -> Waiting {
        self.region.space
    }
}

/// The side that receives.
#[derive(Debug)]
pub struct StreamRx {
    region: Region,
    /// Bytes taken, as we know it.
    own: Word64,
}

impl StreamRx {
    /// The consumer of the direction laid over `base`. `own` is a word of ours, zero when the stream is new, that every
    /// consumer of this direction shares.
    ///
    /// # Safety
    ///
    /// As [`StreamTx::new`].
    pub unsafe fn new(base: NonNull<u8>, own: Word64) -> StreamRx {
        StreamRx {
            // SAFETY: the caller's contract.
            region: unsafe { Region::new(base) },
            own,
        }
    }

    /// Bytes that can be taken now.
    ///
    /// # Errors
    /// The producer's position cannot be.
    #[inline]
    pub fn ready(&self) -> Result<usize, BadPosition> {
        // SYNC POINT: pairs with `StreamTx::push`.
        distance(self.region.head.get(), self.own.get_relaxed())
    }

    /// Takes as much as `dst` holds; returns how much.
    ///
    /// # Errors
    /// The producer's position cannot be.
    #[inline]
    pub fn pull(&self, dst: &Mem) -> Result<usize, BadPosition> {
        let ready = self.ready()?;
        let n = ready.min(dst.len());
        if n != 0 {
            let tail = self.own.get_relaxed();
            let head = tail.wrapping_add(ready as u64);
            if self.region.short.take(head, ready, dst).is_none() {
                #[cfg(loom)]
                self.region.touch(tail, n, false);
                let (a, b) = self.region.runs(tail, n);
                let done = dst.copy_from(&a);
                if let Some(rest) = dst.sub(done, n - done) {
                    rest.copy_from(&b);
                }
            }
            let tail = tail.wrapping_add(n as u64);
            // SYNC POINT: pairs with `retell`.
            self.own.set(tail);
            // SYNC POINT: pairs with `StreamTx::room`: our reads end before the space is used again.
            self.region.tail.set(tail);
        }
        Ok(n)
    }

    /// After a pull: who waits for space and is to be told.
    #[inline]
    pub fn tell(&self) -> Tell {
        full_fence();
        self.region.space.tell()
    }

    /// See [`StreamTx::retell`]: for one that consumed.
    pub fn retell(&self) -> Tell {
        let tail = self.own.get();
        // SYNC POINT: as in `pull`.
        self.region.tail.set(tail);
        full_fence();
        let full = distance(self.region.head.get(), tail) == Ok(STREAM_ROOM);
        self.region.space.retell(!full)
    }

    /// There is something to take, and [`Waiting::enter`] was said: `leave` will follow. The peer has looked at the bell
    /// when it sent that, so its word comes from there, which takes as long as the bytes do: both come at once.
    #[inline]
    pub fn will_leave(&self) {
        self.region.data.will_leave();
    }

    /// After a pull by who said [`Waiting::enter`], in place of `settle` and `tell`, with one fence for both: the bell is
    /// armed, the queue is empty, and this is who waits for space. `None` if that is not so: then these two are to be said.
    #[inline]
    pub fn leave(&self) -> Option<Tell> {
        if self.ready() != Ok(0) || !self.region.data.leave() {
            return None;
        }
        (self.ready() == Ok(0)).then(|| self.region.space.tell())
    }

    /// What the descriptor's readability needs.
    #[inline]
    pub fn settle(&self) -> Settle {
        self.region.data.settle(|| self.ready() != Ok(0))
    }

    /// Our waiting for bytes.
    #[inline]
    pub fn data(&self) -> Waiting {
        self.region.data
    }

    /// The producer's waiting for space.
    #[inline]
    pub fn space(&self) -> Waiting {
        self.region.space
    }
}

// SAFETY: words and bytes of shared memory that no thread owns; the callers take turns (module header).
unsafe impl Send for StreamTx {}
// SAFETY: as above.
unsafe impl Sync for StreamTx {}
// SAFETY: as above.
unsafe impl Send for StreamRx {}
// SAFETY: as above.
unsafe impl Sync for StreamRx {}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C, align(4096))]
    struct Memory([u8; STREAM_BYTES], [u64; 3]);

    fn streams(memory: &mut Memory) -> (StreamTx, StreamRx) {
        let base = NonNull::from(&mut memory.0).cast::<u8>();
        let words = NonNull::from(&mut memory.1).cast::<u8>();
        // SAFETY: three words lie there, aligned; `Memory` outlives the streams in every test.
        let word = |i: usize| unsafe { Word64::new(words.map_addr(|at| at.saturating_add(8 * i))) };
        // SAFETY: zeroed, aligned, and outlives the stream.
        let tx = unsafe { StreamTx::new(base, word(0), word(1)) };
        // SAFETY: as above.
        let rx = unsafe { StreamRx::new(base, word(2)) };
        (tx, rx)
    }

    fn memory() -> Box<Memory> {
        Box::new(Memory([0; STREAM_BYTES], [0; 3]))
    }

    fn mem(bytes: &mut [u8]) -> Mem {
        // SAFETY: the slices of the tests outlive the Mem and are not used meanwhile.
        unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn who_leaves_an_empty_queue_is_told_from_then_on() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let mut bytes = [7; 8];
        // Nobody was inside: what the descriptor shows is not known here.
        rx.data().armed();
        assert_eq!(rx.leave(), None);
        // Something is left.
        rx.data().enter();
        tx.push(&mem(&mut bytes)).unwrap();
        assert_eq!(tx.tell(), Tell::default());
        assert_eq!(rx.leave(), None);
        rx.pull(&mem(&mut bytes)).unwrap();
        rx.will_leave();
        assert_eq!(rx.leave(), Some(Tell::default()));
        assert!(!rx.data().shows());
        tx.push(&mem(&mut bytes)).unwrap();
        assert!(tx.tell().ring && rx.data().shows());
        tx.data().rang();
        // Who waits for space hears of it.
        assert_eq!(rx.settle(), Settle::Done);
        rx.pull(&mem(&mut bytes)).unwrap();
        assert_eq!(rx.settle(), Settle::Hide);
        rx.data().armed();
        rx.data().enter();
        tx.space().sleep_begins();
        tx.space().armed();
        assert_eq!(
            rx.leave(),
            Some(Tell {
                ring: true,
                wake: true
            })
        );
    }

    #[test]
    fn an_empty_queue_takes_4095_bytes() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let mut src: Vec<u8> = (0..20000u32).map(|i| (i % 251) as u8).collect();
        assert_eq!(tx.push(&mem(&mut src)), Ok(STREAM_ROOM));
        assert_eq!(tx.push(&mem(&mut src)), Ok(0));
        let mut dst = vec![0u8; 5000];
        assert_eq!(rx.pull(&mem(&mut dst)), Ok(STREAM_ROOM));
        assert_eq!(dst.get(..STREAM_ROOM), src.get(..STREAM_ROOM));
        assert_eq!((rx.ready(), tx.room()), (Ok(0), Ok(STREAM_ROOM)));
    }

    #[test]
    fn short_messages_come_in_the_line_of_the_position() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let (mut src, mut dst) = ([1, 2, 3], [0; 8]);
        assert!(tx.push_whole(&mem(&mut src)));
        // Not from there.
        tx.region.runs(0, 3).0.copy_from_slice(&[0; 3]);
        assert_eq!((rx.pull(&mem(&mut dst)), &dst[..3]), (Ok(3), &src[..]));
        let mut rest = vec![0; STREAM_ROOM];
        assert!(tx.push_whole(&mem(&mut rest[..4000])), "it looks");
        assert!(!tx.push_whole(&mem(&mut rest[..95])), "it leaves room");
    }

    /// Killed between saying what it has published, to its own side, and publishing it: the bytes are those of the queue, whatever
    /// lies in the line.
    #[test]
    fn what_somebody_died_on_the_way_of_publishing_arrives() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let mut dst = [0; 8];
        for stamp in [None, Some(0)] {
            tx.push(&mem(&mut [1, 2, 3])).unwrap();
            assert_eq!(rx.pull(&mem(&mut dst)), Ok(3));
            let head = tx.own.get();
            tx.region.runs(head, 3).0.copy_from_slice(&[4, 5, 6]);
            tx.own.set(head + 3);
            if let Some(stamp) = stamp {
                tx.region.short.stamp.set(stamp);
            }
            assert_eq!(rx.ready(), Ok(0));
            tx.retell();
            assert_eq!((rx.pull(&mem(&mut dst)), &dst[..3]), (Ok(3), &[4, 5, 6][..]));
        }
    }

    #[test]
    fn bytes_keep_their_order_over_the_end() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let (mut next, mut expected) = (0u8, 0u8);
        for round in 0..2000usize {
            let mut src: Vec<u8> = (0..round % 700)
                .map(|_| {
                    next = next.wrapping_add(1);
                    next
                })
                .collect();
            let n = tx.push(&mem(&mut src)).unwrap();
            next = next.wrapping_sub(u8::try_from((src.len() - n) % 256).unwrap());
            let mut dst = vec![0u8; round * 7 % 900];
            let n = rx.pull(&mem(&mut dst)).unwrap();
            for byte in &dst[..n] {
                expected = expected.wrapping_add(1);
                assert_eq!(*byte, expected);
            }
        }
    }

    /// Somebody who only looks, between another's looks, leaves nothing behind that is not so any more.
    #[test]
    fn who_looks_at_the_room_disturbs_nobody() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let mut bytes = vec![0; STREAM_ROOM];
        tx.push(&mem(&mut bytes[..100])).unwrap();
        let seen = tx.seen.get();
        assert_eq!(rx.pull(&mem(&mut bytes)), Ok(100));
        assert_eq!((tx.room(), tx.seen.get()), (Ok(STREAM_ROOM), seen));
        assert_eq!(tx.push(&mem(&mut bytes)), Ok(STREAM_ROOM));
        // As it would be if that had been left.
        tx.seen.set(0);
        assert_eq!(tx.push(&mem(&mut bytes)), Ok(0), "full, and no bad position");
    }

    #[test]
    fn positions_that_cannot_be_are_found_out() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let mut bytes = [0u8; 8];
        tx.region.head.set(5000);
        assert_eq!(rx.pull(&mem(&mut bytes)), Err(BadPosition));
        tx.region.tail.set(1);
        assert_eq!(tx.room(), Err(BadPosition));
    }

    #[test]
    fn a_bell_is_rung_once_and_shows_what_is_so() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let mut byte = [1u8];
        assert_eq!(rx.settle(), Settle::Done, "empty and armed");
        tx.push(&mem(&mut byte)).unwrap();
        assert_eq!(
            tx.tell(),
            Tell {
                ring: true,
                wake: false
            }
        );
        assert_eq!(rx.settle(), Settle::Done, "being rung, and there is something");
        tx.data().rung();
        tx.push(&mem(&mut byte)).unwrap();
        assert_eq!(tx.tell(), Tell::default(), "rung already");
        let mut two = [0u8; 2];
        assert_eq!(rx.pull(&mem(&mut two)), Ok(2));
        assert_eq!(rx.settle(), Settle::Hide);
        rx.data().armed();
        assert_eq!(rx.settle(), Settle::Done);
        rx.data().enter();
        tx.push(&mem(&mut byte)).unwrap();
        assert_eq!(tx.tell(), Tell::default(), "the receiver looks for itself");
        assert_eq!(rx.settle(), Settle::Show, "and leaves something behind");
        rx.data().rung();
        assert_eq!(rx.settle(), Settle::Done);
    }

    #[test]
    fn a_full_queue_asks_for_space_and_sleepers_are_woken() {
        let mut memory = memory();
        let (tx, rx) = streams(&mut memory);
        let mut src = vec![0u8; STREAM_ROOM];
        tx.push(&mem(&mut src)).unwrap();
        tx.space().rung();
        assert_eq!(tx.settle(), Settle::Hide);
        tx.space().armed();
        assert_eq!(tx.settle(), Settle::Done);
        let before = tx.space().sleep_begins();
        let mut one = [0u8];
        rx.pull(&mem(&mut one)).unwrap();
        assert_eq!(
            rx.tell(),
            Tell {
                ring: true,
                wake: true
            }
        );
        assert_ne!(tx.space().seq().get(), before);
        tx.space().sleep_ends();
        rx.space().rung();
        assert_eq!((tx.settle(), rx.tell()), (Settle::Done, Tell::default()));
    }
}
