// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What each function of the operations tables answers when every pointer is null, and every number is 0, 1, or all ones.
//!
//! Sources: fi_endpoint(3), fi_cm(3), fi_msg(3), fi_tagged(3), fi_rma(3), fi_atomic(3), fi_av(3), fi_cq(3), fi_eq(3),
//! fi_cntr(3), fi_mr(3), and the general rules of fi_errno(3): what is not offered is `FI_ENOSYS`, what has no place to go
//! or come from `FI_EINVAL`, what comes before fi_enable(3) `FI_EOPBADSTATE`, what would be sent from address 0 `FI_EFAULT`.

/// 0 or more.
pub(super) const FINE: i64 = 0;
pub(super) const INVAL: i64 = -22;
pub(super) const NOSYS: i64 = -38;
const AGAIN: i64 = -11;
const FAULT: i64 = -14;
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

/// The answers to 0, 1 and all ones.
type Three = [i64; 3];
/// Not offered.
const NONE: Three = [NOSYS; 3];
/// Offered, and never with null.
const WRONG: Three = [INVAL; 3];
/// What makes sense with anything.
const DONE: Three = [FINE; 3];

/// The answers of `slot` of an object in the state that has this letter in `slots`.
pub(super) fn answers(slot: &str, letter: char) -> Option<Three> {
    let (_, states) = ANSWERS.iter().find(|(name, _)| *name == slot)?;
    let (_, three) = states.iter().find(|(letters, _)| letters.contains(letter))?;
    Some(*three)
}

/// By slot and letters of states.
#[rustfmt::skip]
const ANSWERS: &[(&str, &[(&str, Three)])] = &[
    ("base.bind", &[("fxtcCEzqyQRkPWoAJbnhB", NONE), ("dNewGgMmsplarTuIiOXv", WRONG), ("S", [INVAL, BADFLAGS, BADFLAGS])]),
    ("base.ops_open", &[("fdNewGgMmsxtplcCEzqyQRakrPWoSTuAIiJbnhOBXv", NONE)]),
    ("base.tostr", &[("fdNewGgMmsxtplcCEzqyQRakrPWoSTuAIiJbnhOBXv", NONE)]),
    ("base.ops_set", &[("fdNewGgMmsxtplcCEzqyQRakrPWoSTuAIiJbnhOBXv", NONE)]),
    ("fabric.domain", &[("f", WRONG)]),
    ("fabric.passive_ep", &[("f", WRONG)]),
    ("fabric.eq_open", &[("f", WRONG)]),
    ("fabric.wait_open", &[("f", WRONG)]),
    ("fabric.trywait", &[("f", [FINE, INVAL, INVAL])]),
    ("fabric.domain2", &[("f", WRONG)]),
    ("domain.av_open", &[("d", WRONG)]),
    ("domain.cq_open", &[("d", WRONG)]),
    ("domain.endpoint", &[("d", WRONG)]),
    ("domain.scalable_ep", &[("d", WRONG)]),
    ("domain.cntr_open", &[("d", WRONG)]),
    ("domain.poll_open", &[("d", WRONG)]),
    ("domain.stx_ctx", &[("d", WRONG)]),
    ("domain.srx_ctx", &[("d", WRONG)]),
    ("domain.query_atomic", &[("d", [INVAL, BADFLAGS, BADFLAGS])]),
    ("domain.query_collective", &[("d", [INVAL, BADFLAGS, BADFLAGS])]),
    ("domain.endpoint2", &[("d", [INVAL, NOTSUPP, NOTSUPP])]),
    ("mr.reg", &[("d", [INVAL, BADFLAGS, BADFLAGS])]),
    ("mr.regv", &[("d", [INVAL, BADFLAGS, BADFLAGS])]),
    ("mr.regattr", &[("d", WRONG)]),
    ("ep.cancel", &[("NGMTIX", [BADSTATE, BADSTATE, BADSTATE]), ("ewgmsxuiOv", DONE), ("tplSh", NONE)]),
    ("ep.getopt", &[("NewGgMmsxTuIiOXv", [INVAL, NOOPTION, NOOPTION]), ("tSh", NONE), ("pl", [NOOPTION, NOOPTION, NOOPTION])]),
    ("ep.setopt", &[("NewGgMmsxTuIiOXv", [TOOSMALL, INVAL, INVAL]), ("tSh", NONE), ("pl", [NOOPTION, NOOPTION, NOOPTION])]),
    ("ep.tx_ctx", &[("NewGgMmsxtplTuIihOXv", NONE), ("S", WRONG)]),
    ("ep.rx_ctx", &[("NewGgMmsxtplTuIihOXv", NONE), ("S", WRONG)]),
    ("ep.rx_size_left", &[("NGMIX", [BADSTATE, BADSTATE, BADSTATE]), ("ewgmsxiOv", DONE), ("tplSTuh", NONE)]),
    ("ep.tx_size_left", &[("NewGgMmsxtplSTuIihOXv", NONE)]),
    ("cm.setname", &[("NewGgMmsplSIiO", WRONG), ("xTuhXv", NONE)]),
    ("cm.getname", &[("NewGgMmsplSIiO", WRONG), ("xTuhXv", NONE)]),
    ("cm.getpeer", &[("NewGgxplSTuIihOXv", NONE), ("Mms", [NOTCONN, NOTCONN, NOTCONN])]),
    ("cm.connect", &[("NewGgxplSTuIihOXv", NONE), ("Mms", WRONG)]),
    ("cm.listen", &[("NewGgMmsxSTuIihOXv", NONE), ("p", [NOEQ, NOEQ, NOEQ]), ("l", DONE)]),
    ("cm.accept", &[("NewGgxplSTuIihOXv", NONE), ("Mms", [BADSTATE, INVAL, INVAL])]),
    ("cm.reject", &[("NewGgMmsxSTuIihOXv", NONE), ("pl", WRONG)]),
    ("cm.shutdown", &[("NewGgxplSTuIihOXv", NONE), ("M", [BADSTATE, BADFLAGS, BADFLAGS]), ("m", [NOTCONN, BADFLAGS, BADFLAGS]), ("s", [FINE, BADFLAGS, BADFLAGS])]),
    ("cm.join", &[("NewGgMmsxplSTuhOXv", NONE), ("Ii", [NOSYS, NOSYS, BADFLAGS])]),
    ("msg.recv", &[("NGMIX", [BADSTATE, BADSTATE, INVAL]), ("ewgmsxiOv", [FINE, FINE, INVAL]), ("STuh", NONE)]),
    ("msg.recvv", &[("NGMIX", [BADSTATE, INVAL, INVAL]), ("ewgmsxiOv", [FINE, INVAL, INVAL]), ("STuh", NONE)]),
    ("msg.recvmsg", &[("NewGgMmsxIiOXv", WRONG), ("STuh", NONE)]),
    ("msg.send", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("msg.sendv", &[("NGMTI", [BADSTATE, INVAL, INVAL]), ("eguO", WRONG), ("wi", [FINE, INVAL, INVAL]), ("m", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL]), ("xShXv", NONE)]),
    ("msg.sendmsg", &[("NewGgMmsTuIiO", WRONG), ("xShXv", NONE)]),
    ("msg.inject", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("msg.senddata", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("msg.injectdata", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("rma.read", &[("NMT", [BADSTATE, BADSTATE, INVAL]), ("eu", [INVAL, FAULT, INVAL]), ("w", [FINE, FAULT, INVAL]), ("GgxSIihOXv", NONE), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.readv", &[("NMT", [BADSTATE, INVAL, INVAL]), ("eu", WRONG), ("w", [FINE, INVAL, INVAL]), ("GgxSIihOXv", NONE), ("m", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL])]),
    ("rma.readmsg", &[("NewMmsTu", [INVAL, INVAL, BADFLAGS]), ("GgxSIihOXv", NONE)]),
    ("rma.write", &[("NMT", [BADSTATE, BADSTATE, INVAL]), ("eu", [INVAL, FAULT, INVAL]), ("w", [FINE, FAULT, INVAL]), ("GgxSIihOXv", NONE), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.writev", &[("NMT", [BADSTATE, INVAL, INVAL]), ("eu", WRONG), ("w", [FINE, INVAL, INVAL]), ("GgxSIihOXv", NONE), ("m", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL])]),
    ("rma.writemsg", &[("NewMmsTu", WRONG), ("GgxSIihOXv", NONE)]),
    ("rma.inject", &[("NMT", [BADSTATE, BADSTATE, INVAL]), ("eu", [INVAL, FAULT, INVAL]), ("w", [FINE, FAULT, INVAL]), ("GgxSIihOXv", NONE), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.writedata", &[("NMT", [BADSTATE, BADSTATE, INVAL]), ("eu", [INVAL, FAULT, INVAL]), ("w", [FINE, FAULT, INVAL]), ("GgxSIihOXv", NONE), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.injectdata", &[("NMT", [BADSTATE, BADSTATE, INVAL]), ("eu", [INVAL, FAULT, INVAL]), ("w", [FINE, FAULT, INVAL]), ("GgxSIihOXv", NONE), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("tagged.recv", &[("NGMIX", [BADSTATE, BADSTATE, INVAL]), ("ewgmsxiOv", [FINE, FINE, INVAL]), ("STuh", NONE)]),
    ("tagged.recvv", &[("NGMIX", [BADSTATE, INVAL, INVAL]), ("ewgmsxiOv", [FINE, INVAL, INVAL]), ("STuh", NONE)]),
    ("tagged.recvmsg", &[("NewGgMmsxIiOXv", WRONG), ("STuh", NONE)]),
    ("tagged.send", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("tagged.sendv", &[("NGMTI", [BADSTATE, INVAL, INVAL]), ("eguO", WRONG), ("wi", [FINE, INVAL, INVAL]), ("m", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL]), ("xShXv", NONE)]),
    ("tagged.sendmsg", &[("NewGgMmsTuIiO", WRONG), ("xShXv", NONE)]),
    ("tagged.inject", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("tagged.senddata", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("tagged.injectdata", &[("NGMTI", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("m", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE)]),
    ("atomic.write", &[("NT", [INVAL, BADSTATE, NOTSUPP]), ("ewu", [INVAL, FAULT, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.writev", &[("NewTu", [INVAL, INVAL, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.writemsg", &[("NewTu", WRONG), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.inject", &[("NT", [INVAL, BADSTATE, NOTSUPP]), ("ewu", [INVAL, FAULT, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.readwrite", &[("NT", [INVAL, BADSTATE, NOTSUPP]), ("ewu", [INVAL, FAULT, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.readwritev", &[("NewTu", [INVAL, INVAL, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.readwritemsg", &[("NewTu", WRONG), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.compwrite", &[("NewTu", [NOTSUPP, NOTSUPP, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.compwritev", &[("NewTu", [NOTSUPP, NOTSUPP, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.compwritemsg", &[("NewTu", WRONG), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.writevalid", &[("NewTu", [INVAL, INVAL, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.readwritevalid", &[("NewTu", [INVAL, INVAL, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("atomic.compwritevalid", &[("NewTu", [NOTSUPP, NOTSUPP, NOTSUPP]), ("GgMmsxSIihOXv", NONE)]),
    ("collective.barrier", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADSTATE, BADSTATE]), ("i", WRONG)]),
    ("collective.broadcast", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.alltoall", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.allreduce", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.allgather", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.reduce_scatter", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.reduce", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.scatter", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.gather", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.msg", &[("NewGgMmsxSTuhOXv", NONE), ("Ii", WRONG)]),
    ("collective.barrier2", &[("NewGgMmsxSTuhOXv", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("av.insert", &[("a", [FINE, INVAL, INVAL])]),
    ("av.insertsvc", &[("a", WRONG)]),
    ("av.insertsym", &[("a", WRONG)]),
    ("av.remove", &[("a", [FINE, INVAL, INVAL])]),
    ("av.lookup", &[("a", WRONG)]),
    ("av.av_set", &[("a", WRONG)]),
    ("av.insert_auth_key", &[("a", NONE)]),
    ("av.lookup_auth_key", &[("a", NONE)]),
    ("av.set_user_id", &[("a", [INVAL, BADFLAGS, BADFLAGS])]),
    ("cq.read", &[("czB", [AGAIN, AGAIN, AGAIN]), ("C", DONE), ("E", [AVAIL, AVAIL, AVAIL]), ("b", [AGAIN, NOSYS, NOSYS])]),
    ("cq.readfrom", &[("czB", [AGAIN, AGAIN, AGAIN]), ("C", DONE), ("E", [AVAIL, AVAIL, AVAIL]), ("b", NONE)]),
    ("cq.readerr", &[("cCEzB", WRONG), ("b", NONE)]),
    ("cq.sread", &[("c", [AGAIN, AGAIN, AGAIN]), ("C", DONE), ("E", [AVAIL, AVAIL, AVAIL]), ("zbB", NONE)]),
    ("cq.sreadfrom", &[("c", [AGAIN, AGAIN, AGAIN]), ("C", DONE), ("E", [AVAIL, AVAIL, AVAIL]), ("zbB", NONE)]),
    ("cq.signal", &[("cCEB", DONE), ("zb", NONE)]),
    ("eq.read", &[("qyQR", WRONG)]),
    ("eq.readerr", &[("qyQR", WRONG)]),
    ("eq.write", &[("qyQR", [FINE, INVAL, INVAL])]),
    ("eq.sread", &[("qyQR", WRONG)]),
    ("cntr.add", &[("ko", DONE), ("n", NONE)]),
    ("cntr.set", &[("ko", DONE), ("n", NONE)]),
    ("cntr.adderr", &[("ko", DONE), ("n", NONE)]),
    ("cntr.seterr", &[("ko", DONE), ("n", NONE)]),
    ("cntr.wait", &[("ko", DONE), ("n", NONE)]),
    ("poll.poll", &[("P", [FINE, INVAL, INVAL])]),
    ("poll.poll_add", &[("P", WRONG)]),
    ("poll.poll_del", &[("P", WRONG)]),
    ("wait.wait", &[("W", [TIMEDOUT, TIMEDOUT, TIMEDOUT])]),
    ("av_set.set_union", &[("A", WRONG)]),
    ("av_set.intersect", &[("A", WRONG)]),
    ("av_set.diff", &[("A", WRONG)]),
    ("av_set.insert", &[("A", WRONG)]),
    ("av_set.remove", &[("A", WRONG)]),
    ("av_set.addr", &[("A", WRONG)]),
];
