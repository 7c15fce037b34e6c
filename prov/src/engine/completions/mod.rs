// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reports to completion queues and counters.

pub(crate) mod completion;
pub(crate) mod multi_recv;
pub(crate) mod recv_completion;
pub(crate) mod work_report;
