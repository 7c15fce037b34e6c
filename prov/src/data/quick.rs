// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Receiving what is most frequent in the fewest steps: a message inside its record's cache line, for one plain buffer that was
//! posted before it came.
//!
//! Not about anything unusual: each function here either does all of its work or leaves everything as it was, and then the
//! general way (`rx`) decides. What both do they do alike; here the parts of a receive go straight from where they lie to where they
//! are wanted, never through a copy of the whole: a copy is loaded in other pieces than it was stored in, and such a load
//! waits for the stores.

use libfabric_sys as fi;
use scif::ConnId;
use scif_ring::spsc::{Line, Look};

use super::iov::Iov;
use super::matching::{ANY, Posted};
use super::peer::source_in;
use super::wire;
use super::{Env, EpState, Errno, RecvArgs};
use crate::cq::Completion;

impl EpState {
    /// Takes the next record of a ring, if it is a message of that kind whose receive waits.
    #[inline(always)]
    pub(crate) fn take_quick(&mut self, env: &mut Env<'_>, conn: ConnId, peer: u32) -> Look {
        let EpState {
            sock,
            cfg,
            tagged,
            msg,
            peers,
            stats,
            directed,
            peeked,
            ..
        } = self;
        let Some(c) = sock.conn(conn) else {
            return Look::Empty;
        };
        c.rx().take_line(|kind, line: &Line<'_>| {
            if kind & !(wire::TAGGED | wire::DATA) != wire::EAGER | wire::INLINE
                || cfg.caps & fi::FI_SOURCE_ERR != 0
            {
                return false;
            }
            let (is_tagged, has_data) = (kind & wire::TAGGED != 0, kind & wire::DATA != 0);
            let words = usize::from(is_tagged) + usize::from(has_data);
            let Some(len) = line.len().checked_sub(8 * words) else {
                return false;
            };
            let tag = if is_tagged { line.word(0) } else { 0 };
            let data = if has_data { line.word(words - 1) } else { 0 };
            let (queue, mut what) = if is_tagged {
                (tagged, fi::FI_RECV | fi::FI_TAGGED)
            } else {
                (msg, fi::FI_RECV | fi::FI_MSG)
            };
            if has_data {
                what |= fi::FI_REMOTE_CQ_DATA;
            }
            let Some(at) = queue.match_arrival(peer, tag) else {
                return false;
            };
            let Some(Posted {
                iov: Iov::One([to]),
                multi: None,
                context,
                flags,
                src,
                ..
            }) = queue.posted.get(at)
            else {
                return false;
            };
            if len > to.len() {
                return false;
            }
            line.copy_tail(words, to);
            let (buf, context, flags) = (to.addr(), *context, *flags);
            *directed -= usize::from(*src != ANY);
            queue.posted.forget(at);
            *peeked = false;
            stats.received.add(len);
            if let Some(cntr) = cfg.cntr_recv.and_then(|c| env.cntrs.get_mut(c)) {
                cntr.add(1);
            }
            if flags & fi::FI_COMPLETION != 0
                && let Some(cq) = cfg.rx_cq.and_then(|c| env.cqs.get_mut(c))
            {
                cq.success(Completion {
                    context,
                    flags: what,
                    len: len + cfg.prefix,
                    buf,
                    data,
                    tag,
                    src: source_in(cfg, peers, env.avs, peer),
                });
            }
            true
        })
    }

    /// Posts a receive of one plain buffer, if no message waits for it. False: nothing was done.
    ///
    /// # Errors
    /// `FI_EINVAL` or `FI_ENOAV` for a source that no address vector names.
    #[inline(always)]
    pub(crate) fn post_quick(&mut self, env: &mut Env<'_>, a: &RecvArgs<'_>) -> Result<bool, Errno> {
        let &[to] = a.iov else { return Ok(false) };
        let (queue, (tag, ignore)) = match a.tag {
            Some(tag) => (&self.tagged, tag),
            None => (&self.msg, (0, u64::MAX)),
        };
        if a.flags & fi::FI_MULTI_RECV != 0 || queue.unexpected.len() != 0 {
            return Ok(false);
        }
        let mut src = ANY;
        if self.cfg.directed && a.src != fi::FI_ADDR_UNSPEC {
            src = self.peer_of(env, a.src)?;
            if self.peers.get(src as usize).is_none_or(|p| p.dead) {
                return Ok(false);
            }
            self.directed += 1;
        }
        let queue = if a.tag.is_some() {
            &mut self.tagged
        } else {
            &mut self.msg
        };
        queue.posted.push_back(Posted {
            tag,
            ignore,
            src,
            iov: Iov::One([to]),
            len: to.len(),
            context: a.context,
            flags: a.flags,
            multi: None,
        });
        Ok(true)
    }
}
