// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One connection of a rank of `scif.h`: a stream of numbered messages in each direction, a window,
//! and RMA that is read back.

use std::collections::VecDeque;

use scif_api::{Endpoints, Failure, FenceSide, Pages, PollFd};
use scif_fabtests::fi::pattern_bytes;
use scif_fabtests::harness::{Fail, Outcome, Rng};
use scif_fabtests::payload::{Head, RankId, SEQUENCES};
use scif_fabtests::{check, check_eq};

/// Bytes of a message header: head word, and length of the rest.
const HEAD: usize = 16;
/// Bytes of the messages after their header.
const SIZES: [usize; 5] = [0, 40, 40, 1000, 60_000];
const PAGE: usize = 4096;
/// Offset of the window, and bytes of the half of each side.
const WINDOW: i64 = 0x10_0000;
const HALF: usize = 16 * PAGE;
/// Values of `SCIF_PROT_READ | SCIF_PROT_WRITE`, `SCIF_MAP_FIXED` and `SCIF_RMA_SYNC`.
const RW: i32 = 3;
const FIXED: i32 = 0x10;
const SYNC: i32 = 4;

pub(crate) fn failed(e: Failure) -> Fail {
    Fail::here(format_args!("{e:?}"))
}

pub(crate) const fn entry(fd: i32) -> PollFd {
    PollFd { fd, events: 1, revents: 0 }
}

/// One connection.
pub(crate) struct Line {
    pub(crate) fd: i32,
    me: RankId,
    /// Identity of the peer, once it is known.
    pub(crate) id: Option<RankId>,
    heard: bool,
    pub(crate) over: bool,
    /// Time of the start of the connection.
    pub(crate) born: u64,
    /// Time of the end of the last step.
    pub(crate) stepped: u64,
    opener: bool,
    out: VecDeque<u8>,
    come: Vec<u8>,
    seq: u16,
    next: u16,
    /// Pages of the window, and private pages for copies.
    window: Pages,
    own: Pages,
    written: Option<(Head, usize)>,
    extra: Option<i64>,
}

impl Line {
    /// Registers the window and sends the first message.
    pub(crate) fn new(
        scif: &Endpoints,
        fd: i32,
        me: RankId,
        id: Option<RankId>,
        opener: bool,
    ) -> Result<Line, Failure> {
        let window = Pages::new(2 * HALF)?;
        scif.register(fd, (window.addr(), 2 * HALF), WINDOW, RW, FIXED)?;
        let mut line = Line {
            fd,
            me,
            id,
            heard: false,
            over: false,
            born: scif::now_ns(),
            stepped: scif::now_ns(),
            opener,
            out: VecDeque::new(),
            come: Vec::new(),
            seq: 0,
            next: 0,
            window,
            own: Pages::new(HALF)?,
            written: None,
            extra: None,
        };
        line.print_line(0);
        Ok(line)
    }

    /// Whether no bytes are left to send.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty()
    }

    fn head(&self) -> Head {
        Head { from: self.me, to: RankId { slot: 0, life: 0 }, class: 0, seq: self.seq }
    }

    fn print_line(&mut self, len: usize) {
        let word = self.head().pack();
        self.out.extend(word.to_ne_bytes());
        self.out.extend((len as u64).to_ne_bytes());
        self.out.extend(pattern_bytes(len, word));
        self.seq = (self.seq + 1) % SEQUENCES;
    }

    /// Receives, sends, copies and fences once. The outer error is a defect that fails the run. The
    /// inner one is an error of the connection, which the parent judges. Returns whether any data
    /// moved.
    pub(crate) fn step(
        &mut self,
        scif: &Endpoints,
        rng: &mut Rng,
        draining: bool,
        done: &mut [u64; 6],
    ) -> Outcome<Result<bool, Failure>> {
        let [sends, receives, writes, reads, fences, _] = done;
        let mut busy = false;
        let mut buffer = [0; 16_384];
        match scif.receive_bytes(self.fd, &mut buffer, false) {
            Ok(n) => {
                busy |= n > 0;
                self.come.extend(buffer.iter().take(n));
                *receives += self.parse()?;
            }
            Err(Failure::Again) => {}
            Err(e) => return Ok(Err(e)),
        }
        if self.out.is_empty() && !draining && self.heard && rng.one_in(3) {
            self.print_line(rng.pick(&SIZES).unwrap_or(0));
            *sends += 1;
        }
        let part: Vec<u8> = self.out.iter().take(16_384).copied().collect();
        match scif.send_bytes(self.fd, &part, false) {
            Ok(n) => {
                busy |= n > 0;
                self.out.drain(..n);
            }
            Err(Failure::Again) => {}
            Err(e) => return Ok(Err(e)),
        }
        if !self.heard || draining {
            return Ok(Ok(busy));
        }
        let copied = match rng.below(64) {
            0..6 => {
                let copied = self.copy(scif, rng)?;
                *writes += u64::from(self.written.is_some());
                *reads += u64::from(self.written.is_none());
                copied
            }
            6 => {
                *fences += 1;
                let mark = scif.fence_mark(self.fd, FenceSide::Own);
                mark.and_then(|mark| scif.fence_wait(self.fd, mark))
            }
            7 => self.register(scif),
            _ => return Ok(Ok(busy)),
        };
        Ok(copied.map(|()| true))
    }

    /// Writes into this side's half of the peer's window, or reads back and checks the last write.
    fn copy(&mut self, scif: &Endpoints, rng: &mut Rng) -> Outcome<Result<(), Failure>> {
        let far = WINDOW + if self.opener { 0 } else { HALF as i64 };
        let addr = self.own.addr();
        if let Some((head, len)) = self.written {
            let copied = scif.read_to_memory(self.fd, addr, len, far, SYNC);
            if copied.is_ok() {
                let mut bytes = vec![0; len];
                self.own.read(0, &mut bytes).map_err(failed)?;
                check!(
                    bytes == pattern_bytes(len, head.pack()),
                    "read back other bytes from {:?}",
                    self.id
                );
                self.written = None;
            }
            return Ok(copied);
        }
        let len = rng.pick(&[8, 100, PAGE, HALF]).unwrap_or(8);
        let head = Head {
            seq: u16::try_from(rng.below(usize::from(SEQUENCES))).unwrap_or(0),
            ..self.head()
        };
        self.own.write(0, &pattern_bytes(len, head.pack())).map_err(failed)?;
        let copied = scif.write_from_memory(self.fd, addr, len, far, SYNC);
        if copied.is_ok() {
            self.written = Some((head, len));
        }
        Ok(copied)
    }

    /// Registers another window of the same pages, or unregisters it.
    fn register(&mut self, scif: &Endpoints) -> Result<(), Failure> {
        match self.extra.take() {
            Some(offset) => scif.unregister(self.fd, offset, PAGE),
            None => {
                let offset = scif.register(self.fd, (self.window.addr(), PAGE), 0, RW, 0)?;
                self.extra = Some(offset);
                Ok(())
            }
        }
    }

    /// Takes the complete messages and checks every byte. Returns their number.
    fn parse(&mut self) -> Outcome<u64> {
        for count in 0.. {
            let mut words =
                self.come.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
            let (Some(word), Some(len)) = (words.next(), words.next()) else {
                return Ok(count);
            };
            let head = Head::unpack(word)
                .ok_or_else(|| Fail::here(format_args!("{:?} sent {word:#x}", self.id)))?;
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            check!(SIZES.contains(&len), "a message of {} has {len} bytes", head.from);
            let Some(body) = self.come.get(HEAD..HEAD + len) else {
                return Ok(count);
            };
            check!(body == pattern_bytes(len, word), "a byte of {head:?} is wrong");
            check_eq!(head.seq, self.next, "sequence number of {head:?}");
            // A port may have been taken by another rank between its introduction and the connect.
            check!(!self.heard || self.id == Some(head.from), "{head:?} is not of {:?}", self.id);
            self.next = (head.seq + 1) % SEQUENCES;
            self.id = Some(head.from);
            self.heard = true;
            self.come.drain(..HEAD + len);
        }
        Ok(0)
    }
}
