// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Small services of every test program: the common clock, lines of output, hexadecimal text.

use std::io::Write;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the clock that all processes of this machine share.
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Prints a line. Standard output may be closed; the exit code still reports the result.
pub fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Returns bytes as hexadecimal text.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes the text of [`to_hex`].
pub fn from_hex(text: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).filter_map(pair).collect()
}
