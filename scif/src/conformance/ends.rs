// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Ends of connections, and the data that survives them.

use super::bed::{
    Bed, Case, CaseResult, accepted, bind, closed, conn, connected, ensure, events, pair,
    receive_record, send_record, until,
};
use crate::{CloseHow, Endpoint, Exports, LinkEvent, Reason, Refusal};

pub(super) const CASES: &[Case] = &[
    Case { name: "an orderly end", run: orderly_end },
    Case { name: "a reset", run: reset },
    Case { name: "a death", run: death },
    Case { name: "a closed endpoint sends a close packet", run: closed_endpoint_sends_close },
    Case { name: "a listener that never looked", run: listener_that_never_looked },
    Case { name: "a listener that died before it looked", run: listener_that_died },
    Case { name: "an opener that died before acceptance", run: opener_that_died },
    Case { name: "another one under the same port", run: same_port_again },
    Case { name: "ids are not used again", run: ids_are_not_used_again },
    Case { name: "close with unread wake-ups", run: close_with_unread_wakeups },
];

fn orderly_end(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    send_record(&mut p.a, p.ab, 1, b"last words")?;
    p.a.close_conn(p.ab, CloseHow::Orderly);
    ensure!(p.a.conn(p.ab).is_none() && p.a.conn_count() == 0);
    ensure!(closed(&mut p.b, p.ba)? == Reason::Orderly);
    ensure!(conn(&mut p.b, p.ba)?.is_closed() && !conn(&mut p.b, p.ba)?.is_up());
    receive_record(&mut p.b, p.ba, 1, b"last words")?;
    // Harmless, without effect.
    send_record(&mut p.b, p.ba, 1, b"too late")?;
    ensure!(events(&mut p.b).is_empty());
    p.b.close_conn(p.ba, CloseHow::Orderly);
    ensure!(p.b.conn(p.ba).is_none());
    Ok(())
}

fn reset(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    p.b.close_conn(p.ba, CloseHow::Reset);
    ensure!(closed(&mut p.a, p.ab)? == Reason::Reset);
    Ok(())
}

fn death(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    send_record(&mut p.a, p.ab, 1, b"published")?;
    p.a.abandon();
    ensure!(closed(&mut p.b, p.ba)? == Reason::Died);
    receive_record(&mut p.b, p.ba, 1, b"published")?;
    ensure!(events(&mut p.b).is_empty(), "told once");
    Ok(())
}

fn closed_endpoint_sends_close(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    drop(p.b);
    ensure!(closed(&mut p.a, p.ab)? == Reason::Orderly);
    Ok(())
}

fn listener_that_never_looked(bed: &dyn Bed) -> CaseResult {
    let (mut a, b) = (bind(&bed.node()?)?, bind(&bed.node()?)?);
    let ab = a.connect(b.id())?;
    send_record(&mut a, ab, 1, b"hello?")?;
    drop(b);
    ensure!(closed(&mut a, ab)? == Reason::Refused(Refusal::Closed));
    Ok(())
}

fn listener_that_died(bed: &dyn Bed) -> CaseResult {
    let (mut a, b) = (bind(&bed.node()?)?, bind(&bed.node()?)?);
    let ab = a.connect(b.id())?;
    send_record(&mut a, ab, 1, b"hello?")?;
    b.abandon();
    ensure!(closed(&mut a, ab)? == Reason::Died);
    Ok(())
}

fn opener_that_died(bed: &dyn Bed) -> CaseResult {
    let (mut a, mut b) = (bind(&bed.node()?)?, bind(&bed.node()?)?);
    let ab = a.connect(b.id())?;
    send_record(&mut a, ab, 1, b"testament")?;
    a.abandon();
    let (ba, _) = accepted(&mut b)?;
    receive_record(&mut b, ba, 1, b"testament")?;
    ensure!(closed(&mut b, ba)? == Reason::Died);
    Ok(())
}

fn same_port_again(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    let id = p.b.id();
    p.b.abandon();
    let mut b = Endpoint::bind(&bed.node()?, id.port, Exports::default())?;
    ensure!(closed(&mut p.a, p.ab)? == Reason::Died);
    let again = p.a.connect(id)?;
    ensure!(again != p.ab);
    send_record(&mut p.a, again, 4, b"the new one")?;
    let (ba, _) = accepted(&mut b)?;
    receive_record(&mut b, ba, 4, b"the new one")?;
    connected(&mut p.a, again)?;
    ensure!(conn(&mut p.a, p.ab)?.is_closed(), "the old one stays until it is closed");
    p.a.close_conn(p.ab, CloseHow::Orderly);
    ensure!(conn(&mut p.a, again)?.is_up());
    Ok(())
}

fn ids_are_not_used_again(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    let mut old = vec![p.ab];
    for _ in 0..50 {
        let last = old.last().copied().unwrap_or(p.ab);
        p.a.close_conn(last, CloseHow::Orderly);
        let next = p.a.connect(p.b.id())?;
        ensure!(next.index == last.index && !old.contains(&next));
        ensure!(old.iter().all(|&id| p.a.conn(id).is_none()));
        old.push(next);
    }
    until("all of them", || {
        for event in events(&mut p.b) {
            if let LinkEvent::Closed(id, _) = event {
                p.b.close_conn(id, CloseHow::Orderly);
            }
        }
        Ok((p.b.conn_count() == 1).then_some(()))
    })
}

fn close_with_unread_wakeups(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    // The closing side has unread wake-ups: the other side must receive the close notice
    // nevertheless.
    p.a.arm();
    for _ in 0..1000 {
        conn(&mut p.b, p.ba)?.notify();
    }
    p.a.close_conn(p.ab, CloseHow::Orderly);
    ensure!(closed(&mut p.b, p.ba)? == Reason::Orderly);
    Ok(())
}
