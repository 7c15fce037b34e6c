// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Records about groups and their operations, from a member.

use libfabric_sys as fi;
use scif::ConnId;
use scif_ring::spsc::Record;

use crate::engine::endpoint::Endpoint;
use crate::engine::parts::Env;
use crate::engine::peers::peer_conn;
use crate::engine::protocols::{coll_join, coll_run};
use crate::engine::tables::coll_group::error_of;
use crate::engine::types::envelope::RecordError;
use crate::engine::types::peer_id::PeerId;
use crate::engine::types::wire::{self, Head, Words};

/// Handles a record of a member.
pub(crate) fn on_record(
    ep: &mut Endpoint,
    env: &mut Env<'_>,
    (_, peer): (ConnId, PeerId),
    record: &Record,
) -> Result<(), RecordError> {
    let mut words = Words::new(&record.head, record.head_len);
    let kind = record.kind;
    if ep.coll.is_none() {
        if kind == wire::COLL_JOIN {
            words.word();
            let head = Head::new().word(words.word()).word(fi::FI_EOPNOTSUPP.unsigned_abs().into());
            peer_conn::answer(ep, peer, wire::COLL_REFUSE, head, &[]);
        }
        return Ok(());
    }
    let sane = match kind {
        wire::COLL_DATA => coll_run::on_data(ep, env, peer, &mut words, record.body)?,
        wire::COLL_ABORT => {
            let (id, err, tell) = (words.word(), words.word(), words.word() != 0);
            coll_run::on_abort(ep, env, peer, id, error_of(err), tell)
        }
        _ => coll_join::on_join(ep, env, peer, kind, &mut words),
    };
    sane.then_some(()).ok_or(RecordError::ProtocolError)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Bed, head_of};

    #[test]
    fn records_of_unknown_groups_change_nothing() {
        for caps in [0, fi::FI_COLLECTIVE] {
            let mut bed = Bed::new(|cfg| cfg.caps |= caps);
            let id = bed.ep.links.sock.id();
            let peer = peer_conn::peer_at(&mut bed.ep, id);
            for kind in [wire::COLL_LEAVE, wire::COLL_REFUSE, wire::COLL_ABORT] {
                let head = head_of(&[9, 1, 0]);
                let body = scif_ring::copy::Mem::empty();
                let record = Record { kind, head_len: 24, head, body };
                let from = (ConnId { index: 0, generation: 1 }, peer);
                let handled = bed.run(|ep, env| on_record(ep, env, from, &record));
                assert!(handled.is_ok(), "kind {kind}");
            }
            assert_eq!(bed.ep.coll.as_ref().map_or(0, |coll| coll.kept()), 0);
        }
    }
}
