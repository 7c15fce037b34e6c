// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls of every function of every operations table, of every object in every state. The arguments
//! are null pointers, lengths of null buffers, a null object, and an object of another class. Each
//! call returns; the expected results are in `ops_tables_answers`.
//!
//! A state is made and walked in a forked child, so that the report of a crash or a hang names its
//! call. Bindings and closing are in `ops_tables_order`.

use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use scif_fabtests::fi::{CallResult, Request, Slot, Tables};
use scif_fabtests::prelude::*;

use super::ops_tables_answers::{self as state, FINE, INVAL, NOAV, NODATA, NOSYS, States, answers};

pub(crate) const CASES: &[Case] = &[
    case("slots/fabric_and_domain", 1, |r| scenes(r, &[FABRIC, DOMAIN])),
    case("slots/endpoints", 1, |r| scenes(r, ENDPOINTS)),
    case("slots/connected_endpoints", 1, |r| scenes(r, CONNECTED)),
    case("slots/queues", 1, |r| scenes(r, QUEUES)),
    case("slots/counters_vectors_regions", 1, |r| scenes(r, OTHERS)),
];

/// Object in some state.
pub(super) struct Subject {
    pub(super) object: Arc<dyn Fid>,
    /// Open object of another class.
    stranger: Arc<dyn Fid>,
    _bench: Bench,
    /// Other objects that must stay open.
    others: Vec<Arc<dyn Fid>>,
    /// Function to call before all objects are closed.
    first: Option<Box<dyn FnOnce()>>,
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let Some(first) = self.first.take() {
            first();
        }
    }
}

/// Parents of all objects.
pub(super) struct Bench {
    pub(super) info: Info,
    pub(super) fabric: Arc<Fabric>,
    pub(super) domain: Arc<Domain>,
}

/// Construction of an object, and its state in `ops_tables_answers`.
#[derive(Clone, Copy)]
pub(super) struct ObjectState {
    state: States,
    pub(super) name: &'static str,
    pub(super) make: fn(&Rank) -> Outcome<Subject>,
}

pub(super) const fn scene(
    state: States,
    name: &'static str,
    make: fn(&Rank) -> Outcome<Subject>,
) -> ObjectState {
    ObjectState { state, name, make }
}

const RDM: u32 = sys::FI_EP_RDM;
const DGRAM: u32 = sys::FI_EP_DGRAM;
const MSG: u32 = sys::FI_EP_MSG;

pub(super) const FABRIC: ObjectState = scene(state::FABRIC, "a fabric", |r| {
    let bench = bench(r, RDM)?;
    let fabric = Arc::clone(&bench.fabric);
    bench.subject(fabric)
});
pub(super) const DOMAIN: ObjectState = scene(state::DOMAIN, "a domain", |r| {
    let bench = bench(r, RDM)?;
    let domain = Arc::clone(&bench.domain);
    bench.subject(domain)
});
pub(super) const ENDPOINTS: &[ObjectState] = &[
    scene(state::NEW_EP, "a new endpoint", |r| new_ep(r, RDM)),
    scene(state::EP, "an enabled endpoint", |r| enabled_ep(r, RDM, false)),
    scene(state::EP_SELF, "an endpoint that knows itself", |r| enabled_ep(r, RDM, true)),
    scene(state::EP, "an alias of an endpoint", alias),
    scene(state::NEW_EP, "a new datagram endpoint", |r| new_ep(r, DGRAM)),
    scene(state::EP, "an enabled datagram endpoint", |r| enabled_ep(r, DGRAM, false)),
    scene(state::SRX, "a shared receive context", |r| {
        let bench = bench(r, RDM)?;
        let srx = Ep::shared_receive(&bench.domain)?;
        bench.subject(srx)
    }),
    scene(state::STX, "a shared transmit context", |r| {
        let bench = bench(r, RDM)?;
        let stx = Stx::open(&bench.domain)?;
        bench.subject(stx)
    }),
];
pub(super) const CONNECTED: &[ObjectState] = &[
    scene(state::NEW_MSG_EP, "a new connected endpoint", |r| new_ep(r, MSG)),
    scene(state::MSG_EP, "an enabled connected endpoint", |r| enabled_ep(r, MSG, false)),
    scene(state::MSG_EP_DOWN, "an endpoint that was shut down", |r| shut_down(r, false)),
    scene(state::MSG_EP_DOWN, "an endpoint whose peer was shut down", |r| shut_down(r, true)),
    scene(state::OTHER, "the handle of a request", handle),
    scene(state::PEP, "a passive endpoint", |r| {
        let bench = bench(r, MSG)?;
        let pep = Pep::open(&bench.fabric, &bench.info)?;
        bench.subject(pep)
    }),
    scene(state::LISTENING_PEP, "a passive endpoint that listens", |r| {
        let bench = bench(r, MSG)?;
        let pep = Pep::open(&bench.fabric, &bench.info)?;
        pep.attach(&bench.eq(sys::FI_WAIT_UNSPEC)?)?;
        pep.listen()?;
        bench.subject(pep)
    }),
];
pub(super) const QUEUES: &[ObjectState] = &[
    scene(state::CQ, "a queue of contexts", |r| cq(r, sys::FI_CQ_FORMAT_CONTEXT, None)),
    scene(state::CQ, "a queue of messages", |r| cq(r, sys::FI_CQ_FORMAT_MSG, None)),
    scene(state::CQ, "a queue of data", |r| cq(r, sys::FI_CQ_FORMAT_DATA, None)),
    scene(state::CQ, "a queue of tags", |r| cq(r, sys::FI_CQ_FORMAT_TAGGED, None)),
    scene(state::CQ_WITH_ENTRY, "a queue with a completion", |r| {
        cq(r, sys::FI_CQ_FORMAT_TAGGED, Some(false))
    }),
    scene(state::CQ_WITH_ERROR, "a queue with an error", |r| {
        cq(r, sys::FI_CQ_FORMAT_TAGGED, Some(true))
    }),
    scene(state::CQ_TO_POLL, "a queue to poll", |r| {
        let bench = bench(r, RDM)?;
        let cq = Cq::open(&bench.domain, CqAttr::default())?;
        bench.subject(cq)
    }),
    scene(state::EQ, "an event queue", |r| eq(r, sys::FI_WAIT_UNSPEC)),
    scene(state::EQ, "an event queue to poll", |r| eq(r, sys::FI_WAIT_NONE)),
    scene(state::EQ, "an event queue with an event", |r| {
        let bench = bench(r, RDM)?;
        let eq = bench.eq(sys::FI_WAIT_UNSPEC)?;
        eq.write(sys::FI_NOTIFY, 1, 2)?;
        bench.subject(eq)
    }),
    scene(state::EQ, "an event queue with a request", requested),
];
pub(super) const OTHERS: &[ObjectState] = &[
    scene(state::AV, "an address vector", |r| {
        let bench = bench(r, RDM)?;
        let av = Av::open(&bench.domain, sys::FI_AV_UNSPEC, 1)?;
        bench.subject(av)
    }),
    scene(state::CNTR, "a counter", |r| {
        let bench = bench(r, RDM)?;
        let attr = CntrAttr { wait_obj: sys::FI_WAIT_UNSPEC, ..CntrAttr::default() };
        let cntr = Cntr::open(&bench.domain, attr)?;
        bench.subject(cntr)
    }),
    scene(state::MR, "a memory region", |r| {
        let bench = bench(r, RDM)?;
        let mr = bench.mr()?;
        bench.subject(mr)
    }),
];

pub(super) fn bench(rank: &Rank, ep_type: u32) -> Outcome<Bench> {
    Bench::of(first_offer(rank, &all_of(ep_type))?)
}

/// Returns requirements for an endpoint of this kind with all kinds of operations.
pub(super) fn all_of(ep_type: u32) -> Spec {
    Spec::caps(sys::FI_MSG | sys::FI_TAGGED | sys::FI_RMA | sys::FI_ATOMIC)
        .with(|spec| spec.hints.ep_type = ep_type)
}

impl Bench {
    pub(super) fn of(info: Info) -> Outcome<Bench> {
        let fabric = Fabric::open(&info)?;
        let domain = Domain::open(&fabric, &info)?;
        Ok(Bench { info, fabric, domain })
    }

    pub(super) fn eq(&self, wait_obj: u32) -> Outcome<Arc<Eq>> {
        let attr = EqAttr { wait_obj, flags: sys::FI_WRITE, ..EqAttr::default() };
        Ok(Eq::open(&self.fabric, attr)?)
    }

    pub(super) fn cq(&self, format: u32) -> Outcome<Arc<Cq>> {
        let attr = CqAttr { format, wait_obj: sys::FI_WAIT_UNSPEC, ..CqAttr::default() };
        Ok(Cq::open(&self.domain, attr)?)
    }

    pub(super) fn mr(&self) -> Outcome<Arc<Mr>> {
        let spec = MrRequest { access: sys::FI_REMOTE_READ, key: 7, flags: 0 };
        Ok(Mr::reg(&self.domain, Buf::new(64), spec)?)
    }

    /// Opens an endpoint with all objects that its enabling requires.
    pub(super) fn ep(
        &self,
        info: &Info,
        cq: &Arc<Cq>,
        eq: &Arc<Eq>,
        av: &Arc<Av>,
    ) -> Outcome<Arc<Ep>> {
        let ep = Ep::open(&self.domain, info)?;
        if info.ep().type_ == MSG {
            ep.attach(eq, 0)?;
        } else {
            ep.attach(av, 0)?;
        }
        ep.attach(cq, sys::FI_TRANSMIT | sys::FI_RECV)?;
        Ok(ep)
    }

    pub(super) fn av(&self) -> Outcome<Arc<Av>> {
        Ok(Av::open(&self.domain, sys::FI_AV_UNSPEC, 1)?)
    }

    pub(super) fn new_ep(self) -> Outcome<Subject> {
        let ep = Ep::open(&self.domain, &self.info)?;
        self.subject(ep)
    }

    pub(super) fn enabled_ep(self, knows_itself: bool) -> Outcome<Subject> {
        let (cq, eq) = (self.cq(sys::FI_CQ_FORMAT_TAGGED)?, self.eq(sys::FI_WAIT_UNSPEC)?);
        let av = self.av()?;
        let ep = self.ep(&self.info, &cq, &eq, &av)?;
        ep.enable()?;
        if knows_itself {
            av.insert(&ep.name()?)?;
        }
        self.subject(ep)
    }

    /// Returns a queue that is empty, or has a completion or an error.
    pub(super) fn read_cq(self, format: u32, error: Option<bool>) -> Outcome<Subject> {
        let (cq, eq) = (self.cq(format)?, self.eq(sys::FI_WAIT_UNSPEC)?);
        if let Some(error) = error {
            let av = self.av()?;
            let ep = self.ep(&self.info, &cq, &eq, &av)?;
            ep.enable()?;
            let own = av.insert(&ep.name()?)?;
            ep.recv(Buf::new(8), sys::FI_ADDR_UNSPEC, 1)?;
            if error {
                ep.cancel(1)?;
            } else {
                ep.inject(Buf::new(8), own)?;
            }
        }
        self.subject(cq)
    }

    pub(super) fn subject(self, object: Arc<dyn Fid>) -> Outcome<Subject> {
        let stranger: Arc<dyn Fid> = match object.class()? {
            sys::FI_CLASS_CNTR => self.cq(sys::FI_CQ_FORMAT_CONTEXT)?,
            _ => Cntr::open(&self.domain, CntrAttr::default())?,
        };
        Ok(Subject { object, stranger, _bench: self, others: Vec::new(), first: None })
    }
}

impl Subject {
    /// Keeps these objects open as long as the subject.
    pub(super) fn with(mut self, others: Vec<Arc<dyn Fid>>) -> Subject {
        self.others = others;
        self
    }

    /// Sets a function to call before any object is closed: it removes members from their set, or
    /// answers a request.
    pub(super) fn first(mut self, first: impl FnOnce() + 'static) -> Subject {
        self.first = Some(Box::new(first));
        self
    }
}

fn new_ep(rank: &Rank, ep_type: u32) -> Outcome<Subject> {
    bench(rank, ep_type)?.new_ep()
}

fn enabled_ep(rank: &Rank, ep_type: u32, knows_itself: bool) -> Outcome<Subject> {
    bench(rank, ep_type)?.enabled_ep(knows_itself)
}

fn alias(rank: &Rank) -> Outcome<Subject> {
    let bench = bench(rank, RDM)?;
    let (cq, eq) = (bench.cq(sys::FI_CQ_FORMAT_TAGGED)?, bench.eq(sys::FI_WAIT_UNSPEC)?);
    let ep = bench.ep(&bench.info, &cq, &eq, &bench.av()?)?;
    ep.enable()?;
    let alias = ep.alias(sys::FI_TRANSMIT)?;
    bench.subject(alias)
}

/// Time limit in milliseconds for an event. It guards against hangs; no measurement uses it.
const PATIENCE_MS: i32 = 20_000;

/// Returns one of two connected endpoints of one process: the one that was shut down, or its peer,
/// which received the event.
fn shut_down(rank: &Rank, told: bool) -> Outcome<Subject> {
    let bench = bench(rank, MSG)?;
    let (cq, eq) = (bench.cq(sys::FI_CQ_FORMAT_TAGGED)?, bench.eq(sys::FI_WAIT_UNSPEC)?);
    let av = bench.av()?;
    let pep = Pep::open(&bench.fabric, &bench.info)?;
    pep.attach(&eq)?;
    pep.listen()?;
    let caller = bench.ep(&bench.info, &cq, &eq, &av)?;
    caller.connect(&pep.name()?, &[])?;
    let request = eq.sread_cm(&bench.info, 0, PATIENCE_MS)?;
    let info = request.info.ok_or_else(|| Fail::here("a request without an info"))?;
    let answerer = bench.ep(&info, &cq, &eq, &av)?;
    answerer.accept(&[])?;
    for _ in 0..2 {
        eq.sread_cm(&bench.info, 0, PATIENCE_MS)?;
    }
    caller.shutdown(0)?;
    if told {
        // Both ends are reported, in this one queue.
        let mut events = Vec::new();
        for _ in 0..2 {
            let event = eq.sread_cm(&bench.info, 0, PATIENCE_MS)?;
            events.push((event.event, event.fid));
        }
        check!(events.contains(&(sys::FI_SHUTDOWN, answerer.address()?)));
        return bench.subject(answerer);
    }
    bench.subject(caller)
}

fn cq(rank: &Rank, format: u32, error: Option<bool>) -> Outcome<Subject> {
    bench(rank, RDM)?.read_cq(format, error)
}

fn eq(rank: &Rank, wait_obj: u32) -> Outcome<Subject> {
    let bench = bench(rank, RDM)?;
    let eq = bench.eq(wait_obj)?;
    bench.subject(eq)
}

/// Returns the listening endpoint's event queue, the listening endpoint, and an endpoint that has
/// requested a connection.
fn passive_rig(bench: &Bench) -> Outcome<(Arc<Eq>, Arc<Pep>, Arc<Ep>)> {
    let (cq, eq) = (bench.cq(sys::FI_CQ_FORMAT_TAGGED)?, bench.eq(sys::FI_WAIT_UNSPEC)?);
    let pep = Pep::open(&bench.fabric, &bench.info)?;
    pep.attach(&eq)?;
    pep.listen()?;
    let caller = bench.ep(&bench.info, &cq, &bench.eq(sys::FI_WAIT_UNSPEC)?, &bench.av()?)?;
    caller.connect(&pep.name()?, &[])?;
    Ok((eq, pep, caller))
}

/// Returns an event queue with a connection request.
fn requested(rank: &Rank) -> Outcome<Subject> {
    let bench = bench(rank, MSG)?;
    let (eq, pep, caller) = passive_rig(&bench)?;
    while bench.fabric.trywait(&[&*eq]).is_ok() {
        std::thread::yield_now();
    }
    // The request ends with its sender.
    Ok(bench.subject(eq)?.with(vec![pep, caller]))
}

/// Returns the handle of a request, which is valid as long as its info.
fn handle(rank: &Rank) -> Outcome<Subject> {
    let bench = bench(rank, MSG)?;
    let (eq, pep, caller) = passive_rig(&bench)?;
    let request = eq.sread_cm(&bench.info, 0, PATIENCE_MS)?;
    let info = request.info.ok_or_else(|| Fail::here("a request without an info"))?;
    let request = Arc::new(Request::of(info)?);
    let (mine, asked) = (Arc::clone(&request), Arc::clone(&pep));
    Ok(bench.subject(request)?.with(vec![pep, caller]).first(move || _ = mine.reject(&asked)))
}

/// Arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum With {
    /// A null object and no other argument.
    NoObject,
    /// An object of another class and no other argument.
    Stranger,
    /// The object of the slot, null for every other pointer, and this number for every number.
    Number(usize),
}

/// Columns of `ops_tables_answers` and their numbers, last column first: calls with an effect come
/// last.
const NUMBERS: [(usize, usize); 3] = [(2, usize::MAX), (1, 1), (0, 0)];
/// Commands of `fi_control`, known and unknown ones.
const COMMANDS: std::ops::Range<usize> = 2..64;

/// Returns the calls of a walk, in order.
fn calls(slots: &[Slot]) -> Vec<(&Slot, With)> {
    let mut ways = vec![With::NoObject, With::Stranger];
    ways.extend(NUMBERS.map(|(_, number)| With::Number(number)));
    let mut calls: Vec<(&Slot, With)> = ways
        .into_iter()
        .flat_map(|with| slots.iter().map(move |slot| (slot, with)))
        .filter(|(slot, with)| match slot.name.as_str() {
            // The close of the object is tested in `ops_tables_order`.
            "base.close" => !matches!(with, With::Number(_)),
            // Calls that would wait forever, as their arguments request.
            "cntr.wait" | "wait.wait" => *with != With::Number(usize::MAX),
            _ => true,
        })
        .collect();
    if let Some(control) = slots.iter().find(|slot| slot.name == "base.control") {
        calls.extend(COMMANDS.map(|command| (control, With::Number(command))));
    }
    calls
}

/// Returns an error if the result of a call is wrong.
fn judge(scene: &ObjectState, slot: &str, with: With, answer: CallResult) -> Result<(), String> {
    let CallResult::Code(code) = answer else {
        // For a number or a text the return of the call suffices.
        return Ok(());
    };
    let code = if code >= 0 { FINE } else { code };
    let expected = match with {
        With::NoObject | With::Stranger => {
            return if matches!(code, INVAL | NOSYS) { Ok(()) } else { Err(format!("{code}")) };
        }
        // Commands without their argument have no effect, except the ones that need none. A missing
        // object is reported before a missing argument.
        With::Number(command) if slot == "base.control" => {
            let is = |named: c_int| named.unsigned_abs() as usize == command;
            let fine = match code {
                INVAL | NOSYS => true,
                FINE => is(sys::FI_ENABLE) || is(sys::FI_REFRESH) || is(sys::FI_UNMAP_KEY),
                NOAV => is(sys::FI_ENABLE),
                NODATA => is(sys::FI_GETWAIT),
                _ => false,
            };
            return if fine { Ok(()) } else { Err(format!("{code}")) };
        }
        With::Number(number) => {
            let row = answers(slot, scene.state)
                .ok_or_else(|| format!("{code}: no answer is written down for {slot}"))?;
            let column = NUMBERS.iter().find(|(_, n)| *n == number).map_or(0, |(at, _)| *at);
            row.get(column).copied().unwrap_or(FINE)
        }
    };
    if code == expected { Ok(()) } else { Err(format!("{code}, expected {expected}")) }
}

/// Makes the calls from number `from` on, in this process. Each is named in `report` before it is
/// made.
fn walk(rank: &Rank, scene: &ObjectState, from: usize, report: &dyn Fn(&str)) -> Outcome<usize> {
    // Guards against a state or a call that hangs.
    sandbox::alarm(30);
    let subject = (scene.make)(rank)?;
    let tables = Tables::of(&*subject.object)?;
    check!(tables.holes.is_empty(), "{}: {:?}", scene.name, tables.holes);
    let calls = calls(&tables.slots);
    for (slot, with) in calls.iter().skip(from) {
        report(&format!("\n{} {with:?}: ", slot.name));
        let answer = match with {
            With::NoObject => slot.call(None, 0),
            With::Stranger => slot.call(Some(&*subject.stranger), 0),
            With::Number(number) => slot.call(Some(&*subject.object), *number),
        }?;
        if let Err(wrong) = judge(scene, &slot.name, *with, answer) {
            report(&format!("WRONG {wrong}"));
        } else {
            report("right");
        }
    }
    Ok(calls.len())
}

pub(super) fn scenes(rank: &Rank, list: &[ObjectState]) -> Outcome {
    rank.only_scif("error numbers of another provider")?;
    let mut wrong = Vec::new();
    for scene in list {
        rank.step(scene.name);
        let mut from = 0;
        loop {
            let mut file = File::from(memfd_create("slots", MemfdFlags::CLOEXEC)?);
            let ended = sandbox::in_child(|| {
                let report = |text: &str| {
                    // Lost lines are missed in the count.
                    let _ = rustix::io::write(&file, text.as_bytes());
                };
                match walk(rank, scene, from, &report) {
                    Ok(_) => 0,
                    Err(fail) => {
                        report(&format!("\nWRONG {fail:?}"));
                        1
                    }
                }
            });
            let mut text = String::new();
            file.rewind()?;
            file.read_to_string(&mut text)?;
            let made = text.lines().filter(|line| line.contains(": ")).count();
            let of = |line: &str| format!("\n    {}: {line}", scene.name);
            wrong.extend(text.lines().filter(|line| line.contains("WRONG")).map(of));
            match ended {
                Ok(code) => {
                    // A code above 1 is from the wrapper command, which found an error.
                    check!(code <= 1, "{}: the process exits with {code}", scene.name);
                    check!(from + made > 20, "{}: {made} calls: {text}", scene.name);
                    break;
                }
                Err(Fail::Failed(how) | Fail::NotRun(how) | Fail::NotHere(how)) => {
                    let last = text.lines().last().unwrap_or("its making");
                    wrong.push(of(&format!("{last}{how}")));
                    check!(made > 0, "{}: {text}", scene.name);
                    from += made;
                }
            }
        }
    }
    check!(wrong.is_empty(), "{} answers: {}", wrong.len(), wrong.concat());
    Ok(())
}
