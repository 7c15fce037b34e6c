// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Completions of receives, and the reply for a message without a receive.

use libfabric_sys as fi;
use scif::trace::{EventKind, TraceEvent};

use crate::base::errno::Errno;
use crate::engine::completions::{multi_recv, work_report};
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::tables::multi::Multi;
use crate::engine::tables::op_table::FLAG_DEFERRED_WORK;
use crate::engine::tables::tag_match::{Payload, PostedRecv, UnexpectedMsg};
use crate::engine::types::envelope::{MsgEnvelope, MultiRecvId, RecvTarget};
use crate::engine::types::peer_id::ANY;
use crate::engine::types::wire::{self, Head};
use crate::state::completion::{Completion, CqError};
use crate::state::peer_owner::PeerRxEntry;

/// Counts a message and writes the completion of its receive. A non-zero `err` is the reason
/// why the payload is missing.
#[inline]
pub(crate) fn complete_recv(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    target: &RecvTarget,
    m: &MsgEnvelope,
    copied: usize,
    err: Errno,
) {
    ep.stats.received.add(copied);
    ep.peers.note(m.peer, || {
        TraceEvent::new(EventKind::Received, m.tag, copied, target.context as u64).failed(err)
    });
    report_recv(ep, env, target, m, copied, err);
}

/// Writes the completion of a receive, as [`Endpoint::complete_recv`] does, of `len` bytes.
#[inline(always)]
pub(crate) fn report_recv(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    target: &RecvTarget,
    m: &MsgEnvelope,
    len: usize,
    err: Errno,
) {
    let mut flags = fi::FI_RECV | if target.tagged { fi::FI_TAGGED } else { fi::FI_MSG };
    if m.data.is_some() {
        flags |= fi::FI_REMOTE_CQ_DATA;
    }
    let mut wanted = target.flags & fi::FI_COMPLETION != 0;
    if let Some(many) = target.multi {
        if multi_recv::end_piece(ep, env, many) {
            flags |= fi::FI_MULTI_RECV;
            wanted = true;
        }
    }
    if let Some(held) = &target.entry {
        give_back(ep, env, held.clone());
    }
    ep.recv.last_peek_missed = false;
    let src = peer_conn::source_of(ep, env, m.peer);
    let c = Completion {
        context: target.context,
        flags,
        len: len + ep.cfg.prefix,
        buf: target.iov.first_addr(),
        data: m.data.unwrap_or(0),
        tag: m.tag,
        src,
    };
    let unknown = src == fi::FI_ADDR_NOTAVAIL && ep.cfg.caps & fi::FI_SOURCE_ERR != 0;
    let err = match err {
        0 if m.len > target.room => fi::FI_ETRUNC,
        0 if unknown => fi::FI_EADDRNOTAVAIL,
        other => other,
    };
    if target.flags & FLAG_DEFERRED_WORK != 0 {
        let olen = m.len.saturating_sub(target.room);
        work_report::complete_work(ep, env, c, err, olen, ep.cfg.cntr_recv);
        return;
    }
    if let Some(cntr) = ep.cfg.cntr_recv.and_then(|c| env.cntrs.get_mut(c)) {
        if err == 0 { cntr.add(1) } else { cntr.add_err(1) }
    }
    let Some(cq) = ep.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) else {
        return;
    };
    if err == 0 {
        if wanted {
            cq.success(c);
        }
    } else {
        let olen = m.len.saturating_sub(target.room);
        cq.error(CqError {
            err_data: match err {
                // The application can insert this address.
                fi::FI_EADDRNOTAVAIL => peer_conn::name_of(ep, ep.peers.at(m.peer).id),
                _ => Vec::new(),
            },
            ..CqError::new(c, err, olen)
        });
    }
}

pub(crate) fn cancel_recv(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    context: usize,
) -> Result<(), Errno> {
    for tagged in [true, false] {
        let Some(at) = ep.recv.queue(tagged).posted.find(|p| p.context == context) else {
            continue;
        };
        let multi = ep.recv.queue(tagged).posted.get_mut(at).and_then(|p| p.multi);
        if let Some(MultiRecvId::Own(number)) = multi {
            if ep.recv.multis.get(number).is_some_and(Multi::is_filling) {
                return Err(fi::FI_EAGAIN);
            }
        }
        if let Some(posted) = ep.recv.queue(tagged).posted.remove(at) {
            fail_posted(ep, env, tagged, posted, fi::FI_ECANCELED);
        }
        return Ok(());
    }
    Ok(())
}

/// Fails a receive that was removed from its list.
pub(crate) fn fail_posted(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    tagged: bool,
    posted: PostedRecv,
    err: Errno,
) {
    if posted.src != ANY {
        ep.recv.directed -= 1;
    }
    let mut flags = fi::FI_RECV | if tagged { fi::FI_TAGGED } else { fi::FI_MSG };
    if let Some(many) = posted.multi {
        if multi_recv::unlist_many(ep, env, many) {
            flags |= fi::FI_MULTI_RECV;
        }
    }
    let src = if posted.src == ANY {
        fi::FI_ADDR_NOTAVAIL
    } else {
        peer_conn::source_of(ep, env, posted.src)
    };
    let c = Completion {
        buf: posted.iov.first_addr(),
        src,
        ..Completion::new(posted.context, flags, posted.tag)
    };
    if posted.flags & FLAG_DEFERRED_WORK != 0 {
        work_report::complete_work(ep, env, c, err, 0, ep.cfg.cntr_recv);
        return;
    }
    if let Some(cntr) = ep.cfg.cntr_recv.and_then(|c| env.cntrs.get_mut(c)) {
        cntr.add_err(1);
    }
    if let Some(cq) = ep.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
        cq.error(CqError::new(c, err, 0));
    }
}

/// Releases the entry of a peer provider after the completion of its receive has been
/// delivered.
#[cold]
pub(crate) fn give_back(ep: &Endpoint, env: &mut Env<'_>, held: PeerRxEntry) {
    let left = match ep.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
        Some(cq) => cq.give_back(held),
        None => Some(held),
    };
    if let Some(held) = left {
        held.free();
    }
}

/// Reports to the sender that the message is finished.
pub(crate) fn drop_payload(ep: &mut Endpoint, m: &UnexpectedMsg) {
    match &m.payload {
        Payload::Here(_) => {
            if let Some(id) = m.ack {
                peer_conn::answer(ep, m.peer, wire::ACK, Head::new().word(id).word(0), &[]);
            }
        }
        Payload::There(rts) => {
            peer_conn::answer(ep, m.peer, wire::FIN, Head::new().word(rts.op()).word(0), &[])
        }
    }
}
