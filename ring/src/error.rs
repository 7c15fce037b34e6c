// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What a ring refuses, and why.
//!
//! Not about: errno, and what becomes of a connection whose ring is refused.

use core::fmt;

/// Why a region cannot carry what was to be laid over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// The region has too few bytes.
    TooShort {
        /// Bytes it must have.
        need: usize,
        /// Bytes it has.
        have: usize,
    },
    /// The region does not begin at a multiple of what its words need.
    Misaligned {
        /// Alignment it must have.
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

/// Why a record was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room now; there will be when the consumer has taken more.
    Full,
    /// The head or the body is longer than a record may be, or the list has fewer bytes than were named.
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

/// What the producer wrote that no producer of ours writes; the ring is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// The producer lays its memory out differently.
    Layout(u32),
    /// A head of so many bytes.
    HeadLen(u8),
    /// A body of so many bytes.
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
