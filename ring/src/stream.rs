// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One direction of a byte stream: a queue of 4095 bytes without boundaries, and the words by which the side that
//! waits is told.
//!
//! Not about: who waits how (descriptors, futexes), nor about the order of calls: each side is used by one thread at a
//! time, whichever process that is in. Source: `scif_send` and `scif_recv` of `scif.h`; queue of the SCIF driver.
//!
//! Both sides count bytes for ever and keep their own count in memory of their own, given at construction; the peer's
//! count is loaded once, checked against it, then used. A peer that writes nonsense is found out, or makes garbage of
//! its own stream.
//!
//! INVARIANT of a bell word: `RUNG` means that a token lies in the waiter's descriptor or that the space is made known, or that
//! the waiter is about to see to that; `ARMED` that none does and whoever makes a change must say so; `RINGING` that the
//! other side is about to; `IDLE` that the waiter looks for itself.

#![expect(unsafe_code, reason = "lays words over raw shared memory")]

use core::ptr::NonNull;

use crate::copy::Mem;
use crate::word::{Word32, Word64, full_fence};

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

const _: () = assert!(BYTES + QUEUE <= STREAM_BYTES && QUEUE.is_power_of_two());
#[cfg(not(loom))]
const _: () = assert!(BYTES + QUEUE == STREAM_BYTES);

const IDLE: u32 = 0;
const ARMED: u32 = 1;
const RINGING: u32 = 2;
const RUNG: u32 = 3;

/// The other side wrote a position that cannot be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadPosition;

/// What is to be done for a waiter's descriptor before it may be left alone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Settle {
    /// Nothing: it shows what is so.
    Done,
    /// Make it show readiness.
    Show,
    /// Make it show none, then say [`Waiting::armed`] and ask again.
    Hide,
    /// The peer is about to make it show readiness: ask again.
    Wait,
}

/// What a change asks of the side that made it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tell {
    /// The waiter's descriptor must be made to show it; then [`Waiting::rang`].
    pub ring: bool,
    /// Sleepers must be woken, on [`Waiting::seq`], which has been moved on.
    pub wake: bool,
}

/// The words of one kind of waiting: for bytes, or for space.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    bell: Word32,
    sleepers: Word32,
    seq: Word32,
}

impl Waiting {
    /// After publishing or freeing: who is to be told. SYNC POINT: pairs with `settle` and `sleep_begins`, by the fence
    /// here and there.
    #[inline]
    fn tell(&self) -> Tell {
        Tell {
            ring: self.bell.get_relaxed() == ARMED && self.bell.change(ARMED, RINGING),
            wake: self.sleepers.get_relaxed() != 0 && {
                self.seq.add(1);
                true
            },
        }
    }

    /// In the place of somebody who died between changing something and telling: what it may have left undone. `ready`: whether
    /// there is what is waited for.
    fn retell(&self, ready: bool) -> Tell {
        self.seq.add(1);
        Tell {
            ring: self.bell.get_relaxed() == RINGING || ready && self.bell.change(ARMED, RINGING),
            wake: true,
        }
    }

    /// The waiter looks for itself from now on and need not be told.
    #[inline]
    pub fn enter(&self) {
        if self.bell.get_relaxed() == ARMED {
            self.bell.change(ARMED, IDLE);
        }
    }

    /// The descriptor shows readiness now.
    #[inline]
    pub fn rung(&self) {
        self.bell.set(RUNG);
    }

    /// The side that was to tell has made the descriptor show readiness; unless the waiter gave up waiting for that and has said
    /// since what it shows: a plain store would hide that the descriptor is to be rung again (loom test
    /// `stream_late_ring_needs_the_comparison`).
    #[inline]
    pub fn rang(&self) {
        self.bell.change(RINGING, RUNG);
    }

    /// The descriptor shows none now.
    #[inline]
    pub fn armed(&self) {
        self.bell.set(ARMED);
    }

    /// Whether the descriptor may show readiness.
    #[inline]
    pub fn shows(&self) -> bool {
        self.bell.get() >= RINGING
    }

    /// What the descriptor needs, given a look at the queue. The caller is the waiting side.
    #[inline]
    fn settle(&self, ready: impl Fn() -> bool) -> Settle {
        loop {
            match self.bell.get() {
                RUNG if ready() => return Settle::Done,
                RUNG => return Settle::Hide,
                RINGING => return if ready() { Settle::Done } else { Settle::Wait },
                ARMED => {
                    full_fence();
                    if !ready() {
                        return Settle::Done;
                    }
                    if self.bell.change(ARMED, RUNG) {
                        return Settle::Show;
                    }
                }
                // IDLE, which only the waiting side ends, or what no side of ours writes.
                _ => self.bell.set(ARMED),
            }
        }
    }

    /// Whether the descriptor, which is to show nothing, may be hidden once more: a peer that was given up waiting for may have
    /// made it show something since (loom test `stream_late_ring_needs_the_second_hiding`). [`Waiting::armed`] follows.
    #[inline]
    pub fn disarm(&self) -> bool {
        self.bell.change(ARMED, RUNG)
    }

    /// The peer never finished ringing: what the descriptor shows is ours to say, if this is true. Make it show none, then say
    /// [`Waiting::armed`] and ask again.
    #[inline]
    pub fn give_up_waiting(&self) -> bool {
        self.bell.change(RINGING, RUNG)
    }

    /// One of the waiting side died, perhaps asleep, or between making the descriptor show something and saying so. Nobody else of
    /// that side waits. If this is true, make it show none, say [`Waiting::armed`] and ask again; if not, the peer is about to
    /// make it show readiness.
    pub fn doubt(&self) -> bool {
        self.sleepers.set(0);
        [RUNG, IDLE, ARMED]
            .into_iter()
            .any(|said| self.bell.change(said, RUNG))
    }

    /// The word a sleeper sleeps on, and its value; the caller looks at the queue once more, then sleeps while the
    /// word has that value, then says `sleep_ends`.
    #[inline]
    pub fn sleep_begins(&self) -> u32 {
        self.sleepers.add(1);
        let seq = self.seq.get();
        full_fence();
        seq
    }

    /// See `sleep_begins`.
    #[inline]
    pub fn sleep_ends(&self) {
        self.sleepers.sub(1);
    }

    /// The word to sleep on.
    #[inline]
    pub fn seq(&self) -> Word32 {
        self.seq
    }

    /// Moves the word on for a reason outside the queue; the caller wakes all sleepers.
    #[inline]
    pub fn disturb(&self) {
        self.seq.add(1);
    }
}

/// The memory of one direction.
#[derive(Clone, Copy, Debug)]
struct Region {
    head: Word64,
    tail: Word64,
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
}

#[cfg(loom)]
impl StreamRx {
    pub(crate) fn apart(apart: &Apart, own: Word64) -> StreamRx {
        let region = Region::apart(apart);
        StreamRx { region, own }
    }
}

#[cfg(loom)]
impl Waiting {
    /// `sleep_begins` as it must not be.
    pub fn sleep_begins_without_fence(&self) -> u32 {
        self.sleepers.add(1);
        self.seq.get()
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

    /// Bytes that fit now.
    ///
    /// # Errors
    /// The consumer's position cannot be.
    #[inline]
    pub fn room(&self) -> Result<usize, BadPosition> {
        let tail = self.region.tail.get();
        self.seen.set_relaxed(tail);
        Ok(STREAM_ROOM - distance(self.own.get_relaxed(), tail)?)
    }

    /// Publishes as much of `src` as fits; returns how much.
    ///
    /// # Errors
    /// The consumer's position cannot be.
    #[inline]
    pub fn push(&self, src: &Mem) -> Result<usize, BadPosition> {
        let head = self.own.get_relaxed();
        let mut room = STREAM_ROOM - distance(head, self.seen.get_relaxed())?;
        if room < src.len() {
            room = self.room()?;
        }
        let n = room.min(src.len());
        if n != 0 {
            #[cfg(loom)]
            self.region.touch(head, n, true);
            let (a, b) = self.region.runs(head, n);
            let done = a.copy_from(src);
            if let Some(rest) = src.sub(done, n - done) {
                b.copy_from(&rest);
            }
            let head = head.wrapping_add(n as u64);
            // SYNC POINT: pairs with `retell`, which publishes it for one that was killed here.
            self.own.set(head);
            // SYNC POINT: pairs with `StreamRx::ready`.
            self.region.head.set(head);
        }
        Ok(n)
    }

    /// Whether nothing fitted when it was last looked.
    #[inline]
    pub fn looks_full(&self) -> bool {
        distance(self.own.get_relaxed(), self.seen.get_relaxed()) == Ok(STREAM_ROOM)
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
        let n = self.ready()?.min(dst.len());
        if n != 0 {
            let tail = self.own.get_relaxed();
            #[cfg(loom)]
            self.region.touch(tail, n, false);
            let (a, b) = self.region.runs(tail, n);
            let done = dst.copy_from(&a);
            if let Some(rest) = dst.sub(done, n - done) {
                rest.copy_from(&b);
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
        self.region.data.bell.will_write();
    }

    /// After a pull by who said [`Waiting::enter`], in place of `settle` and `tell`, with one fence for both: the bell is
    /// armed, the queue is empty, and this is who waits for space. `None` if that is not so: then these two are to be said.
    #[inline]
    pub fn leave(&self) -> Option<Tell> {
        let bell = &self.region.data.bell;
        if bell.get_relaxed() != IDLE || self.ready() != Ok(0) {
            return None;
        }
        bell.set(ARMED);
        full_fence();
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
