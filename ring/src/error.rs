// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Errors of a ring: unusable memory, a record that was not published, invalid data of the
//! producer.
//!
//! Not about: errno values, and the treatment of a connection with a corrupt ring.

use core::fmt;

/// Reason for which a region cannot hold a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The region is too short.
    TooShort {
        /// Required bytes.
        need: usize,
        /// Available bytes.
        have: usize,
    },
    /// The start of the region is not aligned.
    Misaligned {
        /// Required alignment in bytes.
        need: usize,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::TooShort { need, have } => {
                write!(f, "region of {have} bytes where {need} are needed")
            }
            LayoutError::Misaligned { need } => write!(f, "region not aligned to {need} bytes"),
        }
    }
}

impl core::error::Error for LayoutError {}

/// Reason for which a record was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The ring is full. A later push succeeds once the consumer has freed records.
    Full,
    /// The head or the body exceeds the limit of a record, or the buffer list is shorter than the
    /// given length.
    TooLong,
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PushError::Full => "the ring is full",
            PushError::TooLong => "longer than a record of the ring",
        })
    }
}

impl core::error::Error for PushError {}

/// Invalid data that no correct producer writes. The ring is unusable afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// Layout version of the producer, different from ours.
    Layout(u32),
    /// Length of a head in bytes.
    HeadLen(u8),
    /// Length of a body in bytes.
    BodyLen(u32),
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corrupt::Layout(v) => write!(f, "ring of layout {v:#x}"),
            Corrupt::HeadLen(n) => write!(f, "ring record with a head of {n} bytes"),
            Corrupt::BodyLen(n) => write!(f, "ring record with a body of {n} bytes"),
        }
    }
}

impl core::error::Error for Corrupt {}
