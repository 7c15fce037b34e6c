// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Defects shared by the two kernel registries called kfabric, each with the test that would detect
//! it in this crate.
//!
//! The C interface is in libkofi/tests, threads are in `schedules` and `loom`.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::rc::Rc;
use std::time::Duration;

use kofi::{DeregisterError, Offer, Provider, RegisterError, Registry, Timeout, Version};

const INTERFACE: Version = Version::new(1, 7);
const AT_ONCE: Timeout = Timeout::Limit(Duration::ZERO);

/// Provider that counts its clean-ups and returns a given answer.
#[derive(Clone, Debug)]
struct Toy {
    id: u32,
    cleanups: Rc<Cell<u32>>,
    answer: Rc<RefCell<Result<Vec<u32>, i32>>>,
}

impl Provider for Toy {
    type Id = u32;

    fn id(&self) -> u32 {
        self.id
    }

    fn cleanup(&self) {
        self.cleanups.set(self.cleanups.get() + 1);
    }
}

fn toy(id: u32) -> Toy {
    Toy { id, cleanups: Rc::default(), answer: Rc::new(RefCell::new(Ok(vec![id]))) }
}

fn register(to: &Registry<Toy>, name: &CStr, minor: u16, toy: &Toy) -> Result<(), RegisterError> {
    to.register(Offer {
        interface: INTERFACE,
        name: Some(name),
        version: Version::new(0, minor),
        provider: toy.clone(),
    })
}

fn query(registry: &Registry<Toy>) -> Result<Vec<u32>, Option<i32>> {
    registry.gather(|call| call.answer.borrow().clone())
}

#[test]
fn defect_1_an_unknown_name_finds_no_provider() {
    let registry = Registry::new(INTERFACE);
    register(&registry, c"a", 2, &toy(1)).unwrap();
    // Older than "a" but with another name, which is no reason to refuse it.
    register(&registry, c"b", 1, &toy(2)).unwrap();
    assert_eq!(query(&registry), Ok(vec![1, 2]));
    for name in [c"c", c"", c"A", c"aa", c"a;b"] {
        assert!(registry.enter(name).is_none(), "{name:?}");
    }
    assert_eq!(registry.enter(c"a").unwrap().id, 1);
}

#[test]
fn defect_2_a_replaced_provider_can_leave() {
    let registry = Registry::new(INTERFACE);
    let (old, new) = (toy(1), toy(2));
    register(&registry, c"a", 1, &old).unwrap();
    register(&registry, c"a", 2, &new).unwrap();
    assert_eq!(query(&registry), Ok(vec![2]));
    assert_eq!(registry.deregister(&1, AT_ONCE), Ok(()));
    assert_eq!((old.cleanups.get(), new.cleanups.get()), (1, 0));
    assert_eq!(registry.deregister(&1, AT_ONCE), Err(DeregisterError::Unknown));
    assert_eq!(query(&registry), Ok(vec![2]));
}

#[test]
fn defect_3_the_error_of_one_provider_keeps_the_answers_of_others() {
    let registry = Registry::new(INTERFACE);
    let toys = [toy(1), toy(2), toy(3)];
    for (toy, name) in toys.iter().zip([c"a", c"b", c"c"]) {
        register(&registry, name, 1, toy).unwrap();
    }
    *toys[1].answer.borrow_mut() = Err(5);
    assert_eq!(query(&registry), Ok(vec![1, 3]));
    *toys[1].answer.borrow_mut() = Ok(Vec::new());
    assert_eq!(query(&registry), Ok(vec![1, 3]));
    *toys[2].answer.borrow_mut() = Err(6);
    assert_eq!(query(&registry), Ok(vec![1]));
    *toys[0].answer.borrow_mut() = Err(7);
    assert_eq!(query(&registry), Err(Some(6)));
    *toys[0].answer.borrow_mut() = Ok(Vec::new());
    *toys[2].answer.borrow_mut() = Ok(Vec::new());
    assert_eq!(query(&registry), Err(None));
}

#[test]
fn defect_4_a_provider_may_use_the_registry_that_calls_it() {
    let registry = Registry::new(INTERFACE);
    let (outer, inner) = (toy(1), toy(2));
    register(&registry, c"outer", 1, &outer).unwrap();
    let answers = registry.gather(|call| -> Result<_, i32> {
        assert_eq!(call.id, 1);
        register(&registry, c"inner", 1, &inner).unwrap();
        let nested = query(&registry).unwrap();
        // Waiting for itself would never end.
        assert_eq!(registry.deregister(&1, Timeout::Forever), Err(DeregisterError::Inside));
        assert_eq!(outer.cleanups.get(), 0, "cleaned up inside its own call");
        registry.deregister(&2, Timeout::Forever).unwrap();
        Ok(nested)
    });
    assert_eq!(answers, Ok(vec![1, 2]));
    assert_eq!((outer.cleanups.get(), inner.cleanups.get()), (1, 1));
    assert_eq!(registry.deregister(&1, AT_ONCE), Ok(()));
    assert_eq!(query(&registry), Err(None));
}

#[test]
fn defect_5_a_refused_provider_is_not_cleaned_up() {
    let registry = Registry::new(INTERFACE);
    let (good, bad) = (toy(1), toy(2));
    register(&registry, c"a", 2, &good).unwrap();
    assert_eq!(register(&registry, c"a", 1, &bad), Err(RegisterError::Exists(Version::new(0, 2))));
    assert_eq!(register(&registry, c"a", 2, &bad), Err(RegisterError::Exists(Version::new(0, 2))));
    assert_eq!(register(&registry, c"", 3, &bad), Err(RegisterError::Nameless));
    for interface in [Version::new(1, 8), Version::new(2, 0), Version::new(0, 7)] {
        let offer = Offer {
            interface,
            name: Some(c"b"),
            version: Version::new(9, 9),
            provider: bad.clone(),
        };
        assert_eq!(registry.register(offer), Err(RegisterError::Interface(interface)));
    }
    drop(registry);
    assert_eq!((good.cleanups.get(), bad.cleanups.get()), (1, 0));
}

#[test]
fn defect_6_registering_twice_changes_nothing() {
    let registry = Registry::new(INTERFACE);
    let toy = toy(1);
    register(&registry, c"a", 1, &toy).unwrap();
    let fabric = registry.enter(c"a").unwrap().hold();
    for (name, version) in [(c"a", 1), (c"a", 2), (c"other", 3)] {
        assert_eq!(register(&registry, name, version, &toy), Err(RegisterError::Registered));
    }
    assert_eq!(query(&registry), Ok(vec![1]));
    assert_eq!(toy.cleanups.get(), 0);
    assert_eq!(
        registry.deregister(&1, AT_ONCE),
        Err(DeregisterError::Busy(1)),
        "the reference was lost"
    );
    drop(fabric);
    assert_eq!(toy.cleanups.get(), 1);
    assert_eq!(registry.deregister(&1, AT_ONCE), Ok(()));
}

#[test]
fn defect_7_cleanup_follows_the_last_reference_and_the_wait_ends() {
    let registry = Registry::new(INTERFACE);
    let toy = toy(1);
    register(&registry, c"a", 1, &toy).unwrap();
    let fabrics = [registry.enter(c"a").unwrap().hold(), registry.enter(c"a").unwrap().hold()];
    let soon = Timeout::Limit(Duration::from_millis(1));
    assert_eq!(registry.deregister(&1, soon), Err(DeregisterError::Busy(2)));
    assert!(registry.enter(c"a").is_none(), "found although it was deregistered");
    assert_eq!(register(&registry, c"a", 1, &toy), Err(RegisterError::Draining));
    let [first, second] = fabrics;
    drop(first);
    assert_eq!(registry.deregister(&1, AT_ONCE), Err(DeregisterError::Busy(1)));
    assert_eq!(toy.cleanups.get(), 0);
    // A fabric of a draining provider can be closed, which is a call.
    drop(second.enter());
    assert_eq!(toy.cleanups.get(), 0);
    drop(second);
    assert_eq!(toy.cleanups.get(), 1);
    assert_eq!(registry.deregister(&1, AT_ONCE), Ok(()));
    register(&registry, c"a", 1, &toy).unwrap();
}

#[test]
fn defect_8_an_open_fabric_keeps_its_provider_and_stalls_no_call() {
    let registry = Registry::new(INTERFACE);
    let (old, new) = (toy(1), toy(2));
    register(&registry, c"a", 1, &old).unwrap();
    let opening = registry.enter(c"a").unwrap();
    // An open call that opens a fabric does not block other calls.
    assert_eq!(query(&registry), Ok(vec![1]));
    register(&registry, c"a", 2, &new).unwrap();
    assert_eq!(query(&registry), Ok(vec![2]));
    let fabric = opening.hold();
    drop(opening);
    assert_eq!(old.cleanups.get(), 0, "its fabric is open");
    drop(fabric);
    assert_eq!(old.cleanups.get(), 1);
}

#[test]
fn defect_9_the_end_of_the_registry_cleans_up_each_provider_once() {
    let registry = Registry::new(INTERFACE);
    let toys = [toy(1), toy(2), toy(3)];
    register(&registry, c"a", 1, &toys[0]).unwrap();
    register(&registry, c"b", 1, &toys[1]).unwrap();
    register(&registry, c"b", 2, &toys[2]).unwrap();
    let fabric = registry.enter(c"a").unwrap().hold();
    drop(registry);
    assert_eq!(toys.each_ref().map(|toy| toy.cleanups.get()), [0, 1, 1]);
    drop(fabric);
    assert_eq!(toys.each_ref().map(|toy| toy.cleanups.get()), [1, 1, 1]);
}

#[test]
fn order_is_that_of_registration_and_a_newer_version_keeps_the_place() {
    let registry = Registry::new(INTERFACE);
    for (id, name) in [(1, c"a"), (2, c"b"), (3, c"c")] {
        register(&registry, name, 1, &toy(id)).unwrap();
    }
    register(&registry, c"b", 2, &toy(4)).unwrap();
    assert_eq!(query(&registry), Ok(vec![1, 4, 3]));
    registry.deregister(&1, AT_ONCE).unwrap();
    register(&registry, c"a", 1, &toy(5)).unwrap();
    assert_eq!(query(&registry), Ok(vec![4, 3, 5]));
}
