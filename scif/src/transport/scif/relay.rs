// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Relay of a connection's rings over a byte stream. Records in the ring of one side are taken out,
//! sent over the stream in frames, and pushed into the ring of the other side.
//!
//! Not about the stream itself (`link`), nor about the meaning of records. The rings are ordinary
//! ones, in memory of one process: its endpoint has one end of each, the relay the other. A frame
//! consists of 8 bytes, the head and the body. Both ends are little endian, as is every machine
//! with a SCIF driver.

use std::sync::Arc;

use scif_ring::layout::{BODY_MAX, HEAD_MAX, LAYOUT};
use scif_ring::spsc::PushError;
use scif_ring::{Consumer, Producer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::channel_pass::Pass;
use crate::error::{Reason, Refusal};
use crate::logging::OnceEach;
use crate::segment::{Side, Views};
use crate::sys::mmap::{Mapping, OutOfRange};

/// Version of greetings and frames. A peer with another one is refused.
const VERSION: u16 = 3;
const MAGIC: u32 = u32::from_le_bytes(*b"ScKe");

const HELLO: u8 = b'H';
const WELCOME: u8 = b'W';
const NO: u8 = b'N';
/// Hello of a key channel, which has no answer.
const KEYS: u8 = b'K';
/// Kinds of greetings that exchange windows, between hello and welcome.
const OFFER: u8 = b'O';
const READY: u8 = b'M';

/// Flag of a greeting: the sender executes `membarrier` before it sleeps.
const MEMBARRIER: u16 = 1;
/// Offset in a greeting without a window.
const NO_WINDOW: i64 = -1;

const RECORD: u8 = b'D';
const BYE: u8 = b'B';
const RESET: u8 = b'R';
/// Doorbell of a connection whose rings lie in windows.
const BELL: u8 = b'L';

/// Size in bytes of a frame before its head.
const FRAME: usize = 8;
/// Maximum size in bytes of a frame.
const FRAME_MAX: usize = FRAME + HEAD_MAX + BODY_MAX;
/// Capacity in bytes of a driver's queue. Records are gathered for one send until they reach it,
/// and one receive requests as much.
const QUEUE: usize = 4095;
/// Size in bytes of a greeting.
pub(super) const GREETING: usize = size_of::<RelayGreeting>();

/// The first bytes in either direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RelayGreeting {
    magic: u32,
    version: u16,
    kind: u8,
    /// Reason in a refusal.
    code: u8,
    /// Layout version of records.
    layout: u32,
    /// Port at which the sender listens.
    port: u16,
    flags: u16,
    /// Offset of the sender's window, for the peer to map.
    window: i64,
    /// Pass of the sender for this connection; in the hello of a key channel the claim of the peer.
    pass: Pass,
}

const _: () = assert!(GREETING == 40);

/// Window that one side offers to the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Offer {
    /// Offset in the registered space of the sender; `None`: rings lie in no window.
    pub(super) window: Option<i64>,
    /// Whether the sender executes `membarrier` before it sleeps.
    pub(super) membarrier: bool,
}

/// Content of a greeting.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum GreetingKind {
    /// Hello of the opener, which listens at that port, with its window and its pass.
    Hello(u16, Offer, Pass),
    /// Answer of the acceptor's thread to a hello with a window.
    Offer(Offer),
    /// Answer of the opener to the offer: whether both sides use the windows.
    Ready(bool),
    /// Answer of the acceptor's endpoint, with its pass.
    Welcome(Pass),
    /// Hello of a key channel, with the claim of the pass of its peer.
    KeyChannel(u64),
    No(Reason),
}

impl RelayGreeting {
    fn new(kind: u8, code: u8, port: u16) -> RelayGreeting {
        RelayGreeting {
            magic: MAGIC,
            version: VERSION,
            kind,
            code,
            layout: LAYOUT,
            port,
            flags: 0,
            window: NO_WINDOW,
            pass: Pass::NONE,
        }
    }

    fn with(self, offer: Offer) -> RelayGreeting {
        let flags = if offer.membarrier { MEMBARRIER } else { 0 };
        RelayGreeting { flags, window: offer.window.unwrap_or(NO_WINDOW), ..self }
    }

    pub(super) fn hello(port: u16, offer: Offer, pass: Pass) -> RelayGreeting {
        RelayGreeting { pass, ..RelayGreeting::new(HELLO, 0, port).with(offer) }
    }

    pub(super) fn offer(offer: Offer) -> RelayGreeting {
        RelayGreeting::new(OFFER, 0, 0).with(offer)
    }

    pub(super) fn ready(mapped: bool) -> RelayGreeting {
        RelayGreeting::new(READY, u8::from(mapped), 0)
    }

    pub(super) fn welcome(port: u16, pass: Pass) -> RelayGreeting {
        RelayGreeting { pass, ..RelayGreeting::new(WELCOME, 0, port) }
    }

    pub(super) fn key_channel(claim: u64) -> RelayGreeting {
        RelayGreeting { pass: Pass { claim, ..Pass::NONE }, ..RelayGreeting::new(KEYS, 0, 0) }
    }

    pub(super) fn no(reason: Refusal) -> RelayGreeting {
        let code = match reason {
            Refusal::Closed => 1,
            Refusal::Version => 2,
            // Only networks have keys.
            Refusal::Resources | Refusal::Key => 3,
        };
        RelayGreeting::new(NO, code, 0)
    }

    pub(super) fn encode(&self) -> [u8; GREETING] {
        zerocopy::transmute!(*self)
    }

    /// Checks and decodes a greeting.
    ///
    /// # Errors
    /// Reason for which the connection is not established.
    pub(super) fn decode(bytes: [u8; GREETING]) -> Result<GreetingKind, Reason> {
        let greeting: RelayGreeting = zerocopy::transmute!(bytes);
        if greeting.magic != MAGIC {
            return Err(Reason::Corrupt);
        }
        let offer = Offer {
            window: Some(greeting.window).filter(|at| *at >= 0),
            membarrier: greeting.flags & MEMBARRIER != 0,
        };
        let alike = greeting.version == VERSION && greeting.layout == LAYOUT;
        if !alike {
            warn_of_build(greeting.version, greeting.layout);
        }
        match (greeting.kind, greeting.code) {
            (NO, 1) => Ok(GreetingKind::No(Reason::Refused(Refusal::Closed))),
            (NO, 2) => Ok(GreetingKind::No(Reason::Refused(Refusal::Version))),
            (NO, 3) => Ok(GreetingKind::No(Reason::Refused(Refusal::Resources))),
            _ if !alike => Err(Reason::Refused(Refusal::Version)),
            (HELLO, 0) if greeting.port != 0 => {
                Ok(GreetingKind::Hello(greeting.port, offer, greeting.pass))
            }
            (OFFER, 0) => Ok(GreetingKind::Offer(offer)),
            (READY, mapped @ 0..=1) => Ok(GreetingKind::Ready(mapped == 1)),
            (WELCOME, 0) => Ok(GreetingKind::Welcome(greeting.pass)),
            (KEYS, 0) => Ok(GreetingKind::KeyChannel(greeting.pass.claim)),
            _ => Err(Reason::Corrupt),
        }
    }
}

/// Result of reading the stream.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReceiveOutcome {
    /// No progress is possible now.
    Nothing,
    /// Records were pushed into the ring.
    Records,
    /// The last frame, with the reason of the end.
    End(Reason),
}

/// Outgoing half of a connection's relay: from the ring that the endpoint fills to the stream.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// `None` if the rings lie in windows.
    ring: Option<Consumer>,
    bytes: Vec<u8>,
    /// Number of `bytes` already sent.
    sent: usize,
    /// Last, so that it outlives the view.
    _segment: Option<Arc<Mapping>>,
}

/// Incoming half of a connection's relay: from the stream to the ring that the endpoint reads.
#[derive(Debug)]
pub(super) struct Incoming {
    /// `None` if the rings lie in windows.
    ring: Option<Producer>,
    bytes: Vec<u8>,
    /// Number of `bytes` that were pushed.
    used: usize,
    /// Whether more has arrived than the last call took.
    full: bool,
    /// Last, so that it outlives the view.
    _segment: Option<Arc<Mapping>>,
}

/// Returns both halves of the relay for the rings of `segment`; the endpoint has the ends of
/// `side`.
pub(super) fn relay(
    segment: &Arc<Mapping>,
    side: Side,
) -> Result<(Outgoing, Incoming), OutOfRange> {
    let Views { tx, rx, .. } = Views::new(Arc::clone(segment), side.other())?;
    Ok(halves(Some((tx, rx)), Some(segment)))
}

/// Returns both halves for rings in windows: only doorbells and the end cross the stream.
pub(super) fn bells() -> (Outgoing, Incoming) {
    halves(None, None)
}

fn halves(
    rings: Option<(Producer, Consumer)>,
    segment: Option<&Arc<Mapping>>,
) -> (Outgoing, Incoming) {
    let (tx, rx) = rings.unzip();
    let outgoing = Outgoing { ring: rx, bytes: Vec::new(), sent: 0, _segment: segment.cloned() };
    let incoming =
        Incoming { ring: tx, bytes: Vec::new(), used: 0, full: false, _segment: segment.cloned() };
    (outgoing, incoming)
}

impl Outgoing {
    /// Sends the records that the endpoint has pushed; returns true when none is left. `send`
    /// returns the number of bytes taken, 0 without space.
    pub(super) fn flush<E>(
        &mut self,
        mut send: impl FnMut(&[u8]) -> Result<usize, E>,
    ) -> Result<bool, E> {
        loop {
            let rest = self.bytes.get(self.sent..).unwrap_or_default();
            if rest.is_empty() {
                self.bytes.clear();
                self.sent = 0;
                if !self.gather() {
                    return Ok(true);
                }
                continue;
            }
            match send(rest)? {
                0 => return Ok(false),
                n => self.sent += n,
            }
        }
    }

    /// Takes records out of the ring, up to one queue capacity. Returns false without a record.
    fn gather(&mut self) -> bool {
        let Some(ring) = &mut self.ring else {
            return false;
        };
        // Only our own endpoint pushes into this ring, so it contains valid records only.
        while self.bytes.len() < QUEUE {
            let Ok(Some(record)) = ring.peek() else { break };
            let body = record.body.len();
            #[expect(clippy::cast_possible_truncation, reason = "at most BODY_MAX")]
            let [b0, b1, b2, b3] = (body as u32).to_le_bytes();
            self.bytes.extend([RECORD, record.kind, record.head_len, 0, b0, b1, b2, b3]);
            self.bytes.extend(record.head());
            let at = self.bytes.len();
            self.bytes.resize(at + body, 0);
            if let Some(to) = self.bytes.get_mut(at..) {
                record.body.copy_to_slice(to);
            }
            ring.advance();
        }
        ring.flush();
        !self.bytes.is_empty()
    }

    /// Appends a doorbell, unless other frames wait and will wake the peer.
    pub(super) fn ring_bell(&mut self) {
        if self.bytes.is_empty() {
            let mut frame = [0; FRAME];
            frame[0] = BELL;
            self.bytes.extend(frame);
        }
    }

    /// Appends a last frame behind the pending data.
    pub(super) fn end(&mut self, orderly: bool) {
        let mut frame = [0; FRAME];
        frame[0] = if orderly { BYE } else { RESET };
        self.bytes.extend(frame);
    }
}

impl Incoming {
    /// Receives data and pushes its records. `receive` returns the number of bytes filled, 0
    /// without data.
    pub(super) fn receive<E>(
        &mut self,
        mut receive: impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<ReceiveOutcome, E> {
        let mut received = ReceiveOutcome::Nothing;
        self.full = false;
        loop {
            match self.next_frame() {
                Next::Pushed => received = ReceiveOutcome::Records,
                Next::Full => {
                    self.full = true;
                    return Ok(received);
                }
                // Earlier records are reported first.
                Next::End(_) if received == ReceiveOutcome::Records => return Ok(received),
                Next::End(reason) => return Ok(ReceiveOutcome::End(reason)),
                // One queue of doorbells for each call, so that a flooding peer cannot occupy us.
                Next::Short if self.ring.is_none() && received == ReceiveOutcome::Records => {
                    self.full = self.bytes.len() >= QUEUE;
                    return Ok(received);
                }
                Next::Short => {
                    self.bytes.drain(..self.used);
                    self.used = 0;
                    let have = self.bytes.len();
                    self.bytes.resize(have + QUEUE, 0);
                    let got = match self.bytes.get_mut(have..).map(&mut receive) {
                        Some(got) => got,
                        None => Ok(0),
                    };
                    self.bytes.truncate(have + got.as_ref().map_or(0, |got| (*got).min(QUEUE)));
                    match got {
                        Ok(1..) => {}
                        Ok(0) => return Ok(received),
                        // The error will occur again.
                        Err(_) if received == ReceiveOutcome::Records => return Ok(received),
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Whether a record has arrived for which the ring had no space, or more doorbells than one
    /// call takes. [`receive`](Self::receive) must then be called again, although nothing more may
    /// arrive.
    pub(super) fn is_full(&self) -> bool {
        self.full
    }

    fn next_frame(&mut self) -> Next {
        let frame = self.bytes.get(self.used..).unwrap_or_default();
        let Some((&[frame, kind, head_len, _, b0, b1, b2, b3], rest)) =
            frame.split_first_chunk::<FRAME>()
        else {
            return Next::Short;
        };
        match frame {
            RECORD => {}
            BELL => {
                self.used += FRAME;
                return Next::Pushed;
            }
            BYE => return Next::End(Reason::Orderly),
            RESET => return Next::End(Reason::Reset),
            _ => return Next::End(Reason::Corrupt),
        }
        let head_len = usize::from(head_len);
        let body_len = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        if head_len > HEAD_MAX || body_len > BODY_MAX {
            return Next::End(Reason::Corrupt);
        }
        let Some((head, rest)) = rest.split_at_checked(head_len) else {
            return Next::Short;
        };
        let Some(body) = rest.get(..body_len) else {
            return Next::Short;
        };
        let Some(ring) = &mut self.ring else {
            return Next::End(Reason::Corrupt);
        };
        match ring.push_slice(kind, head, body) {
            Ok(()) => {
                self.used += FRAME + head_len + body_len;
                Next::Pushed
            }
            Err(PushError::Full) => Next::Full,
            Err(PushError::TooLong) => Next::End(Reason::Corrupt),
        }
    }
}

/// Result for the next frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Next {
    Pushed,
    /// The ring has no space for it.
    Full,
    /// The frame is incomplete.
    Short,
    End(Reason),
}

const _: () = assert!(FRAME_MAX < 32 << 10);

/// Logs, once for each pair of versions, that a peer of another build was met.
fn warn_of_build(version: u16, layout: u32) {
    static SAID: OnceEach<(u16, u32)> = OnceEach::new(8);
    if SAID.first((version, layout)) {
        log::warn!(
            "a connection over the calls of scif.h was refused: the peer has protocol {version}, \
             layout {layout:#x}, this process has protocol {VERSION}, layout {LAYOUT:#x}: use one \
             version of scif in all processes of a job"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use scif_ring::Mem;

    use super::*;
    use crate::segment::SEGMENT_BYTES;

    const PASS: Pass = Pass { claim: 3, proof: 4 };

    /// A stream with the capacity of a driver's queue.
    #[derive(Default)]
    struct Queue(VecDeque<u8>);

    impl Queue {
        fn send(&mut self, bytes: &[u8]) -> Result<usize, ()> {
            let n = bytes.len().min(QUEUE - self.0.len());
            self.0.extend(&bytes[..n]);
            Ok(n)
        }

        fn receive(&mut self, to: &mut [u8]) -> Result<usize, ()> {
            let n = to.len().min(self.0.len());
            for (to, byte) in to.iter_mut().zip(self.0.drain(..n)) {
                *to = byte;
            }
            Ok(n)
        }
    }

    /// Returns a side: the endpoint's ends and the relay's.
    fn side(side: Side) -> (Views, Outgoing, Incoming) {
        let map = Arc::new(Mapping::anonymous(SEGMENT_BYTES).unwrap());
        let views = Views::new(Arc::clone(&map), side).unwrap();
        let (outgoing, incoming) = relay(&map, side).unwrap();
        (views, outgoing, incoming)
    }

    fn body_of(mem: &Mem) -> Vec<u8> {
        let mut bytes = vec![0; mem.len()];
        mem.copy_to_slice(&mut bytes);
        bytes
    }

    #[test]
    fn records_of_every_size_come_in_order_through_a_small_queue() {
        let ((mut a, mut from_a, _), (mut b, _, mut to_b)) =
            (side(Side::Opener), side(Side::Acceptor));
        let mut queue = Queue::default();
        let sizes = [0, 1, 8, 55, 4000, 4095, 5000, BODY_MAX - 1, BODY_MAX];
        let sent: Vec<(u8, Vec<u8>, Vec<u8>)> = (0..4000usize)
            .map(|i| {
                #[expect(clippy::cast_possible_truncation, reason = "a pattern")]
                let byte = i as u8;
                (byte, vec![byte; i % (HEAD_MAX + 1)], vec![!byte; sizes[i % sizes.len()]])
            })
            .collect();
        let mut pushed = 0;
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let rest = sent.iter().skip(pushed);
            pushed += rest
                .take_while(|(kind, head, body)| a.tx.push_slice(*kind, head, body).is_ok())
                .count();
            from_a.flush(|bytes| queue.send(bytes)).unwrap();
            to_b.receive(|to| queue.receive(to)).unwrap();
            // Fewer than arrive, so that this ring becomes full too.
            for _ in 0..3 {
                if let Some(record) = b.rx.peek().unwrap() {
                    got.push((record.kind, record.head().to_vec(), body_of(&record.body)));
                    b.rx.advance();
                    b.rx.flush();
                }
            }
        }
        assert!(got == sent);
        assert!(from_a.flush(|bytes| queue.send(bytes)).unwrap(), "nothing is left");
        from_a.end(true);
        assert!(from_a.flush(|bytes| queue.send(bytes)).unwrap());
        assert_eq!(to_b.receive(|to| queue.receive(to)), Ok(ReceiveOutcome::End(Reason::Orderly)));
    }

    #[test]
    fn bells_wake_and_records_beside_windows_are_refused() {
        let ((mut a, _), (_, mut b)) = (bells(), bells());
        let mut queue = Queue::default();
        a.ring_bell();
        a.ring_bell();
        assert!(a.flush(|bytes| queue.send(bytes)).unwrap());
        assert_eq!(queue.0.len(), FRAME, "one bell is enough");
        assert_eq!(b.receive(|to| queue.receive(to)), Ok(ReceiveOutcome::Records));
        assert_eq!(b.receive(|to| queue.receive(to)), Ok(ReceiveOutcome::Nothing));
        a.ring_bell();
        a.end(true);
        assert!(a.flush(|bytes| queue.send(bytes)).unwrap());
        assert_eq!(b.receive(|to| queue.receive(to)), Ok(ReceiveOutcome::Records));
        assert_eq!(b.receive(|to| queue.receive(to)), Ok(ReceiveOutcome::End(Reason::Orderly)));
        let mut record = Queue([RECORD, 1, 0, 0, 0, 0, 0, 0].into());
        let (_, mut c) = bells();
        assert_eq!(c.receive(|to| record.receive(to)), Ok(ReceiveOutcome::End(Reason::Corrupt)));
    }

    #[test]
    fn a_flood_of_bells_does_not_hold_the_caller() {
        let (_, mut incoming) = bells();
        let flood = |at: usize| if at % FRAME == 0 { BELL } else { 0 };
        let mut at = 0;
        for call in 1..10 {
            let received = incoming.receive(|to| -> Result<usize, ()> {
                assert!(at < call * QUEUE, "more than one queue in a call");
                for byte in to.iter_mut() {
                    *byte = flood(at);
                    at += 1;
                }
                Ok(to.len())
            });
            assert_eq!(received, Ok(ReceiveOutcome::Records));
            assert!(incoming.is_full(), "the rest is not forgotten");
        }
        assert_eq!(
            incoming.receive(|_| -> Result<usize, ()> { Ok(0) }),
            Ok(ReceiveOutcome::Nothing)
        );
        assert!(!incoming.is_full());
    }

    #[test]
    fn an_end_comes_after_earlier_records() {
        let ((mut a, mut from_a, _), (_b, _, mut to_b)) =
            (side(Side::Opener), side(Side::Acceptor));
        let mut queue = Queue::default();
        a.tx.push_head(1, b"last").unwrap();
        from_a.flush(|bytes| queue.send(bytes)).unwrap();
        from_a.end(false);
        from_a.flush(|bytes| queue.send(bytes)).unwrap();
        assert_eq!(to_b.receive(|to| queue.receive(to)), Ok(ReceiveOutcome::Records));
        assert_eq!(to_b.receive(|to| queue.receive(to)), Ok(ReceiveOutcome::End(Reason::Reset)));
        let gone: Result<usize, &str> = Err("reset");
        let (_c, _, mut to_c) = side(Side::Acceptor);
        assert_eq!(to_c.receive(|_| gone), Err("reset"));
    }

    #[test]
    fn garbage_is_the_end_and_nothing_worse() {
        for frame in [
            [b'?', 0, 0, 0, 0, 0, 0, 0],
            [RECORD, 1, 57, 0, 0, 0, 0, 0],
            [RECORD, 1, 0, 0, 1, 0x40, 0, 0],
            [RECORD, 1, 0, 0, 0xff, 0xff, 0xff, 0xff],
        ] {
            let (_b, _, mut to_b) = side(Side::Acceptor);
            let mut queue = Queue(frame.into());
            assert_eq!(
                to_b.receive(|to| queue.receive(to)),
                Ok(ReceiveOutcome::End(Reason::Corrupt))
            );
        }
    }

    #[test]
    fn greetings_survive_and_others_are_told_apart() {
        let offer = Offer { window: Some(4096), membarrier: true };
        let none = Offer { window: None, membarrier: false };
        for offer in [offer, none] {
            let hello = RelayGreeting::hello(7, offer, PASS).encode();
            assert_eq!(RelayGreeting::decode(hello), Ok(GreetingKind::Hello(7, offer, PASS)));
            let answer = RelayGreeting::offer(offer).encode();
            assert_eq!(RelayGreeting::decode(answer), Ok(GreetingKind::Offer(offer)));
        }
        for mapped in [true, false] {
            let ready = RelayGreeting::ready(mapped).encode();
            assert_eq!(RelayGreeting::decode(ready), Ok(GreetingKind::Ready(mapped)));
        }
        let welcome = RelayGreeting::welcome(7, PASS).encode();
        assert_eq!(RelayGreeting::decode(welcome), Ok(GreetingKind::Welcome(PASS)));
        let channel = RelayGreeting::key_channel(9).encode();
        assert_eq!(RelayGreeting::decode(channel), Ok(GreetingKind::KeyChannel(9)));
        for refusal in [Refusal::Closed, Refusal::Version, Refusal::Resources] {
            let decoded = RelayGreeting::decode(RelayGreeting::no(refusal).encode());
            assert_eq!(decoded, Ok(GreetingKind::No(Reason::Refused(refusal))));
        }
        assert_eq!(RelayGreeting::decode([0; GREETING]), Err(Reason::Corrupt));
        assert_eq!(
            RelayGreeting::decode(RelayGreeting::hello(0, none, PASS).encode()),
            Err(Reason::Corrupt),
            "nobody listens at 0"
        );
        let mut other = RelayGreeting::hello(7, none, PASS);
        other.version += 1;
        assert_eq!(RelayGreeting::decode(other.encode()), Err(Reason::Refused(Refusal::Version)));
    }
}
