// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rendezvous: large messages that the sender announces (`RTS`) and the receiver fetches.
//!
//! The receiver selects the method. A pull reads the pages of the sender directly, if the kernel
//! permits it. If the sender gave a claim block, the receiver offers its buffer there for a
//! cooperative copy. Both sides then claim parts, the sender from the front, the receiver from the
//! back. A part is copied within the call that claimed it. The receive completes when no claimed
//! part is open. If direct access fails or is slower (`rndv_select`), the receiver requests
//! fragments through the ring (`CTS`, `fragment`).

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};
use scif::{Access, AccessError, ConnId, RemoteMem};
use scif_ring::copy::Mem;

use crate::engine::completions::recv_completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::coop_parts::{self, FrontCopy};
use crate::engine::protocols::network_read::{self, ReadStep};
use crate::engine::protocols::parting;
use crate::engine::tables::incoming::{Rendezvous, RndvRecv, RndvState, part_size, takes};
use crate::engine::tables::op_table::CtsReason;
use crate::engine::tables::peer::{is_denied, note_denial};
use crate::engine::tables::rndv_select::RndvProto;
use crate::engine::types::envelope::{MsgEnvelope, RecvTarget};
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::rts::{BOTH_SIDES_MIN, Rts};
use crate::engine::types::wire::{self, Head};

/// Bytes that one progress call copies before it polls its rings again. A larger budget delays
/// other peers.
const BUDGET: usize = 4 * 1024 * 1024;
/// Number of short messages that one system call fetches at most. The first of them completes after
/// the last is copied.
const GATHER_MAX: usize = 8;
/// Number of the oldest large sends that each progress call copies for, besides as many of the
/// others in turn. More of them delay the caller.
const HELP_DEPTH: usize = 4;
/// Time in nanoseconds without a fragment after which a message sent through the ring by choice is
/// pulled.
const STREAM_STALL_NS: u64 = 100_000;

/// Result of one step of an incoming message.
enum RndvStep {
    Done,
    Waiting,
    Failed(i32),
}

/// Starts the transfer of a matched large message, by the best available method.
pub(crate) fn start(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    target: RecvTarget,
    arrival: MsgEnvelope,
    rts: Rts,
) {
    let want = target.room.min(arrival.len);
    let conn = rts.conn();
    // The end of the connection has been handled and fails no further receive. The sender
    // revokes its announced memory.
    if ep.links.is_parting(conn) {
        return recv_completion::complete_recv(ep, env, &target, &arrival, 0, fi::FI_ECONNRESET);
    }
    let access = match ep.links.conn(conn) {
        Some(c) if crate::base::env::env().process_vm || c.memory().access() == Access::Mapped => {
            c.memory().access()
        }
        Some(_) => Access::None,
        // The sender has ended, so the payload cannot be fetched.
        None => {
            return recv_completion::complete_recv(
                ep,
                env,
                &target,
                &arrival,
                0,
                fi::FI_ECONNRESET,
            );
        }
    };
    let stamp = ep.rndv.stamp.wrapping_add(1);
    ep.rndv.stamp = stamp;
    let mut how = RndvState::Pull { done: 0 };
    let mut still = None;
    let mut proto = None;
    if access == Access::ProcessVm
        && want >= BOTH_SIDES_MIN
        && crate::base::env::env().coop_copy
        && !sends_to(ep, arrival.peer)
    {
        if let (Some(block), Some(to)) = (rts.block, target.iov.contiguous()) {
            proto = select_proto(ep, arrival.peer, want);
            let offered = match proto {
                Some(RndvProto::Fragments) => None,
                _ => offer_parts(ep, conn, block, &to, want),
            };
            (how, still) = offered.unwrap_or((how, None));
        }
    }
    let reading =
        if access == Access::None { network_read::begin(ep, &rts, &target, want) } else { None };
    let refused = access == Access::None && reading.is_none();
    how = reading.unwrap_or(how);
    note_begun(ep, &arrival, &rts, &how);
    let stream = want > 0 && (refused || proto == Some(RndvProto::Fragments));
    let Some(index) = ep.rndv.incoming.insert(RndvRecv {
        target,
        arrival,
        rts,
        want,
        how,
        stamp,
        proto,
        heard: (0, 0),
        since_ns: ep.links.clock_ns(),
        _arrival: still,
    }) else {
        return;
    };
    ep.rndv.order.push_back(index);
    if stream {
        let denied = refused && ep.links.conn(conn).is_some_and(|c| is_denied(c));
        ep.stats.denials.fallbacks += u64::from(denied);
        send_cts(ep, index, refused);
    }
}

/// Offers the parts of a message in a claim block, to be copied by both sides. Returns the state of
/// the transfer, and the mark of a buffer into which the peer copies.
fn offer_parts(
    ep: &mut Endpoint,
    conn: ConnId,
    (block, generation): (usize, u32),
    to: &Mem,
    want: usize,
) -> Option<(RndvState, Option<scif::Arrival>)> {
    let part = part_size(want, ep.rndv.order.is_empty());
    let parts = u32::try_from(want.div_ceil(part)).unwrap_or(u32::MAX);
    let c = ep.links.conn(conn)?;
    let part_len = u32::try_from(part).ok()?;
    let migrates = crate::base::env::env().migrate;
    let still = migrates.then(|| scif::Arrival::new(to.addr(), to.len()));
    c.rx_claim(block).offer(generation, to.addr() as u64, want as u64, part_len, parts);
    let how = RndvState::CoopCopy { block, generation, part, parts, repeated: false, own: 0 };
    Some((how, still))
}

/// Records the begin of a copy by this side or by both.
fn note_begun(ep: &mut Endpoint, arrival: &MsgEnvelope, rts: &Rts, how: &RndvState) {
    let kind = match how {
        RndvState::CoopCopy { .. } => EventKind::Offered,
        _ => EventKind::PullBegun,
    };
    ep.peers.note(arrival.peer, || TraceEvent::new(kind, arrival.tag, arrival.len, rts.op()));
}

/// Whether a large message to `peer` waits for its receiver. In an exchange both sides are busy
/// with a copy of their own. A message that one side copies alone takes one system call, and ends
/// in the cache of its receiver.
fn sends_to(ep: &mut Endpoint, peer: PeerId) -> bool {
    let Endpoint { rndv, ops, .. } = ep;
    rndv.coop_sends.iter().any(|id| ops.get_mut(*id).is_some_and(|op| op.peer == peer))
}

/// Selects the method for a message of `want` bytes that both sides can copy, if there is a
/// choice.
fn select_proto(ep: &mut Endpoint, peer: PeerId, want: usize) -> Option<RndvProto> {
    let alone = ep.rndv.order.is_empty();
    let selector = &mut ep.peers.at_mut(peer).transfer.rndv_select;
    selector.get_or_insert_default().choose(want, alone)
}

/// Reports the end of a message to the selector of methods, if there was a choice.
fn report_proto(ep: &mut Endpoint, m: &RndvRecv, failed: bool) {
    let Some(proto) = m.proto else { return };
    let Some(selector) = &mut ep.peers.at_mut(m.arrival.peer).transfer.rndv_select else {
        return;
    };
    let helped = match (proto, &m.how) {
        (RndvProto::CoopCopy, RndvState::CoopCopy { own, .. }) if !failed => *own < m.want,
        (RndvProto::Fragments, RndvState::Fragments { .. }) if !failed => true,
        (RndvProto::Fragments, RndvState::Pull { .. }) => {
            return selector.on_sender_stalled(m.want);
        }
        _ => return selector.interrupted(m.want),
    };
    selector.ended(m.want, proto, helped, scif::now_ns());
}

/// Falls back to a pull for a message sent through the ring by choice. A sender without a
/// fragment for `STREAM_STALL_NS` is outside the library. Its later fragments name a receive that
/// no longer exists.
fn fall_back_to_pull(ep: &mut Endpoint, index: u32) -> bool {
    let now = scif::now_ns();
    let stamp = ep.rndv.stamp.wrapping_add(1);
    // No thread should sleep until then.
    ep.throttle.more = true;
    let Some(m) = ep.rndv.incoming.get_mut(index) else {
        return false;
    };
    let RndvState::Fragments { done } = m.how else {
        return false;
    };
    let (heard, since) = m.heard;
    if since == 0 || heard != done {
        m.heard = (done, now);
        return false;
    }
    if now.saturating_sub(since) < STREAM_STALL_NS {
        return false;
    }
    ep.rndv.stamp = stamp;
    m.stamp = stamp;
    m.how = RndvState::Pull { done };
    true
}

/// Copies messages in both directions, within the budget of one call.
pub(crate) fn progress(ep: &mut Endpoint, env: &mut Env<'_>) {
    run_incoming(ep, env);
    run_coop_sends(ep);
}

/// Copies incoming messages, the oldest first, within the budget of one call.
fn run_incoming(ep: &mut Endpoint, env: &mut Env<'_>) {
    let mut budget = BUDGET;
    let (mut at, mut alone) = (0, 0_usize);
    while let Some(index) = ep.rndv.order.get(at).copied() {
        if alone == 0 {
            alone = pull_together(ep, at, &mut budget);
        }
        alone = alone.saturating_sub(1);
        match step(ep, index, &mut budget) {
            RndvStep::Done => end_incoming(ep, env, at, index, 0),
            RndvStep::Failed(err) => end_incoming(ep, env, at, index, err),
            RndvStep::Waiting => at += 1,
        }
        if budget == 0 {
            ep.throttle.more = true;
            break;
        }
    }
}

/// Fetches short messages of one connection, from the one at `at` in the order on, by one system
/// call, within the budget. Does nothing for a single one. Returns the number of messages to fetch
/// by calls of their own: those of a batch that failed, else 0.
fn pull_together(ep: &mut Endpoint, at: usize, budget: &mut usize) -> usize {
    let Endpoint { rndv: Rendezvous { incoming, order, .. }, links, stats, .. } = ep;
    let mut local = [Mem::empty(); GATHER_MAX];
    let mut remote = [RemoteMem { addr: 0, len: 0 }; GATHER_MAX];
    let (mut count, mut total, mut from) = (0, 0, None);
    for index in order.range(at..).take(GATHER_MAX) {
        let Some(m) = incoming.get(*index).filter(|m| from.is_none_or(|from| from == m.conn()))
        else {
            break;
        };
        let fits = |_: &_| total + m.want <= *budget;
        let Some(ranges) = m.short_pull().filter(fits) else { break };
        total += m.want;
        from = Some(m.conn());
        if let (Some(to), Some(piece)) = (local.get_mut(count), remote.get_mut(count)) {
            (*to, *piece) = ranges;
        }
        count += 1;
    }
    let Some(conn) = from.filter(|_| count > 1).and_then(|from| links.conn(from)) else { return 0 };
    let (Some(local), Some(remote)) = (local.get(..count), remote.get(..count)) else { return 0 };
    if conn.memory().access() != Access::ProcessVm || !conn.enter() {
        return count;
    }
    let copied = conn.memory().read(local, remote);
    conn.exit();
    if copied.is_err() {
        return count;
    }
    *budget -= total;
    for index in order.range(at..).take(count) {
        if let Some(m) = incoming.get_mut(*index) {
            m.how = RndvState::Pull { done: m.want };
            stats.process_vm.add(m.want);
        }
    }
    0
}

/// Ends an incoming message: replies `FIN` to the sender and completes the receive.
pub(crate) fn end_incoming(ep: &mut Endpoint, env: &mut Env<'_>, at: usize, index: u32, err: i32) {
    if err != 0 && parting::revoke(ep, index, err) {
        return;
    }
    ep.rndv.order.remove(at);
    let Some(m) = ep.rndv.incoming.remove(index) else {
        return;
    };
    report_proto(ep, &m, err != 0);
    let kind = match m.how {
        RndvState::Pull { .. } | RndvState::Reading { .. } => EventKind::Pulled,
        RndvState::Fragments { .. } => EventKind::Streamed,
        _ => EventKind::Shared,
    };
    ep.peers.note(m.peer(), || TraceEvent::new(kind, m.arrival.tag, m.want, m.op()).failed(err));
    let status = u64::from(err.unsigned_abs());
    // After the end of a connection its peer expects no reply.
    if !ep.links.is_parting(m.conn()) {
        let head = Head::new().word(m.rts.op).word(status);
        peer_conn::answer(ep, m.arrival.peer, wire::FIN, head, &[]);
    }
    let copied = if err == 0 { m.want } else { 0 };
    if kind != EventKind::Streamed {
        ep.peers.at_mut(m.arrival.peer).transfer.copied.note(false, copied);
    }
    recv_completion::complete_recv(ep, env, &m.target, &m.arrival, copied, err);
}

fn step(ep: &mut Endpoint, index: u32, budget: &mut usize) -> RndvStep {
    let more = ep.rndv.order.len() > 1;
    let Some(m) = ep.rndv.incoming.get_mut(index) else {
        return RndvStep::Done;
    };
    if m.want == 0 {
        return RndvStep::Done;
    }
    if let RndvState::Reading { .. } | RndvState::EndingRead { .. } = m.how {
        return step_read(ep, index);
    }
    let Some(conn) = ep.links.conn(m.rts.conn) else {
        return RndvStep::Failed(fi::FI_ECONNRESET);
    };
    match &mut m.how {
        RndvState::Fragments { done } if *done == m.want => return RndvStep::Done,
        RndvState::Fragments { .. } if m.proto == Some(RndvProto::Fragments) => {
            return if fall_back_to_pull(ep, index) {
                step(ep, index, budget)
            } else {
                RndvStep::Waiting
            };
        }
        RndvState::Fragments { .. } => return RndvStep::Waiting,
        RndvState::Draining { block } => {
            if conn.rx_claim(*block).open_parts() == 0 {
                send_cts(ep, index, true);
            }
            return RndvStep::Waiting;
        }
        RndvState::Ending { block, err } => {
            let err = *err;
            return if conn.rx_claim(*block).open_parts() > 0 && conn.may_be_copying() {
                RndvStep::Waiting
            } else {
                RndvStep::Failed(err)
            };
        }
        RndvState::Pull { .. }
        | RndvState::CoopCopy { .. }
        | RndvState::Reading { .. }
        | RndvState::EndingRead { .. } => {}
    }
    // If the peer has left or died, the end of the connection follows and fails the receive.
    if !conn.enter() {
        return RndvStep::Waiting;
    }
    let copied = m.copy(conn, more, budget, &mut ep.stats);
    conn.exit();
    let error = match copied {
        Ok(true) => None,
        Ok(false) => return RndvStep::Waiting,
        Err(error) => Some(error),
    };
    match error {
        None => RndvStep::Done,
        Some(AccessError::Gone) => RndvStep::Failed(fi::FI_ECONNRESET),
        Some(error) => {
            ep.stats.denials.fallbacks += 1;
            let event = TraceEvent::new(EventKind::Fallback, m.arrival.tag, m.want, m.op());
            ep.peers.note(m.arrival.peer, || event);
            if matches!(error, AccessError::Denied) {
                conn.memory_mut().deny();
                let peer = ep.peers.at_mut(m.arrival.peer);
                note_denial(conn, peer, &mut ep.stats);
            } else {
                crate::base::log::fall_back(conn.peer(), conn.peer_pid(), &error);
            }
            if let RndvState::CoopCopy { block, .. } = m.how {
                conn.rx_claim(block).close();
                m.how = RndvState::Draining { block };
                return RndvStep::Waiting;
            }
            m.proto = None;
            send_cts(ep, index, true);
            RndvStep::Waiting
        }
    }
}

/// Advances an incoming message that the network reads.
fn step_read(ep: &mut Endpoint, index: u32) -> RndvStep {
    let ending = ep.rndv.incoming.get(index).and_then(|m| match m.how {
        RndvState::EndingRead { number, err } => Some((m.conn(), number, err)),
        _ => None,
    });
    if let Some((conn, number, err)) = ending {
        return if network_read::is_writing(ep, conn, number) {
            RndvStep::Waiting
        } else {
            RndvStep::Failed(err)
        };
    }
    match network_read::step(ep, index) {
        ReadStep::Waiting => {}
        ReadStep::Done => return RndvStep::Done,
        ReadStep::Failed => {
            ep.stats.denials.fallbacks += 1;
            send_cts(ep, index, true);
        }
    }
    RndvStep::Waiting
}

/// Copies parts, as the sender, of messages whose receivers have offered their buffers.
fn run_coop_sends(ep: &mut Endpoint) {
    let mut at = 0;
    while at < HELP_DEPTH.min(ep.rndv.coop_sends.len()) {
        let Some(id) = ep.rndv.coop_sends.get(at).copied() else {
            return;
        };
        if coop_copy(ep, id) {
            ep.rndv.coop_sends.remove(at);
        } else {
            at += 1;
        }
    }
    // The oldest messages may all be for a peer that makes no progress.
    for _ in HELP_DEPTH..ep.rndv.coop_sends.len().min(2 * HELP_DEPTH) {
        let at = match ep.rndv.coop_next {
            next if (HELP_DEPTH..ep.rndv.coop_sends.len()).contains(&next) => next,
            _ => HELP_DEPTH,
        };
        ep.rndv.coop_next = at + 1;
        if let Some(id) = ep.rndv.coop_sends.get(at).copied() {
            if coop_copy(ep, id) {
                ep.rndv.coop_sends.remove(at);
                ep.rndv.coop_next = at;
            }
        }
    }
}

/// Copies parts of one message. Returns true when nothing is left to copy.
fn coop_copy(ep: &mut Endpoint, id: u64) -> bool {
    let more = ep.rndv.coop_sends.len() > 1;
    let Some(op) = ep.ops.get_mut(id).filter(|op| op.asked == CtsReason::Never) else {
        return true;
    };
    let (Some((block, generation)), Some(from)) = (op.block, op.iov.contiguous()) else {
        return true;
    };
    let to = op.peer;
    let p = ep.peers.at(to);
    let Some(conn) = p.tx.and_then(|c| ep.links.conn(c)) else {
        return true;
    };
    if conn.memory().access() != Access::ProcessVm || !crate::base::env::env().process_vm {
        return conn.is_up();
    }
    if !conn.alive_recently() {
        return true;
    }
    let claim = conn.tx_claim(usize::from(block));
    let Some(offer) = claim.peer_offer(generation) else {
        return false;
    };
    let Some(local) = from.sub(0, usize::try_from(offer.len).unwrap_or(usize::MAX)) else {
        return true;
    };
    let copy = FrontCopy {
        generation,
        part: offer.part as usize,
        parts: offer.parts,
        local,
        remote: offer.dst_addr,
        write: true,
        limits: takes(offer.parts, more),
    };
    let copied = coop_parts::copy_front(conn, &claim, &copy, &mut ep.stats);
    if matches!(copied, Err(AccessError::Denied)) {
        conn.memory_mut().deny();
        note_denial(conn, ep.peers.at_mut(to), &mut ep.stats);
    }
    true
}

/// Returns the number by which the sender's fragments find incoming message `index`.
fn receive_number(index: u32, stamp: u32) -> u64 {
    u64::from(stamp) << 32 | u64::from(index)
}

/// Requests the payload as fragments. `refused`: this side cannot reach the memory of the
/// sender.
pub(crate) fn send_cts(ep: &mut Endpoint, index: u32, refused: bool) {
    let Some(m) = ep.rndv.incoming.get_mut(index) else {
        return;
    };
    m.how = RndvState::Fragments { done: 0 };
    let head = Head::new()
        .word(m.op())
        .word(receive_number(index, m.stamp))
        .word(m.want as u64)
        .word(u64::from(refused));
    let peer = m.arrival.peer;
    let event = TraceEvent::new(EventKind::CtsSent, m.arrival.tag, m.want, m.op());
    ep.peers.note(peer, || event);
    peer_conn::answer(ep, peer, wire::CTS, head, &[]);
}

#[cfg(test)]
mod tests {
    use crate::engine::tests::{Bed, buffer, bytes_of, completed};

    #[test]
    fn a_large_message_arrives_whole() {
        let mut pair = Bed::pair();
        let len = 300_000;
        let bytes: Vec<u8> = (0..len).map(|at: usize| at.to_le_bytes()[0]).collect();
        let to = buffer(vec![0; len]);
        pair[1].recv(&to);
        pair[0].send(&buffer(bytes.clone())).unwrap();
        assert_eq!(completed(&mut pair, 1).len, len);
        completed(&mut pair, 0);
        assert!(bytes_of(&to) == bytes && pair[0].ep.ops.is_empty());
        assert!(pair[1].ep.rndv.is_idle());
    }
}
