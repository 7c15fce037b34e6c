// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Steps of a member in a collective operation, on one block of working memory.
//!
//! Steps are executed in order. A send only starts in order, and may finish any time before the
//! operation does. After a send, its range is overwritten only by a message that the receiver sends
//! once it has the whole range.
//!
//! Members are numbered by rank. The application may number them differently, since its address
//! vector set may have another order at each member. `slots` maps a rank to a block of the
//! application's buffers.
//!
//! Not here: the transport of the messages, and the death of a member (`super`).

use std::collections::VecDeque;
use std::ops::Range;

use libfabric_sys as fi;

/// Kind of a collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Barrier,
    Broadcast,
    AllToAll,
    AllReduce,
    AllGather,
    ReduceScatter,
    Reduce,
    Scatter,
    Gather,
}

impl Kind {
    /// Converts from `enum fi_collective_op`.
    pub(crate) fn from_raw(raw: u32) -> Option<Kind> {
        Some(match raw {
            fi::FI_BARRIER => Kind::Barrier,
            fi::FI_BROADCAST => Kind::Broadcast,
            fi::FI_ALLTOALL => Kind::AllToAll,
            fi::FI_ALLREDUCE => Kind::AllReduce,
            fi::FI_ALLGATHER => Kind::AllGather,
            fi::FI_REDUCE_SCATTER => Kind::ReduceScatter,
            fi::FI_REDUCE => Kind::Reduce,
            fi::FI_SCATTER => Kind::Scatter,
            fi::FI_GATHER => Kind::Gather,
            _ => return None,
        })
    }

    /// Whether values are combined.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce)
    }

    /// Whether the operation has a root.
    pub(crate) fn is_rooted(self) -> bool {
        matches!(self, Kind::Broadcast | Kind::Reduce | Kind::Scatter | Kind::Gather)
    }

    /// Returns the numbers of blocks that this member reads from its buffer and writes to its
    /// result. The single buffer of a broadcast counts as read at the root and as written
    /// elsewhere.
    pub(crate) fn blocks(self, members: usize, is_root: bool) -> (usize, usize) {
        let at_root = |n: usize| if is_root { n } else { 0 };
        match self {
            Kind::Barrier => (0, 0),
            Kind::Broadcast => (at_root(1), 1 - at_root(1)),
            Kind::AllToAll => (members, members),
            Kind::AllReduce => (1, 1),
            Kind::AllGather => (1, members),
            Kind::ReduceScatter => (members, 1),
            Kind::Reduce => (1, at_root(1)),
            Kind::Scatter => (at_root(members), 1),
            Kind::Gather => (1, at_root(members)),
        }
    }
}

/// Step of an operation: exchange with one member, on a range of the working memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Send { to: usize, from: Range<usize> },
    Receive { from: usize, to: Range<usize> },
    Merge { from: usize, with: Range<usize> },
}

/// Position of this member in the group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks<'a> {
    pub(crate) rank: usize,
    pub(crate) root: usize,
    /// Number that the application uses for each rank.
    pub(crate) slots: &'a [usize],
}

/// Complete plan of an operation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: VecDeque<Step>,
    /// Bytes of working memory.
    pub(crate) work: usize,
    /// Initial copies: ranges of the application's buffer, and their offsets in the working memory.
    pub(crate) load: Vec<(Range<usize>, usize)>,
    /// Final copies: ranges of the working memory, and their offsets in the result buffer.
    pub(crate) store: Vec<(Range<usize>, usize)>,
}

/// Returns the plan of `kind` for the member at `place`, with blocks of `len` bytes.
pub(crate) fn plan(kind: Kind, place: Ranks<'_>, len: usize) -> Plan {
    let mut p = Planner { steps: VecDeque::new(), place, len };
    let n = place.slots.len();
    let (me, root) = (place.rank, place.root);
    let own = place.slots.get(me).copied().unwrap_or(0);
    let one = || vec![(0..len, 0)];
    let (work, load, store) = match kind {
        Kind::Barrier => {
            p.barrier();
            (0, Vec::new(), Vec::new())
        }
        Kind::Broadcast => {
            p.broadcast(root);
            if me == root { (len, one(), Vec::new()) } else { (len, Vec::new(), one()) }
        }
        Kind::Reduce => {
            p.reduce(root, 0..len);
            (len, one(), if me == root { one() } else { Vec::new() })
        }
        Kind::AllReduce => {
            p.reduce(0, 0..len);
            p.broadcast(0);
            (len, one(), one())
        }
        Kind::Gather if me == root => {
            for from in p.others() {
                let to = p.slot(from);
                p.steps.push_back(Step::Receive { from, to });
            }
            (n * len, vec![(0..len, own * len)], vec![(0..n * len, 0)])
        }
        Kind::Gather => {
            p.steps.push_back(Step::Send { to: root, from: 0..len });
            (len, one(), Vec::new())
        }
        Kind::Scatter if me == root => {
            for to in p.others() {
                let from = p.slot(to);
                p.steps.push_back(Step::Send { to, from });
            }
            (n * len, vec![(0..n * len, 0)], vec![(p.slot(me), 0)])
        }
        Kind::Scatter => {
            p.steps.push_back(Step::Receive { from: root, to: 0..len });
            (len, Vec::new(), one())
        }
        Kind::AllGather => {
            p.ring();
            (n * len, vec![(0..len, own * len)], vec![(0..n * len, 0)])
        }
        Kind::AllToAll => {
            let half = n * len;
            for step in 1..n {
                let (to, from) = ((me + step) % n, (me + n - step) % n);
                let sent = p.slot(to);
                let Range { start, end } = p.slot(from);
                p.steps.push_back(Step::Send { to, from: sent });
                p.steps.push_back(Step::Receive { from, to: half + start..half + end });
            }
            let Range { start, end } = p.slot(me);
            (2 * half, vec![(0..half, 0), (start..end, half + start)], vec![(half..2 * half, 0)])
        }
        Kind::ReduceScatter => {
            p.reduce(0, 0..n * len);
            if me == 0 {
                for to in p.others() {
                    p.steps.push_back(Step::Send { to, from: p.block(to) });
                }
            } else {
                p.steps.push_back(Step::Receive { from: 0, to: p.block(me) });
            }
            // Blocks to combine must have the same order at all members.
            let load = (0..n).map(|rank| (p.slot(rank), rank * len)).collect();
            (n * len, load, vec![(p.block(me), 0)])
        }
    };
    Plan { steps: p.steps, work, load, store }
}

struct Planner<'a> {
    steps: VecDeque<Step>,
    place: Ranks<'a>,
    len: usize,
}

impl Planner<'_> {
    fn members(&self) -> usize {
        self.place.slots.len()
    }

    /// Returns block `at`, with blocks in order of rank.
    fn block(&self, at: usize) -> Range<usize> {
        at * self.len..(at + 1) * self.len
    }

    /// Returns the block of `rank`, with blocks in the application's order.
    fn slot(&self, rank: usize) -> Range<usize> {
        self.block(self.place.slots.get(rank).copied().unwrap_or(0))
    }

    /// Returns the other members. Each member starts after itself, so that not all address the same
    /// one.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, n) = (self.place.rank, self.members());
        (1..n).map(move |step| (me + step) % n)
    }

    /// Adds a dissemination barrier: each round doubles the number of members that a member knows
    /// of.
    fn barrier(&mut self) {
        let (me, n) = (self.place.rank, self.members());
        let mut reach = 1;
        while reach < n {
            self.steps.push_back(Step::Send { to: (me + reach) % n, from: 0..0 });
            self.steps.push_back(Step::Receive { from: (me + n - reach) % n, to: 0..0 });
            reach *= 2;
        }
    }

    /// Adds a broadcast down a binomial tree.
    fn broadcast(&mut self, root: usize) {
        let (n, all) = (self.members(), 0..self.len);
        let me = (self.place.rank + n - root) % n;
        let member = |virtual_rank: usize| (virtual_rank + root) % n;
        let mut reach = 1;
        while reach < n {
            if me & reach != 0 {
                self.steps.push_back(Step::Receive { from: member(me - reach), to: all.clone() });
                break;
            }
            reach *= 2;
        }
        while reach > 1 {
            reach /= 2;
            if me + reach < n {
                self.steps.push_back(Step::Send { to: member(me + reach), from: all.clone() });
            }
        }
    }

    /// Adds a reduction up a binomial tree.
    fn reduce(&mut self, root: usize, all: Range<usize>) {
        let n = self.members();
        let me = (self.place.rank + n - root) % n;
        let member = |virtual_rank: usize| (virtual_rank + root) % n;
        let mut reach = 1;
        while reach < n {
            if me & reach != 0 {
                self.steps.push_back(Step::Send { to: member(me - reach), from: all });
                return;
            }
            if me + reach < n {
                self.steps.push_back(Step::Merge { from: member(me + reach), with: all.clone() });
            }
            reach *= 2;
        }
    }

    /// Adds a ring exchange: each round passes on the block received in the previous one.
    fn ring(&mut self) {
        let (me, n) = (self.place.rank, self.members());
        for round in 1..n {
            let (sent, came) = ((me + n - round + 1) % n, (me + n - round) % n);
            self.steps.push_back(Step::Send { to: (me + 1) % n, from: self.slot(sent) });
            self.steps.push_back(Step::Receive { from: (me + n - 1) % n, to: self.slot(came) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const KINDS: [Kind; 9] = [
        Kind::Barrier,
        Kind::Broadcast,
        Kind::AllToAll,
        Kind::AllReduce,
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::Reduce,
        Kind::Scatter,
        Kind::Gather,
    ];

    struct Member {
        plan: Plan,
        work: Vec<u8>,
        /// Members that are known to have entered the operation.
        heard: Vec<bool>,
    }

    impl Member {
        /// Merges the bytes into the work area at `to`, or stores them there.
        fn receive(&mut self, sent: (Vec<u8>, Vec<bool>), to: Range<usize>, merges: bool) {
            let (bytes, heard) = sent;
            self.heard.iter_mut().zip(heard).for_each(|(a, b)| *a |= b);
            let place = self.work[to].iter_mut().zip(&bytes);
            place.for_each(|(a, b)| *a = if merges { a.wrapping_add(*b) } else { *b });
        }
    }

    /// Message, and the members known to its sender.
    type Sent = VecDeque<(Vec<u8>, Vec<bool>)>;

    /// Runs the plans of all members against each other, with blocks of one byte. Returns the
    /// contents of the result buffers.
    fn exchange(
        kind: Kind,
        n: usize,
        root: usize,
        slots: &[Vec<usize>],
        input: &[Vec<u8>],
    ) -> Vec<Vec<u8>> {
        let mut members: Vec<Member> = (0..n)
            .map(|rank| {
                let place = Ranks { rank, root, slots: &slots[rank] };
                let plan = plan(kind, place, 1);
                let mut work = vec![0; plan.work];
                for (from, to) in &plan.load {
                    let bytes = &input[rank][from.clone()];
                    work[*to..to + bytes.len()].copy_from_slice(bytes);
                }
                let mut heard = vec![false; n];
                heard[rank] = true;
                Member { plan, work, heard }
            })
            .collect();
        let mut wires: HashMap<(usize, usize), Sent> = HashMap::new();
        loop {
            let mut moved = false;
            for (me, m) in members.iter_mut().enumerate() {
                let Some(step) = m.plan.steps.pop_front() else {
                    continue;
                };
                moved |= match step.clone() {
                    Step::Send { to, from } => {
                        assert_ne!(to, me, "nobody sends to itself");
                        let sent = (m.work[from].to_vec(), m.heard.clone());
                        wires.entry((me, to)).or_default().push_back(sent);
                        true
                    }
                    Step::Receive { from, to } | Step::Merge { from, with: to } => {
                        let sent = wires.entry((from, me)).or_default().pop_front();
                        let merges = matches!(step, Step::Merge { .. });
                        let arrived = sent.is_some();
                        match sent {
                            Some(sent) => m.receive(sent, to, merges),
                            None => m.plan.steps.push_front(step),
                        }
                        arrived
                    }
                };
            }
            let done = members.iter().all(|m| m.plan.steps.is_empty());
            assert!(moved || done, "{kind:?} of {n} waits for itself");
            if done {
                break;
            }
        }
        assert!(wires.values().all(VecDeque::is_empty), "everything sent is received");
        if kind == Kind::Barrier {
            assert!(members.iter().all(|m| m.heard.iter().all(|h| *h)));
        }
        members
            .iter()
            .map(|m| {
                let len = m.plan.store.iter().map(|(r, at)| at + r.len()).max().unwrap_or(0);
                let mut out = vec![0; len];
                for (range, at) in &m.plan.store {
                    out[*at..at + range.len()].copy_from_slice(&m.work[range.clone()]);
                }
                out
            })
            .collect()
    }

    /// Returns the expected results. `slots[rank][other]` is the index of `other`'s block at
    /// `rank`.
    fn expected(
        kind: Kind,
        n: usize,
        root: usize,
        slots: &[Vec<usize>],
        input: &[Vec<u8>],
    ) -> Vec<Vec<u8>> {
        let sum = |blocks: &dyn Fn(usize) -> u8| (0..n).map(blocks).fold(0u8, u8::wrapping_add);
        (0..n)
            .map(|me| {
                let by_slot = |block: &dyn Fn(usize) -> u8| {
                    let mut out = vec![0; n];
                    for other in 0..n {
                        out[slots[me][other]] = block(other);
                    }
                    out
                };
                match kind {
                    Kind::Barrier => vec![],
                    Kind::Broadcast if me == root => vec![],
                    Kind::Broadcast => vec![input[root][0]],
                    Kind::Reduce if me != root => vec![],
                    Kind::Reduce | Kind::AllReduce => vec![sum(&|o| input[o][0])],
                    Kind::Gather if me != root => vec![],
                    Kind::Gather | Kind::AllGather => by_slot(&|o| input[o][0]),
                    Kind::Scatter => vec![input[root][slots[root][me]]],
                    Kind::AllToAll => by_slot(&|o| input[o][slots[o][me]]),
                    Kind::ReduceScatter => vec![sum(&|o| input[o][slots[o][me]])],
                }
            })
            .collect()
    }

    #[test]
    fn every_collective_of_every_size_and_root_is_correct() {
        for n in 1..=9 {
            // A different order at each member.
            let slots: Vec<Vec<usize>> =
                (0..n).map(|rank| (0..n).map(|other| (other + rank) % n).collect()).collect();
            let input: Vec<Vec<u8>> = (0..n)
                .map(|rank| {
                    (0..n).map(|block| u8::try_from(rank * 17 + block * 3 + 1).unwrap()).collect()
                })
                .collect();
            for kind in KINDS {
                for root in 0..if kind.is_rooted() { n } else { 1 } {
                    assert_eq!(
                        exchange(kind, n, root, &slots, &input),
                        expected(kind, n, root, &slots, &input),
                        "{kind:?} of {n} members, root {root}"
                    );
                }
            }
        }
    }

    #[test]
    fn application_buffers_have_the_planned_length() {
        for n in [1, 2, 5] {
            let slots: Vec<usize> = (0..n).collect();
            for kind in KINDS {
                for rank in 0..n {
                    let place = Ranks { rank, root: n - 1, slots: &slots };
                    let p = plan(kind, place, 4);
                    let (read, written) = kind.blocks(n, rank == n - 1);
                    let end = p.load.iter().map(|(from, _)| from.end).max().unwrap_or(0);
                    assert_eq!(end, read * 4, "{kind:?} {rank}/{n}");
                    let end = p.store.iter().map(|(r, at)| at + r.len()).max().unwrap_or(0);
                    assert_eq!(end, written * 4, "{kind:?} {rank}/{n}");
                }
            }
        }
    }

    #[test]
    fn kinds_are_libfabric_s() {
        for (raw, kind) in [
            (fi::FI_BARRIER, Kind::Barrier),
            (fi::FI_REDUCE_SCATTER, Kind::ReduceScatter),
            (fi::FI_GATHER, Kind::Gather),
        ] {
            assert_eq!(Kind::from_raw(raw), Some(kind));
        }
        assert_eq!(Kind::from_raw(9), None);
    }
}
