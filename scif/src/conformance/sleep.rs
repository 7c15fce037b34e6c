// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Doorbells, sleep, and the absence of lost wake-ups.

use std::sync::mpsc;
use std::time::Duration;

use scif_ring::{BELL_BITS, Record};

use super::bed::{
    Bed, Case, CaseError, CaseResult, accepted, bind, conn, connect, connected, ensure, events,
    listen, pair, receive_record, send_record, until,
};
use crate::{ConnId, Endpoint, Waiter};

pub(super) const CASES: &[Case] = &[
    Case { name: "an idle consumer's bell is rung", run: idle_bell },
    Case { name: "a polling consumer's bell is not", run: no_bell_while_polling },
    Case { name: "a sleeper is woken and told by whom", run: sleeper_is_woken },
    Case { name: "requests and answers wake", run: requests_and_answers_wake },
    Case { name: "records of later connections wake", run: later_connections_wake },
    Case { name: "ends wake", run: ends_wake },
    Case { name: "no wake-up is lost", run: no_lost_wakeup },
    Case { name: "no first record is lost", run: no_lost_first_record },
];

/// Time in nanoseconds that is reached only after a lost wake-up.
const LOST_NS: u64 = 10_000_000_000;

fn taken(endpoint: &Endpoint) -> Vec<usize> {
    let mut bits = Vec::new();
    endpoint.bell().take(|bit| bits.push(bit));
    bits
}

fn watch(endpoint: &Endpoint) -> Result<Waiter, CaseError> {
    let waiter = Waiter::new()?;
    waiter.add(endpoint.wait_fd())?;
    Ok(waiter)
}

/// Sleeps on the endpoint until `check` returns a result, like a blocking read.
fn sleep_until<T>(
    endpoint: &mut Endpoint,
    waiter: &Waiter,
    mut check: impl FnMut(&mut Endpoint) -> Result<Option<T>, CaseError>,
) -> Result<T, CaseError> {
    loop {
        if let Some(found) = check(endpoint)? {
            return Ok(found);
        }
        endpoint.arm();
        let found = check(endpoint)?;
        if found.is_none() && !waiter.wait(Some(LOST_NS))? {
            return Err(CaseError("a wake-up was lost".to_owned()));
        }
        endpoint.disarm();
        if let Some(found) = found {
            return Ok(found);
        }
    }
}

fn idle_bell(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    ensure!(!p.b.bell().any());
    conn(&mut p.b, p.ba)?.rx().set_idle(true);
    ensure!(listen(&mut p.b, p.ba)?.is_none());
    send_record(&mut p.a, p.ab, 1, b"ring")?;
    ensure!(p.b.bell().any());
    ensure!(taken(&p.b) == [p.ba.index() % BELL_BITS]);
    receive_record(&mut p.b, p.ba, 1, b"ring")?;
    ensure!(!p.b.bell().any());
    // The other direction has a doorbell of its own.
    conn(&mut p.a, p.ab)?.rx().set_idle(true);
    send_record(&mut p.b, p.ba, 2, b"back")?;
    ensure!(taken(&p.a) == [p.ab.index() % BELL_BITS] && !p.b.bell().any());
    Ok(())
}

fn no_bell_while_polling(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    send_record(&mut p.a, p.ab, 1, b"quiet")?;
    ensure!(!p.b.bell().any());
    receive_record(&mut p.b, p.ba, 1, b"quiet")
}

fn sleeper_is_woken(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    let waiter = watch(&p.b)?;
    ensure!(!waiter.wait(Some(0))?);
    conn(&mut p.b, p.ba)?.rx().set_idle(true);
    p.b.arm();
    ensure!(p.b.bell().is_sleeping());
    send_record(&mut p.a, p.ab, 1, b"wake")?;
    ensure!(waiter.wait(Some(LOST_NS))?);
    p.b.disarm();
    ensure!(!p.b.bell().is_sleeping());
    ensure!(events(&mut p.b).is_empty());
    ensure!(taken(&p.b) == [p.ba.index() % BELL_BITS]);
    receive_record(&mut p.b, p.ba, 1, b"wake")?;
    ensure!(!waiter.wait(Some(0))?, "nothing is left to wake for");
    Ok(())
}

fn requests_and_answers_wake(bed: &dyn Bed) -> CaseResult {
    let (mut a, mut b) = (bind(&bed.node()?)?, bind(&bed.node()?)?);
    let (on_a, on_b) = (watch(&a)?, watch(&b)?);
    b.arm();
    let ab = a.connect(b.id())?;
    ensure!(on_b.wait(Some(LOST_NS))?);
    b.disarm();
    accepted(&mut b)?;
    ensure!(!on_b.wait(Some(0))?);
    ensure!(on_a.wait(Some(LOST_NS))?);
    connected(&mut a, ab)?;
    ensure!(!on_a.wait(Some(0))?);
    Ok(())
}

/// A connection that is made after the endpoint was armed, by either side, wakes it as well.
fn later_connections_wake(bed: &dyn Bed) -> CaseResult {
    for sleeper_opens in [false, true] {
        let (mut a, mut b) = (bind(&bed.node()?)?, bind(&bed.node()?)?);
        let waiter = watch(&b)?;
        b.arm();
        let (opener, acceptor) = if sleeper_opens { (&mut b, &mut a) } else { (&mut a, &mut b) };
        let out = connect(opener, acceptor.id())?;
        let (incoming, _) = accepted(acceptor)?;
        connected(opener, out)?;
        let (ab, ba) = if sleeper_opens { (incoming, out) } else { (out, incoming) };
        until("silence", || {
            events(&mut b);
            Ok((!waiter.wait(Some(0))?).then_some(()))
        })?;
        send_record(&mut a, ab, 1, b"first")?;
        ensure!(waiter.wait(Some(LOST_NS))?, "sleeper opens: {sleeper_opens}");
        receive_record(&mut b, ba, 1, b"first")?;
    }
    Ok(())
}

fn ends_wake(bed: &dyn Bed) -> CaseResult {
    for abandon in [false, true] {
        let mut p = pair(bed)?;
        let waiter = watch(&p.b)?;
        if abandon {
            p.a.abandon();
        } else {
            drop(p.a);
        }
        ensure!(waiter.wait(Some(LOST_NS))?);
        super::bed::closed(&mut p.b, p.ba)?;
        ensure!(!waiter.wait(Some(0))?, "an ended connection must not keep sleepers awake");
    }
    Ok(())
}

/// Pauses for 0 to some tens of microseconds, different in each round.
fn pause(seed: &mut u64) {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    match seed.wrapping_shr(60) {
        0..8 => (0..seed.wrapping_shr(50) % 1024).for_each(|_| std::hint::spin_loop()),
        8..12 => std::thread::sleep(Duration::from_micros(seed.wrapping_shr(40) % 64)),
        _ => {}
    }
}

fn no_lost_wakeup(bed: &dyn Bed) -> CaseResult {
    const ROUNDS: u32 = 5_000;
    fn side(mut endpoint: Endpoint, id: ConnId, first: bool, idle: bool) -> CaseResult {
        let waiter = watch(&endpoint)?;
        let mut seed = u64::from(first) + 17;
        let mut links = Vec::new();
        if first {
            send_record(&mut endpoint, id, 1, &0u32.to_ne_bytes())?;
        }
        for round in 0..ROUNDS {
            conn(&mut endpoint, id)?.rx().set_idle(idle);
            let record = sleep_until(&mut endpoint, &waiter, |endpoint| {
                endpoint.poll_links(&mut links);
                listen(endpoint, id)
            })?;
            conn(&mut endpoint, id)?.rx().set_idle(false);
            let expected = if first { round + 1 } else { round };
            ensure!(record.head() == expected.to_ne_bytes());
            pause(&mut seed);
            send_record(&mut endpoint, id, 1, &(round + 1).to_ne_bytes())?;
        }
        Ok(())
    }
    for idle in [false, true] {
        let p = pair(bed)?;
        std::thread::scope(|scope| {
            let other = scope.spawn(move || side(p.b, p.ba, false, idle));
            side(p.a, p.ab, true, idle)?;
            other.join().map_err(|_| CaseError("a side panicked".to_owned()))?
        })?;
    }
    Ok(())
}

/// Receives a record of any connection, and closes each connection that has ended.
fn first_record(b: &mut Endpoint) -> Result<Option<Record>, CaseError> {
    let ids: Vec<ConnId> = b.conns().collect();
    for id in ids {
        if let Some(record) = listen(b, id)? {
            return Ok(Some(record));
        }
        if conn(b, id)?.is_closed() {
            b.close_conn(id, crate::CloseHow::Orderly);
        }
    }
    Ok(None)
}

/// The opener publishes before, during and after the accept, and then does nothing more.
fn no_lost_first_record(bed: &dyn Bed) -> CaseResult {
    const ROUNDS: u32 = 1_000;
    let mut b = bind(&bed.node()?)?;
    let target = b.id();
    let node = bed.node()?;
    let (done, wait_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let opener = scope.spawn(move || -> CaseResult {
            let mut seed = 3;
            for round in 0..ROUNDS {
                let mut a = bind(&node)?;
                let ab = connect(&mut a, target)?;
                pause(&mut seed);
                send_record(&mut a, ab, 1, &round.to_ne_bytes())?;
                pause(&mut seed);
                send_record(&mut a, ab, 2, &round.to_ne_bytes())?;
                wait_done.recv()?;
            }
            Ok(())
        });
        // Dropped at the end of the scope, so that the opener does not wait for a round that never
        // comes.
        let done = done;
        let waiter = watch(&b)?;
        for round in 0..ROUNDS {
            for kind in [1, 2] {
                let record = sleep_until(&mut b, &waiter, |b| {
                    events(b);
                    first_record(b)
                })?;
                ensure!(
                    record.kind == kind && record.head() == round.to_ne_bytes(),
                    "round {round}: {record:?}"
                );
            }
            done.send(())?;
        }
        opener.join().map_err(|_| CaseError("the opener panicked".to_owned()))?
    })
}
