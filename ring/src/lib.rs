// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Lock-free structures over shared memory: all atomics of the project, and all copies in and out
//! of memory that Rust does not own.
//!
//! Not about: system calls, file descriptors, the identity of the peer. No dependency, no FFI; the
//! caller supplies memory as a pointer. The peer is hostile: a control word is loaded once,
//! checked, then used, and positions are computed locally, never read. `docs/shm-layout.md` lists
//! every byte, `docs/memory-model.md` every ordering and its partner.

mod answer;
mod bypass;
pub mod claim;
pub mod copy;
pub mod counter;
pub mod doorbell;
mod error;
pub mod gate;
pub mod keytable;
pub mod layout;
pub mod limiter;
#[cfg(loom)]
pub mod model;
mod pace;
pub mod rmw;
mod short;
pub mod spsc;
pub mod stream;
mod sync;
mod waiting;
pub mod word;

pub use claim::{Claim, Offer, Share};
pub use copy::{Mem, copy_iov, slice_iov, total_len};
pub use counter::{Count, Flag};
pub use doorbell::{Bell, BellHandle, publish_fence, sleeper_fence};
pub use error::{Corrupt, LayoutError, PushError};
pub use gate::{Gate, GateGuard};
pub use keytable::{KeyEntry, KeyReader, KeyTable, Mark};
pub use layout::{
    ANSWER_BYTES, BELL_BITS, BELL_BYTES, BODY_MAX, CLAIM_BLOCKS, CLAIM_BYTES, DATA, DIRECTION_BYTES,
    HEAD_MAX, KEY_SLOTS, KEYTABLE_BYTES, MARK_BYTES, PART, SLOTS,
};
pub use limiter::Limiter;
pub use short::SHORT;
pub use spsc::{Consumer, Producer, Record};
pub use stream::{STREAM_BYTES, STREAM_ROOM, StreamRx, StreamTx};
pub use waiting::{Settle, Tell, Waiting};
pub use word::{Word32, Word64, Words, full_fence};
