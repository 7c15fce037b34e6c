// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Defects of mainline's driver around connections, over the stand-in driver with these traps:
//! requests that time out, connects that block, refused backlogs, ports.
//!
//! The table in `docs/scif-calls.md` names the defect of each case. No time is asserted.

use scif_fabtests::prelude::*;

use super::stand_in::{SilentListener, compute, needs_traps, without_reports};

pub(crate) const CASES: &[Case] = &[
    case("driver/target_computes", 4, |r| computing_target(r, false)),
    case("driver/target_computes_and_closes", 4, |r| computing_target(r, true)),
    case("driver/silent_listener", 2, silent_listener),
    case("driver/connect_of_a_new_endpoint", 2, new_endpoint),
    case("driver/port_in_use", 2, port_in_use),
];

/// Contexts of an operation at a silent listener, and of one at another port.
const SILENT: usize = 1;
const OTHER: usize = 2;

fn spec() -> Spec {
    Spec::messages(false)
}

/// Several ranks connect to one that makes no call, and their sends complete. A request that waits
/// for its progress would time out. The driver never returns from a later accept, and locks up at
/// the close of the listener. A short backlog would refuse them.
fn computing_target(rank: &Rank, closes: bool) -> Outcome {
    without_reports(|| {
        let rig = Rig::open(rank, &spec())?;
        if rank.index > 0 {
            rig.complete(OTHER, || rig.ep.send(Buf::pattern(64, 3), rig.to(0), OTHER))?;
            return if closes { compute(rank) } else { compute(rank).and_then(|()| rig.barrier()) };
        }
        compute(rank)?;
        if closes {
            return Ok(());
        }
        for _ in 1..rank.count {
            let to = Buf::new(64);
            rig.post(|| rig.ep.recv(to, sys::FI_ADDR_UNSPEC, 3))?;
            rig.received(3)?;
            check_eq!(to.differs(64, 3), None);
        }
        rig.barrier()
    })
}

/// The driver blocks a connect to a listener that does not accept for 30 s, and one in the
/// background delays all others. Meanwhile the operation fails after `FI_SCIF_CONNECT_TIMEOUT`,
/// other peers are reached, and the endpoint closes: the request still waits afterwards.
fn silent_listener(rank: &Rank) -> Outcome {
    without_reports(|| {
        let rig = Rig::open(rank, &spec())?;
        if rank.index == 1 {
            let names = rig.exchange(&[])?;
            let silent = names.first().ok_or_else(|| Fail::here("rank 0 said nothing"))?;
            let silent = rig.av.insert(silent)?;
            rig.post(|| rig.ep.send(Buf::new(8), silent, SILENT))?;
            rig.post(|| rig.ep.send(Buf::pattern(64, 3), rig.peer(), OTHER))?;
            for _ in 0..2 {
                match rig.wait("the end of a send", || Ok(rig.tx.take()))? {
                    Ok(entry) => check_eq!(entry.context, OTHER),
                    Err(error) => check_eq!(error.context, SILENT, "{error:?}"),
                }
            }
            drop(rig);
            compute(rank)?;
            // The request ends with this process.
            return compute(rank);
        }
        let silent = SilentListener::open()?;
        rig.exchange(&silent.name(&rig.ep.name()?))?;
        let to = Buf::new(64);
        rig.post(|| rig.ep.recv(to, rig.peer(), OTHER))?;
        rig.received(OTHER)?;
        rig.barrier()?;
        silent.accept()?;
        rig.barrier()
    })
}

/// Mainline's driver since 4.19 reports success for the connect of an endpoint without a port, and
/// does nothing. Each rank sends to the other.
fn new_endpoint(rank: &Rank) -> Outcome {
    without_reports(|| {
        let rig = Rig::open(rank, &spec())?;
        for sender in 0..2 {
            let buf = Buf::pattern(64, 5);
            if rank.index == sender {
                rig.complete(OTHER, || rig.ep.send(buf, rig.peer(), OTHER))?;
            } else {
                buf.fill(0);
                rig.post(|| rig.ep.recv(buf, rig.peer(), 3))?;
                rig.received(3)?;
                check_eq!(buf.differs(64, 5), None);
            }
            rig.barrier()?;
        }
        Ok(())
    })
}

/// The driver refuses a port in use with EINVAL, the documents say EADDRINUSE.
fn port_in_use(rank: &Rank) -> Outcome {
    needs_traps()?;
    let rig = Rig::open(rank, &spec())?;
    if rank.index == 1 {
        let (mut info, _fabric, domain) = first_domain(rank, &spec())?;
        info.set_src_addr(rig.names.first().ok_or_else(|| Fail::here("no name of rank 0"))?);
        check_eq!(Ep::open(&domain, &info).err(), Some(Errno::EADDRINUSE));
    }
    rig.barrier()
}
