// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Atomic operations: every call, every operation on every type, and atomicity independent of the
//! executing side. Mirrors fi_atomic(3).

use std::time::{Duration, Instant};

use scif_fabtests::fi::{Result, RmaIoc};
use scif_fabtests::prelude::*;

use super::numbers::{OPS, TYPES, after, defined, encode, same, size};
use super::rma::{REMOTE, announce, from, wait_for_announcement};

pub(crate) const CASES: &[Case] = &[
    case("atomic/base", 2, |r| every_op(r, Form::Base)).within(180),
    case("atomic/vector", 2, |r| every_op(r, Form::Vector)).within(180),
    case("atomic/msg", 2, |r| every_op(r, Form::Msg(0))).within(180),
    case("atomic/msg_inject", 2, |r| every_op(r, Form::Msg(sys::FI_INJECT))).within(180),
    case("atomic/msg_delivery_complete", 2, |r| every_op(r, Form::Msg(sys::FI_DELIVERY_COMPLETE)))
        .within(180),
    case("atomic/inject", 2, |r| every_op(r, Form::Inject)).within(180),
    case("atomic/misaligned", 2, |r| misaligned(&Rig::open(r, &delivered())?)),
    case("atomic/valid", 1, |r| valid(&Rig::open(r, &spec())?)),
    case("atomic/undefined_ops", 2, |r| undefined_ops(&Rig::open(r, &spec())?)),
    case("atomic/difference", 2, difference),
    case("atomic/most_elements", 2, |r| most_elements(&Rig::open(r, &delivered())?)),
    case("atomic/itself", 1, |r| itself(&Rig::open(r, &spec())?)),
    case("atomic/remote_pieces", 2, |r| remote_pieces(&Rig::open(r, &spec())?)),
    case("atomic/order", 2, order),
    case("atomic/completes_without_the_target", 2, without_the_target),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Base,
    Vector,
    Msg(u64),
    Inject,
}

impl Form {
    /// Whether the operand is reusable on return.
    fn injects(self) -> bool {
        matches!(self, Form::Inject | Form::Msg(sys::FI_INJECT))
    }
}

pub(crate) fn spec() -> Spec {
    Spec::caps(sys::FI_ATOMIC | sys::FI_RMA | sys::FI_MSG).with(|spec| {
        let order = sys::FI_ORDER_SAS | sys::FI_ORDER_SAW;
        (spec.hints.tx.msg_order, spec.hints.rx.msg_order) = (order, order);
    })
}

/// Returns requirements with which an operation completes after it has changed the target.
fn delivered() -> Spec {
    spec().with(|spec| spec.hints.tx.op_flags = sys::FI_DELIVERY_COMPLETE)
}

/// Buffers of one operation.
struct Operands {
    operand: Buf,
    compare: Buf,
    result: Buf,
    count: usize,
}

fn pieces(buf: Buf, count: usize, element: usize, most: usize) -> Vec<Ioc> {
    let first = count / 2;
    if most < 2 || first == 0 {
        return vec![Ioc { buf, count }];
    }
    let at = first * element;
    vec![
        Ioc { buf: buf.sub(0, at), count: first },
        Ioc { buf: buf.sub(at, buf.len() - at), count: count - first },
    ]
}

fn run(rig: &Rig<'_>, form: Form, kind: AtomicKind, at: &AtomicTarget, args: &Operands) -> Result {
    let ep = &rig.ep;
    let most = rig.info.tx().iov_limit;
    let split = |buf: Buf| pieces(buf, args.count, size(at.datatype), most);
    let whole = Ioc { buf: args.operand, count: args.count };
    let remote = [RmaIoc { addr: at.addr, count: args.count, key: at.key }];
    match (form, kind) {
        (Form::Base, AtomicKind::Write) => ep.atomic(at, whole),
        (Form::Base, AtomicKind::Fetch) => ep.fetch_atomic(at, whole, args.result),
        (Form::Base, AtomicKind::Compare) => {
            ep.compare_atomic(at, whole, args.compare, args.result)
        }
        (Form::Vector, AtomicKind::Write) => ep.atomicv(at, &split(args.operand)),
        (Form::Vector, AtomicKind::Fetch) => {
            ep.fetch_atomicv(at, &split(args.operand), &split(args.result))
        }
        (Form::Vector, AtomicKind::Compare) => {
            ep.compare_atomicv(at, &split(args.operand), &split(args.compare), &split(args.result))
        }
        (Form::Msg(flags), AtomicKind::Write) => {
            ep.atomicmsg(at, &split(args.operand), &remote, 0, flags | sys::FI_COMPLETION)
        }
        (Form::Msg(flags), AtomicKind::Fetch) => {
            let flags = flags | sys::FI_COMPLETION;
            ep.fetch_atomicmsg(at, &split(args.operand), &remote, &split(args.result), flags)
        }
        (Form::Msg(flags), AtomicKind::Compare) => {
            let flags = flags | sys::FI_COMPLETION;
            let (operand, compare, result) =
                (split(args.operand), split(args.compare), split(args.result));
            ep.compare_atomicmsg(at, &operand, &remote, (&compare, &result), flags)
        }
        (Form::Inject, _) => ep.inject_atomic(at, whole),
    }
}

/// Returns kind, operation, type and name of each combination, defined or not.
fn operations() -> impl Iterator<Item = (AtomicKind, u32, u32, String)> {
    const KINDS: [AtomicKind; 3] = [AtomicKind::Write, AtomicKind::Fetch, AtomicKind::Compare];
    let named = |&(datatype, type_name, _): &(u32, &'static str, _)| {
        let kinds = OPS.iter().flat_map(|op| KINDS.map(|kind| (kind, op)));
        kinds.map(move |(kind, &(op, op_name))| {
            (kind, op, datatype, format!("{kind:?} {op_name} {type_name}"))
        })
    };
    TYPES.iter().flat_map(named)
}

/// Executes every defined operation of rank 0 on the memory of rank 1 and compares the results.
fn every_op(rank: &Rank, form: Form) -> Outcome {
    let rig = Rig::open(rank, &delivered())?;
    let (_mr, remotes) = rig.share(Buf::new(4096), REMOTE)?;
    if rank.index == 0 {
        let at = from(&remotes, 1, 64)?;
        let mut ran = 0;
        for (kind, op, datatype, name) in operations() {
            let returns = kind != AtomicKind::Write;
            if returns && form.injects() || !defined(kind, op, datatype) {
                continue;
            }
            let name = format!("{form:?} {name}");
            match rig.ep.atomic_valid(kind, datatype, op) {
                Ok(_) => {}
                Err(Errno::EOPNOTSUPP) if rank.target.prov != "scif" => continue,
                Err(e) => return Err(Fail::here(format_args!("{name}: not valid: {e}"))),
            }
            one_op(&rig, form, kind, at, datatype, op).map_err(|fail| fail.with(&name))?;
            ran += 1;
        }
        check!(ran > 0, "no operation was valid");
    }
    rig.barrier()
}

fn one_op(
    rig: &Rig<'_>,
    form: Form,
    kind: AtomicKind,
    at: Remote,
    datatype: u32,
    op: u32,
) -> Outcome {
    const VALUES: &[[i8; 3]] =
        &[[5, 3, 5], [0, 7, 1], [3, 0, 3], [1, 2, 4], [9, 9, 8], [0, 0, 0], [6, 100, 12]];
    let element = size(datatype);
    let most = rig.ep.atomic_valid(kind, datatype, op)?;
    for count in [1, VALUES.len()].into_iter().filter(|&count| count <= most) {
        let column = |which: usize| -> Vec<u8> {
            let values = VALUES.iter().take(count);
            values.flat_map(|row| encode(datatype, row.get(which).copied().unwrap_or(0))).collect()
        };
        let (target, operand, compare) = (column(0), column(1), column(2));
        rig.complete(1, || rig.ep.write(Buf::of(&target), rig.peer(), at.addr, at.key, 1))?;
        let args = Operands {
            operand: Buf::of(&operand),
            compare: Buf::of(&compare),
            result: Buf::new(target.len()),
            count,
        };
        let place =
            AtomicTarget { dest: rig.peer(), addr: at.addr, key: at.key, datatype, op, context: 2 };
        rig.post(|| run(rig, form, kind, &place, &args))?;
        if form.injects() {
            args.operand.fill(0xff);
        }
        if form != Form::Inject {
            let entry = rig.sent(2)?;
            check!(entry.flags & sys::FI_ATOMIC != 0, "flags {:#x}", entry.flags);
        }
        let want: Vec<u8> = target
            .chunks(element)
            .zip(operand.chunks(element))
            .zip(compare.chunks(element))
            .flat_map(|((t, o), c)| after(op, datatype, t, o, c))
            .collect();
        if kind != AtomicKind::Write {
            check!(
                same(datatype, &args.result.bytes(), &target),
                "{count}: the old value was not returned"
            );
        }
        // An injected operation has no completion.
        let start = Instant::now();
        loop {
            let back = Buf::new(target.len());
            rig.complete(3, || rig.ep.read(back, rig.peer(), at.addr, at.key, 3))?;
            if same(datatype, &back.bytes(), &want) {
                break;
            }
            let patient = form == Form::Inject && start.elapsed() < Duration::from_secs(20);
            check!(
                patient,
                "{count}: {:x?} became {:x?}, expected {want:x?}",
                target,
                back.bytes()
            );
        }
    }
    Ok(())
}

/// Tests elements that are not aligned for their type.
fn misaligned(rig: &Rig<'_>) -> Outcome {
    let (_mr, remotes) = rig.share(Buf::new(4096), REMOTE)?;
    if rig.rank.index == 0 {
        for off in [1, 3, 7, 61, 63] {
            let at = from(&remotes, 1, off)?;
            for &(datatype, ..) in TYPES {
                one_op(rig, Form::Base, AtomicKind::Fetch, at, datatype, sys::FI_SUM)?;
                one_op(rig, Form::Base, AtomicKind::Write, at, datatype, sys::FI_ATOMIC_WRITE)?;
                one_op(rig, Form::Base, AtomicKind::Compare, at, datatype, sys::FI_CSWAP)?;
            }
        }
    }
    rig.barrier()
}

/// Tests that the three `fi_*_atomicvalid` calls and `fi_query_atomic` agree with each other and
/// with the manual.
fn valid(rig: &Rig<'_>) -> Outcome {
    let strict = rig.rank.target.prov == "scif";
    for &(datatype, type_name, element) in TYPES {
        for &(op, op_name) in OPS {
            for (kind, flags) in [
                (AtomicKind::Write, 0),
                (AtomicKind::Fetch, sys::FI_FETCH_ATOMIC),
                (AtomicKind::Compare, sys::FI_COMPARE_ATOMIC),
            ] {
                let name = format!("{kind:?} {op_name} {type_name}");
                let answer = rig.ep.atomic_valid(kind, datatype, op);
                let query = rig.domain.query_atomic(datatype, op, flags);
                check_eq!(answer.is_ok(), query.is_ok(), "{name}");
                if let (Ok(count), Ok((most, bytes))) = (answer, query) {
                    check!(count > 0 && count == most, "{name}: {count} and {most} elements");
                    check_eq!(bytes, element, "{name}");
                    check!(defined(kind, op, datatype), "{name} is not defined");
                } else {
                    check_eq!(answer.err(), Some(Errno::EOPNOTSUPP), "{name}");
                    check!(!strict || !defined(kind, op, datatype), "{name} is defined");
                }
            }
        }
    }
    let both = sys::FI_FETCH_ATOMIC | sys::FI_COMPARE_ATOMIC;
    check_eq!(rig.domain.query_atomic(sys::FI_UINT64, sys::FI_SUM, both), Err(Errno::EBADFLAGS));
    check!(rig.ep.atomic_valid(AtomicKind::Write, 999, sys::FI_SUM).is_err());
    check!(rig.ep.atomic_valid(AtomicKind::Write, sys::FI_UINT64, 999).is_err());
    Ok(())
}

/// Tests that undefined operations are refused without an effect.
fn undefined_ops(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(4096), REMOTE)?;
    if rig.rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        let args = Operands {
            operand: Buf::pattern(64, 1),
            compare: Buf::new(64),
            result: Buf::new(64),
            count: 1,
        };
        for (kind, op, datatype, name) in operations() {
            if defined(kind, op, datatype) {
                continue;
            }
            let place = at.atomic(rig.peer(), datatype, op, 2);
            let result =
                rig.wait("an answer", || match run(rig, Form::Base, kind, &place, &args) {
                    Err(Errno::EAGAIN) => Ok(None),
                    other => Ok(Some(other)),
                })?;
            check_eq!(result, Err(Errno::EOPNOTSUPP), "{name}");
        }
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
        check!(mine.bytes().iter().all(|&byte| byte == 0));
    }
    rig.barrier()
}

/// Tests `FI_DIFF`, which is newer than the others: every type in every call that has an operand
/// and no compare value.
fn difference(rank: &Rank) -> Outcome {
    needs_library(rank, version(2, 0), "FI_DIFF")?;
    rank.only_scif("operations of another provider")?;
    let rig = Rig::open(rank, &delivered())?;
    let (_mr, remotes) = rig.share(Buf::new(4096), REMOTE)?;
    if rank.index == 0 {
        let (at, op) = (from(&remotes, 1, 64)?, sys::FI_DIFF);
        for &(datatype, name, element) in TYPES {
            for (kind, flags) in [(AtomicKind::Write, 0), (AtomicKind::Fetch, sys::FI_FETCH_ATOMIC)]
            {
                let most = rig.ep.atomic_valid(kind, datatype, op)?;
                let query = rig.domain.query_atomic(datatype, op, flags);
                check_eq!(query, Ok((most, element)), "{kind:?} {name}");
                for form in [Form::Base, Form::Vector, Form::Msg(0)] {
                    one_op(&rig, form, kind, at, datatype, op)
                        .map_err(|fail| fail.with(format_args!("{form:?} {kind:?} {name}")))?;
                }
            }
            one_op(&rig, Form::Inject, AtomicKind::Write, at, datatype, op)
                .map_err(|fail| fail.with(name))?;
            let compare = rig.ep.atomic_valid(AtomicKind::Compare, datatype, op);
            check_eq!(compare, Err(Errno::EOPNOTSUPP), "{name}");
            let query = rig.domain.query_atomic(datatype, op, sys::FI_COMPARE_ATOMIC);
            check_eq!(query, Err(Errno::EOPNOTSUPP), "{name}");
        }
    }
    rig.barrier()
}

/// Tests the maximum number of elements, and one more.
fn most_elements(rig: &Rig<'_>) -> Outcome {
    let room = 1 << 20;
    let (_mr, remotes) = rig.share(Buf::new(room), REMOTE)?;
    if rig.rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        for datatype in [sys::FI_UINT8, sys::FI_UINT64, sys::FI_DOUBLE, sys::FI_LONG_DOUBLE_COMPLEX]
        {
            for (kind, op) in [
                (AtomicKind::Write, sys::FI_SUM),
                (AtomicKind::Fetch, sys::FI_SUM),
                (AtomicKind::Compare, sys::FI_CSWAP),
            ] {
                let element = size(datatype);
                let most = rig.ep.atomic_valid(kind, datatype, op)?;
                let count = most.min(room / element);
                let bytes = |value: i8| encode(datatype, value).repeat(count);
                rig.complete(1, || {
                    rig.ep.write(Buf::of(&bytes(2)), rig.peer(), at.addr, at.key, 1)
                })?;
                let args = Operands {
                    operand: Buf::of(&bytes(3)),
                    compare: Buf::of(&bytes(2)),
                    result: Buf::new(count * element),
                    count,
                };
                let place = at.atomic(rig.peer(), datatype, op, 2);
                rig.complete(2, || run(rig, Form::Base, kind, &place, &args))?;
                let back = Buf::new(count * element);
                rig.complete(3, || rig.ep.read(back, rig.peer(), at.addr, at.key, 3))?;
                let [two, three] = [2, 3].map(|value| encode(datatype, value));
                let want = after(op, datatype, &two, &three, &two).repeat(count);
                check!(
                    same(datatype, &back.bytes(), &want),
                    "{kind:?} of {count} elements of {element} B"
                );
                check!(
                    kind == AtomicKind::Write || same(datatype, &args.result.bytes(), &bytes(2))
                );
                if count == most && most < room / element {
                    let more = Operands {
                        operand: Buf::new((most + 1) * element),
                        count: most + 1,
                        ..args
                    };
                    let result = run(rig, Form::Base, kind, &place, &more);
                    check!(
                        matches!(result, Err(error) if error != Errno::EAGAIN),
                        "one more was {result:?}"
                    );
                }
            }
        }
    }
    rig.barrier()
}

fn itself(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(64), REMOTE)?;
    let at = from(&remotes, 0, 0)?;
    let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
    let result = Buf::new(8);
    let place = at.sum(rig.to(0), 1);
    for round in 0..100 {
        rig.complete(1, || rig.ep.fetch_atomic(&place, one, result))?;
        check_eq!(result.load_u64(0), round);
    }
    check_eq!(mine.load_u64(0), 100);
    Ok(())
}

/// Tests one operation over several remote ranges.
fn remote_pieces(rig: &Rig<'_>) -> Outcome {
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(4096), REMOTE)?;
    if rig.info.tx().rma_iov_limit < 2 {
        return Err(Fail::NotRun("one remote piece only".into()));
    }
    if rig.rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        let remote = [
            RmaIoc { addr: at.addr + 1024, count: 3, key: at.key },
            RmaIoc { addr: at.addr + 8, count: 2, key: at.key },
        ];
        let values: Vec<u8> = (1..=5_u64).flat_map(u64::to_le_bytes).collect();
        let place = AtomicTarget::sum(rig.peer(), 0, 0, 1);
        let operand = [Ioc { buf: Buf::of(&values), count: 5 }];
        let result = Buf::new(40);
        for _ in 0..2 {
            let results = [Ioc { buf: result, count: 5 }];
            rig.complete(1, || {
                rig.ep.fetch_atomicmsg(&place, &operand, &remote, &results, sys::FI_COMPLETION)
            })?;
        }
        check_eq!(result.bytes(), values);
        announce(rig, rig.peer())?;
    } else {
        wait_for_announcement(rig)?;
        for (off, value) in [(1024, 1), (1032, 2), (1040, 3), (8, 4), (16, 5)] {
            check_eq!(mine.load_u64(off), 2 * value, "at {off}");
        }
    }
    rig.barrier()
}

/// Tests that atomics posted together take effect in order if the orders were requested.
fn order(rank: &Rank) -> Outcome {
    let order = sys::FI_ORDER_ATOMIC_RAR
        | sys::FI_ORDER_ATOMIC_RAW
        | sys::FI_ORDER_ATOMIC_WAR
        | sys::FI_ORDER_ATOMIC_WAW;
    let rig = Rig::open(
        rank,
        &spec().with(|spec| {
            spec.hints.tx.msg_order |= order;
            spec.hints.rx.msg_order |= order;
        }),
    )?;
    let (_mr, remotes) = rig.share(Buf::new(64), REMOTE)?;
    if rank.index == 0 {
        let at = from(&remotes, 1, 0)?;
        let place = |op, context| at.atomic(rig.peer(), sys::FI_UINT64, op, context);
        let results: Vec<Buf> = (0..200).map(|_| Buf::new(8)).collect();
        for (index, &result) in results.iter().enumerate() {
            let write = place(sys::FI_ATOMIC_WRITE, 1);
            let read = place(sys::FI_ATOMIC_READ, 2);
            let value = Ioc { buf: Buf::of(&(index as u64 + 7).to_le_bytes()), count: 1 };
            rig.post(|| rig.ep.atomic(&write, value))?;
            rig.post(|| rig.ep.fetch_atomic(&read, Ioc { buf: Buf::NULL, count: 1 }, result))?;
        }
        for _ in 0..2 * results.len() {
            rig.next(&rig.tx)?;
        }
        for (index, result) in results.iter().enumerate() {
            check_eq!(result.load_u64(0), index as u64 + 7);
        }
    }
    rig.barrier()
}

/// Tests completion while the target is outside the library. An operation without a delivery
/// guarantee completes, and one with `FI_DELIVERY_COMPLETE` does not. A later write does not
/// overtake the first operation.
fn without_the_target(rank: &Rank) -> Outcome {
    rank.only_scif("operations that need the target depend on the provider")?;
    let rig = Rig::open(rank, &spec())?;
    let (mine, _mr, remotes) = rig.share_buf(Buf::new(16), REMOTE)?;
    let elsewhere = || rank.barrier(&mut || Ok(()));
    if rank.index == 1 {
        rig.barrier()?;
        elsewhere()?;
        elsewhere()?;
        rig.barrier()?;
        check_eq!((mine.load_u64(0), mine.load_u64(8)), (500, 3));
        return Ok(());
    }
    let at = from(&remotes, 1, 0)?;
    let add =
        |word: u64, context| AtomicTarget::sum(rig.peer(), at.addr + 8 * word, at.key, context);
    let one = Ioc { buf: Buf::of(&1_u64.to_le_bytes()), count: 1 };
    // The connection exists. The key table of the target arrives with its next event. The provider
    // checks for events at intervals.
    rig.complete(1, || rig.ep.atomic(&add(1, 1), one))?;
    let connected = Instant::now();
    for polls in 0.. {
        if polls >= 1000 && connected.elapsed() >= Duration::from_millis(1) {
            break;
        }
        rig.pump()?;
    }
    rig.barrier()?;
    elsewhere()?;
    for _ in 0..2 {
        rig.complete(2, || rig.ep.atomic(&add(0, 2), one))?;
    }
    rig.complete(3, || rig.ep.atomic(&add(1, 3), one))?;
    let delivered = sys::FI_DELIVERY_COMPLETE | sys::FI_COMPLETION;
    let (to, count) = (add(1, 4), 1);
    let range = [RmaIoc { addr: to.addr, count, key: to.key }];
    rig.post(|| rig.ep.atomicmsg(&to, &[one], &range, 0, delivered))?;
    let value = Buf::of(&500_u64.to_le_bytes());
    rig.post(|| rig.ep.write(value, rig.peer(), at.addr, at.key, 5))?;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        rig.pump()?;
        check!(rig.tx.take().is_none(), "delivered to a target that was elsewhere");
    }
    elsewhere()?;
    rig.sent(4)?;
    rig.sent(5)?;
    rig.barrier()
}
