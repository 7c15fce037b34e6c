// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Transmit and receive contexts of a scalable endpoint: endpoints with one direction.
//!
//! A context has its own port, queues and peers, like any endpoint, and shares no state with other
//! contexts. The state of the scalable endpoint (address, address vector, event queue) is in `sep`.
//! The operation tables of the other direction return `-FI_ENOSYS`.
//!
//! Mirrors fi_endpoint(3), "fi_tx_context" and "fi_rx_context".

use std::ffi::c_void;
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::{fid, fid_ep};
use scif_ring::AtomicCounter;

use super::calls::{ep_ops, fid_ops};
use crate::base::errno::Errno;
use crate::base::{attr, entry};
use crate::engine::endpoint::Endpoint;
use crate::engine::types::args::EpConfig;
use crate::objects::endpoint::context::{RxCtx, TxCtx};
use crate::objects::endpoint::ep::{Ep, EpCore};
use crate::objects::endpoint::flags::{RX_OP_FLAGS, TX_OP_FLAGS};
use crate::objects::endpoint::sep::{ContextAttr, ContextPlace, Direction};
use crate::objects::no_ops::{NO_ATOMIC, NO_CM, NO_COLLECTIVE, NO_MSG, NO_RMA, NO_TAGGED};
use crate::objects::{atomic, msg, rma, tagged};

static TX_FID_OPS: fi::fi_ops = fid_ops::<TxCtx>();
static RX_FID_OPS: fi::fi_ops = fid_ops::<RxCtx>();
static TX_OPS: fi::fi_ops_ep =
    fi::fi_ops_ep { rx_size_left: fi::FI_OPS_EP_NOSYS.rx_size_left, ..ep_ops::<TxCtx>() };
static RX_OPS: fi::fi_ops_ep = ep_ops::<RxCtx>();

/// Opens the context at `place` of its scalable endpoint; `sock` is the port reserved for it.
///
/// # Errors
/// `FI_ENOMEM` when there are too many endpoints.
pub(crate) fn open(
    place: ContextPlace,
    sock: scif::Endpoint,
    wanted: ContextAttr,
    context: *mut c_void,
) -> Result<*mut fid_ep, Errno> {
    let dom = Arc::clone(&place.sep.dom);
    let transmits = place.way == Direction::Transmit;
    let caps = one_way(wanted.caps, place.way);
    let has = |cap: u64| caps & cap != 0;
    let cfg = EpConfig {
        caps,
        msg_order: wanted.msg_order,
        tx_size: wanted.size,
        rx_size: wanted.size,
        inject_size: wanted.inject_size,
        av: u32::MAX,
        min_multi_recv: attr::MIN_MULTI_RECV,
        rma_event: has(fi::FI_RMA_EVENT),
        host: dom.fabric.node.host_hash(),
        source: !transmits && has(fi::FI_SOURCE),
        directed: !transmits && has(fi::FI_DIRECTED_RECV),
        grouped: !transmits,
        ..EpConfig::default()
    };
    let idx = dom.add_ep(Endpoint::new(cfg, sock))?;
    let core = EpCore { place: Some(place), ..EpCore::new(&dom, idx, wanted.inject_size) };
    let (class, fid_ops, ops) = if transmits {
        (fi::FI_CLASS_TX_CTX, &raw const TX_FID_OPS, &raw const TX_OPS)
    } else {
        (fi::FI_CLASS_RX_CTX, &raw const RX_FID_OPS, &raw const RX_OPS)
    };
    let ep = Box::new(Ep {
        fid: fid_ep {
            fid: fid { fclass: class, context, ops: fid_ops },
            ops,
            cm: &raw const NO_CM,
            msg: match (has(fi::FI_MSG), transmits) {
                (true, true) => &raw const msg::TX_CTX_OPS,
                (true, false) => &raw const msg::RX_CTX_OPS,
                (false, _) => &raw const NO_MSG,
            },
            rma: if transmits && has(fi::FI_RMA) {
                &raw const rma::TX_CTX_OPS
            } else {
                &raw const NO_RMA
            },
            tagged: match (has(fi::FI_TAGGED), transmits) {
                (true, true) => &raw const tagged::TX_CTX_OPS,
                (true, false) => &raw const tagged::RX_CTX_OPS,
                (false, _) => &raw const NO_TAGGED,
            },
            atomic: if transmits && has(fi::FI_ATOMIC) {
                &raw const atomic::TX_CTX_OPS
            } else {
                &raw const NO_ATOMIC
            },
            collective: &raw const NO_COLLECTIVE,
        },
        core: Arc::new(core),
        tx_op_flags: AtomicCounter::new(if transmits { wanted.op_flags & TX_OP_FLAGS } else { 0 }),
        rx_op_flags: AtomicCounter::new(if transmits { 0 } else { wanted.op_flags & RX_OP_FLAGS }),
    });
    Ok(entry::give(ep))
}

/// Returns the capabilities of one direction, and names that direction: without one, both would be
/// meant.
fn one_way(caps: u64, way: Direction) -> u64 {
    const OUT: u64 = fi::FI_SEND | fi::FI_READ | fi::FI_WRITE;
    const IN: u64 = fi::FI_RECV | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
    let (mine, theirs, message, accesses) = match way {
        Direction::Transmit => (OUT, IN, fi::FI_SEND, fi::FI_READ | fi::FI_WRITE),
        Direction::Receive => (IN, OUT, fi::FI_RECV, fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE),
    };
    let mut caps = caps & !theirs;
    if caps & (fi::FI_MSG | fi::FI_TAGGED) != 0 && caps & mine & message == 0 {
        caps |= message;
    }
    if caps & (fi::FI_RMA | fi::FI_ATOMIC) != 0 && caps & mine & accesses == 0 {
        caps |= accesses;
    }
    caps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_has_the_capabilities_of_its_direction() {
        let all = fi::FI_MSG | fi::FI_RMA;
        assert_eq!(
            one_way(all, Direction::Transmit),
            all | fi::FI_SEND | fi::FI_READ | fi::FI_WRITE
        );
        let both = fi::FI_MSG | fi::FI_SEND | fi::FI_RECV;
        assert_eq!(one_way(both, Direction::Receive), fi::FI_MSG | fi::FI_RECV);
        let reads = fi::FI_RMA | fi::FI_READ | fi::FI_REMOTE_WRITE;
        assert_eq!(one_way(reads, Direction::Transmit), fi::FI_RMA | fi::FI_READ);
        assert_eq!(one_way(reads, Direction::Receive), fi::FI_RMA | fi::FI_REMOTE_WRITE);
    }
}
