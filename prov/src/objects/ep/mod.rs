// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints: the C calls from `fi_endpoint` to `fi_close`.
//!
//! The objects themselves are in `endpoint`, the work of an enabled endpoint is in `engine`.
//!
//! # Invariants
//!
//! - The SCIF port is bound when the endpoint is opened, so that its name is known and other
//!   processes may connect before it is enabled.
//! - An alias shares everything with its endpoint except the default flags; closing the last of
//!   them frees the state.
//! - A table of an operation class without which the endpoint was opened returns `-FI_ENOSYS`.
//!
//! Mirrors fi_endpoint(3).

mod bind;
mod calls;
mod cm;
pub(crate) mod context;
mod enable;
mod name;
pub(crate) mod open;
pub(crate) mod opt;
#[cfg(test)]
mod tests;
pub(crate) mod work;

pub(crate) use open::open;
