// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! One ordered stream over all data paths. A random script has messages, RMA and atomics in both
//! directions, of all sizes and by all calls, with random windows and pauses. Both ranks draw the
//! same script from the seed of the run.
//!
//! Checks: the n-th receive of a kind gets the complete n-th message of that kind. A message sent
//! after writes and atomics arrives after them. A read after a write returns its data. Every
//! operation completes once.

use scif_fabtests::harness::Rng;
use scif_fabtests::prelude::*;

use super::call_variants::{self, Msg, RecvCall, SendCall};
use super::rma::{REMOTE, from};

pub(crate) const CASES: &[Case] = &[
    case("order/small", 2, |r| {
        script(r, Mix { sizes: &[0, 8, 56, 57, 200], length: 3000, deny: false })
    }),
    case("order/middle", 2, |r| script(r, Mix { sizes: MIDDLE, length: 1200, deny: false })),
    case("order/all_sizes", 2, |r| script(r, Mix { sizes: ALL, length: 800, deny: false }))
        .within(120),
    case("order/all_sizes_denied", 2, |r| script(r, Mix { sizes: ALL, length: 800, deny: true }))
        .within(120),
    case("order/without_process_vm", 2, all_sizes).under(&[("FI_SCIF_PROCESS_VM", "0")]),
    case("order/one_side_copies", 2, all_sizes).under(&[("FI_SCIF_BOTH_SIDES", "0")]),
    case("order/hardly_eager", 2, all_sizes).under(&[("FI_SCIF_EAGER_SIZE", "64")]),
    case("order/in_a_runtime_dir", 2, all_sizes).under(&[("SCIF_RUNTIME_DIR", "{dir}")]),
    case("order/repeated", 2, repeated).within(240),
];

const MIDDLE: &[usize] =
    &[0, 8, 64, 1000, 4096, 8192, 8193, 12_000, 16_384, 16_385, 20_000, 65_536, 70_000];
const ALL: &[usize] = &[
    0, 1, 8, 48, 64, 65, 200, 1000, 4096, 4097, 8192, 8193, 16_000, 16_384, 16_385, 50_000, 65_537,
    130_000, 700_000,
];

#[derive(Debug, Clone, Copy)]
struct Mix {
    sizes: &'static [usize],
    length: usize,
    /// Whether process_vm is denied to both ranks during the script.
    deny: bool,
}

/// One line of a script.
#[derive(Debug, Clone, Copy)]
enum Step {
    Message {
        way: SendCall,
        tagged: bool,
        size: usize,
    },
    /// Write to a range of the target's memory that no other write of the script uses.
    Write {
        at: usize,
        size: usize,
    },
    /// Read of the range of the latest write.
    Read {
        at: usize,
        size: usize,
        seed: u64,
    },
    /// Addition of one to the first word of the memory of the target.
    Add,
}

const TAG: u64 = 0x77;
/// Offset of the first write; the first word counts the atomics.
const FIRST: usize = 64;
/// Maximum number of bytes that one script writes.
const ROOM: usize = 24 << 20;

fn draw(rng: &mut Rng, mix: Mix, inject_size: usize) -> Vec<Step> {
    let ways = [
        SendCall::Send,
        SendCall::Sendv,
        SendCall::Sendmsg,
        SendCall::Inject,
        SendCall::Senddata,
        SendCall::Injectdata,
        SendCall::Flags(sys::FI_INJECT),
        SendCall::Flags(sys::FI_DELIVERY_COMPLETE),
        SendCall::Flags(sys::FI_TRANSMIT_COMPLETE),
        SendCall::Flags(sys::FI_REMOTE_CQ_DATA),
        SendCall::Flags(sys::FI_MORE),
    ];
    let mut lines = Vec::new();
    let (mut end, mut latest) = (FIRST, None);
    while lines.len() < mix.length {
        let size = rng.pick(mix.sizes).unwrap_or(8) + if rng.one_in(4) { rng.below(16) } else { 0 };
        let line = match rng.below(10) {
            0 | 1 if end + size <= ROOM => {
                let at = end;
                // Sometimes unaligned.
                end += size + rng.below(9);
                latest = Some((at, size, lines.len() as u64));
                Step::Write { at, size }
            }
            2 => match latest {
                Some((at, size, seed)) => Step::Read { at, size, seed },
                None => continue,
            },
            3 => Step::Add,
            _ => {
                let way = rng.pick(&ways).unwrap_or(SendCall::Send);
                if way.injects() && size > inject_size {
                    continue;
                }
                Step::Message { way, tagged: rng.one_in(2), size }
            }
        };
        lines.push(line);
    }
    // When the last message is received, all earlier operations are complete.
    lines.push(Step::Message { way: SendCall::Send, tagged: false, size: 8 });
    lines
}

fn all_sizes(rank: &Rank) -> Outcome {
    script(rank, Mix { sizes: ALL, length: 500, deny: false })
}

fn repeated(rank: &Rank) -> Outcome {
    for round in 0..6 {
        let sub = rank.with_seed(rank.target.seed.wrapping_add(round + 1))?;
        let mix = Mix { sizes: ALL, length: 250, deny: false };
        script(&sub, mix).map_err(|fail| fail.with(format_args!("seed {}", sub.target.seed)))?;
    }
    Ok(())
}

/// One direction of the script at the receiving side.
struct Incoming<'a> {
    lines: &'a [Step],
    memory: Buf,
    bufs: Vec<Buf>,
    /// Next line to post a receive for, and number of posted receives.
    next: usize,
    open: usize,
    /// Number of lines whose RMA and atomics have been checked.
    checked: usize,
    adds: u64,
    left: usize,
}

impl<'a> Incoming<'a> {
    fn new(lines: &'a [Step], memory: Buf) -> Incoming<'a> {
        let left = lines.iter().filter(|line| matches!(line, Step::Message { .. })).count();
        Incoming {
            lines,
            memory,
            bufs: vec![Buf::NULL; lines.len()],
            next: 0,
            open: 0,
            checked: 0,
            adds: 0,
            left,
        }
    }

    /// Posts the next receive. Returns false when there is none or no space.
    fn post(&mut self, rig: &Rig<'_>, rng: &mut Rng) -> Outcome<bool> {
        while let Some(line) = self.lines.get(self.next) {
            let Step::Message { tagged, size, .. } = *line else {
                self.next += 1;
                continue;
            };
            let buf = Buf::new(size + 8);
            let into = rng
                .pick(&[RecvCall::Recv, RecvCall::Recvv, RecvCall::Recvmsg])
                .unwrap_or(RecvCall::Recv);
            let tag = tagged.then_some((TAG, 0));
            match call_variants::receive(rig, into, buf, sys::FI_ADDR_UNSPEC, tag, self.next) {
                Ok(()) => {}
                Err(Errno::EAGAIN) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
            if let Some(slot) = self.bufs.get_mut(self.next) {
                *slot = buf;
            }
            self.next += 1;
            self.open += 1;
            return Ok(true);
        }
        Ok(false)
    }

    /// Checks a completed receive: its message, and all data written before it.
    fn arrived(&mut self, entry: &scif_fabtests::fi::Entry) -> Outcome {
        let index = entry.context;
        let (Some(&Step::Message { way, tagged, size }), Some(buf)) =
            (self.lines.get(index), self.bufs.get(index))
        else {
            return Err(Fail::here(format_args!("a completion of nothing: {entry:x?}")));
        };
        let data = way.has_data().then_some(index as u64);
        call_variants::check_received(entry, size, tagged.then_some(TAG), data)
            .and_then(|()| call_variants::check_bytes(buf, size, index as u64, 0))
            .map_err(|fail| fail.with(format_args!("line {index}, {way:?} of {size} B")))?;
        self.open -= 1;
        self.left -= 1;
        while self.checked < index {
            match self.lines.get(self.checked) {
                Some(&Step::Write { at, size }) => {
                    let wrong = self.memory.sub(at, size).differs(size, self.checked as u64);
                    check_eq!(
                        wrong,
                        None,
                        "line {} not done at line {index}: write of {size} B",
                        self.checked
                    );
                }
                Some(Step::Add) => {
                    self.adds += 1;
                    let have = self.memory.load_u64(0);
                    check!(
                        have >= self.adds,
                        "{have} atomics done at line {index}, {} before it",
                        self.adds
                    );
                }
                _ => {}
            }
            self.checked += 1;
        }
        Ok(())
    }
}

/// One direction of the script at the sending side.
struct Outgoing<'a> {
    lines: &'a [Step],
    next: usize,
    open: usize,
    back: Vec<Buf>,
}

impl Outgoing<'_> {
    /// Posts the next line. Returns false when there is none or no space.
    fn post(&mut self, rig: &Rig<'_>, there: Remote) -> Outcome<bool> {
        let Some(line) = self.lines.get(self.next) else {
            return Ok(false);
        };
        let (ep, peer, index) = (&rig.ep, rig.peer(), self.next);
        let mut silent = false;
        let mut free = None;
        let posted = match *line {
            Step::Message { way, tagged, size } => {
                silent = way.silent();
                let buf = Buf::pattern(size, index as u64);
                free = way.injects().then_some(buf);
                let tag = tagged.then_some(TAG);
                call_variants::send(
                    rig,
                    way,
                    &Msg { buf, dest: peer, tag, context: index, data: index as u64 },
                )
            }
            Step::Write { at, size } => {
                let buf = Buf::pattern(size, index as u64);
                ep.write(buf, peer, there.addr + at as u64, there.key, index)
            }
            Step::Read { at, size, .. } => {
                let buf = Buf::new(size);
                if let Some(slot) = self.back.get_mut(index) {
                    *slot = buf;
                }
                ep.read(buf, peer, there.addr + at as u64, there.key, index)
            }
            Step::Add => {
                let place = there.sum(peer, index);
                ep.atomic(&place, Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 })
            }
        };
        match posted {
            Ok(()) => {}
            Err(Errno::EAGAIN) => return Ok(false),
            Err(e) => return Err(Fail::here(format_args!("line {index}, {line:?}: {e}"))),
        }
        if let Some(buf) = free {
            buf.fill(0xcc);
        }
        self.next += 1;
        self.open += usize::from(!silent);
        Ok(true)
    }

    fn completed(&mut self, entry: &scif_fabtests::fi::Entry) -> Outcome {
        let index = entry.context;
        if let (Some(&Step::Read { size, seed, .. }), Some(buf)) =
            (self.lines.get(index), self.back.get(index))
        {
            check_eq!(buf.differs(size, seed), None, "line {index}: read of {size} B");
        }
        self.open =
            self.open.checked_sub(1).ok_or_else(|| Fail::here("completed more than was posted"))?;
        Ok(())
    }
}

fn script(rank: &Rank, mix: Mix) -> Outcome {
    let caps = sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC;
    let order = sys::FI_ORDER_SAS | sys::FI_ORDER_SAW | sys::FI_ORDER_RAW | sys::FI_ORDER_WAW;
    let rig = Rig::open(
        rank,
        &Spec::caps(caps).with(|spec| {
            (spec.hints.tx.msg_order, spec.hints.rx.msg_order) = (order, order);
        }),
    )?;
    let (memory, _mr, remotes) = rig.share_buf(Buf::new(ROOM + 64), REMOTE)?;
    let there = from(&remotes, rank.peer(), 0)?;
    let (mut shared, mut own) = (rank.shared_rng(), rank.own_rng());
    let inject_size = rig.info.tx().inject_size;
    let scripts = [draw(&mut shared, mix, inject_size), draw(&mut shared, mix, inject_size)];
    let [first, second] = &scripts;
    let (mine, theirs) = if rank.index == 0 { (first, second) } else { (second, first) };
    let mut incoming = Incoming::new(theirs, memory);
    let mut outgoing =
        Outgoing { lines: mine, next: 0, open: 0, back: vec![Buf::NULL; mine.len()] };
    let deny_at = if mix.deny { mine.len() / 3 + own.below(mine.len() / 3) } else { usize::MAX };
    let mut denied = false;
    // The windows change on the way, so that both expected and unexpected messages occur.
    let (mut rx_window, mut tx_window) = (8, 8);
    rig.wait("the end of the script", || {
        if own.one_in(50) {
            (rx_window, tx_window) = (own.below(24), 1 + own.below(24));
        }
        if own.one_in(400) {
            std::thread::sleep(std::time::Duration::from_micros(own.below(300) as u64));
        }
        if outgoing.next >= deny_at && !denied {
            denied = true;
            sandbox::deny_process_vm()?;
        }
        while outgoing.open < tx_window && outgoing.post(&rig, there)? {}
        while incoming.open < rx_window && incoming.post(&rig, &mut own)? {}
        while let Some(done) = rig.tx.take() {
            outgoing.completed(&done.map_err(|error| Fail::here(format_args!("{error:x?}")))?)?;
        }
        while let Some(done) = rig.rx.take() {
            incoming.arrived(&done.map_err(|error| Fail::here(format_args!("{error:x?}")))?)?;
        }
        let over = outgoing.next == mine.len() && outgoing.open == 0 && incoming.left == 0;
        Ok(over.then_some(()))
    })?;
    rig.barrier()?;
    let adds = theirs.iter().filter(|line| matches!(line, Step::Add)).count();
    check_eq!(memory.load_u64(0), adds as u64, "atomics in all");
    rig.barrier()
}
