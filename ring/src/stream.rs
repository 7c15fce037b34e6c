// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One direction of a byte stream: a queue without message boundaries. A program sees 4095 bytes of
//! it, as in the driver. Bytes that a blocking receive demands count as taken, so that large
//! transfers fill the whole queue while the receive takes from it.
//!
//! Not about: wake-ups of a waiting side (`wake_word`), and the order of calls: one thread at a
//! time uses each side, in any process. Source: `scif_send` and `scif_recv` of `scif.h`; queue of
//! the SCIF driver.
//!
//! Both sides count bytes without wrapping to the queue and keep their own count in private memory,
//! given at construction. The peer's count is loaded once, checked against the own count, then
//! used. Invalid counts of a peer are detected, or corrupt only the peer's own stream.

#![expect(unsafe_code, reason = "lays words over raw shared memory")]

use core::ptr::NonNull;

use crate::copy::Mem;
use crate::inline_copy::{INLINE_BYTES, INLINE_MAX, InlineBytes, InlineCopy, WORDS};
use crate::shared_word::{SharedU32, SharedU64, SharedWords, full_fence};
use crate::wake_word::{FdAction, WakeWords, Wakeups};

/// Size in bytes of the memory of one direction.
pub const STREAM_BYTES: usize = 4096 + (256 << 10);
/// Number of bytes that an empty queue takes while no receive waits, as in the driver.
pub const STREAM_ROOM: usize = if cfg!(loom) { 3 } else { 4095 };
/// Number of bytes that one step of a large transfer publishes or takes. Both sides copy at the
/// same time only if the queue holds several parts.
pub const STREAM_PART: usize = if cfg!(loom) { 2 } else { 16 << 10 };

#[cfg(not(loom))]
const QUEUE_BYTES: usize = 256 << 10;
/// Size in bytes of the queue in the loom models.
#[cfg(loom)]
const QUEUE_BYTES: usize = 4;
/// Offset of the producer's word: number of bytes published.
const HEAD: usize = 0;
/// Offsets in the same line: copy of the last push, if it was short.
const COPY_STAMP: usize = 8;
const COPY_WORDS: usize = 16;
/// Offset of the consumer's word: number of bytes taken.
const TAIL: usize = 128;
/// Offset in the same line: position up to which a blocking receive takes bytes; 0 if it ended
/// early.
const DEMAND: usize = 136;
/// Offsets of the words of a consumer that waits for bytes: wake-up word, sleepers, and the futex
/// word.
const DATA_WAKE_WORD: usize = 256;
const DATA_SLEEPERS: usize = 260;
const DATA_SEQ: usize = 384;
/// Offsets of the words of a producer that waits for space.
const SPACE_WAKE_WORD: usize = 512;
const SPACE_SLEEPERS: usize = 516;
const SPACE_SEQ: usize = 640;
const BYTES: usize = 4096;

const _: () = assert!(COPY_WORDS + 8 * WORDS <= 64);
const _: () = assert!(BYTES + QUEUE_BYTES <= STREAM_BYTES && QUEUE_BYTES.is_power_of_two());
#[cfg(not(loom))]
const _: () = assert!(BYTES + QUEUE_BYTES == STREAM_BYTES);

/// Error: the other side wrote an impossible position.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadPosition;

/// Memory of one direction.
#[derive(Clone, Copy, Debug)]
struct StreamRegion {
    head: SharedU64,
    tail: SharedU64,
    demand: SharedU64,
    inline_copy: InlineCopy,
    bytes: NonNull<u8>,
    data: WakeWords,
    space: WakeWords,
    #[cfg(loom)]
    cells: *const crate::sync::UnsafeCell<()>,
}

/// Words and bytes of a direction as separate objects, for the loom models.
#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct StreamParts {
    pub(crate) positions: [crate::sync::AtomicU64; 3],
    pub(crate) inline: [crate::sync::AtomicU64; 2],
    pub(crate) words: [crate::sync::AtomicU32; 6],
    pub(crate) bytes: core::cell::UnsafeCell<[u8; QUEUE_BYTES]>,
    pub(crate) cells: [crate::sync::UnsafeCell<()>; QUEUE_BYTES],
}

#[cfg(loom)]
impl StreamRegion {
    pub(crate) fn from_parts(parts: &StreamParts) -> StreamRegion {
        // SAFETY: the views keep these atomics alive.
        let wide = |i: usize| unsafe { SharedU64::new(NonNull::from(&parts.positions[i]).cast()) };
        // SAFETY: as above.
        let word = |i: usize| unsafe { SharedU32::new(NonNull::from(&parts.words[i]).cast()) };
        let wake_words =
            |i: usize| WakeWords { state: word(i), sleepers: word(i + 1), seq: word(i + 2) };
        StreamRegion {
            head: wide(0),
            tail: wide(1),
            demand: wide(2),
            inline_copy: InlineCopy {
                // SAFETY: as above.
                stamp: unsafe { SharedU64::new(NonNull::from(&parts.inline[0]).cast()) },
                // SAFETY: as above: one word.
                words: unsafe { SharedWords::new(NonNull::from(&parts.inline[1]).cast(), WORDS) },
            },
            bytes: NonNull::from(&parts.bytes).cast(),
            data: wake_words(0),
            space: wake_words(3),
            cells: parts.cells.as_ptr(),
        }
    }

    /// Reports a read or write of bytes to loom, which detects races.
    fn model_access(&self, pos: u64, n: usize, write: bool) {
        for at in (pos..pos + n as u64).map(|pos| (pos % QUEUE_BYTES as u64) as usize) {
            // SAFETY: one of the cells of `StreamParts`.
            let cell = unsafe { &*self.cells.add(at) };
            if write {
                cell.with_mut(|_| ());
            } else {
                cell.with(|_| ());
            }
        }
    }
}

impl StreamRegion {
    /// # Safety
    /// As `StreamTx::new`.
    unsafe fn new(base: NonNull<u8>) -> StreamRegion {
        // SAFETY: `at` is within the STREAM_BYTES of the caller's contract.
        let place = |at: usize| unsafe { base.add(at) };
        // SAFETY: mapped and aligned by the caller's contract; every offset is a multiple of 4.
        let word = |at: usize| unsafe { SharedU32::new(place(at)) };
        let wake_words = |state: usize, sleepers: usize, seq: usize| WakeWords {
            state: word(state),
            sleepers: word(sleepers),
            seq: word(seq),
        };
        StreamRegion {
            // SAFETY: as above, a multiple of 8.
            head: unsafe { SharedU64::new(place(HEAD)) },
            // SAFETY: as above, a multiple of 8.
            tail: unsafe { SharedU64::new(place(TAIL)) },
            // SAFETY: as above, a multiple of 8.
            demand: unsafe { SharedU64::new(place(DEMAND)) },
            inline_copy: InlineCopy {
                // SAFETY: as above, a multiple of 8.
                stamp: unsafe { SharedU64::new(place(COPY_STAMP)) },
                // SAFETY: as above, for each of them.
                words: unsafe { SharedWords::new(place(COPY_WORDS), WORDS) },
            },
            bytes: place(BYTES),
            data: wake_words(DATA_WAKE_WORD, DATA_SLEEPERS, DATA_SEQ),
            space: wake_words(SPACE_WAKE_WORD, SPACE_SLEEPERS, SPACE_SEQ),
            #[cfg(loom)]
            cells: core::ptr::null(),
        }
    }

    /// Returns the two runs of memory that hold `n` bytes at `pos`.
    #[inline]
    fn runs(&self, pos: u64, n: usize) -> (Mem, Mem) {
        #[expect(clippy::cast_possible_truncation, reason = "masked to the queue")]
        let at = (pos % QUEUE_BYTES as u64) as usize;
        let first = n.min(QUEUE_BYTES - at);
        // SAFETY: `at + first` is at most QUEUE_BYTES, and the queue is mapped by the contract of
        // `new`.
        let a = unsafe { Mem::new(self.bytes.as_ptr().wrapping_add(at), first) };
        // SAFETY: `n - first` is at most QUEUE_BYTES, likewise.
        let b = unsafe { Mem::new(self.bytes.as_ptr(), n - first) };
        (a, b)
    }
}

/// Returns the number of bytes between two positions, if it is possible.
#[inline]
fn distance(head: u64, tail: u64) -> Result<usize, BadPosition> {
    match usize::try_from(head.wrapping_sub(tail)) {
        Ok(n) if n <= QUEUE_BYTES => Ok(n),
        _ => Err(BadPosition),
    }
}

/// Returns the free space in bytes of a queue with `waiting` bytes of which none is demanded.
#[inline]
fn plain_room(waiting: usize) -> usize {
    STREAM_ROOM.saturating_sub(waiting)
}

/// The producer of a stream.
#[derive(Debug)]
pub struct StreamTx {
    region: StreamRegion,
    /// Number of bytes published, in private memory.
    position: SharedU64,
    /// The consumer's position when last loaded.
    seen: SharedU64,
}

#[cfg(loom)]
impl StreamTx {
    pub(crate) fn from_parts(
        parts: &StreamParts,
        position: SharedU64,
        seen: SharedU64,
    ) -> StreamTx {
        let region = StreamRegion::from_parts(parts);
        StreamTx { region, position, seen }
    }

    /// Variant of `prepare_wake` without the fence, for a loom model that must fail.
    pub fn prepare_wake_without_fence(&self) -> Wakeups {
        self.region.data.prepare_wake()
    }

    /// Variant of `push` that overwrites the copy in the line without invalidation, for a loom
    /// model that must fail.
    pub fn push_overwriting(&self, byte: &Mem) {
        self.publish(self.position.get_relaxed(), byte, 1, InlineCopy::overwrite);
    }

    /// Variant of `push` without the fence after the invalidation, for a loom model that must fail.
    pub fn push_without_fence(&self, byte: &Mem) {
        self.publish(self.position.get_relaxed(), byte, 1, InlineCopy::publish_without_fence);
    }
}

#[cfg(loom)]
impl StreamRx {
    pub(crate) fn from_parts(parts: &StreamParts, position: SharedU64) -> StreamRx {
        let region = StreamRegion::from_parts(parts);
        StreamRx { region, position }
    }
}

impl StreamTx {
    /// Returns the producer of the direction at `base`. `position` and `seen` are private words,
    /// zero in a new stream, shared by all producers of this direction.
    ///
    /// # Safety
    ///
    /// `base` is aligned to 128 and begins [`STREAM_BYTES`] bytes that stay mapped readable and
    /// writable while the value exists and were zeroed when created.
    pub unsafe fn new(base: NonNull<u8>, position: SharedU64, seen: SharedU64) -> StreamTx {
        StreamTx {
            // SAFETY: the caller's contract.
            region: unsafe { StreamRegion::new(base) },
            position,
            seen,
        }
    }

    /// Returns the free space in bytes. Changes nothing, so that any process may call it.
    ///
    /// # Errors
    /// The consumer's position is impossible.
    #[inline]
    pub fn room(&self) -> Result<usize, BadPosition> {
        self.room_behind(self.position.get_relaxed(), self.region.tail.get())
    }

    /// Returns the free space in bytes between `head` and the consumer's position. Demanded bytes
    /// count as taken, but occupy the queue.
    #[inline]
    fn room_behind(&self, head: u64, tail: u64) -> Result<usize, BadPosition> {
        let waiting = distance(head, tail)?;
        let demand = self.region.demand.get_relaxed();
        if demand <= tail {
            return Ok(plain_room(waiting));
        }
        let room = demand.saturating_add(STREAM_ROOM as u64).saturating_sub(head);
        Ok(usize::try_from(room).unwrap_or(usize::MAX).min(QUEUE_BYTES - waiting))
    }

    /// Returns the free space in bytes behind `head`. Loads the consumer's position only if the
    /// last known one does not leave `enough`.
    #[inline]
    fn cached_room(&self, head: u64, enough: usize) -> Result<usize, BadPosition> {
        if let Ok(waiting) = distance(head, self.seen.get_relaxed()) {
            if plain_room(waiting) >= enough {
                return Ok(plain_room(waiting));
            }
        }
        let tail = self.region.tail.get();
        let room = self.room_behind(head, tail)?;
        self.seen.set_relaxed(tail);
        Ok(room)
    }

    /// Publishes as many bytes of `src` as fit; returns their number.
    ///
    /// # Errors
    /// The consumer's position is impossible.
    #[inline]
    pub fn push(&self, src: &Mem) -> Result<usize, BadPosition> {
        let head = self.position.get_relaxed();
        let n = self.cached_room(head, src.len())?.min(src.len());
        if n != 0 {
            self.publish(head, src, n, InlineCopy::publish);
        }
        Ok(n)
    }

    /// Publishes all of `src` if free space remains after it; returns whether it did.
    #[inline]
    pub fn push_whole(&self, src: &Mem) -> bool {
        let (head, n) = (self.position.get_relaxed(), src.len());
        let fits = self.cached_room(head, n + 1).is_ok_and(|room| room > n);
        if fits {
            self.publish(head, src, n, InlineCopy::publish);
        }
        fits
    }

    /// Publishes the first `n` bytes of `src`, which must fit behind `head`.
    #[inline]
    fn publish(
        &self,
        head: u64,
        src: &Mem,
        n: usize,
        publish_copy: impl FnOnce(&InlineCopy, u64, &InlineBytes, usize),
    ) {
        #[cfg(loom)]
        self.region.model_access(head, n, true);
        let (a, b) = self.region.runs(head, n);
        let mut bytes = [0; INLINE_BYTES];
        let short = bytes.get_mut(..n).filter(|_| n <= INLINE_MAX);
        // A short message is read once, so that both places get the same bytes.
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
        // SYNC POINT: pairs with `repeat_wake`, which publishes it for a process killed at this
        // point.
        self.position.set(head);
        if is_short {
            publish_copy(&self.region.inline_copy, head, &bytes, n);
        }
        // SYNC POINT: pairs with `StreamRx::ready`.
        self.region.head.set(head);
    }

    /// Whether the queue was full at the last known position of the consumer.
    #[inline]
    pub fn appears_full(&self) -> bool {
        let waiting = distance(self.position.get_relaxed(), self.seen.get_relaxed());
        waiting.is_ok_and(|waiting| plain_room(waiting) == 0)
    }

    /// Whether a consumer waits for bytes, after a push. If so, `prepare_wake` must follow.
    #[inline]
    pub fn is_awaited(&self) -> bool {
        full_fence();
        self.region.data.is_awaited()
    }

    /// Returns the wake-ups owed to the consumer after a push.
    #[inline]
    pub fn prepare_wake(&self) -> Wakeups {
        full_fence();
        self.region.data.prepare_wake()
    }

    /// Completes the work of a producer that died, perhaps between publishing and its wake-ups;
    /// called under the same lock. Returns the wake-ups owed.
    pub fn repeat_wake(&self) -> Wakeups {
        let head = self.position.get();
        // SYNC POINT: as in `push`, whose end the dead producer may not have reached.
        self.region.head.set(head);
        full_fence();
        self.region.data.repeat_wake(self.region.tail.get() != head)
    }

    /// Returns the action that the descriptor needs for its writability.
    #[inline]
    pub fn next_fd_action(&self) -> FdAction {
        self.region.space.next_fd_action(|| self.room() != Ok(0))
    }

    /// Returns the words by which the consumer waits for bytes.
    #[inline]
    pub fn data(&self) -> WakeWords {
        self.region.data
    }

    /// Returns the words by which this side waits for space.
    #[inline]
    pub fn space(&self) -> WakeWords {
        self.region.space
    }
}

/// The consumer of a stream.
#[derive(Debug)]
pub struct StreamRx {
    region: StreamRegion,
    /// Number of bytes taken, in private memory.
    position: SharedU64,
}

impl StreamRx {
    /// Returns the consumer of the direction at `base`. `position` is a private word, zero in a new
    /// stream, shared by all consumers of this direction.
    ///
    /// # Safety
    ///
    /// As [`StreamTx::new`].
    pub unsafe fn new(base: NonNull<u8>, position: SharedU64) -> StreamRx {
        StreamRx {
            // SAFETY: the caller's contract.
            region: unsafe { StreamRegion::new(base) },
            position,
        }
    }

    /// Returns the number of bytes that can be taken now.
    ///
    /// # Errors
    /// The producer's position is impossible.
    #[inline]
    pub fn ready(&self) -> Result<usize, BadPosition> {
        // SYNC POINT: pairs with `StreamTx::push`.
        distance(self.region.head.get(), self.position.get_relaxed())
    }

    /// Announces that a receive takes the next `len` bytes before it returns. Precedes its first
    /// [`pull`](Self::pull): a producer that waits is woken as by any freed space.
    #[inline]
    pub fn announce_demand(&self, len: usize) {
        self.region.demand.set(self.position.get_relaxed().saturating_add(len as u64));
    }

    /// Ends the demand of a receive that returns early. The producer may publish bytes up to the
    /// former demand for a moment, which stay in the queue.
    pub fn withdraw_demand(&self) {
        self.region.demand.set(0);
    }

    /// Takes as many bytes as `dst` holds; returns their number.
    ///
    /// # Errors
    /// The producer's position is impossible.
    #[inline]
    pub fn pull(&self, dst: &Mem) -> Result<usize, BadPosition> {
        let ready = self.ready()?;
        let n = ready.min(dst.len());
        if n != 0 {
            let tail = self.position.get_relaxed();
            let head = tail.wrapping_add(ready as u64);
            if self.region.inline_copy.take(head, ready, dst).is_none() {
                #[cfg(loom)]
                self.region.model_access(tail, n, false);
                let (a, b) = self.region.runs(tail, n);
                let done = dst.copy_from(&a);
                if let Some(rest) = dst.sub(done, n - done) {
                    rest.copy_from(&b);
                }
            }
            let tail = tail.wrapping_add(n as u64);
            // SYNC POINT: pairs with `repeat_wake`.
            self.position.set(tail);
            // SYNC POINT: pairs with `StreamTx::room`: our reads end before the space is reused.
            self.region.tail.set(tail);
        }
        Ok(n)
    }

    /// Returns the wake-ups owed to the producer after a pull.
    #[inline]
    pub fn prepare_wake(&self) -> Wakeups {
        full_fence();
        self.region.space.prepare_wake()
    }

    /// Completes the work of a consumer that died, as [`StreamTx::repeat_wake`] does for a
    /// producer.
    pub fn repeat_wake(&self) -> Wakeups {
        let tail = self.position.get();
        // SYNC POINT: as in `pull`.
        self.region.tail.set(tail);
        full_fence();
        let waiting = distance(self.region.head.get(), tail);
        self.region.space.repeat_wake(waiting.map_or(true, |waiting| plain_room(waiting) != 0))
    }

    /// Prefetches the wake-up word for a [`stop_polling`](Self::stop_polling) that follows, when
    /// bytes are available after [`WakeWords::start_polling`]. The peer read the word when it sent,
    /// so the word comes from its cache, in parallel with the bytes.
    #[inline]
    pub fn prefetch_wake_word(&self) {
        self.region.data.prefetch_wake_word();
    }

    /// Combines `next_fd_action` and `prepare_wake` with one fence, after a pull by a caller of
    /// [`WakeWords::start_polling`]: arms the wake-up word of an empty queue and returns the
    /// wake-ups owed to the producer. `None` if the queue is not empty or the word was not idle:
    /// both must then be called.
    #[inline]
    pub fn stop_polling(&self) -> Option<Wakeups> {
        if self.ready() != Ok(0) || !self.region.data.stop_polling() {
            return None;
        }
        (self.ready() == Ok(0)).then(|| self.region.space.prepare_wake())
    }

    /// Returns the action that the descriptor needs for its readability.
    #[inline]
    pub fn next_fd_action(&self) -> FdAction {
        self.region.data.next_fd_action(|| self.ready() != Ok(0))
    }

    /// Returns the words by which this side waits for bytes.
    #[inline]
    pub fn data(&self) -> WakeWords {
        self.region.data
    }

    /// Returns the words by which the producer waits for space.
    #[inline]
    pub fn space(&self) -> WakeWords {
        self.region.space
    }
}

// SAFETY: words and bytes of shared memory that no thread owns; the callers serialise their calls
// (module header).
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
    struct StreamMemory([u8; STREAM_BYTES], [u64; 3]);

    /// Returns both ends of a stream in memory that outlives the test.
    fn streams() -> (StreamTx, StreamRx) {
        let memory = Box::leak(Box::new(StreamMemory([0; STREAM_BYTES], [0; 3])));
        let base = NonNull::from(&mut memory.0).cast::<u8>();
        let words = NonNull::from(&mut memory.1).cast::<u8>();
        // SAFETY: the array holds three aligned words, which are leaked.
        let word =
            |i: usize| unsafe { SharedU64::new(words.map_addr(|at| at.saturating_add(8 * i))) };
        // SAFETY: zeroed, aligned, and leaked.
        let tx = unsafe { StreamTx::new(base, word(0), word(1)) };
        // SAFETY: as above.
        let rx = unsafe { StreamRx::new(base, word(2)) };
        (tx, rx)
    }

    fn mem(bytes: &mut [u8]) -> Mem {
        // SAFETY: the slices of the tests outlive the Mem and are not used meanwhile.
        unsafe { Mem::new(bytes.as_mut_ptr(), bytes.len()) }
    }

    #[test]
    fn waiter_that_stops_polling_is_woken_afterwards() {
        let (tx, rx) = streams();
        let mut bytes = [7; 8];
        // No `start_polling` before: the state of the descriptor is unknown.
        rx.data().armed();
        assert_eq!(rx.stop_polling(), None);
        // A byte is left in the queue.
        rx.data().start_polling();
        tx.push(&mem(&mut bytes)).unwrap();
        assert_eq!(tx.prepare_wake(), Wakeups::default());
        assert_eq!(rx.stop_polling(), None);
        rx.pull(&mem(&mut bytes)).unwrap();
        rx.prefetch_wake_word();
        assert_eq!(rx.stop_polling(), Some(Wakeups::default()));
        assert!(!rx.data().is_signalled());
        tx.push(&mem(&mut bytes)).unwrap();
        assert!(tx.prepare_wake().ring && rx.data().is_signalled());
        tx.data().complete_signal();
        // A waiter for space is reported.
        assert_eq!(rx.next_fd_action(), FdAction::Done);
        rx.pull(&mem(&mut bytes)).unwrap();
        assert_eq!(rx.next_fd_action(), FdAction::Clear);
        rx.data().armed();
        rx.data().start_polling();
        tx.space().sleep_begins();
        tx.space().armed();
        assert_eq!(rx.stop_polling(), Some(Wakeups { ring: true, wake: true }));
    }

    #[test]
    fn an_empty_queue_takes_4095_bytes() {
        let (tx, rx) = streams();
        let mut src: Vec<u8> = (0..20000u32).map(|i| (i % 251) as u8).collect();
        assert_eq!(tx.push(&mem(&mut src)), Ok(STREAM_ROOM));
        assert_eq!(tx.push(&mem(&mut src)), Ok(0));
        let mut dst = vec![0u8; 5000];
        assert_eq!(rx.pull(&mem(&mut dst)), Ok(STREAM_ROOM));
        assert_eq!(dst.get(..STREAM_ROOM), src.get(..STREAM_ROOM));
        assert_eq!((rx.ready(), tx.room()), (Ok(0), Ok(STREAM_ROOM)));
    }

    #[test]
    fn demanded_bytes_count_as_taken() {
        let (tx, rx) = streams();
        let mut src: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let mut dst = vec![0u8; 300_000];
        rx.announce_demand(5000);
        assert_eq!(tx.push(&mem(&mut src)), Ok(5000 + STREAM_ROOM));
        assert!(tx.room() == Ok(0) && tx.appears_full());
        assert_eq!(rx.pull(&mem(&mut dst[..5000])), Ok(5000));
        assert_eq!(tx.room(), Ok(0), "4095 bytes that no receive has demanded");
        rx.announce_demand(STREAM_ROOM);
        assert_eq!(tx.room(), Ok(STREAM_ROOM));
        assert_eq!(rx.pull(&mem(&mut dst[5000..])), Ok(STREAM_ROOM));
        assert_eq!(dst[..5000 + STREAM_ROOM], src[..5000 + STREAM_ROOM]);
        rx.announce_demand(src.len());
        assert_eq!(tx.push(&mem(&mut src)), Ok(QUEUE_BYTES), "no more than the queue holds");
        assert_eq!(tx.room(), Ok(0));
        assert_eq!(rx.pull(&mem(&mut dst[..100])), Ok(100));
        assert_eq!(tx.room(), Ok(100));
        // A receive that ends early leaves more than a program expects, until it is taken.
        rx.withdraw_demand();
        assert_eq!((tx.room(), tx.push(&mem(&mut src))), (Ok(0), Ok(0)));
        assert_eq!(rx.pull(&mem(&mut dst[100..])), Ok(QUEUE_BYTES - 100));
        assert_eq!(dst[..QUEUE_BYTES], src[..QUEUE_BYTES]);
        assert_eq!(tx.room(), Ok(STREAM_ROOM));
    }

    #[test]
    fn short_messages_use_the_line_of_the_position() {
        let (tx, rx) = streams();
        let (mut src, mut dst) = ([1, 2, 3], [0; 8]);
        assert!(tx.push_whole(&mem(&mut src)));
        // Clears the queue: the bytes must come from the line.
        tx.region.runs(0, 3).0.copy_from_slice(&[0; 3]);
        assert_eq!((rx.pull(&mem(&mut dst)), &dst[..3]), (Ok(3), &src[..]));
        let mut rest = vec![0; STREAM_ROOM];
        assert!(tx.push_whole(&mem(&mut rest[..4000])), "it looks");
        assert!(!tx.push_whole(&mem(&mut rest[..95])), "it leaves room");
    }

    /// Producer killed between recording its position privately and publishing it: the bytes of the
    /// queue arrive, whatever the line holds.
    #[test]
    fn push_of_a_dead_producer_arrives() {
        let (tx, rx) = streams();
        let mut dst = [0; 8];
        for stamp in [None, Some(0)] {
            tx.push(&mem(&mut [1, 2, 3])).unwrap();
            assert_eq!(rx.pull(&mem(&mut dst)), Ok(3));
            let head = tx.position.get();
            tx.region.runs(head, 3).0.copy_from_slice(&[4, 5, 6]);
            tx.position.set(head + 3);
            if let Some(stamp) = stamp {
                tx.region.inline_copy.stamp.set(stamp);
            }
            assert_eq!(rx.ready(), Ok(0));
            tx.repeat_wake();
            assert_eq!((rx.pull(&mem(&mut dst)), &dst[..3]), (Ok(3), &[4, 5, 6][..]));
        }
    }

    #[test]
    fn bytes_keep_their_order_over_the_end() {
        let (tx, rx) = streams();
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

    /// A process that only reads the free space between two pushes of another leaves no stale state
    /// behind.
    #[test]
    fn query_of_the_space_changes_nothing() {
        let (tx, rx) = streams();
        let mut bytes = vec![0; STREAM_ROOM];
        tx.push(&mem(&mut bytes[..100])).unwrap();
        let seen = tx.seen.get();
        assert_eq!(rx.pull(&mem(&mut bytes)), Ok(100));
        assert_eq!((tx.room(), tx.seen.get()), (Ok(STREAM_ROOM), seen));
        assert_eq!(tx.push(&mem(&mut bytes)), Ok(STREAM_ROOM));
        // The state that a stale write would have left.
        tx.seen.set(0);
        assert_eq!(tx.push(&mem(&mut bytes)), Ok(0), "full, and no bad position");
    }

    #[test]
    fn impossible_positions_are_rejected() {
        let (tx, rx) = streams();
        let mut bytes = [0u8; 8];
        tx.region.head.set(QUEUE_BYTES as u64 + 1);
        assert_eq!(rx.pull(&mem(&mut bytes)), Err(BadPosition));
        tx.region.demand.set(u64::MAX);
        assert_eq!(tx.room(), Ok(QUEUE_BYTES));
        tx.region.tail.set(1);
        assert_eq!(tx.room(), Err(BadPosition));
    }

    #[test]
    fn descriptor_is_signalled_once() {
        let (tx, rx) = streams();
        let mut byte = [1u8];
        assert_eq!(rx.next_fd_action(), FdAction::Done, "empty and armed");
        tx.push(&mem(&mut byte)).unwrap();
        assert_eq!(tx.prepare_wake(), Wakeups { ring: true, wake: false });
        assert_eq!(rx.next_fd_action(), FdAction::Done, "being rung, and there is something");
        tx.data().rung();
        tx.push(&mem(&mut byte)).unwrap();
        assert_eq!(tx.prepare_wake(), Wakeups::default(), "rung already");
        let mut two = [0u8; 2];
        assert_eq!(rx.pull(&mem(&mut two)), Ok(2));
        assert_eq!(rx.next_fd_action(), FdAction::Clear);
        rx.data().armed();
        assert_eq!(rx.next_fd_action(), FdAction::Done);
        rx.data().start_polling();
        tx.push(&mem(&mut byte)).unwrap();
        assert_eq!(tx.prepare_wake(), Wakeups::default(), "the receiver looks for itself");
        assert_eq!(rx.next_fd_action(), FdAction::Signal, "and leaves something behind");
        rx.data().rung();
        assert_eq!(rx.next_fd_action(), FdAction::Done);
    }

    #[test]
    fn a_full_queue_asks_for_space_and_sleepers_are_woken() {
        let (tx, rx) = streams();
        let mut src = vec![0u8; STREAM_ROOM];
        tx.push(&mem(&mut src)).unwrap();
        tx.space().rung();
        assert_eq!(tx.next_fd_action(), FdAction::Clear);
        tx.space().armed();
        assert_eq!(tx.next_fd_action(), FdAction::Done);
        let before = tx.space().sleep_begins();
        let mut one = [0u8];
        rx.pull(&mem(&mut one)).unwrap();
        assert_eq!(rx.prepare_wake(), Wakeups { ring: true, wake: true });
        assert_ne!(tx.space().seq().get(), before);
        tx.space().sleep_ends();
        rx.space().rung();
        assert_eq!((tx.next_fd_action(), rx.prepare_wake()), (FdAction::Done, Wakeups::default()));
    }
}
