// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Threads that register, query, open, close and deregister at once, each by a random plan with
//! random pauses. Prints the number of plans.
//!
//! Invariants: After its owner has got the result that a provider is gone, it is not called and has
//! no fabric. Each successful registration ends in one clean-up. All schedules of small plans are
//! in `loom`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says what it expects by unwrapping it"
)]

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use kofi::{DeregisterError, Offer, Provider, Registry, Timeout, Version};

const INTERFACE: Version = Version::new(1, 7);
const PLANS: u64 = 400;
const STEPS: usize = 24;

/// State of one provider object.
#[derive(Debug, Default)]
struct Life {
    registered: u32,
    cleaned: u32,
    /// Whether its owner has got the result that it is gone, and has not registered it again.
    freed: bool,
    calls: u32,
}

#[derive(Clone, Debug)]
struct Object {
    id: usize,
    life: Arc<Mutex<Life>>,
}

impl Provider for Object {
    type Id = usize;

    fn id(&self) -> usize {
        self.id
    }

    fn cleanup(&self) {
        let mut life = self.life.lock().unwrap();
        assert!(!life.freed, "cleaned up after it was freed");
        life.cleaned += 1;
    }
}

impl Object {
    fn called(&self) {
        let mut life = self.life.lock().unwrap();
        assert!(!life.freed, "called after it was freed");
        life.calls += 1;
    }
}

/// Small random generator; the seed is the number of the plan.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % sides
    }

    fn pause(&mut self) {
        for _ in 0..self.roll(3) {
            thread::yield_now();
        }
    }
}

fn owner(registry: &Registry<Object>, own: &Object, mut dice: Dice) {
    for _ in 0..STEPS {
        dice.pause();
        let offer = Offer {
            interface: INTERFACE,
            name: Some(if dice.roll(2) == 0 { c"a" } else { c"b" }),
            version: Version::new(0, u16::try_from(dice.roll(4)).unwrap()),
            provider: own.clone(),
        };
        // Counted before it can be cleaned up.
        {
            let mut life = own.life.lock().unwrap();
            life.registered += 1;
            life.freed = false;
        }
        if registry.register(offer).is_err() {
            own.life.lock().unwrap().registered -= 1;
            continue;
        }
        dice.pause();
        let mut timeout = Timeout::Limit(Duration::from_micros(dice.roll(50)));
        loop {
            match registry.deregister(&own.id, timeout) {
                Ok(()) => break,
                Err(DeregisterError::Busy(_)) => timeout = Timeout::Forever,
                Err(other) => panic!("{other:?}"),
            }
        }
        let mut life = own.life.lock().unwrap();
        assert_eq!(life.registered, life.cleaned);
        life.freed = true;
    }
}

fn user(registry: &Registry<Object>, mut dice: Dice) {
    let mut fabrics = Vec::new();
    for _ in 0..STEPS {
        dice.pause();
        match dice.roll(3) {
            0 => {
                let found: Result<Vec<()>, Option<()>> = registry.gather(|call| {
                    call.called();
                    Ok(vec![()])
                });
                drop(found);
            }
            1 => {
                if let Some(call) = registry.enter(c"a") {
                    call.called();
                    fabrics.push(call.hold());
                    dice.pause();
                    call.called();
                }
            }
            _ => {
                if let Some(fabric) = fabrics.pop() {
                    let call = fabric.enter();
                    call.called();
                    drop(fabric);
                    call.called();
                }
            }
        }
        // At most two fabrics stay open, so that owners that wait for their close make progress.
        fabrics.truncate(2);
    }
}

#[test]
fn no_provider_is_called_after_its_end() {
    let mut calls = 0;
    let mut lives = 0;
    for plan in 0..PLANS {
        let registry = Registry::new(INTERFACE);
        let objects: Vec<Object> = (0..3).map(|id| Object { id, life: Arc::default() }).collect();
        thread::scope(|scope| {
            for (n, own) in (0..).zip(&objects) {
                let registry = &registry;
                scope.spawn(move || owner(registry, own, Dice(plan * 8 + n)));
            }
            for n in 4..6 {
                let registry = &registry;
                scope.spawn(move || user(registry, Dice(plan * 8 + n)));
            }
        });
        drop(registry);
        for object in &objects {
            let life = object.life.lock().unwrap();
            assert_eq!(life.registered, life.cleaned, "plan {plan}: {object:?}");
            calls += life.calls;
            lives += life.registered;
        }
    }
    println!("{PLANS} random schedules, {lives} registrations, {calls} calls");
    assert!(calls > 0 && lives > 0, "nothing happened");
}
