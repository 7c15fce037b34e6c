// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Log lines of every function of every operations table, called with zeros: one line for each
//! refusal, none for an ordinary result. Module `ops_tables` checks the results, `log` the words of
//! the lines.

use scif_fabtests::fi::{CallResult, Slot, Tables};
use scif_fabtests::prelude::*;

use super::ops_tables::{CONNECTED, DOMAIN, ENDPOINTS, FABRIC, OTHERS, ObjectState, QUEUES};

pub(crate) const CASES: &[Case] =
    &[case("log/each_refused_call", 1, each_refused).under(&[("FI_LOG_LEVEL", "warn")])];

/// Number of calls in one process: fewer than the 64 lines about refused calls that a process may
/// print at once.
const AT_ONCE: usize = 60;

/// Exit code of a process with calls left for the next one.
const MORE: usize = 3;

fn each_refused(rank: &Rank) -> Outcome {
    rank.only_scif("the log of another provider")?;
    let scenes = [&[FABRIC, DOMAIN], ENDPOINTS, CONNECTED, QUEUES, OTHERS];
    for scene in scenes.into_iter().flatten() {
        let mut from = 0;
        loop {
            // A new process, with its full allowance of lines.
            let code = sandbox::in_child(|| match walk(rank, scene, from) {
                Ok(true) => MORE,
                Ok(false) => 0,
                Err(fail) => {
                    rank.step(format_args!("{fail:?}"));
                    1
                }
            })?;
            check!(matches!(code, 0 | MORE), "{}: the child exits with {code}", scene.name);
            if code == 0 {
                break;
            }
            from += AT_ONCE;
        }
    }
    Ok(())
}

/// Makes the calls on an object from number `from` on. Returns whether some are left.
fn walk(rank: &Rank, scene: &ObjectState, from: usize) -> Outcome<bool> {
    sandbox::alarm(60);
    let subject = (scene.make)(rank)?;
    let tables = Tables::of(&*subject.object)?;
    let slots = tables.slots.iter().filter(|slot| slot.name != "base.close");
    let calls: Vec<_> = [false, true]
        .into_iter()
        .flat_map(|on_object| slots.clone().map(move |slot| (on_object, slot)))
        .collect();
    check!(calls.len() >= 10, "{} calls", calls.len());
    for (on_object, slot) in calls.iter().skip(from).take(AT_ONCE) {
        let object = on_object.then_some(&*subject.object);
        let (answer, text) = sandbox::stderr_of(|| slot.call(object, 0))?;
        let CallResult::Code(code) = answer? else {
            continue;
        };
        let expected = usize::from(!is_plain(slot, code));
        let lines = text.lines().count();
        check!(
            code >= 0 || lines == expected,
            "{} of {}, with an object {on_object}, answers {code} and logs {lines} lines: {text}",
            slot.name,
            scene.name
        );
    }
    Ok(calls.len() > from + AT_ONCE)
}

/// Whether a negative result is no refusal: there is no entry, or the call queries support.
fn is_plain(slot: &Slot, code: i64) -> bool {
    let number = i32::try_from(-code).unwrap_or(0);
    let asks = slot.name.ends_with("valid") || slot.name.starts_with("domain.query");
    match number {
        libc::EAGAIN | libc::ETIMEDOUT | libc::ENOPROTOOPT => true,
        libc::EOPNOTSUPP => asks,
        // Extensions of a provider.
        libc::ENOSYS => matches!(slot.name.as_str(), "base.ops_open" | "base.ops_set"),
        // The result is the required length.
        257 => slot.name.starts_with("cm.get"),
        // An error entry is waiting.
        259 => true,
        _ => false,
    }
}
