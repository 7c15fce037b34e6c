// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! All system calls of the engine, and all its `unsafe` code.
//!
//! One file per kind of kernel object. No protocol is known in this module: `transport` and the
//! ring crate define the meaning of bytes on a socket or in a page.

mod cgroup;
#[cfg(test)]
pub(crate) mod children;
pub(crate) mod descriptor;
mod dontfork;
pub(crate) mod epoll;
pub(crate) mod errno;
pub(crate) mod family;
pub(crate) mod file;
pub(crate) mod fork;
pub(crate) mod futex;
mod guard;
pub(crate) mod large;
pub(crate) mod lock;
pub mod logging;
mod maps;
pub(crate) mod membarrier;
pub(crate) mod memfd;
pub(crate) mod mmap;
pub(crate) mod pages;
pub(crate) mod process;
pub(crate) mod process_vm;
pub(crate) mod shared;
pub(crate) mod slice;
pub(crate) mod smaps;
pub(crate) mod thread;
pub(crate) mod time;
pub(crate) mod unix;
