// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Expected result of each function of the operations tables when every pointer is null, and every
//! number is 0, 1, or all ones.
//!
//! Sources: fi_endpoint(3), fi_cm(3), fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3), fi_av(3),
//! fi_cq(3), fi_eq(3), fi_cntr(3), fi_mr(3). General rules of fi_errno(3): an unsupported operation
//! is `FI_ENOSYS`. A missing source, target or space for a prefix is `FI_EINVAL`. A call before
//! fi_enable(3) is `FI_EOPBADSTATE`, and a send from address 0 is `FI_EFAULT`.

/// Any result of 0 or more.
pub(super) const FINE: i64 = 0;
pub(super) const INVAL: i64 = -22;
pub(super) const NOSYS: i64 = -38;
const AGAIN: i64 = -11;
const FAULT: i64 = -14;
pub(super) const NODATA: i64 = -61;
const NOOPTION: i64 = -92;
const NOTSUPP: i64 = -95;
const NOTCONN: i64 = -107;
const GONE: i64 = -108;
const TIMEDOUT: i64 = -110;
const TOOSMALL: i64 = -257;
const BADSTATE: i64 = -258;
const AVAIL: i64 = -259;
const BADFLAGS: i64 = -260;
const NOEQ: i64 = -261;
pub(super) const NOAV: i64 = -263;

/// Results for 0, 1 and all ones.
type Three = [i64; 3];
/// Unsupported.
const NONE: Three = [NOSYS; 3];
/// Supported, but never with null arguments.
const WRONG: Three = [INVAL; 3];
/// Valid with any argument.
const DONE: Three = [FINE; 3];
/// Slots, and their results by state; the first set with the state counts.
type Row = (&'static [&'static str], &'static [(States, Three)]);

/// Set of states of objects.
pub(super) type States = u64;

/// Defines each name as the set of one state, from bit `$at` on.
macro_rules! states {
    ($at:expr;) => {};
    ($at:expr; $name:ident $($rest:ident)*) => {
        pub(super) const $name: States = 1 << ($at);
        states!($at + 1; $($rest)*);
    };
}

states! { 0;
    FABRIC DOMAIN AV AV_SET MR CNTR PEER_CNTR POLL_SET WAIT_SET EQ OTHER
    CQ CQ_TO_POLL CQ_OF_WAIT_SET CQ_WITH_ENTRY CQ_WITH_ERROR PEER_CQ
    NEW_EP EP EP_SELF NEW_PREFIX_EP PREFIX_EP PREFIX_EP_SELF NEW_COLL_EP COLL_EP
    NEW_MSG_EP MSG_EP MSG_EP_DOWN PREFIX_MSG_EP NEW_SMALL_EP SMALL_MSG_EP PEER_SRX_EP
    NEW_TX TX NEW_RX RX SEP SRX STX PEER_SRX PEP LISTENING_PEP
}

/// Endpoints and contexts before fi_enable(3).
const NEW: States =
    NEW_EP | NEW_PREFIX_EP | NEW_COLL_EP | NEW_MSG_EP | NEW_SMALL_EP | NEW_TX | NEW_RX;
/// Endpoints of domains with message prefixes.
const PREFIX: States = NEW_PREFIX_EP | PREFIX_EP | PREFIX_EP_SELF | PREFIX_MSG_EP;
/// Endpoints whose address vectors have an address.
const WITH_PEER: States = EP_SELF | PREFIX_EP_SELF | COLL_EP;
/// Enabled endpoints without a connection.
const IDLE: States = MSG_EP | PREFIX_MSG_EP | SMALL_MSG_EP;
const CONNECTED: States = IDLE | NEW_MSG_EP | MSG_EP_DOWN;
/// Objects with the tables of an active endpoint.
const ACTIVE: States = NEW | PREFIX | WITH_PEER | CONNECTED | EP | PEER_SRX_EP | TX | RX | SRX;
const SENDS: States = ACTIVE & !(NEW_RX | RX | SRX);
const RECEIVES: States = ACTIVE & !(NEW_TX | TX);
const COLLECTIVE: States = NEW_COLL_EP | COLL_EP;
/// Endpoints with RMA and atomics.
const ONE_SIDED: States = SENDS & !(COLLECTIVE | NEW_SMALL_EP | SMALL_MSG_EP | PEER_SRX_EP);
const PEPS: States = PEP | LISTENING_PEP;
const CQS: States = CQ | CQ_TO_POLL | CQ_OF_WAIT_SET | CQ_WITH_ENTRY | CQ_WITH_ERROR;
const ANY: States = States::MAX;

/// Returns the results of `slot` for an object in `state`. A slot without a row for this state is
/// unsupported.
pub(super) fn answers(slot: &str, state: States) -> Option<Three> {
    let (_, states) = ANSWERS.iter().find(|(slots, _)| slots.contains(&slot))?;
    let found = states.iter().find(|(states, _)| states & state != 0);
    Some(found.map_or(NONE, |(_, three)| *three))
}

#[rustfmt::skip]
const ANSWERS: &[Row] = &[
    (&["base.bind"], &[(SRX, NONE), (SEP, [INVAL, BADFLAGS, BADFLAGS]),
        (ACTIVE | PEPS | DOMAIN | AV | MR, WRONG)]),
    (&["base.ops_open", "base.tostr", "base.ops_set", "ep.tx_size_left"], &[]),
    (&["fabric.domain", "fabric.passive_ep", "fabric.eq_open", "fabric.wait_open",
        "fabric.domain2"], &[(ANY, WRONG)]),
    (&["fabric.trywait"], &[(ANY, [FINE, INVAL, INVAL])]),
    (&["domain.av_open", "domain.cq_open", "domain.endpoint", "domain.scalable_ep",
        "domain.cntr_open", "domain.poll_open", "domain.stx_ctx", "domain.srx_ctx",
        "mr.regattr"], &[(ANY, WRONG)]),
    (&["domain.query_atomic", "domain.query_collective", "mr.reg", "mr.regv"],
        &[(ANY, [INVAL, BADFLAGS, BADFLAGS])]),
    (&["domain.endpoint2"], &[(ANY, [INVAL, NOTSUPP, NOTSUPP])]),
    (&["ep.cancel"], &[(NEW, [BADSTATE; 3]), (ACTIVE, DONE)]),
    (&["ep.getopt"], &[(ACTIVE, [INVAL, NOOPTION, NOOPTION]), (PEPS, [NOOPTION; 3])]),
    (&["ep.setopt"], &[(ACTIVE, [TOOSMALL, INVAL, INVAL]), (PEPS, [NOOPTION; 3])]),
    (&["ep.tx_ctx", "ep.rx_ctx"], &[(SEP, WRONG)]),
    (&["ep.rx_size_left"], &[(NEW & RECEIVES, [BADSTATE; 3]), (RECEIVES, DONE)]),
    (&["cm.setname", "cm.getname"], &[(SENDS & RECEIVES | SEP | PEPS, WRONG)]),
    (&["cm.getpeer"], &[(CONNECTED, [NOTCONN; 3])]),
    (&["cm.connect"], &[(CONNECTED, WRONG)]),
    (&["cm.listen"], &[(PEP, [NOEQ; 3]), (LISTENING_PEP, DONE)]),
    (&["cm.accept"], &[(CONNECTED, [BADSTATE, INVAL, INVAL])]),
    (&["cm.reject"], &[(PEPS, WRONG)]),
    (&["cm.shutdown"], &[(NEW_MSG_EP, [BADSTATE, BADFLAGS, BADFLAGS]),
        (IDLE, [NOTCONN, BADFLAGS, BADFLAGS]), (MSG_EP_DOWN, [FINE, BADFLAGS, BADFLAGS])]),
    (&["cm.join"], &[(COLLECTIVE, [NOSYS, NOSYS, BADFLAGS])]),
    (&["msg.recv", "tagged.recv"], &[(PREFIX, WRONG),
        (NEW & RECEIVES, [BADSTATE, BADSTATE, INVAL]), (RECEIVES, [FINE, FINE, INVAL])]),
    (&["msg.recvv", "tagged.recvv"],
        &[(NEW & RECEIVES, [BADSTATE, INVAL, INVAL]), (RECEIVES, [FINE, INVAL, INVAL])]),
    (&["msg.recvmsg", "tagged.recvmsg"], &[(RECEIVES, WRONG)]),
    (&["msg.send", "msg.inject", "msg.senddata", "msg.injectdata",
        "tagged.send", "tagged.inject", "tagged.senddata", "tagged.injectdata"],
        &[(PREFIX, WRONG), (NEW & SENDS, [BADSTATE, BADSTATE, INVAL]),
        (WITH_PEER, [FINE, FAULT, INVAL]), (IDLE, [NOTCONN, FAULT, INVAL]),
        (MSG_EP_DOWN, [GONE, FAULT, INVAL]), (SENDS, [INVAL, FAULT, INVAL])]),
    (&["msg.sendv", "tagged.sendv"],
        &[(NEW & SENDS, [BADSTATE, INVAL, INVAL]), (WITH_PEER, [FINE, INVAL, INVAL]),
        (IDLE, [NOTCONN, INVAL, INVAL]), (MSG_EP_DOWN, [GONE, INVAL, INVAL]), (SENDS, WRONG)]),
    (&["msg.sendmsg", "tagged.sendmsg"], &[(SENDS, WRONG)]),
    (&["rma.read", "rma.write", "rma.inject", "rma.writedata", "rma.injectdata"],
        &[(NEW & ONE_SIDED, [BADSTATE, BADSTATE, INVAL]),
        (WITH_PEER & ONE_SIDED, [FINE, FAULT, INVAL]), (IDLE & ONE_SIDED, [NOTCONN, FAULT, INVAL]),
        (MSG_EP_DOWN, [GONE, FAULT, INVAL]), (ONE_SIDED, [INVAL, FAULT, INVAL])]),
    (&["rma.readv", "rma.writev"],
        &[(NEW & ONE_SIDED, [BADSTATE, INVAL, INVAL]),
        (WITH_PEER & ONE_SIDED, [FINE, INVAL, INVAL]), (IDLE & ONE_SIDED, [NOTCONN, INVAL, INVAL]),
        (MSG_EP_DOWN, [GONE, INVAL, INVAL]), (ONE_SIDED, WRONG)]),
    (&["rma.readmsg"], &[(ONE_SIDED, [INVAL, INVAL, BADFLAGS])]),
    (&["rma.writemsg", "atomic.writemsg", "atomic.readwritemsg", "atomic.compwritemsg"],
        &[(ONE_SIDED, WRONG)]),
    (&["atomic.write", "atomic.inject", "atomic.readwrite"],
        &[(NEW & ONE_SIDED, [INVAL, BADSTATE, NOTSUPP]), (ONE_SIDED, [INVAL, FAULT, NOTSUPP])]),
    (&["atomic.writev", "atomic.readwritev", "atomic.writevalid", "atomic.readwritevalid"],
        &[(ONE_SIDED, [INVAL, INVAL, NOTSUPP])]),
    (&["atomic.compwrite", "atomic.compwritev", "atomic.compwritevalid"],
        &[(ONE_SIDED, [NOTSUPP; 3])]),
    (&["collective.barrier"], &[(NEW_COLL_EP, [BADSTATE; 3]), (COLL_EP, WRONG)]),
    (&["collective.broadcast", "collective.alltoall", "collective.allreduce",
        "collective.allgather", "collective.reduce_scatter", "collective.reduce",
        "collective.scatter", "collective.gather", "collective.barrier2"],
        &[(NEW_COLL_EP, [BADSTATE, BADFLAGS, BADFLAGS]), (COLL_EP, [INVAL, BADFLAGS, BADFLAGS])]),
    (&["collective.msg"], &[(COLLECTIVE, WRONG)]),
    (&["av.insert", "av.remove"], &[(ANY, [FINE, INVAL, INVAL])]),
    (&["av.insertsvc", "av.insertsym", "av.lookup", "av.av_set"], &[(ANY, WRONG)]),
    (&["av.insert_auth_key", "av.lookup_auth_key"], &[]),
    (&["av.set_user_id"], &[(ANY, [INVAL, BADFLAGS, BADFLAGS])]),
    (&["cq.read"], &[(PEER_CQ, [AGAIN, NOSYS, NOSYS]), (CQ_WITH_ENTRY, DONE),
        (CQ_WITH_ERROR, [AVAIL; 3]), (ANY, [AGAIN; 3])]),
    (&["cq.readfrom"],
        &[(CQ_WITH_ENTRY, DONE), (CQ_WITH_ERROR, [AVAIL; 3]), (CQS, [AGAIN; 3])]),
    (&["cq.readerr"], &[(CQS, WRONG)]),
    (&["cq.sread", "cq.sreadfrom"],
        &[(CQ_WITH_ENTRY, DONE), (CQ_WITH_ERROR, [AVAIL; 3]), (CQ, [AGAIN; 3])]),
    (&["cq.signal"], &[(CQS & !CQ_TO_POLL, DONE)]),
    (&["eq.read", "eq.readerr", "eq.sread"], &[(ANY, WRONG)]),
    (&["eq.write"], &[(ANY, [FINE, INVAL, INVAL])]),
    (&["cntr.add", "cntr.set", "cntr.adderr", "cntr.seterr", "cntr.wait"], &[(CNTR, DONE)]),
    (&["poll.poll"], &[(ANY, [FINE, INVAL, INVAL])]),
    (&["poll.poll_add", "poll.poll_del"], &[(ANY, WRONG)]),
    (&["wait.wait"], &[(ANY, [TIMEDOUT; 3])]),
    (&["av_set.set_union", "av_set.intersect", "av_set.diff", "av_set.insert", "av_set.remove",
        "av_set.addr"], &[(ANY, WRONG)]),
];
