// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Everything of the provider's tests that needs more than one process: a thin client of libfabric ([`fi`]) and a
//! harness that starts processes, lets them meet, and ends them ([`harness`]). The cases themselves belong to the
//! `conformance` program; nothing here knows the provider under test but by its name.

pub mod fi;
pub mod harness;
pub mod payload;
pub mod rig;
