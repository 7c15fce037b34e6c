// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! All functions of the header, called by the number of their arguments.

use crate::api::{Api, Case, Prototype, prototypes};
use crate::rig::{Node, OWNER, code};

pub(crate) const CASES: &[Case] = &[
    ("no function works before SCIInitialize", before_initialize),
    ("each function refuses null arguments", null_arguments),
    ("each function takes a null place for its code", null_code),
    ("each function refuses arguments of all ones", all_ones),
    ("functions without hardware are not supported", not_supported),
    ("successful calls keep errno", errno_kept),
];

/// Functions that succeed with zeros for all arguments.
const TAKE_ZEROS: [&str; 2] = ["SCIInitialize", "SCICacheSync"];
/// Returns all functions that write a code.
fn with_code() -> Vec<Prototype> {
    let functions = prototypes().into_iter().filter(|function| function.has_code);
    let functions: Vec<Prototype> = functions.collect();
    assert!(functions.len() > 90, "{} functions with a code", functions.len());
    functions
}

/// Calls all functions that write a code, each with one value for all arguments.
fn all(api: &Api, value: usize) -> Vec<(Prototype, u32)> {
    let call = |function: Prototype| {
        let code = api.call_with(&function, value);
        (function, code)
    };
    with_code().into_iter().map(call).collect()
}

fn before_initialize(api: &Api) {
    for function in with_code() {
        let name = function.name.as_str();
        if name == "SCIInitialize" {
            continue;
        }
        let answer = api.call_with(&function, 0);
        match name {
            "SCICacheSync" => assert_eq!(answer, 0, "{name}"),
            "SCIMemWrite" => assert_eq!(answer, code::ILLEGAL_PARAMETER, "{name}"),
            _ => assert!(
                [code::NOT_INITIALIZED, code::NOT_SUPPORTED].contains(&answer),
                "{name}: {answer:#x}"
            ),
        }
    }
}

fn null_arguments(api: &Api) {
    let node = Node::join(api, OWNER);
    for (function, answer) in all(api, 0) {
        let name = function.name.as_str();
        if TAKE_ZEROS.contains(&name) {
            assert_eq!(answer, 0, "{name}");
            continue;
        }
        let expected = [code::ILLEGAL_PARAMETER, code::ILLEGAL_QUERY, code::NOT_SUPPORTED];
        assert!(expected.contains(&answer), "{name}: {answer:#x}");
    }
    api.terminate();
    node.leave();
}

fn null_code(api: &Api) {
    let node = Node::join(api, OWNER);
    for function in prototypes() {
        if !TAKE_ZEROS.contains(&function.name.as_str()) {
            api.call_without_code(&function);
        }
    }
    // One of the functions is SCITerminate, which leaves open objects.
    node.leave();
}

fn all_ones(api: &Api) {
    let node = Node::join(api, OWNER);
    for (function, answer) in all(api, usize::MAX) {
        let refused =
            [code::ILLEGAL_PARAMETER, code::ILLEGAL_FLAG, code::ILLEGAL_QUERY, code::NOT_SUPPORTED];
        assert!(refused.contains(&answer), "{}: {answer:#x}", function.name);
    }
    node.leave();
}

fn errno_kept(api: &Api) {
    let node = Node::join(api, OWNER);
    let kept = |name: &str, call: &mut dyn FnMut()| {
        crate::api::set_errno(7);
        call();
        assert_eq!(crate::api::errno(), 7, "{name}");
    };
    let mut segment = std::ptr::null_mut();
    kept("a segment", &mut || segment = node.export(1, 4096, 0));
    let mut remote = std::ptr::null_mut();
    kept("a connection", &mut || remote = node.connect(OWNER, 1).unwrap());
    let mut map = std::ptr::null_mut();
    kept("a map", &mut || map = node.map(remote, 0, 4096).unwrap().map);
    kept("an event", &mut || assert!(node.event(segment, 60_000).is_ok()));
    kept("an unmap", &mut || api.SCIUnmapSegment(map, 0).unwrap());
    kept("a disconnection", &mut || api.SCIDisconnectSegment(remote, 0).unwrap());
    kept("a removal", &mut || api.SCIRemoveSegment(segment, 0).unwrap());
    node.leave();
}

fn not_supported(api: &Api) {
    let node = Node::join(api, OWNER);
    let answers = all(api, 0).into_iter().filter(|(_, answer)| *answer == code::NOT_SUPPORTED);
    let mut names: Vec<String> = answers.map(|(function, _)| function.name).collect();
    // Functions that check a handle before they tell so, and functions without a code.
    names.extend(["SCIAttachPhysicalMemory", "SCIGetMapPhysAddr"].map(str::to_owned));
    names.sort_unstable();
    let excused = crate::tables::excused();
    let in_header = |name: &String| prototypes().iter().any(|function| function.name == *name);
    let excused: Vec<String> = excused.into_iter().filter(in_header).collect();
    assert_eq!(names, excused, "as libsisci/README.md says");
    api.terminate();
    node.leave();
}
