// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Ports, and the establishment of connections.

use scif_ring::PushError;

use super::bed::{
    Bed, Case, CaseError, CaseResult, accepted, bind, conn, connect, connected, ensure, events,
    listen, pair, receive_record, send_record, until,
};
use crate::{DYNAMIC_PORTS, Endpoint, Error, Exports, LinkEvent, PortId};

pub(super) const CASES: &[Case] = &[
    Case { name: "a port has one owner", run: port_has_one_owner },
    Case { name: "dynamic ports differ", run: dynamic_ports_differ },
    Case { name: "no listener", run: no_listener },
    Case { name: "records before acceptance", run: records_before_acceptance },
    Case { name: "both connect at once", run: both_connect_at_once },
    Case { name: "an endpoint reaches itself", run: reaches_itself },
    Case { name: "records both ways", run: records_both_ways },
    Case { name: "three hundred connections", run: many_connections },
    Case { name: "strangers stay apart", run: strangers_stay_apart },
];

fn port_has_one_owner(bed: &dyn Bed) -> CaseResult {
    let node = bed.node()?;
    let first = bind(&node)?;
    let id = first.id();
    ensure!(id.node == node.id());
    ensure!(
        Endpoint::bind(&bed.node()?, id.port, Exports::default()).err()
            == Some(Error::PortInUse(id))
    );
    drop(first);
    ensure!(Endpoint::bind(&bed.node()?, id.port, Exports::default())?.id() == id);
    Ok(())
}

fn dynamic_ports_differ(bed: &dyn Bed) -> CaseResult {
    let node = bed.node()?;
    let endpoints = (0..20).map(|_| bind(&node)).collect::<Result<Vec<_>, _>>()?;
    let mut ports: Vec<u16> = endpoints.iter().map(|e| e.id().port).collect();
    ensure!(ports.iter().all(|port| DYNAMIC_PORTS.contains(port)));
    ports.sort_unstable();
    ports.dedup();
    ensure!(ports.len() == endpoints.len());
    Ok(())
}

fn no_listener(bed: &dyn Bed) -> CaseResult {
    let mut a = bind(&bed.node()?)?;
    let gone = bind(&bed.node()?)?.id();
    ensure!(a.connect(gone) == Err(Error::Refused(gone)));
    let elsewhere = PortId::new(4711, a.id().port);
    ensure!(a.connect(elsewhere) == Err(Error::Refused(elsewhere)));
    ensure!(a.conns().count() == 0);
    Ok(())
}

fn records_before_acceptance(bed: &dyn Bed) -> CaseResult {
    let (mut a, mut b) = (bind(&bed.node()?)?, bind(&bed.node()?)?);
    let ab = a.connect(b.id())?;
    ensure!(!conn(&mut a, ab)?.is_up() && conn(&mut a, ab)?.initiated());
    for n in 0..100u8 {
        send_record(&mut a, ab, n, &[n; 9])?;
    }
    let (ba, from) = accepted(&mut b)?;
    ensure!(from == a.id() && conn(&mut b, ba)?.peer() == a.id());
    ensure!(conn(&mut b, ba)?.is_up() && !conn(&mut b, ba)?.initiated());
    for n in 0..100u8 {
        receive_record(&mut b, ba, n, &[n; 9])?;
    }
    // Replies can arrive before the opener has noticed that it was accepted.
    send_record(&mut b, ba, 200, b"back")?;
    receive_record(&mut a, ab, 200, b"back")?;
    connected(&mut a, ab)?;
    ensure!(conn(&mut a, ab)?.is_up() && conn(&mut a, ab)?.alive());
    ensure!(events(&mut a).is_empty() && events(&mut b).is_empty());
    Ok(())
}

fn both_connect_at_once(bed: &dyn Bed) -> CaseResult {
    let (mut a, mut b) = (bind(&bed.node()?)?, bind(&bed.node()?)?);
    let (ab, ba) = (a.connect(b.id())?, b.connect(a.id())?);
    send_record(&mut a, ab, 1, b"from a")?;
    send_record(&mut b, ba, 2, b"from b")?;
    let mut in_a = Vec::new();
    let mut in_b = Vec::new();
    until("both sides", || {
        in_a.extend(events(&mut a));
        in_b.extend(events(&mut b));
        Ok((in_a.len() >= 2 && in_b.len() >= 2).then_some(()))
    })?;
    let find = |list: &[LinkEvent], from: PortId| {
        list.iter().find_map(|event| match event {
            LinkEvent::Accepted(id, peer) if *peer == from => Some(*id),
            _ => None,
        })
    };
    let none = || CaseError("not accepted".to_owned());
    let (a_in, b_in) =
        (find(&in_a, b.id()).ok_or_else(none)?, find(&in_b, a.id()).ok_or_else(none)?);
    ensure!(in_a.contains(&LinkEvent::Connected(ab)) && in_b.contains(&LinkEvent::Connected(ba)));
    ensure!(a_in != ab && b_in != ba);
    receive_record(&mut b, b_in, 1, b"from a")?;
    receive_record(&mut a, a_in, 2, b"from b")?;
    Ok(())
}

fn reaches_itself(bed: &dyn Bed) -> CaseResult {
    let mut a = bind(&bed.node()?)?;
    let out = a.connect(a.id())?;
    send_record(&mut a, out, 3, b"me")?;
    let mut seen = Vec::new();
    let incoming = until("itself", || {
        seen.extend(events(&mut a));
        let incoming = seen.iter().find_map(|event| match event {
            LinkEvent::Accepted(id, _) => Some(*id),
            _ => None,
        });
        Ok(incoming.filter(|_| seen.contains(&LinkEvent::Connected(out))))
    })?;
    receive_record(&mut a, incoming, 3, b"me")?;
    Ok(())
}

fn records_both_ways(bed: &dyn Bed) -> CaseResult {
    const COUNT: u32 = 20_000;
    let mut p = pair(bed)?;
    let (mut sent, mut heard) = ([0u32; 2], [0u32; 2]);
    until("all records", || {
        for (side, endpoint, id) in [(0, &mut p.a, p.ab), (1, &mut p.b, p.ba)] {
            let (Some(sent), Some(heard)) = (sent.get_mut(side), heard.get_mut(side)) else {
                continue;
            };
            let connection = conn(endpoint, id)?;
            for _ in 0..64 {
                if *sent == COUNT {
                    break;
                }
                match connection.tx().push_head(7, &sent.to_ne_bytes()) {
                    Ok(()) => *sent += 1,
                    Err(PushError::Full) => break,
                    Err(error) => return Err(CaseError(format!("push: {error:?}"))),
                }
            }
            connection.notify();
            while let Some(record) = listen(endpoint, id)? {
                ensure!(record.head() == heard.to_ne_bytes());
                *heard += 1;
            }
            conn(endpoint, id)?.rx().flush();
        }
        Ok((heard == [COUNT; 2]).then_some(()))
    })
}

fn many_connections(bed: &dyn Bed) -> CaseResult {
    const COUNT: usize = 300;
    let node = bed.node()?;
    let mut hub = bind(&node)?;
    let mut rim = Vec::new();
    for n in 0..COUNT {
        let mut endpoint = bind(&node)?;
        let id = connect(&mut endpoint, hub.id())?;
        send_record(&mut endpoint, id, 5, &n.to_ne_bytes())?;
        rim.push((endpoint, id));
    }
    let mut incoming = Vec::new();
    until("three hundred connections", || {
        incoming.extend(events(&mut hub));
        Ok((incoming.len() == COUNT).then_some(()))
    })?;
    ensure!(hub.conns().count() == COUNT && hub.conn_count() == COUNT);
    let ids: Vec<_> = hub.conns().collect();
    let mut seen = vec![false; COUNT];
    for id in ids {
        let record = until("a record", || listen(&mut hub, id))?;
        let mut number = [0; size_of::<usize>()];
        number.copy_from_slice(record.head());
        if let Some(mark) = seen.get_mut(usize::from_ne_bytes(number)) {
            *mark = true;
        }
        send_record(&mut hub, id, 6, record.head())?;
    }
    ensure!(seen.iter().all(|&mark| mark));
    for (n, (endpoint, id)) in rim.iter_mut().enumerate() {
        receive_record(endpoint, *id, 6, &n.to_ne_bytes())?;
        connected(endpoint, *id)?;
    }
    Ok(())
}

fn strangers_stay_apart(bed: &dyn Bed) -> CaseResult {
    let b = bind(&bed.node()?)?;
    let foreign = bed.foreign()?;
    // Strangers have ports of their own.
    let mut other = Endpoint::bind(&foreign, b.id().port, Exports::default())?;
    let alone = bind(&bed.node()?)?;
    ensure!(other.connect(alone.id()).is_err());
    ensure!(other.conn_count() == 0);
    // Control: the same endpoint reaches one of its own node.
    let mut own = bind(&foreign)?;
    let to_own = other.connect(own.id())?;
    ensure!(accepted(&mut own)?.1 == other.id());
    connected(&mut other, to_own)
}
