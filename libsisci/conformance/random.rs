// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Random calls with correct, wrong and hostile arguments: each gets a documented code, and nothing
//! is left at the end.
//!
//! Pointers are null or lead to memory of the case: other ones no library can check. Arguments are
//! chosen by their types and names in the header.
#![expect(unsafe_code, reason = "memory of mappings")]

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::null_mut;

use crate::api::{Api, Argument, Case, Prototype, prototypes};
use crate::rig::{Node, OTHER, OWNER, code};

pub(crate) const CASES: &[Case] = &[("random calls get a code and leave nothing", few)];

/// Number of calls of the case. The option `--calls` makes more.
const FEW: u64 = 20_000;
/// Number of live objects above which objects are removed.
const LIVE_MAX: usize = 100;
/// Length in bytes of the memory that pointers lead to: more than any transfer moves.
const SCRATCH: usize = 1 << 20;
/// Length in bytes of the pages that a segment takes over.
const PAGES: usize = 16_384;
/// Number of attempts, one a millisecond, to remove all objects. What is left then is leaked.
const TRIES: u32 = 10_000;
/// Sizes and offsets. Sizes between them would move too much memory for a short case.
const SIZES: [usize; 12] =
    [0, 1, 3, 4, 64, 4096, 5000, PAGES, 65_536, 1 << 60, usize::MAX - 4095, usize::MAX];
/// Functions that are not called: they count users of the library.
const LEFT_OUT: [&str; 1] = ["SCIInitialize"];
/// Functions that end objects, those of users first.
const ENDS: [&str; 11] = [
    "SCIRemoveSequence",
    "SCIResetDMAQueue",
    "SCIRemoveDMAQueue",
    "SCIUnmapSegment",
    "SCIDisconnectSegment",
    "SCIDisconnectInterrupt",
    "SCIDisconnectDataInterrupt",
    "SCIRemoveInterrupt",
    "SCIRemoveDataInterrupt",
    "SCIRemoveSegment",
    "SCIClose",
];

/// Allocates zeroed memory that lives as long as the process.
fn allocate(len: usize) -> usize {
    let layout = Layout::from_size_align(len, 4096).unwrap();
    // SAFETY: a layout of some bytes.
    let at = unsafe { alloc_zeroed(layout) };
    assert!(!at.is_null());
    at.expose_provenance()
}

extern "C" fn on_any() -> u32 {
    crate::rig::CONTINUE
}

/// Object of the case.
struct Object {
    kind: String,
    handle: usize,
}

/// Caller of random functions.
struct RandomCaller<'a> {
    api: &'a Api,
    functions: Vec<Prototype>,
    live: Vec<Object>,
    closed: Vec<usize>,
    flags: Vec<u32>,
    scratch: usize,
    pages: usize,
    /// Addresses without memory, at which a segment may be mapped.
    hole: usize,
    seed: u64,
}

impl<'a> RandomCaller<'a> {
    fn new(api: &'a Api, seed: u64) -> RandomCaller<'a> {
        let is_called = |f: &Prototype| f.has_code && !LEFT_OUT.contains(&f.name.as_str());
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel picks an unused range.
        let hole = unsafe { libc::mmap(null_mut(), SCRATCH, libc::PROT_NONE, none, -1, 0) };
        assert_ne!(hole, libc::MAP_FAILED);
        RandomCaller {
            api,
            functions: prototypes().into_iter().filter(is_called).collect(),
            live: Vec::new(),
            closed: Vec::new(),
            flags: crate::api::numbers("SCI_FLAG_").iter().map(|name| api.flag(name)).collect(),
            scratch: allocate(SCRATCH),
            pages: allocate(PAGES),
            hole: hole.expose_provenance(),
            seed: seed.max(1),
        }
    }

    fn word(&mut self) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D)).unwrap()
    }

    fn below(&mut self, end: usize) -> usize {
        (self.word() >> 8) % end
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn flag(&mut self) -> usize {
        match self.below(8) {
            0..4 => 0,
            4..7 => {
                let flags = self.flags.clone();
                self.one_of(&flags) as usize
            }
            _ => self.word() & 0xFFFF_FFFF,
        }
    }

    /// Returns a handle: mostly a live one of the type.
    fn handle(&mut self, kind: &str) -> usize {
        let choice = self.below(20);
        let fits = |object: &&Object| choice == 0 || object.kind == kind;
        let fitting: Vec<usize> = self.live.iter().filter(fits).map(|o| o.handle).collect();
        match choice {
            1 => 0,
            2 => self.word(),
            3 if !self.closed.is_empty() => {
                let closed = self.closed.clone();
                self.one_of(&closed)
            }
            _ if fitting.is_empty() => 0,
            _ => self.one_of(&fitting),
        }
    }

    fn argument(&mut self, function: &str, argument: &Argument) -> usize {
        let (scratch, pages, hole) = (self.scratch, self.pages, self.hole);
        match (argument.kind.as_str(), argument.name.as_str()) {
            (_, "address") if function.starts_with("SCIMap") => {
                self.one_of(&[0, hole, hole + 8192, hole + 4])
            }
            (_, "address") => self.one_of(&[0, pages, pages + 8]),
            (_, "data") if function == "SCIQuery" => {
                // Pointers inside of the structures are null.
                let query = std::ptr::with_exposed_provenance_mut::<[u32; 8]>(scratch);
                // SAFETY: memory of the case.
                unsafe { query.write([0; 8]) };
                self.one_of(&[0, scratch])
            }
            (kind, _) if kind.ends_with('*') => {
                self.one_of(&[0, scratch, scratch, scratch, scratch + 4096])
            }
            (kind, _) if kind.starts_with("sci_cb_") => {
                let call: extern "C" fn() -> u32 = on_any;
                self.one_of(&[0, (call as *const ()).expose_provenance()])
            }
            (_, "flags") => self.flag(),
            (_, "timeout") => self.below(2),
            (_, "adapter") => self.one_of(&[0, 0, 0, 0, 1, 16, u32::MAX as usize]),
            (_, "node") => {
                self.one_of(&[OWNER as usize, OWNER as usize, OTHER as usize, 6, 252, 0])
            }
            ("size_t", _) if function == "SCIMemWrite" => self.below(SCRATCH / 2),
            ("size_t", _) => self.one_of(&SIZES),
            ("unsigned", "length") => self.one_of(&[0, 1, 64, 4096, 4097, u32::MAX as usize]),
            ("unsigned" | "unsigned int" | "uint64_t", _) => match self.below(8) {
                0 => self.word(),
                _ => self.below(6),
            },
            (kind, _) => self.handle(kind),
        }
    }

    /// Makes one call, and records the objects that it makes or ends.
    fn call(&mut self) {
        let index = self.below(self.functions.len());
        let (name, arguments) =
            (self.functions[index].name.clone(), self.functions[index].arguments.clone());
        let mut made = 0_usize;
        let (mut words, mut kind) = (Vec::new(), None);
        for argument in &arguments {
            let made_kind = argument.kind.strip_suffix(" *").filter(|kind| is_handle(kind));
            words.push(match made_kind {
                Some(of) if self.below(20) > 0 => {
                    kind = Some(of.to_owned());
                    (&raw mut made).expose_provenance()
                }
                Some(_) => 0,
                None => self.argument(&name, argument),
            });
        }
        let answer = self.api.call_with_words(&self.functions[index], &words);
        if answer != 0 {
            let text = self.api.error_string(answer);
            let documented = answer != code::SYSTEM && text.starts_with("SCI_ERR_");
            assert!(documented, "{name} {words:x?}: {answer:#x}");
            return;
        }
        if let Some(kind) = kind.filter(|_| made != 0) {
            self.live.push(Object { kind, handle: made });
        } else if ENDS.contains(&name.as_str()) && name != "SCIResetDMAQueue" {
            self.ended(words[0]);
        }
    }

    fn ended(&mut self, handle: usize) {
        self.live.retain(|object| object.handle != handle);
        self.closed.push(handle);
        if self.closed.len() > LIVE_MAX {
            self.closed.remove(0);
        }
    }

    /// Calls a function that ends objects for all live ones.
    fn end_with(&mut self, name: &str) {
        let function = self.functions.iter().position(|f| f.name == name).unwrap();
        let handles: Vec<usize> = self.live.iter().map(|object| object.handle).collect();
        let force = self.api.flag("FORCE_REMOVE") as usize;
        let flags = if name == "SCIRemoveSegment" { force } else { 0 };
        for handle in handles {
            let answer = self.api.call_with_words(&self.functions[function], &[handle, flags]);
            if answer == 0 && name != "SCIResetDMAQueue" {
                self.ended(handle);
            }
        }
    }

    /// Removes all objects. A queue is removed after its transfer.
    fn end(&mut self) {
        for _ in 0..TRIES {
            ENDS.iter().for_each(|name| self.end_with(name));
            if self.live.is_empty() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let left: Vec<&str> = self.live.iter().map(|object| object.kind.as_str()).collect();
        panic!("{left:?} cannot be removed");
    }
}

fn is_handle(kind: &str) -> bool {
    let is_value = ["sci_ioaddr_t", "sci_error_t"].contains(&kind);
    kind.starts_with("sci_") && kind.ends_with("_t") && !is_value
}

/// Returns the numbers of open descriptors, threads and mappings of this process.
fn resources() -> [usize; 3] {
    let entries = |place: &str| std::fs::read_dir(place).unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps.lines().filter(|line| line.contains("sisci")).count();
    [entries("/proc/self/fd"), entries("/proc/self/task"), shared]
}

/// Makes random calls, and checks that they leave nothing.
pub(crate) fn run(api: &Api, count: u64, seed: u64) {
    println!("{count} random calls, seed {seed}");
    let mut caller = RandomCaller::new(api, seed);
    let before = resources();
    let node = Node::join(api, OWNER);
    for _ in 0..count {
        caller.call();
        if caller.live.len() > LIVE_MAX {
            caller.end();
        }
    }
    caller.end();
    node.leave();
    // Threads of the library end after SCITerminate.
    for _ in 0..1000 {
        if resources() == before {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(resources(), before, "descriptors, threads, mappings");
}

fn few(api: &Api) {
    run(api, FEW, u64::from(std::process::id()));
}
