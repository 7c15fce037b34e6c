// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Peeks at unexpected messages: `FI_PEEK`, `FI_CLAIM`, `FI_DISCARD`. Semantics: fi_tagged(3).
//!
//! Not here: receives that wait for their message (`recv`).

use libfabric_sys as fi;
use scif_ring::copy::total_len;

use crate::base::errno::Errno;
use crate::engine::completions::recv_completion;
use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::{peer_conn, sep_source};
use crate::engine::protocols::recv;
use crate::engine::tables::tag_match::UnexpectedMsg;
use crate::engine::types::args::RecvArgs;
use crate::engine::types::envelope::{MsgEnvelope, RecvTarget};
use crate::engine::types::iov::Iov;
use crate::engine::{fast_path, progress};
use crate::state::completion::{Completion, CqError};

/// Executes a peek, claim or discard. The result is always a completion or an error entry.
///
/// A peek searches the unexpected messages only if the last poll left the receive queue empty,
/// or if the previous peek found nothing. Otherwise it reports `FI_ENOMSG`. The reason is
/// programs with message queues of their own beside this one, such as MPICH. They check their
/// own queues after a peek that found nothing, or a read that was empty. Some receive a probed
/// message from any source, as the graph constructors of MPICH do. If a peek found a message
/// here before that check, the receive could take another one from a queue of the program.
pub(crate) fn post_peek(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    a: &RecvArgs<'_>,
) -> Result<(), Errno> {
    let tagged = a.tag.is_some();
    let (tag, ignore) = a.tag.unwrap_or((0, u64::MAX));
    if a.flags & fi::FI_PEEK == 0 {
        let Some(m) = ep.recv.claimed.remove(&a.context) else {
            return Err(fi::FI_EINVAL);
        };
        let discard = a.flags & fi::FI_DISCARD != 0;
        let iov = Iov::new(if discard { &[] } else { a.iov });
        let room = if discard { m.len } else { total_len(a.iov) };
        let target = RecvTarget::new(tagged, iov, room, a.context, a.flags);
        if discard {
            drop_message(ep, env, &target, &m);
        } else {
            recv::receive_unexpected(ep, env, target, m);
        }
        return Ok(());
    }
    let src = sep_source::wanted_peer(ep, env, a.src)?;
    let mut flags = fi::FI_RECV | if tagged { fi::FI_TAGGED } else { fi::FI_MSG };
    if a.flags & fi::FI_CLAIM != 0 && ep.recv.claimed.contains_key(&a.context) {
        // A context holds one claim. A second one would lose the first message.
        return Err(fi::FI_EINVAL);
    }
    let found = if ep.recv.cq_was_empty || ep.recv.last_peek_missed {
        sep_source::match_unexpected(ep, env, tagged, src, tag, ignore)
    } else {
        None
    };
    let Some(at) = found else {
        if let Some(cq) = ep.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
            let c = Completion::new(a.context, flags, tag);
            cq.error(CqError::new(c, fi::FI_ENOMSG, 0));
        }
        // A program that only peeks reads no empty queue, and thus makes no progress by reads.
        if ep.recv.cq_was_empty || ep.recv.last_peek_missed {
            // The unexpected messages do not include the wanted one, so the throttle must not
            // delay its arrival.
            ep.throttle.lift();
        }
        if !fast_path::poll_empty(ep, env) {
            progress::progress(ep, env);
        }
        ep.recv.last_peek_missed = true;
        return Ok(());
    };
    if a.flags & fi::FI_DISCARD != 0 {
        if let Some(m) = ep.recv.queue(tagged).unexpected.remove(at) {
            let target = RecvTarget::new(tagged, Iov::new(&[]), m.len, a.context, a.flags);
            drop_message(ep, env, &target, &m);
        }
        return Ok(());
    }
    let Some((peer, len, data, tag)) =
        ep.recv.queue(tagged).unexpected.get_mut(at).map(|m| (m.peer, m.len, m.data, m.tag))
    else {
        return Ok(());
    };
    if data.is_some() {
        flags |= fi::FI_REMOTE_CQ_DATA;
    }
    if a.flags & fi::FI_CLAIM != 0 {
        if let Some(m) = ep.recv.queue(tagged).unexpected.remove(at) {
            ep.recv.claimed.insert(a.context, m);
        }
    }
    let src = peer_conn::source_of(ep, env, peer);
    if let Some(cq) = ep.cfg.rx_cq.and_then(|c| env.cqs.get_mut(c)) {
        cq.success(Completion {
            len: len + ep.cfg.prefix,
            data: data.unwrap_or(0),
            src,
            ..Completion::new(a.context, flags, tag)
        });
    }
    Ok(())
}

/// Drops the payload of a message. The sender completes, and the caller gets a completion with
/// the length of the message.
fn drop_message(ep: &mut Endpoint, env: &mut Env<'_>, target: &RecvTarget, m: &UnexpectedMsg) {
    recv_completion::drop_payload(ep, m);
    let arrival = MsgEnvelope { peer: m.peer, tag: m.tag, data: m.data, len: m.len };
    recv_completion::report_recv(ep, env, target, &arrival, m.len, 0);
}
