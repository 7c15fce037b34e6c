// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Threads that register, query, open, close and deregister at once through the C functions, each
//! by a random plan. Prints the number of plans.
//!
//! Providers return a separate fabric to each opener, or one counted fabric to all. Invariants: no
//! provider is called after its owner has got the result that it is gone, and no fabric of it is
//! open then. The registry by itself is in kofi/tests.
#![expect(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::indexing_slicing,
    reason = "a test that plays C: what it passes are its own statics and allocations"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{ptr, thread};

use kofi_c::abi::*;
use kofi_c::register::*;
use libfabric_sys as fi;
use libkofi as kofi_c;

const API: u32 = fi::fi_version(1, 17);
const PLANS: u64 = 300;
const STEPS: usize = 20;

/// State of a provider. Errors are counted, since a panic must not cross C.
#[derive(Debug, Default)]
struct Life {
    here: bool,
    registered: u32,
    cleaned: u32,
    /// Number of open fabrics, and address of the shared one.
    open: u32,
    one: usize,
    calls: u64,
    wrong: u32,
}

static LIVES: [Mutex<Life>; 2] = [const {
    Mutex::new(Life { here: false, registered: 0, cleaned: 0, open: 0, one: 0, calls: 0, wrong: 0 })
}; 2];

fn life(of: usize) -> MutexGuard<'static, Life> {
    let mut life = LIVES[of].lock().unwrap_or_else(PoisonError::into_inner);
    life.calls += 1;
    life
}

unsafe extern "C" fn getinfo<const OF: usize>(
    _version: u32,
    _node: *const c_char,
    _service: *const c_char,
    _flags: u64,
    _hints: *const fi::fi_info,
    info: *mut *mut fi::fi_info,
) -> c_int {
    let mut life = life(OF);
    life.wrong += u32::from(!life.here);
    unsafe { info.write(kofi_abi_dupinfo(3, ptr::null())) };
    0
}

fn new_fabric(ops: *const fi::fi_ops) -> *mut fi::fid_fabric {
    static OPS: fi::fi_ops_fabric = fi::FI_OPS_FABRIC_NOSYS;
    Box::into_raw(Box::new(fi::fid_fabric {
        fid: fi::fid { fclass: fi::FI_CLASS_FABRIC, context: ptr::null_mut(), ops },
        ops: &raw const OPS,
        api_version: 0,
    }))
}

/// Opens a separate fabric for each opener.
unsafe extern "C" fn open_own(
    _attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    _context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = fi::fi_ops { close: close_own, ..fi::FI_OPS_NOSYS };
    let mut life = life(0);
    life.wrong += u32::from(!life.here);
    life.open += 1;
    unsafe { fabric.write(new_fabric(&raw const OPS)) };
    0
}

unsafe extern "C" fn close_own(fid: *mut fi::fid) -> c_int {
    let mut life = life(0);
    life.wrong += u32::from(!life.here);
    life.open -= 1;
    drop(unsafe { Box::from_raw(fid.cast::<fi::fid_fabric>()) });
    0
}

/// Lets other threads run in the middle of a call.
fn linger() {
    for _ in 0..8 {
        thread::yield_now();
    }
}

/// Opens the shared fabric, made by the first opener and freed by the last close.
unsafe extern "C" fn open_one(
    _attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    _context: *mut c_void,
) -> c_int {
    static OPS: fi::fi_ops = fi::fi_ops { close: close_one, ..fi::FI_OPS_NOSYS };
    let mut life = life(1);
    life.wrong += u32::from(!life.here);
    if life.open == 0 {
        life.one = new_fabric(&raw const OPS).expose_provenance();
    }
    life.open += 1;
    unsafe { fabric.write(ptr::with_exposed_provenance_mut(life.one)) };
    drop(life);
    linger();
    0
}

unsafe extern "C" fn close_one(fid: *mut fi::fid) -> c_int {
    let mut life = life(1);
    life.wrong += u32::from(!life.here);
    // A program may try again, as with a fabric that has a domain.
    if life.calls % 3 == 0 {
        drop(life);
        linger();
        return -fi::FI_EBUSY;
    }
    life.open -= 1;
    if life.open == 0 {
        drop(unsafe { Box::from_raw(fid.cast::<fi::fid_fabric>()) });
    }
    0
}

unsafe extern "C" fn cleanup<const OF: usize>() {
    let mut life = life(OF);
    life.wrong += u32::from(life.open > 0);
    life.cleaned += 1;
}

const NAMES: [&CStr; 2] = [c"threads-own", c"threads-one"];

fn provider(of: usize) -> Box<fi::fi_provider> {
    Box::new(fi::fi_provider {
        version: fi::fi_version(0, 1),
        fi_version: fi::fi_version(1, 7),
        context: fi::ofi_prov_context::EMPTY,
        name: NAMES[of].as_ptr(),
        getinfo: Some(if of == 0 { getinfo::<0> } else { getinfo::<1> }),
        fabric: Some(if of == 0 { open_own } else { open_one }),
        cleanup: Some(if of == 0 { cleanup::<0> } else { cleanup::<1> }),
    })
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

    fn name(&mut self) -> &'static CStr {
        if self.roll(2) == 0 { NAMES[0] } else { NAMES[1] }
    }
}

/// Registers with another description each time, like a module that is loaded and unloaded.
fn owner(of: usize, mut dice: Dice) {
    for _ in 0..STEPS / 4 {
        dice.pause();
        let mut own = provider(of);
        {
            let mut life = life(of);
            life.here = true;
            life.registered += 1;
        }
        assert_eq!(unsafe { kfi_provider_register(&raw mut *own) }, 0);
        dice.pause();
        let mut limit = if dice.roll(2) == 0 { 0 } else { -1 };
        loop {
            match kfi_provider_deregister_timed(&raw mut *own, limit) {
                0 => break,
                code => assert_eq!(code, -fi::FI_EBUSY),
            }
            limit = -1;
        }
        let mut life = life(of);
        life.wrong += u32::from(life.open > 0 || life.cleaned != life.registered);
        life.here = false;
    }
}

fn close(fabric: *mut fi::fid_fabric) {
    loop {
        match unsafe { ((*(*fabric).fid.ops).close)(fabric.cast()) } {
            0 => return,
            code => assert_eq!(code, -fi::FI_EBUSY),
        }
    }
}

fn user(mut dice: Dice) {
    let mut fabrics = Vec::new();
    for _ in 0..STEPS {
        dice.pause();
        match dice.roll(4) {
            0 => {
                let hints = unsafe { kofi_abi_dupinfo(3, ptr::null()) };
                unsafe { (*(*hints).fabric_attr).prov_name = libc::strdup(dice.name().as_ptr()) };
                let mut list = ptr::null_mut();
                let null = ptr::null();
                let code = unsafe { kofi_abi_getinfo(3, API, null, null, 0, hints, &raw mut list) };
                assert!(code == 0 || code == -fi::FI_ENODATA, "{code}");
                unsafe { kofi_abi_freeinfo(hints) };
                unsafe { kofi_abi_freeinfo(list) };
            }
            1 | 2 => {
                let mut attr = fi::fi_fabric_attr {
                    name: c"net".as_ptr().cast_mut(),
                    prov_name: dice.name().as_ptr().cast_mut(),
                    ..fi::fi_fabric_attr::ZERO
                };
                let mut fabric = ptr::null_mut();
                let code =
                    unsafe { kofi_abi_fabric(1, &raw mut attr, &raw mut fabric, ptr::null_mut()) };
                match code {
                    0 => fabrics.push(fabric),
                    code => assert_eq!(code, -fi::FI_ENODEV),
                }
            }
            _ => fabrics.pop().into_iter().for_each(close),
        }
    }
    fabrics.into_iter().for_each(close);
}

#[test]
fn no_provider_is_called_after_its_end() {
    for plan in 0..PLANS {
        thread::scope(|scope| {
            for of in [0, 1] {
                scope.spawn(move || owner(of, Dice(plan * 8 + of as u64)));
            }
            for n in 2..5 {
                scope.spawn(move || user(Dice(plan * 8 + n)));
            }
        });
        for of in [0, 1] {
            let life = life(of);
            assert_eq!((life.wrong, life.open), (0, 0), "plan {plan}: {life:?}");
            assert_eq!(life.registered, life.cleaned, "plan {plan}: {life:?}");
        }
    }
    let calls = life(0).calls + life(1).calls;
    println!("{PLANS} random schedules, {calls} calls");
}
