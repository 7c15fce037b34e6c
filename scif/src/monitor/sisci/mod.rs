// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Monitoring of SISCI objects: segments, connections, mappings and interrupts of each process that
//! uses `libsisci.so`, published like the endpoints of the provider.
//!
//! Not about the objects themselves, which `libsisci` owns.

pub mod layout;
pub mod report;
mod table;

pub use table::{ObjectFields, ObjectRecord, ObjectTable, SisciIdentity};
