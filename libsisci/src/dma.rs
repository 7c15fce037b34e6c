// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! DMA queues: transfers that a thread of the library executes while the caller computes.

use std::sync::{Arc, Condvar, Mutex, Weak};

use scif_ring::Mem;
use scif_ring::counter::AtomicFlag;

use crate::callback::Callback;
use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::flags;
use crate::local_segment::LocalSegment;
use crate::lock::{take, wait};
use crate::memory::Memory;
use crate::remote_segment::{Phase, RemoteSegment};
use crate::transfers::Transferor;
use crate::wire::Deadline;

/// Maximum number of parts of one transfer (`DIS_DMA_MAX_VECLEN`).
pub(crate) const VECTOR_MAX: u32 = 256;
/// Number of bytes copied between two looks at an abort. An abort waits for so many.
const PIECE: usize = 1 << 20;
/// Maximum length in bytes of a transfer that the starting call executes itself. It takes less time
/// than the wake-up of a thread.
const DIRECT_MAX: usize = 4096;

/// `sci_dma_queue_state_t`
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum QueuePhase {
    Idle = 0,
    Gather = 1,
    Posted = 2,
    Done = 3,
    Aborted = 4,
    Error = 5,
}

/// Part of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub(crate) size: usize,
    pub(crate) local: usize,
    pub(crate) remote: usize,
}

/// Local side of a transfer.
pub(crate) enum Near {
    /// Segment, prepared for the adapter of the queue.
    Segment(Arc<LocalSegment>),
    /// Memory of the program, which it keeps until the end of the transfer.
    User(Mem),
}

/// Copy between both sides, with the memory that it holds.
struct Copy {
    from: Mem,
    to: Mem,
    near: Option<(Arc<LocalSegment>, Arc<Memory>)>,
    far: (Arc<RemoteSegment>, Arc<Memory>),
}

impl Copy {
    /// Ends the use of both sides.
    fn end(&self) {
        if let Some((segment, _)) = &self.near {
            segment.put();
        }
        self.far.0.put();
    }

    fn is_alive(&self) -> bool {
        !matches!(self.far.0.phase(), Phase::Lost | Phase::Refused)
    }
}

/// Transfer that was started.
struct Transfer {
    copies: Vec<Copy>,
    callback: Option<Arc<Callback<SciError>>>,
}

struct QueueState {
    phase: QueuePhase,
    gathered: Vec<Copy>,
    /// Transfer that no thread executes yet.
    started: Option<Transfer>,
    /// Callbacks of transfers, until they are called.
    callbacks: Vec<Weak<Callback<SciError>>>,
    removed: bool,
}

impl Transfer {
    fn len(&self) -> usize {
        self.copies.iter().fold(0, |len, copy| len.saturating_add(copy.to.len()))
    }
}

impl QueueState {
    /// Ends the transfers that were added.
    fn reset(&mut self) -> Outcome<()> {
        if self.phase == QueuePhase::Posted {
            return fail(SciError::IllegalOperation);
        }
        self.gathered.drain(..).for_each(|copy| copy.end());
        self.phase = QueuePhase::Idle;
        Ok(())
    }
}

/// DMA queue of the program.
pub(crate) struct DmaQueue {
    desc: Arc<Desc>,
    adapter: u32,
    max_entries: usize,
    state: Mutex<QueueState>,
    changed: Condvar,
    aborted: AtomicFlag,
}

/// Callback of a transfer, with its result.
pub(crate) type TransferCallback = Option<Callback<SciError>>;

impl DmaQueue {
    /// Makes a queue (`SCICreateDMAQueue`).
    ///
    /// # Errors
    /// `IllegalParameter` for no entries; those of the adapter number; errors of the system.
    pub(crate) fn new(desc: &Arc<Desc>, adapter: u32, max_entries: u32) -> Outcome<Arc<DmaQueue>> {
        desc.context.check_adapter(adapter)?;
        if max_entries == 0 {
            return fail(SciError::IllegalParameter);
        }
        desc.context.transfers()?;
        desc.hold();
        Ok(Arc::new(DmaQueue {
            desc: Arc::clone(desc),
            adapter,
            max_entries: max_entries as usize,
            state: Mutex::new(QueueState {
                phase: QueuePhase::Idle,
                gathered: Vec::new(),
                started: None,
                callbacks: Vec::new(),
                removed: false,
            }),
            changed: Condvar::new(),
            aborted: AtomicFlag::new(false),
        }))
    }

    /// Returns its state.
    pub(crate) fn phase(&self) -> QueuePhase {
        take(&self.state).phase
    }

    /// Returns its state to a program that may poll it (`SCIDMAQueueState`). A thread that has not
    /// begun may need the processor of the caller.
    pub(crate) fn poll(&self) -> QueuePhase {
        let waits = take(&self.state).started.is_some();
        if waits {
            std::thread::yield_now();
        }
        self.phase()
    }

    /// Removes it (`SCIRemoveDMAQueue`). No callback is called afterwards.
    ///
    /// # Errors
    /// `IllegalOperation` during a transfer; `IllegalParameter` if it was removed.
    pub(crate) fn remove(&self) -> Outcome<()> {
        {
            let mut state = take(&self.state);
            if state.removed {
                return fail(SciError::IllegalParameter);
            }
            state.reset()?;
            state.removed = true;
        }
        // Without the lock: a callback may call functions of its queue.
        let callbacks = std::mem::take(&mut take(&self.state).callbacks);
        callbacks.iter().filter_map(Weak::upgrade).for_each(|callback| callback.close());
        self.desc.release();
        Ok(())
    }

    /// Checks one part and holds its memory.
    fn prepare(
        &self,
        near: &Near,
        far: &Arc<RemoteSegment>,
        part: Move,
        read: bool,
    ) -> Outcome<Copy> {
        if part.size == 0 {
            return fail(SciError::SizeAlignment);
        }
        let memory = far.get()?;
        let result = (|| {
            let remote = memory.bytes(part.remote, part.size)?;
            let (local, near) = match near {
                Near::User(memory) => {
                    (memory.sub(part.local, part.size).ok_or(SciError::OutOfRange)?, None)
                }
                Near::Segment(segment) => {
                    if !segment.is_prepared(self.adapter) {
                        return fail(SciError::SegmentNotPrepared);
                    }
                    let memory = segment.get()?;
                    let local =
                        memory.bytes(part.local, part.size).inspect_err(|_| segment.put())?;
                    (local, Some((Arc::clone(segment), memory)))
                }
            };
            Ok((local, remote, near))
        })();
        let (local, remote, near) = result.inspect_err(|_| far.put())?;
        let (from, to) = if read { (remote, local) } else { (local, remote) };
        Ok(Copy { from, to, near, far: (Arc::clone(far), memory) })
    }

    /// Starts a transfer (`SCIStartDmaTransfer` and its relatives).
    ///
    /// # Errors
    /// `OutOfRange`, `MaxEntries`, `SizeAlignment`, `SegmentNotPrepared`, `SegmentNotConnected`;
    /// `IllegalOperation` during another transfer; with `SCI_FLAG_DMA_WAIT` its own failure.
    pub(crate) fn start(
        self: &Arc<DmaQueue>,
        (near, far): (&Near, &Arc<RemoteSegment>),
        parts: &[Move],
        callback: TransferCallback,
        flags: u32,
    ) -> Outcome<()> {
        if parts.len() > VECTOR_MAX as usize || parts.len() > self.max_entries {
            return fail(SciError::MaxEntries);
        }
        {
            let mut state = take(&self.state);
            if state.removed || matches!(state.phase, QueuePhase::Posted | QueuePhase::Gather) {
                return fail(SciError::IllegalOperation);
            }
            let read = flags & flags::DMA_READ != 0;
            let mut copies = Vec::with_capacity(parts.len());
            for part in parts {
                match self.prepare(near, far, *part, read) {
                    Ok(copy) => copies.push(copy),
                    Err(failure) => {
                        copies.iter().for_each(Copy::end);
                        return Err(failure);
                    }
                }
            }
            state.gathered = copies;
            state.phase = QueuePhase::Gather;
        }
        self.launch(callback, flags & flags::DMA_WAIT != 0)
    }

    /// Adds a transfer to those of the next post (`SCIEnqueueDMATransfer`).
    ///
    /// # Errors
    /// Errors of [`DmaQueue::start`].
    pub(crate) fn enqueue(
        &self,
        near: &Near,
        far: &Arc<RemoteSegment>,
        part: Move,
        read: bool,
    ) -> Outcome<QueuePhase> {
        let mut state = take(&self.state);
        if state.removed || !matches!(state.phase, QueuePhase::Idle | QueuePhase::Gather) {
            return fail(SciError::IllegalOperation);
        }
        if state.gathered.len() >= self.max_entries {
            return fail(SciError::MaxEntries);
        }
        let copy = self.prepare(near, far, part, read)?;
        state.gathered.push(copy);
        state.phase = QueuePhase::Gather;
        Ok(QueuePhase::Gather)
    }

    /// Starts the transfers that were added (`SCIPostDMAQueue`).
    ///
    /// # Errors
    /// `IllegalOperation` without any.
    pub(crate) fn post(self: &Arc<DmaQueue>, callback: TransferCallback) -> Outcome<()> {
        if self.phase() != QueuePhase::Gather {
            return fail(SciError::IllegalOperation);
        }
        self.launch(callback, false)
    }

    /// Makes it idle again (`SCIResetDMAQueue`).
    ///
    /// # Errors
    /// `IllegalOperation` during a transfer.
    pub(crate) fn reset(&self) -> Outcome<()> {
        take(&self.state).reset()
    }

    fn launch(self: &Arc<DmaQueue>, callback: TransferCallback, waits: bool) -> Outcome<()> {
        let callback = callback.map(Arc::new);
        let thread = self.desc.context.transfers()?;
        let transfer = {
            let mut state = take(&self.state);
            if state.phase == QueuePhase::Posted {
                return fail(SciError::IllegalOperation);
            }
            self.aborted.set(false);
            state.phase = QueuePhase::Posted;
            state.callbacks.retain(|callback| callback.strong_count() > 0);
            state.callbacks.extend(callback.as_ref().map(Arc::downgrade));
            let transfer = Transfer { copies: std::mem::take(&mut state.gathered), callback };
            if !waits && transfer.len() > DIRECT_MAX {
                state.started = Some(transfer);
                None
            } else {
                Some(transfer)
            }
        };
        let Some(transfer) = transfer else {
            thread.post(Arc::clone(self) as Arc<dyn Transferor>);
            return Ok(());
        };
        match self.run(&transfer) {
            code if waits && code != SciError::Ok => fail(code),
            _ => Ok(()),
        }
    }

    /// Takes the transfer that no thread executes yet.
    fn begin(&self) -> Option<Transfer> {
        take(&self.state).started.take()
    }

    /// Executes a transfer; returns the result.
    fn run(&self, transfer: &Transfer) -> SciError {
        let mut result = SciError::Ok;
        for copy in &transfer.copies {
            if result == SciError::Ok {
                result = self.execute(copy);
            }
            copy.end();
        }
        take(&self.state).phase = match result {
            SciError::Ok => QueuePhase::Done,
            SciError::Cancelled => QueuePhase::Aborted,
            _ => QueuePhase::Error,
        };
        self.changed.notify_all();
        if let Some(callback) = &transfer.callback {
            let callback = Arc::clone(callback);
            self.desc.context.callbacks.post(Box::new(move || callback.call(&result)));
        }
        result
    }

    fn execute(&self, copy: &Copy) -> SciError {
        if self.desc.context.faults.take_retriable() {
            return SciError::TransferFailed;
        }
        let mut done = 0;
        while done < copy.to.len() {
            if self.aborted.get() {
                return SciError::Cancelled;
            }
            if !copy.is_alive() {
                return SciError::TransferFailed;
            }
            let len = PIECE.min(copy.to.len() - done);
            if let (Some(to), Some(from)) = (copy.to.sub(done, len), copy.from.sub(done, len)) {
                to.copy_from(&from);
            }
            done += len;
        }
        SciError::Ok
    }

    /// Waits for the end of a transfer (`SCIWaitForDMAQueue`). A wait without limit executes one
    /// that no thread has begun.
    ///
    /// # Errors
    /// `IllegalOperation` if none was started; `Timeout`.
    pub(crate) fn wait(&self, deadline: Deadline) -> Outcome<QueuePhase> {
        if deadline.is_none() {
            self.transfer();
        }
        let mut state = take(&self.state);
        loop {
            match state.phase {
                QueuePhase::Posted => {}
                QueuePhase::Idle | QueuePhase::Gather => return fail(SciError::IllegalOperation),
                ended => return Ok(ended),
            }
            let late;
            (state, late) = wait(&self.changed, state, deadline);
            if late && state.phase == QueuePhase::Posted {
                return fail(SciError::Timeout);
            }
        }
    }

    /// Aborts a transfer, and waits until it has stopped (`SCIAbortDMAQueue`).
    ///
    /// # Errors
    /// `IllegalOperation` without one.
    pub(crate) fn abort(&self) -> Outcome<()> {
        if self.phase() != QueuePhase::Posted {
            return fail(SciError::IllegalOperation);
        }
        self.aborted.set(true);
        self.wait(None).map(drop)
    }
}

impl Transferor for DmaQueue {
    fn transfer(&self) {
        if let Some(transfer) = self.begin() {
            self.run(&transfer);
        }
    }
}
