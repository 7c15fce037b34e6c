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

/// Returns the results of `slot` for an object in the state of this letter in `ops_tables`.
pub(super) fn answers(slot: &str, letter: char) -> Option<Three> {
    let (_, states) = ANSWERS.iter().find(|(name, _)| *name == slot)?;
    let (_, three) = states.iter().find(|(letters, _)| letters.contains(letter))?;
    Some(*three)
}

/// Results by slot and letters of states.
#[rustfmt::skip]
const ANSWERS: &[(&str, &[(&str, Three)])] = &[
    ("base.bind", &[("fxtcCEzqyQRkPWoAJbnhBH", NONE), ("dNewGgMmsplarTuIiOXvUVDLFK", WRONG), ("S", [INVAL, BADFLAGS, BADFLAGS])]),
    ("base.ops_open", &[("fdNewGgMmsxtplcCEzqyQRakrPWoSTuAIiJbnhOBXvUVDLFKH", NONE)]),
    ("base.tostr", &[("fdNewGgMmsxtplcCEzqyQRakrPWoSTuAIiJbnhOBXvUVDLFKH", NONE)]),
    ("base.ops_set", &[("fdNewGgMmsxtplcCEzqyQRakrPWoSTuAIiJbnhOBXvUVDLFKH", NONE)]),
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
    ("ep.cancel", &[("NGMTIXUD", [BADSTATE, BADSTATE, BADSTATE]), ("ewgmsxuiOvVLFK", DONE), ("tplSh", NONE)]),
    ("ep.getopt", &[("NewGgMmsxTuIiOXvUVDLFK", [INVAL, NOOPTION, NOOPTION]), ("tSh", NONE), ("pl", [NOOPTION, NOOPTION, NOOPTION])]),
    ("ep.setopt", &[("NewGgMmsxTuIiOXvUVDLFK", [TOOSMALL, INVAL, INVAL]), ("tSh", NONE), ("pl", [NOOPTION, NOOPTION, NOOPTION])]),
    ("ep.tx_ctx", &[("NewGgMmsxtplTuIihOXvUVDLFK", NONE), ("S", WRONG)]),
    ("ep.rx_ctx", &[("NewGgMmsxtplTuIihOXvUVDLFK", NONE), ("S", WRONG)]),
    ("ep.rx_size_left", &[("NGMIXUD", [BADSTATE, BADSTATE, BADSTATE]), ("ewgmsxiOvVLFK", DONE), ("tplSTuh", NONE)]),
    ("ep.tx_size_left", &[("NewGgMmsxtplSTuIihOXvUVDLFK", NONE)]),
    ("cm.setname", &[("NewGgMmsplSIiOUVDLFK", WRONG), ("xTuhXv", NONE)]),
    ("cm.getname", &[("NewGgMmsplSIiOUVDLFK", WRONG), ("xTuhXv", NONE)]),
    ("cm.getpeer", &[("NewGgxplSTuIihOXvUDLF", NONE), ("MmsVK", [NOTCONN, NOTCONN, NOTCONN])]),
    ("cm.connect", &[("NewGgxplSTuIihOXvUDLF", NONE), ("MmsVK", WRONG)]),
    ("cm.listen", &[("NewGgMmsxSTuIihOXvUVDLFK", NONE), ("p", [NOEQ, NOEQ, NOEQ]), ("l", DONE)]),
    ("cm.accept", &[("NewGgxplSTuIihOXvUDLF", NONE), ("MmsVK", [BADSTATE, INVAL, INVAL])]),
    ("cm.reject", &[("NewGgMmsxSTuIihOXvUVDLFK", NONE), ("pl", WRONG)]),
    ("cm.shutdown", &[("NewGgxplSTuIihOXvUDLF", NONE), ("M", [BADSTATE, BADFLAGS, BADFLAGS]), ("mVK", [NOTCONN, BADFLAGS, BADFLAGS]), ("s", [FINE, BADFLAGS, BADFLAGS])]),
    ("cm.join", &[("NewGgMmsxplSTuhOXvUVDLFK", NONE), ("Ii", [NOSYS, NOSYS, BADFLAGS])]),
    ("msg.recv", &[("NGMIXU", [BADSTATE, BADSTATE, INVAL]), ("ewgmsxiOvV", [FINE, FINE, INVAL]), ("STuh", NONE), ("DLFK", WRONG)]),
    ("msg.recvv", &[("NGMIXUD", [BADSTATE, INVAL, INVAL]), ("ewgmsxiOvVLFK", [FINE, INVAL, INVAL]), ("STuh", NONE)]),
    ("msg.recvmsg", &[("NewGgMmsxIiOXvUVDLFK", WRONG), ("STuh", NONE)]),
    ("msg.send", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("msg.sendv", &[("NGMTIUD", [BADSTATE, INVAL, INVAL]), ("eguOL", WRONG), ("wiF", [FINE, INVAL, INVAL]), ("mVK", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL]), ("xShXv", NONE)]),
    ("msg.sendmsg", &[("NewGgMmsTuIiOUVDLFK", WRONG), ("xShXv", NONE)]),
    ("msg.inject", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("msg.senddata", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("msg.injectdata", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("rma.read", &[("NMTGD", [BADSTATE, BADSTATE, INVAL]), ("eugL", [INVAL, FAULT, INVAL]), ("wF", [FINE, FAULT, INVAL]), ("xSIihOXvUV", NONE), ("mK", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.readv", &[("NMTGD", [BADSTATE, INVAL, INVAL]), ("eugL", WRONG), ("wF", [FINE, INVAL, INVAL]), ("xSIihOXvUV", NONE), ("mK", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL])]),
    ("rma.readmsg", &[("NewMmsTuGgDLFK", [INVAL, INVAL, BADFLAGS]), ("xSIihOXvUV", NONE)]),
    ("rma.write", &[("NMTGD", [BADSTATE, BADSTATE, INVAL]), ("eugL", [INVAL, FAULT, INVAL]), ("wF", [FINE, FAULT, INVAL]), ("xSIihOXvUV", NONE), ("mK", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.writev", &[("NMTGD", [BADSTATE, INVAL, INVAL]), ("eugL", WRONG), ("wF", [FINE, INVAL, INVAL]), ("xSIihOXvUV", NONE), ("mK", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL])]),
    ("rma.writemsg", &[("NewMmsTuGgDLFK", WRONG), ("xSIihOXvUV", NONE)]),
    ("rma.inject", &[("NMTGD", [BADSTATE, BADSTATE, INVAL]), ("eugL", [INVAL, FAULT, INVAL]), ("wF", [FINE, FAULT, INVAL]), ("xSIihOXvUV", NONE), ("mK", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.writedata", &[("NMTGD", [BADSTATE, BADSTATE, INVAL]), ("eugL", [INVAL, FAULT, INVAL]), ("wF", [FINE, FAULT, INVAL]), ("xSIihOXvUV", NONE), ("mK", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("rma.injectdata", &[("NMTGD", [BADSTATE, BADSTATE, INVAL]), ("eugL", [INVAL, FAULT, INVAL]), ("wF", [FINE, FAULT, INVAL]), ("xSIihOXvUV", NONE), ("mK", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL])]),
    ("tagged.recv", &[("NGMIXU", [BADSTATE, BADSTATE, INVAL]), ("ewgmsxiOvV", [FINE, FINE, INVAL]), ("STuh", NONE), ("DLFK", WRONG)]),
    ("tagged.recvv", &[("NGMIXUD", [BADSTATE, INVAL, INVAL]), ("ewgmsxiOvVLFK", [FINE, INVAL, INVAL]), ("STuh", NONE)]),
    ("tagged.recvmsg", &[("NewGgMmsxIiOXvUVDLFK", WRONG), ("STuh", NONE)]),
    ("tagged.send", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("tagged.sendv", &[("NGMTIUD", [BADSTATE, INVAL, INVAL]), ("eguOL", WRONG), ("wiF", [FINE, INVAL, INVAL]), ("mVK", [NOTCONN, INVAL, INVAL]), ("s", [GONE, INVAL, INVAL]), ("xShXv", NONE)]),
    ("tagged.sendmsg", &[("NewGgMmsTuIiOUVDLFK", WRONG), ("xShXv", NONE)]),
    ("tagged.inject", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("tagged.senddata", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("tagged.injectdata", &[("NGMTIU", [BADSTATE, BADSTATE, INVAL]), ("eguO", [INVAL, FAULT, INVAL]), ("wi", [FINE, FAULT, INVAL]), ("mV", [NOTCONN, FAULT, INVAL]), ("s", [GONE, FAULT, INVAL]), ("xShXv", NONE), ("DLFK", WRONG)]),
    ("atomic.write", &[("NTGMD", [INVAL, BADSTATE, NOTSUPP]), ("ewugmsLFK", [INVAL, FAULT, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.writev", &[("NewTuGgMmsDLFK", [INVAL, INVAL, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.writemsg", &[("NewTuGgMmsDLFK", WRONG), ("xSIihOXvUV", NONE)]),
    ("atomic.inject", &[("NTGMD", [INVAL, BADSTATE, NOTSUPP]), ("ewugmsLFK", [INVAL, FAULT, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.readwrite", &[("NTGMD", [INVAL, BADSTATE, NOTSUPP]), ("ewugmsLFK", [INVAL, FAULT, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.readwritev", &[("NewTuGgMmsDLFK", [INVAL, INVAL, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.readwritemsg", &[("NewTuGgMmsDLFK", WRONG), ("xSIihOXvUV", NONE)]),
    ("atomic.compwrite", &[("NewTuGgMmsDLFK", [NOTSUPP, NOTSUPP, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.compwritev", &[("NewTuGgMmsDLFK", [NOTSUPP, NOTSUPP, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.compwritemsg", &[("NewTuGgMmsDLFK", WRONG), ("xSIihOXvUV", NONE)]),
    ("atomic.writevalid", &[("NewTuGgMmsDLFK", [INVAL, INVAL, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.readwritevalid", &[("NewTuGgMmsDLFK", [INVAL, INVAL, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("atomic.compwritevalid", &[("NewTuGgMmsDLFK", [NOTSUPP, NOTSUPP, NOTSUPP]), ("xSIihOXvUV", NONE)]),
    ("collective.barrier", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADSTATE, BADSTATE]), ("i", WRONG)]),
    ("collective.broadcast", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.alltoall", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.allreduce", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.allgather", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.reduce_scatter", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.reduce", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.scatter", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.gather", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
    ("collective.msg", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("Ii", WRONG)]),
    ("collective.barrier2", &[("NewGgMmsxSTuhOXvUVDLFK", NONE), ("I", [BADSTATE, BADFLAGS, BADFLAGS]), ("i", [INVAL, BADFLAGS, BADFLAGS])]),
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
