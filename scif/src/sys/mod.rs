// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! All system calls of the engine, and all its `unsafe` code.
//!
//! One file per kind of kernel object. No protocol is known in this module: `transport` and the
//! ring crate define the meaning of bytes on a socket or in a page.

mod at_exit;
pub mod bounce;
mod cgroup;
#[cfg(any(test, feature = "testing"))]
pub mod children;
pub(crate) mod crash;
pub mod descriptor;
mod dontfork;
pub(crate) mod ending_signal;
pub mod epoll;
pub(crate) mod errno;
pub mod family;
pub mod file;
pub mod fork;
pub mod futex;
mod guard;
pub mod large;
pub mod lock;
pub mod logging;
pub mod maps;
pub(crate) mod membarrier;
pub mod memfd;
pub mod mmap;
pub mod pages;
mod parts;
pub mod pipe_copy;
pub mod probe;
pub mod process;
pub mod process_vm;
pub mod record;
pub(crate) mod shared;
mod sigbus;
pub mod slice;
pub mod smaps;
pub mod thread;
pub mod time;
pub mod unix;
