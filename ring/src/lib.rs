// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Lock-free structures over shared memory: all atomics of the project, and all copies in and out
//! of memory that Rust does not own.
//!
//! Not about: system calls, file descriptors, the identity of the peer. No dependency, no FFI; the
//! caller supplies memory as a pointer. The peer is hostile: a control word is loaded once,
//! checked, then used, and positions are computed locally, never read. `docs/shm-layout.md` lists
//! every byte, `docs/memory-model.md` every ordering and its partner.

pub mod adaptive;
mod chunks;
pub mod claim;
pub mod copy;
pub mod counter;
pub mod domain_lock;
pub mod doorbell;
mod error;
mod inline_copy;
pub mod keytable;
pub mod layout;
pub mod limiter;
#[cfg(loom)]
pub mod model;
mod nt_policy;
mod poll_delay;
mod reply_line;
pub mod rmw;
pub mod shared_word;
mod snapshot;
pub mod spsc;
pub mod stream;
mod sync;
mod wake_word;

pub use chunks::{chunks, chunks_mut};
pub use claim::{Claim, ClaimShare, Offer};
pub use copy::{Mem, copy_iov, slice_iov, total_len};
pub use counter::{AtomicCounter, AtomicFlag};
pub use domain_lock::{ElidableLock, ElidableLockGuard};
pub use doorbell::{Bell, BellHandle, publish_fence, sleeper_fence};
pub use error::{Corrupt, LayoutError, PushError};
pub use inline_copy::INLINE_MAX;
pub use keytable::{HazardPointer, KeyEntry, KeyReader, KeyTable};
pub use layout::{
    BELL_BITS, BELL_BYTES, BODY_MAX, CLAIM_BLOCKS, CLAIM_BYTES, CLAIM_PART_MAX, CREDITS_BYTES,
    DIRECTION_BYTES, HAZARD_BYTES, HEAD_MAX, KEY_SLOTS, KEYTABLE_BYTES, REPLY_LINE_BYTES,
    RING_DATA_BYTES, RING_SLOTS, SHORT_BODY_MAX,
};
pub use limiter::Limiter;
pub use shared_word::{
    KEPT, RecordCursor, Run, SHORT_BIT, SharedU32, SharedU64, SharedWords, full_fence, store_fence,
};
pub use snapshot::{SnapshotCell, SnapshotWriter, snapshot_words};
pub use spsc::{Consumer, Forwarder, Producer, Record};
pub use stream::{STREAM_BYTES, STREAM_PART, STREAM_ROOM, StreamRx, StreamTx};
pub use wake_word::{FdAction, WakeWords, Wakeups};
