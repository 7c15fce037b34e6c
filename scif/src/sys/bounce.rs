// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Copies by the kernel, through a bounce buffer where the relative alignment of both ranges makes
//! the kernel slow.
//!
//! Not about the calls (`process_vm`). On some processors the kernel takes several times as long if
//! the destination lies 1 to 31 bytes past the source, modulo a page. Each process measures this
//! before its first long copy at such an alignment.

use std::sync::Mutex;

use scif_ring::Mem;
use scif_ring::counter::AtomicCounter;

use super::errno::keep_errno;
use super::mmap::{Mapping, PAGE};
use super::process_vm::{self, AccessError, Direction, RemoteMem};
use super::{process, time};

/// Length in bytes from which a run takes the buffer. For shorter runs the second copy costs more
/// than the alignment.
const MIN_RUN: usize = 8 << 10;
/// Number of bytes that pass through the buffer at once: they stay in the second-level cache.
const CHUNK: usize = 128 << 10;
/// Length in bytes of a measured copy, and number of copies, of which the shortest counts.
const SAMPLE: usize = 64 << 10;
const SAMPLES: usize = 5;
/// Values of `VERDICT`.
const UNKNOWN: u64 = 0;
const EVEN: u64 = 1;
const SLOW: u64 = 2;

/// Result of the measurement.
static VERDICT: AtomicCounter = AtomicCounter::new(UNKNOWN);
/// Buffer that no copy uses. It is only tried to be locked, because a forked child may find the
/// lock taken for good. A copy that does not get this buffer maps one for itself.
static FREE: Mutex<Option<Mapping>> = Mutex::new(None);

/// Copies min(total of `local`, total of `remote`) bytes between the lists.
pub fn copy(
    pid: i32,
    direction: Direction,
    local: &[Mem],
    remote: &[RemoteMem],
) -> Result<(), AccessError> {
    copy_if(pid, direction, local, remote, kernel_is_slow)
}

/// Copies through the buffer if a run has a bad alignment and `is_slow` returns true.
fn copy_if(
    pid: i32,
    direction: Direction,
    local: &[Mem],
    remote: &[RemoteMem],
    is_slow: impl FnOnce() -> bool,
) -> Result<(), AccessError> {
    let mut runs = Runs { local, remote, ours: 0, theirs: 0 };
    let is_bad = |run: (Mem, RemoteMem)| is_bad(direction, &run.0, &run.1);
    if scif_ring::total_len(local) < MIN_RUN || !runs.any(is_bad) || !is_slow() {
        return process_vm::copy(pid, direction, local, remote);
    }
    let Some(buffer) = take_buffer() else {
        return process_vm::copy(pid, direction, local, remote);
    };
    let mut done = 0;
    let outcome = Runs { local, remote, ours: 0, theirs: 0 }.try_for_each(|(ours, theirs)| {
        let copied = if is_bad((ours, theirs)) {
            bounce(pid, direction, &ours, &theirs, &buffer)
        } else {
            process_vm::copy(pid, direction, &[ours], &[theirs])
        };
        copied.map_err(|error| after(done, error))?;
        done += ours.len();
        Ok(())
    });
    if let Ok(mut free) = FREE.try_lock() {
        *free = Some(buffer);
    }
    outcome
}

fn take_buffer() -> Option<Mapping> {
    let free = FREE.try_lock().ok().and_then(|mut free| free.take());
    free.or_else(|| keep_errno(|| Mapping::private(CHUNK + PAGE)).ok())
}

/// Returns an error of a part as an error of the whole, of which `done` bytes precede the part.
fn after(done: usize, error: AccessError) -> AccessError {
    match error {
        AccessError::Short(more) => AccessError::Short(done + more),
        AccessError::Fault if done > 0 => AccessError::Short(done),
        AccessError::Fault | AccessError::Denied | AccessError::Gone => error,
    }
}

/// Whether the kernel may be slow to copy between both.
fn is_bad(direction: Direction, local: &Mem, remote: &RemoteMem) -> bool {
    let (ours, theirs) = (local.addr(), remote.address());
    let past = match direction {
        Direction::Read => ours.wrapping_sub(theirs),
        Direction::Write => theirs.wrapping_sub(ours),
    };
    local.len() >= MIN_RUN && (1..32).contains(&(past % PAGE))
}

/// Copies one run. In the buffer the bytes have the alignment that they have in the peer.
fn bounce(
    pid: i32,
    direction: Direction,
    local: &Mem,
    remote: &RemoteMem,
    buffer: &Mapping,
) -> Result<(), AccessError> {
    let mut done = 0;
    while let Some(ours) = local.sub(done, CHUNK.min(local.len() - done)).filter(|m| !m.is_empty())
    {
        let part = buffer.bytes(remote.address() % PAGE, ours.len());
        let part = part.map_err(|_| AccessError::Fault)?;
        if direction == Direction::Write {
            copy_checked(direction, &ours, &part).map_err(|error| after(done, error))?;
        }
        let theirs =
            RemoteMem { addr: remote.addr.wrapping_add(done as u64), len: ours.len() as u64 };
        let copied = process_vm::copy(pid, direction, &[part], &[theirs]);
        if direction == Direction::Read {
            let arrived = match copied {
                Ok(()) => ours.len(),
                Err(AccessError::Short(arrived)) => arrived,
                Err(_) => 0,
            };
            let ours = ours.sub(0, arrived).unwrap_or(Mem::empty());
            copy_checked(direction, &ours, &part).map_err(|error| after(done, error))?;
        }
        copied.map_err(|error| after(done, error))?;
        done += ours.len();
    }
    Ok(())
}

/// Copies between the caller's memory and the buffer, and before that one byte of each page by the
/// kernel. A page that is not mapped is an error then, and not a signal.
fn copy_checked(direction: Direction, ours: &Mem, part: &Mem) -> Result<(), AccessError> {
    let first_page_end = PAGE - ours.addr() % PAGE;
    let at = std::iter::once(0).chain((first_page_end..).step_by(PAGE));
    let at = at.take_while(|at| *at < ours.len());
    let (bytes, pages): (Vec<Mem>, Vec<RemoteMem>) = at
        .filter_map(|at| {
            Some((part.sub(at, 1)?, RemoteMem { addr: (ours.addr() + at) as u64, len: 1 }))
        })
        .unzip();
    // Towards the buffer for a write to the peer, and from it for a read.
    let (dst, src, inward) = match direction {
        Direction::Read => (ours, part, Direction::Write),
        Direction::Write => (part, ours, Direction::Read),
    };
    process_vm::copy(process::pid(), inward, &bytes, &pages).map_err(|_| AccessError::Fault)?;
    dst.copy_from(src);
    Ok(())
}

/// Runs of bytes that are contiguous on both sides, without the empty ones.
struct Runs<'a> {
    local: &'a [Mem],
    remote: &'a [RemoteMem],
    /// Bytes of the first element of each list that precede the next run.
    ours: usize,
    theirs: usize,
}

impl Iterator for Runs<'_> {
    type Item = (Mem, RemoteMem);

    fn next(&mut self) -> Option<(Mem, RemoteMem)> {
        loop {
            let (local, remote) = (self.local.first()?, self.remote.first()?);
            let n = (local.len() - self.ours).min(remote.len_bytes() - self.theirs);
            let run = (
                local.sub(self.ours, n)?,
                RemoteMem { addr: remote.addr.wrapping_add(self.theirs as u64), len: n as u64 },
            );
            self.ours += n;
            self.theirs += n;
            if self.ours == local.len() {
                (self.local, self.ours) = (self.local.get(1..)?, 0);
            }
            if self.theirs == remote.len_bytes() {
                (self.remote, self.theirs) = (self.remote.get(1..)?, 0);
            }
            if n != 0 {
                return Some(run);
            }
        }
    }
}

/// Whether the kernel of this machine takes more than twice as long at a bad alignment.
fn kernel_is_slow() -> bool {
    if VERDICT.get_relaxed() == UNKNOWN {
        // Threads that measure at the same time do no harm.
        let (even, odd) = keep_errno(measure).unwrap_or((1, 1));
        VERDICT.set_relaxed(if odd > 2 * even { SLOW } else { EVEN });
        log::info!(
            "process_vm_readv of {SAMPLE} bytes takes {even} ns between aligned buffers and {odd} \
             ns at a relative offset of 16: such copies {} a bounce buffer",
            if odd > 2 * even { "use" } else { "do not use" }
        );
    }
    VERDICT.get_relaxed() == SLOW
}

/// Returns the nanoseconds of a copy at a good and at a bad relative offset, within this process.
fn measure() -> Option<(u64, u64)> {
    const SRC: usize = SAMPLE + PAGE;
    let map = Mapping::private(SRC + SAMPLE).ok()?;
    for page in (0..SRC + SAMPLE).step_by(PAGE) {
        map.bytes(page, 1).ok()?.copy_from_slice(&[1]);
    }
    let src = RemoteMem { addr: (map.address() + SRC) as u64, len: SAMPLE as u64 };
    let time = |offset| {
        let dst = map.bytes(offset, SAMPLE).ok()?;
        let begin = time::now_ns();
        process_vm::copy(process::pid(), Direction::Read, &[dst], &[src]).ok()?;
        Some(time::now_ns() - begin)
    };
    (0..SAMPLES).try_fold((u64::MAX / 4, u64::MAX), |(even, odd), _| {
        Some((even.min(time(0)?), odd.min(time(16)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{children, memfd};

    /// Bytes of a buffer around the copied ones, which no copy may change.
    const MARGIN: usize = 2 * PAGE;
    const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];

    fn byte(at: usize) -> u8 {
        at.to_le_bytes()[0] ^ at.to_le_bytes()[1]
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(byte).collect()
    }

    fn filled(len: usize) -> Mapping {
        let map = Mapping::private(len).unwrap();
        map.bytes(0, len).unwrap().copy_from_slice(&pattern(len));
        map
    }

    fn content(map: &Mapping, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        map.bytes(at, len).unwrap().copy_to_slice(&mut bytes);
        bytes
    }

    fn remote(map: &Mapping, at: usize, len: usize) -> RemoteMem {
        RemoteMem { addr: (map.address() + at) as u64, len: len as u64 }
    }

    /// Copies `len` bytes by the forced path, with the destination `offset` bytes past the source.
    fn copies_exactly(direction: Direction, offset: usize, len: usize) {
        let (src, dst) = (filled(MARGIN + len), Mapping::private(2 * MARGIN + len).unwrap());
        let (from, to) = (77, PAGE + (77 + offset) % PAGE);
        let (local, theirs) = match direction {
            Direction::Read => (dst.bytes(to, len).unwrap(), remote(&src, from, len)),
            Direction::Write => (src.bytes(from, len).unwrap(), remote(&dst, to, len)),
        };
        assert_eq!(is_bad(direction, &local, &theirs), (1..32).contains(&offset), "{offset}");
        copy_if(process::pid(), direction, &[local], &[theirs], || true).unwrap();
        let all = content(&dst, 0, 2 * MARGIN + len);
        assert!(all[to..to + len] == pattern(MARGIN + len)[from..from + len], "{offset}");
        let outside = [&all[..to], &all[to + len..]].concat();
        assert!(outside == vec![0; outside.len()], "{offset}");
    }

    #[test]
    fn every_relative_offset_is_copied_exactly() {
        for direction in DIRECTIONS {
            (0..PAGE).for_each(|offset| copies_exactly(direction, offset, MIN_RUN + 5));
            for offset in [0, 1, 8, 16, 31, 32, 64, 2048, 4080] {
                copies_exactly(direction, offset, 2 * CHUNK + 4321);
                copies_exactly(direction, offset, 2 * CHUNK);
            }
        }
    }

    #[test]
    fn lists_of_mixed_alignment_are_copied() {
        const LEN: usize = 300_000;
        let src = filled(LEN + PAGE);
        for direction in DIRECTIONS {
            for (cut, other_cut) in [(100_000, 70_001), (9000, LEN), (LEN, 9001), (100, 33_333)] {
                let dst = Mapping::private(LEN + PAGE).unwrap();
                let (near, far) =
                    if direction == Direction::Read { (&dst, &src) } else { (&src, &dst) };
                let begins = |cut| (0..LEN).step_by(cut).map(move |at| (at, cut.min(LEN - at)));
                let mut local: Vec<Mem> =
                    begins(cut).map(|(at, n)| near.bytes(at + 3, n).unwrap()).collect();
                local.insert(1, Mem::empty());
                let theirs: Vec<RemoteMem> =
                    begins(other_cut).map(|(at, n)| remote(far, at, n)).collect();
                copy_if(process::pid(), direction, &local, &theirs, || true).unwrap();
                let (to, from) = if direction == Direction::Read { (3, 0) } else { (0, 3) };
                assert!(content(&dst, to, LEN) == content(&src, from, LEN), "{cut} {other_cut}");
            }
        }
    }

    #[test]
    fn memory_of_another_process_is_copied_both_ways() {
        const LEN: usize = CHUNK + 50_000;
        let theirs = Mapping::private(LEN + PAGE).unwrap();
        let ours = Mapping::private(LEN + PAGE).unwrap();
        let (wait, go) = rustix::pipe::pipe().unwrap();
        let (filled, done) = rustix::pipe::pipe().unwrap();
        let child = children::in_child(|| {
            theirs.bytes(0, LEN).unwrap().copy_from_slice(&pattern(LEN));
            let told = rustix::io::write(&done, &[1]) == Ok(1);
            let waited = rustix::io::read(&wait, &mut [0]) == Ok(1);
            let expected: Vec<u8> = pattern(LEN).into_iter().rev().collect();
            i32::from(told && waited && content(&theirs, 0, LEN) == expected)
        });
        assert_eq!(rustix::io::read(&filled, &mut [0]), Ok(1));
        let range = remote(&theirs, 0, LEN);
        let (dst, src) = (ours.bytes(16, LEN).unwrap(), ours.bytes(PAGE - 16, LEN).unwrap());
        copy_if(child.pid(), Direction::Read, &[dst], &[range], || true).unwrap();
        assert!(content(&ours, 16, LEN) == pattern(LEN));
        src.copy_from_slice(&pattern(LEN).into_iter().rev().collect::<Vec<u8>>());
        copy_if(child.pid(), Direction::Write, &[src], &[range], || true).unwrap();
        rustix::io::write(&go, &[1]).unwrap();
        assert_eq!(child.result(), 1);
    }

    #[test]
    fn partial_copy_returns_its_length() {
        const LEN: usize = CHUNK + 10 * PAGE;
        let (near, far) = (filled(LEN + PAGE), filled(LEN));
        let range = remote(&far, 0, LEN);
        for direction in DIRECTIONS {
            let offset = if direction == Direction::Read { 8 } else { PAGE - 8 };
            let local = near.bytes(offset, LEN).unwrap();
            let copy = |theirs: &[RemoteMem]| {
                copy_if(process::pid(), direction, &[local], theirs, || true)
            };
            let bad = RemoteMem { addr: 64, len: LEN as u64 };
            let short = RemoteMem { addr: range.addr, len: (LEN - PAGE) as u64 };
            assert_eq!(copy(&[short, bad]), Err(AccessError::Short(LEN - PAGE)));
            // Unlike what the buffer still holds.
            near.bytes(offset, 1).unwrap().copy_from_slice(&[!byte(0)]);
            let before = content(&near, offset, LEN);
            let gone = copy_if(i32::MAX, direction, &[local], &[range], || true);
            assert_eq!(gone, Err(AccessError::Gone));
            assert!(content(&near, offset, LEN) == before, "{direction:?}");
        }
    }

    #[test]
    fn memory_that_is_not_backed_is_an_error() {
        const LEN: usize = CHUNK + 10 * PAGE;
        const BACKED: usize = 3 * PAGE;
        let far = filled(LEN + PAGE);
        for direction in DIRECTIONS {
            let file = memfd::create("short", BACKED).unwrap();
            let near = Mapping::shared(&file, LEN + PAGE, true).unwrap();
            let offset = if direction == Direction::Read { 8 } else { PAGE - 8 };
            let (local, theirs) = (near.bytes(offset, LEN).unwrap(), remote(&far, 0, LEN));
            let outcome = copy_if(process::pid(), direction, &[local], &[theirs], || true);
            assert_eq!(outcome, Err(AccessError::Fault), "{direction:?}");
        }
    }

    #[test]
    fn measurement_yields_two_times() {
        let (even, odd) = measure().unwrap();
        assert!(even > 0 && odd > 0 && odd < u64::MAX);
        assert_eq!(kernel_is_slow(), kernel_is_slow());
        assert!(VERDICT.get() != UNKNOWN);
    }
}
