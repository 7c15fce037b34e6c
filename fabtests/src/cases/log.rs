// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Log lines of failures on the way to an endpoint: one line each, with the cause. Mirrors
//! fi_errno(3) and the variables `FI_LOG_*` of fabric(7).

use std::time::{Duration, Instant};

use scif_fabtests::fi::Result;
use scif_fabtests::prelude::*;

use super::ops_tables::{Bench, bench};

pub(crate) const CASES: &[Case] = &[
    case("log/one_line_names_the_cause", 1, one_line).under(&[("FI_LOG_LEVEL", "warn")]),
    case("log/missing_options", 1, |r| options(r, false)).under(&[("FI_LOG_LEVEL", "warn")]),
    case("log/refused_calls_do_not_flood", 1, refused_in_a_loop).under(&[("FI_LOG_LEVEL", "warn")]),
    case("log/options_with_log_lines", 1, |r| options(r, true)).under(&[("FI_LOG_LEVEL", "info")]),
];

/// Call, its error, and words of its log line.
type Wrong = (fn(&Bench) -> Result, Errno, &'static [&'static str]);

fn bound(bench: &Bench) -> Result<[std::sync::Arc<dyn Fid>; 4]> {
    let ep = Ep::open(&bench.domain, &bench.info)?;
    let av = Av::open(&bench.domain, sys::FI_AV_UNSPEC, 1)?;
    let cq = Cq::open(&bench.domain, CqAttr::default())?;
    let eq = Eq::open(&bench.fabric, EqAttr::default())?;
    ep.bind(&*av, 0)?;
    ep.bind(&*cq, sys::FI_TRANSMIT)?;
    ep.bind(&*eq, 0)?;
    Ok([ep, av, cq, eq])
}

const WRONG: &[Wrong] = &[
    (
        |b| bound(b)?[0].bind(&*bound(b)?[2], 1 << 40),
        Errno::EBADFLAGS,
        &["fi_ep_bind", "0x10000000000"],
    ),
    (|b| bound(b)?[0].bind(&*b.domain, 0), Errno::EINVAL, &["fi_ep_bind", "class 2"]),
    (
        |b| bound(b)?[0].control_null(sys::FI_ENABLE),
        Errno::ENOCQ,
        &["fi_enable", "no completion queue"],
    ),
    (|b| bound(b)?[1].close(), Errno::EBUSY, &["fi_close of an address vector", "busy"]),
    (|b| bound(b)?[2].close(), Errno::EBUSY, &["fi_close of a completion queue", "busy"]),
    (|b| bound(b)?[3].close(), Errno::EBUSY, &["fi_close of an event queue", "busy"]),
    (
        |b| {
            let _open = bound(b)?;
            b.domain.close()
        },
        Errno::EBUSY,
        &["fi_close of a domain", "1 endpoints, 1 address vectors"],
    ),
    (|b| b.fabric.close(), Errno::EBUSY, &["fi_close of a fabric", "busy"]),
    (
        |b| {
            let attr = CqAttr { format: 77, ..CqAttr::default() };
            Cq::open(&b.domain, attr).map(drop)
        },
        Errno::EINVAL,
        &["fi_cq_open", "format 77"],
    ),
    (|b| Av::open(&b.domain, 77, 1).map(drop), Errno::EINVAL, &["fi_av_open", "type 77"]),
    (
        |b| {
            let attr = CntrAttr { flags: 1 << 40, ..CntrAttr::default() };
            Cntr::open(&b.domain, attr).map(drop)
        },
        Errno::EINVAL,
        &["fi_cntr_open"],
    ),
    (
        |b| {
            let attr = EqAttr { wait_obj: 77, ..EqAttr::default() };
            Eq::open(&b.fabric, attr).map(drop)
        },
        Errno::EINVAL,
        &["fi_eq_open", "wait object 77"],
    ),
    (
        |b| {
            let spec = MrRequest { access: sys::FI_REMOTE_READ, key: 9, flags: 0 };
            let _first = Mr::reg(&b.domain, Buf::new(8), spec)?;
            Mr::reg(&b.domain, Buf::new(8), spec).map(drop)
        },
        Errno::ENOKEY,
        &["fi_mr_reg", "key 0x9"],
    ),
    (
        |b| {
            let spec = MrRequest { flags: 1 << 40, ..MrRequest::default() };
            Mr::reg(&b.domain, Buf::new(8), spec).map(drop)
        },
        Errno::EBADFLAGS,
        &["fi_mr_reg", "flags 0x10000000000"],
    ),
    (
        |b| Mr::regv(&b.domain, &[Buf::new(8); 4096], MrRequest::default()).map(drop),
        Errno::EINVAL,
        &["fi_mr_reg"],
    ),
    (
        |b| {
            let mr = Mr::reg(&b.domain, Buf::new(8), MrRequest::default())?;
            mr.bind(&*b.domain, 7)
        },
        Errno::EINVAL,
        &["fi_mr_bind", "class 2", "flags 0x7"],
    ),
    (
        |b| {
            let ep = Ep::open(&b.domain, &b.info)?;
            ep.setopt_raw(sys::FI_OPT_ENDPOINT, sys::FI_OPT_MIN_MULTI_RECV, 1, 3)
        },
        Errno::ETOOSMALL,
        &["fi_setopt of option 0 at level 0", "[01, 00, 00]"],
    ),
    (
        |b| Ep::open(&b.domain, &b.info)?.setopt(sys::FI_OPT_INJECT_MSG_SIZE, 1 << 40),
        Errno::EINVAL,
        &["fi_setopt of option"],
    ),
    (
        |b| {
            let ep = Ep::open(&b.domain, &b.info)?;
            ep.connect(&ep.name()?, &[0; 257])
        },
        Errno::EINVAL,
        &["fi_connect", "257 bytes"],
    ),
    (
        |b| Ep::open(&b.domain, &b.info)?.accept(&[0; 257]),
        Errno::EINVAL,
        &["fi_accept", "257 bytes"],
    ),
    (
        |b| {
            let ep = Ep::open(&b.domain, &b.info)?;
            let (cq, eq) =
                (Cq::open(&b.domain, CqAttr::default())?, Eq::open(&b.fabric, EqAttr::default())?);
            ep.bind(&*cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
            ep.bind(&*eq, 0)?;
            let name = ep.name()?;
            ep.connect(&name, &[])?;
            ep.shutdown(0)?;
            let again = ep.connect(&name, &[]);
            ep.close().and(again)
        },
        Errno::EOPBADSTATE,
        &["fi_connect", "connection is over"],
    ),
    (
        |b| Ep::open(&b.domain, &b.info)?.accept(&[]),
        Errno::EOPBADSTATE,
        &["fi_accept", "not opened for a connection request"],
    ),
    (
        |b| Ep::open(&b.domain, &b.info)?.shutdown(7),
        Errno::EBADFLAGS,
        &["fi_shutdown", "flags 0x7"],
    ),
    (|b| Ep::open(&b.domain, &b.info)?.peer().map(drop), Errno::ENOTCONN, &["fi_getpeer"]),
    (
        |b| Pep::open(&b.fabric, &b.info)?.reject(&b.info, &[0; 257]),
        Errno::EINVAL,
        &["fi_reject", "257 bytes"],
    ),
    (
        |b| Pep::open(&b.fabric, &b.info)?.reject(&b.info, &[]),
        Errno::EINVAL,
        &["fi_reject", "no connection request"],
    ),
    (|b| Pep::open(&b.fabric, &b.info)?.listen(), Errno::ENOEQ, &["fi_listen", "no event queue"]),
    (
        |b| bound(b)?[0].bind(&*bound(b)?[2], sys::FI_TRANSMIT),
        Errno::EINVAL,
        &["fi_ep_bind", "has a completion queue for this direction already"],
    ),
    (
        |b| {
            let other = Domain::open(&b.fabric, &b.info)?;
            let av = Av::open(&other, sys::FI_AV_UNSPEC, 1)?;
            Ep::open(&b.domain, &b.info)?.bind(&*av, 0)
        },
        Errno::EDOMAIN,
        &["fi_ep_bind", "different domains"],
    ),
    (
        |b| {
            let ep = Ep::open(&b.domain, &b.info)?;
            let (cq, eq) =
                (Cq::open(&b.domain, CqAttr::default())?, Eq::open(&b.fabric, EqAttr::default())?);
            ep.bind(&*cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
            ep.bind(&*eq, 0)?;
            ep.enable()?;
            let late = ep.bind(&*Av::open(&b.domain, sys::FI_AV_UNSPEC, 1)?, 0);
            ep.close().and(late)
        },
        Errno::EOPBADSTATE,
        &["fi_ep_bind", "the endpoint is enabled, and takes counters only"],
    ),
    (
        |b| Ep::open(&b.domain, &b.info)?.send(Buf::new(8), 0, 1),
        Errno::EOPBADSTATE,
        &["fi_send", "not enabled"],
    ),
    (
        |b| Ep::open(&b.domain, &b.info)?.inject(Buf::new(1 << 20), 0),
        Errno::EINVAL,
        &["fi_inject", "1048576 bytes", "inject_size"],
    ),
    (
        |b| {
            let ep = Ep::open(&b.domain, &b.info)?;
            ep.sendmsg(&[Buf::new(8)], 0, 1, 0, sys::FI_COMMIT_COMPLETE)
        },
        Errno::EBADFLAGS,
        &["fi_sendmsg", "0x40000000", "no persistent memory"],
    ),
    (
        |b| {
            let ep = Ep::open(&b.domain, &b.info)?;
            ep.recvmsg(&[Buf::new(8)], 0, 1, sys::FI_DISCARD)
        },
        Errno::EBADFLAGS,
        &["fi_recvmsg", "contradict"],
    ),
    (|b| b.fabric.bind(&*b.domain, 0), Errno::ENOSYS, &["bind", "no such call"]),
    (|b| b.fabric.control_null(4321), Errno::ENOSYS, &["fi_control", "not implemented"]),
];

/// Calls with an attribute that exists since 2.0.
const WRONG_SINCE_2_0: &[Wrong] = &[(
    |b| Mr::regattr_within(&b.domain, &[Buf::new(8)], MrRequest::default(), &*b.domain).map(drop),
    Errno::EINVAL,
    &["fi_mr_regattr", "base_mr"],
)];

fn one_line(rank: &Rank) -> Outcome {
    rank.only_scif("the log of another provider")?;
    let bench = bench(rank, sys::FI_EP_MSG)?;
    let newer = if load(rank)?.version() >= version(2, 0) { WRONG_SINCE_2_0 } else { &[] };
    for (call, error, words) in WRONG.iter().chain(newer) {
        let (answer, text) = sandbox::stderr_of(|| call(&bench))?;
        check_eq!(answer, Err(*error), "{words:?}");
        let lines: Vec<&str> = text.lines().collect();
        check_eq!(lines.len(), 1, "{words:?}: {text}");
        check!(words.iter().all(|word| text.contains(word)), "no {words:?} in {text}");
    }
    Ok(())
}

/// Tests that a request for an optional option is no warning.
fn options(rank: &Rank, told: bool) -> Outcome {
    const NONE: i32 = 4321;
    rank.only_scif("the log of another provider")?;
    let bench = bench(rank, sys::FI_EP_MSG)?;
    let ep = Ep::open(&bench.domain, &bench.info)?;
    let (got, text) = sandbox::stderr_of(|| ep.getopt(NONE))?;
    check_eq!(got, Err(Errno::ENOPROTOOPT));
    check_eq!(text.contains("fi_getopt of option 4321"), told, "{text}");
    let (set, text) = sandbox::stderr_of(|| ep.setopt(NONE, 1))?;
    check_eq!(set, Err(Errno::ENOPROTOOPT));
    check_eq!(text.contains("fi_setopt of option 4321"), told, "{text}");
    let (opened, text) = sandbox::stderr_of(|| ep.ops_open(c"nobody"))?;
    check_eq!(opened, Err(Errno::ENOSYS));
    check_eq!(text.contains("fi_open_ops"), told, "{text}");
    Ok(())
}

/// Tests that a program that repeats a refused call gets a limited number of lines, and one with
/// the number of the others.
fn refused_in_a_loop(rank: &Rank) -> Outcome {
    const CALLS: usize = 2000;
    const FIRST: usize = 64;
    rank.only_scif("the log of another provider")?;
    let bench = bench(rank, sys::FI_EP_MSG)?;
    let ep = Ep::open(&bench.domain, &bench.info)?;
    let begin = Instant::now();
    let (answers, text) = sandbox::stderr_of(|| {
        let answers: Vec<_> = (0..CALLS).map(|_| ep.shutdown(7)).collect();
        // The next permitted line follows the report.
        std::thread::sleep(Duration::from_millis(500));
        (answers, ep.shutdown(7))
    })?;
    let seconds = usize::try_from(begin.elapsed().as_secs()).map_err(Fail::here)? + 1;
    check_eq!(answers.1, Err(Errno::EBADFLAGS));
    check!(answers.0.iter().all(|answer| *answer == Err(Errno::EBADFLAGS)));
    let lines = text.lines().filter(|line| line.contains("fi_shutdown")).count();
    let reports = text.lines().filter(|line| line.contains("similar lines suppressed"));
    let counted: usize = reports.clone().filter_map(count_before_similar).sum();
    check!((1..=FIRST + 10 * seconds).contains(&lines), "{lines} lines");
    check!(reports.count() > 0, "{text}");
    check_eq!(lines + counted, CALLS + 1, "{text}");
    Ok(())
}

/// Returns the number of suppressed lines in a report.
fn count_before_similar(line: &str) -> Option<usize> {
    let (before, _) = line.split_once(" similar lines suppressed")?;
    before.split_whitespace().last()?.parse().ok()
}
