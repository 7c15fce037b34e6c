// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What every transport must do, as cases that run on any of them.
