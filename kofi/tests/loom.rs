// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! All schedules of small plans: register, query, open, close, deregister and replace by two or
//! three threads.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kofi --release --test loom [name]`; without the
//! cfg the test is empty. Bounds: at most 3 preemptions per schedule, 2 with three threads. Prints
//! the number of schedules of each model. The last model omits the reference of an open fabric and
//! must fail, which shows that the others can.

#![cfg_attr(
    loom,
    expect(clippy::print_stdout, clippy::unwrap_used, reason = "a test: it says what it ran")
)]

#[cfg(not(loom))]
fn main() {}

#[cfg(loom)]
fn main() -> std::process::ExitCode {
    models::run()
}

#[cfg(loom)]
mod models {
    use kofi::{Offer, Provider, Registry, Timeout, Version};
    use loom::sync::Mutex;
    use loom::thread::{JoinHandle, spawn};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::ExitCode;
    use std::sync::Arc;
    use std::time::Duration;

    const INTERFACE: Version = Version::new(1, 7);

    struct Model {
        name: &'static str,
        preemptions: usize,
        /// Whether the model must find an error.
        broken: bool,
        body: fn(),
    }

    #[derive(Default)]
    struct Life {
        cleaned: u32,
        freed: bool,
    }

    #[derive(Clone)]
    struct Object {
        id: u32,
        life: Arc<Mutex<Life>>,
    }

    impl Provider for Object {
        type Id = u32;

        fn id(&self) -> u32 {
            self.id
        }

        fn cleanup(&self) {
            let mut life = self.life.lock().unwrap();
            assert!(!life.freed, "cleaned up after it was freed");
            life.cleaned += 1;
        }
    }

    impl Object {
        fn new(id: u32) -> Self {
            Self { id, life: Arc::new(Mutex::new(Life::default())) }
        }

        fn called(&self) {
            let life = self.life.lock().unwrap();
            assert!(!life.freed, "called after it was freed");
            assert_eq!(life.cleaned, 0, "called after it was cleaned up");
        }

        /// Acts as the owner once the provider is gone.
        fn free(&self) {
            let mut life = self.life.lock().unwrap();
            assert_eq!(life.cleaned, 1);
            life.freed = true;
        }
    }

    type Shared = Arc<Registry<Object>>;

    fn with(objects: &[&Object]) -> Shared {
        let registry = Arc::new(Registry::new(INTERFACE));
        for object in objects {
            add(&registry, object).unwrap();
        }
        registry
    }

    fn add(registry: &Shared, object: &Object) -> Result<(), kofi::RegisterError> {
        registry.register(Offer {
            interface: INTERFACE,
            name: Some(c"a"),
            version: Version::new(0, u16::try_from(object.id).unwrap()),
            provider: object.clone(),
        })
    }

    fn go(body: impl FnOnce() + 'static) -> JoinHandle<()> {
        spawn(body)
    }

    fn leaves(registry: &Shared, object: &Object) -> JoinHandle<()> {
        let (registry, object) = (Arc::clone(registry), object.clone());
        go(move || {
            registry.deregister(&object.id, Timeout::Forever).unwrap();
            object.free();
        })
    }

    fn asks(registry: &Shared) -> JoinHandle<()> {
        let registry = Arc::clone(registry);
        go(move || {
            let found = registry.gather(|call| -> Result<_, ()> {
                call.called();
                Ok(vec![call.id])
            });
            drop(found);
        })
    }

    fn a_call_against_a_deregistration() {
        let object = Object::new(1);
        let registry = with(&[&object]);
        let threads = [leaves(&registry, &object), asks(&registry)];
        for thread in threads {
            thread.join().unwrap();
        }
    }

    fn a_fabric_against_a_deregistration() {
        let object = Object::new(1);
        let registry = with(&[&object]);
        let owner = leaves(&registry, &object);
        if let Some(call) = registry.enter(c"a") {
            let fabric = call.hold();
            drop(call);
            object.called();
            drop(fabric.enter());
            object.called();
            drop(fabric);
        }
        owner.join().unwrap();
    }

    fn a_newer_version_against_a_call_and_the_older_ones_owner() {
        let (old, new) = (Object::new(1), Object::new(2));
        let registry = with(&[&old]);
        let threads = [leaves(&registry, &old), asks(&registry)];
        add(&registry, &new).unwrap();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(registry.enter(c"a").unwrap().id, 2);
        registry.deregister(&2, Timeout::Forever).unwrap();
        new.free();
    }

    fn two_registrations_of_one_name() {
        let (one, two) = (Object::new(1), Object::new(2));
        let registry = with(&[]);
        let other = {
            let (registry, one) = (Arc::clone(&registry), one.clone());
            go(move || {
                // Refused when the newer one was first.
                if add(&registry, &one).is_ok() {
                    registry.deregister(&1, Timeout::Forever).unwrap();
                    one.free();
                }
            })
        };
        add(&registry, &two).unwrap();
        other.join().unwrap();
        registry.deregister(&2, Timeout::Forever).unwrap();
        two.free();
    }

    fn two_deregistrations() {
        let object = Object::new(1);
        let registry = with(&[&object]);
        let other = {
            let registry = Arc::clone(&registry);
            go(move || drop(registry.deregister(&1, Timeout::Forever)))
        };
        drop(registry.deregister(&1, Timeout::Forever));
        object.free();
        other.join().unwrap();
    }

    fn an_impatient_owner_asks_again() {
        let object = Object::new(1);
        let registry = with(&[&object]);
        let user = asks(&registry);
        let at_once = Timeout::Limit(Duration::ZERO);
        if registry.deregister(&1, at_once).is_err() {
            registry.deregister(&1, Timeout::Forever).unwrap();
        }
        object.free();
        user.join().unwrap();
    }

    fn the_end_of_the_registry_against_a_fabric() {
        let object = Object::new(1);
        let registry = with(&[&object]);
        let fabric = registry.enter(c"a").unwrap().hold();
        let user = go(move || drop(fabric));
        drop(registry);
        user.join().unwrap();
        assert_eq!(object.life.lock().unwrap().cleaned, 1);
    }

    fn a_fabric_needs_its_reference() {
        let object = Object::new(1);
        let registry = with(&[&object]);
        let owner = leaves(&registry, &object);
        if let Some(call) = registry.enter(c"a") {
            drop(call);
            object.called();
        }
        owner.join().unwrap();
    }

    const fn model(name: &'static str, preemptions: usize, body: fn()) -> Model {
        Model { name, preemptions, broken: false, body }
    }

    const MODELS: [Model; 8] = [
        model("a_call_against_a_deregistration", 3, a_call_against_a_deregistration),
        model("a_fabric_against_a_deregistration", 3, a_fabric_against_a_deregistration),
        model(
            "a_newer_version_against_a_call_and_the_older_ones_owner",
            2,
            a_newer_version_against_a_call_and_the_older_ones_owner,
        ),
        model("two_registrations_of_one_name", 3, two_registrations_of_one_name),
        model("two_deregistrations", 3, two_deregistrations),
        model("an_impatient_owner_asks_again", 3, an_impatient_owner_asks_again),
        model(
            "the_end_of_the_registry_against_a_fabric",
            3,
            the_end_of_the_registry_against_a_fabric,
        ),
        Model {
            name: "a_fabric_needs_its_reference",
            preemptions: 3,
            broken: true,
            body: a_fabric_needs_its_reference,
        },
    ];

    pub(crate) fn run() -> ExitCode {
        let only: Vec<String> =
            std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
        let (mut passed, mut failed, mut all) = (0, 0, 0);
        for model in MODELS {
            if !only.is_empty() && !only.iter().any(|name| model.name.contains(name.as_str())) {
                continue;
            }
            let schedules = Arc::new(std::sync::Mutex::new(0_u64));
            let count = Arc::clone(&schedules);
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(model.preemptions);
            let held = catch_unwind(AssertUnwindSafe(|| {
                builder.check(move || {
                    *count.lock().unwrap() += 1;
                    (model.body)();
                });
            }))
            .is_ok();
            let schedules = *schedules.lock().unwrap();
            let good = held != model.broken && schedules > 0;
            println!(
                "{} {}: {schedules} schedules",
                if good { "ok  " } else { "FAIL" },
                model.name
            );
            if good {
                passed += 1
            } else {
                failed += 1
            }
            all += schedules;
        }
        println!("{passed} passed; {failed} failed; {all} schedules");
        if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
