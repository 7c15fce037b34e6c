// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Exports between peers: keys, marks, claims, memory.

use scif_ring::{CLAIM_BLOCKS, KeyEntry};

use super::bed::{
    Bed, Case, CaseError, CaseResult, conn, connected, ensure, events, pair, pair_with, until,
};
use crate::sys::mmap::Mapping;
use crate::{Access, Exports, RemoteMem};

pub(super) const CASES: &[Case] = &[
    Case { name: "keys are found and lost", run: keys_are_found_and_lost },
    Case { name: "a slot waits for its marks", run: slot_waits_for_marks },
    Case { name: "no keys where none are shown", run: no_keys },
    Case { name: "claim blocks are shared", run: claim_blocks },
    Case { name: "memory of a peer of this process", run: own_memory },
];

fn entry(key: u64) -> KeyEntry {
    KeyEntry { key, base: 4096 * key, start: 0, len: 100 + key, access: 3, ..KeyEntry::default() }
}

fn keys_are_found_and_lost(bed: &dyn Bed) -> CaseResult {
    let keys = bed.node()?.key_table()?;
    let early = keys.insert(entry(1)).ok_or_else(|| CaseError("no room".to_owned()))?;
    let mut p = pair_with(bed, Exports { keys: Some(keys.clone()) })?;
    let none = || CaseError("no keys shown".to_owned());
    let late: Vec<_> = (2..1000).map(|key| (key, keys.insert(entry(key)))).collect();
    let reader = conn(&mut p.a, p.ab)?.keys().ok_or_else(none)?;
    for (key, slot) in late.iter().copied().chain([(1, Some(early))]) {
        let (at, generation, found) =
            reader.find(key).ok_or_else(|| CaseError(format!("key {key} not found")))?;
        ensure!(
            Some(at) == slot && (found.key, found.base, found.len) == (key, 4096 * key, 100 + key)
        );
        ensure!(reader.revalidate(at, generation));
    }
    let (slot, generation, _) = reader.find(1).ok_or_else(none)?;
    keys.remove(early);
    ensure!(reader.find(1).is_none() && !reader.revalidate(slot, generation));
    keys.insert(entry(1));
    ensure!(reader.find(1).is_some() && !reader.revalidate(slot, generation));
    ensure!(!reader.notify());
    keys.set_notify(true);
    ensure!(reader.notify());
    Ok(())
}

fn slot_waits_for_marks(bed: &dyn Bed) -> CaseResult {
    let keys = bed.node()?.key_table()?;
    let slot = keys.insert(entry(9)).ok_or_else(|| CaseError("no room".to_owned()))?;
    let mut p = pair_with(bed, Exports { keys: Some(keys.clone()) })?;
    ensure!(!p.b.slot_in_use(slot));
    conn(&mut p.a, p.ab)?.my_mark().set(slot);
    keys.remove(slot);
    ensure!(p.b.slot_in_use(slot) && !p.b.slot_in_use(slot + 1));
    ensure!(conn(&mut p.b, p.ba)?.peer_mark().get() == Some(slot));
    conn(&mut p.a, p.ab)?.my_mark().clear();
    ensure!(!p.b.slot_in_use(slot));
    // A dead peer counts as clear.
    conn(&mut p.a, p.ab)?.my_mark().set(slot);
    ensure!(p.b.slot_in_use(slot));
    p.a.abandon();
    until("the dead peer's mark", || {
        events(&mut p.b);
        Ok((!p.b.slot_in_use(slot)).then_some(()))
    })
}

fn no_keys(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    ensure!(conn(&mut p.a, p.ab)?.keys().is_none() && conn(&mut p.b, p.ba)?.keys().is_none());
    // The acceptor receives the opener's keys before it answers.
    let keys = bed.node()?.key_table()?;
    keys.insert(entry(5));
    let mut c = crate::Endpoint::bind(&bed.node()?, 0, Exports { keys: Some(keys) })?;
    let out = c.connect(p.b.id())?;
    let (inside, _) = super::bed::accepted(&mut p.b)?;
    ensure!(conn(&mut p.b, inside)?.keys().is_some_and(|keys| keys.find(5).is_some()));
    connected(&mut c, out)?;
    ensure!(conn(&mut c, out)?.keys().is_none());
    Ok(())
}

fn claim_blocks(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    for block in 0..CLAIM_BLOCKS {
        let sender = conn(&mut p.a, p.ab)?.tx_claim(block);
        let receiver = conn(&mut p.b, p.ba)?.rx_claim(block);
        let generation = 7;
        sender.reset(generation);
        ensure!(sender.peer_offer(generation).is_none());
        receiver.offer(generation, 4096 * (block as u64 + 1), 1000, 500, 2);
        let offer =
            sender.peer_offer(generation).ok_or_else(|| CaseError("no offer".to_owned()))?;
        ensure!(offer.dst_addr == 4096 * (block as u64 + 1) && offer.parts == 2);
        let back = conn(&mut p.b, p.ba)?.tx_claim(block);
        ensure!(back.peer_offer(generation).is_none(), "the directions have blocks of their own");
    }
    Ok(())
}

/// Both ends are in this process: its memory must be reachable with any transport.
fn own_memory(bed: &dyn Bed) -> CaseResult {
    let mut p = pair(bed)?;
    let source: Vec<u8> = (0..100_000u32).map(|i| (i % 253) as u8).collect();
    let remote =
        RemoteMem { addr: source.as_ptr().expose_provenance() as u64, len: source.len() as u64 };
    for (endpoint, id) in [(&mut p.a, p.ab), (&mut p.b, p.ba)] {
        let connection = conn(endpoint, id)?;
        ensure!(connection.memory().access() == Access::Mapped);
        let map = Mapping::anonymous(source.len())?;
        let local = map.bytes(0, source.len()).map_err(|_| CaseError("out of range".to_owned()))?;
        connection.memory().read(&[local], &[remote]).map_err(|e| CaseError(format!("{e:?}")))?;
        let mut copy = vec![0u8; source.len()];
        local.copy_to_slice(&mut copy);
        ensure!(copy == source);
        connection.memory_mut().deny();
        ensure!(connection.memory().access() == Access::None);
        ensure!(connection.memory().read(&[local], &[remote]).is_err());
    }
    Ok(())
}
