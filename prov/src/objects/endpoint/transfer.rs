// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "names the buffers that C passes")]
//! Path of a data transfer call from its C entry point to the data path: its flags and its buffers.
//!
//! Plain calls use the flags of the endpoint or alias, the `*msg` calls only their own. Without
//! `FI_SELECTIVE_COMPLETION` every operation completes; with it, only operations whose flags have
//! `FI_COMPLETION`. Inject calls never complete.
//!
//! Mirrors fi_endpoint(3), "OPERATION FLAGS".

use libfabric_sys as fi;
use scif_ring::{Mem, total_len};

use super::ep::{Ep, Handle};
use super::flags::{CLASSES, LEVELS, RX_MSG_FLAGS, TX_MSG_FLAGS, bad_flags};
use crate::base::attr::RMA_IOV_LIMIT;
use crate::base::buffers::ShortList;
use crate::base::entry;
use crate::base::errno::Errno;
use crate::base::reason::because;
use crate::domain::calls;
use crate::engine::types::args::{AtomicArgs, RecvArgs, RmaArgs, RmaIov, SendArgs};

/// Remote ranges of one call.
pub(crate) type Ranges = ShortList<RmaIov, RMA_IOV_LIMIT>;

impl Ranges {
    /// Converts the remote ranges of an RMA call.
    ///
    /// # Errors
    /// `FI_EINVAL` for a list that is too long or missing.
    ///
    /// # Safety
    /// `rma` is null or points to `count` elements.
    #[inline(never)]
    pub(crate) unsafe fn from_rma_iov(
        rma: *const fi::fi_rma_iov,
        count: usize,
    ) -> Result<Ranges, Errno> {
        // SAFETY: null or `count` elements, by the caller's contract.
        let rma = unsafe { entry::slice(rma, count) }?;
        ShortList::of(rma, RmaIov::default(), |v| {
            Ok(RmaIov { addr: v.addr, len: v.len, key: v.key })
        })
    }

    /// Converts the remote ranges of an atomic call on elements of `size` bytes.
    ///
    /// # Safety
    /// `rma` is null or points to `count` elements.
    #[inline(never)]
    pub(crate) unsafe fn from_rma_ioc(
        rma: *const fi::fi_rma_ioc,
        count: usize,
        size: usize,
    ) -> Result<Ranges, Errno> {
        // SAFETY: null or `count` elements, by the caller's contract.
        let rma = unsafe { entry::slice(rma, count) }?;
        ShortList::of(rma, RmaIov::default(), |v| {
            let len = v.count.checked_mul(size).ok_or(fi::FI_EINVAL)?;
            Ok(RmaIov { addr: v.addr, len, key: v.key })
        })
    }

    /// Returns the number of bytes in all ranges; `FI_EINVAL` when the sum overflows.
    pub(crate) fn total(&self) -> Result<usize, Errno> {
        let sum = |total: usize, range: &RmaIov| total.checked_add(range.len);
        self.as_slice().iter().try_fold(0, sum).ok_or(fi::FI_EINVAL)
    }
}

/// Object from which messages are sent: an endpoint, with or without message prefixes.
pub(crate) trait Sender: Handle {
    /// Returns the flags of plain transmit calls.
    #[inline]
    fn tx_flags(&self) -> u64 {
        self.ep().tx_flags()
    }

    /// Returns the flags of inject calls.
    #[inline]
    fn inject_flags(&self) -> u64 {
        self.ep().inject_flags()
    }

    /// Returns the flags of a transmit call with `flags`.
    ///
    /// # Errors
    /// `FI_EBADFLAGS` for flags that do not apply to such a call.
    #[inline]
    fn tx_msg_flags(&self, flags: u64) -> Result<u64, Errno> {
        self.ep().tx_msg_flags(flags)
    }

    /// Returns the flags of plain read calls, without `FI_INJECT`: a buffer cannot be released
    /// before its data arrives.
    #[inline]
    fn read_flags(&self) -> u64 {
        self.tx_flags() & !fi::FI_INJECT
    }

    /// Posts a message.
    ///
    /// # Errors
    /// `FI_EINVAL` when it is injected and too large, and errors of the data path.
    fn send(&self, args: &SendArgs<'_>) -> Result<isize, Errno>;

    /// Out-of-line variant of [`Sender::send`], for calls with lists. Without it, the fast path
    /// would be inlined into each of them.
    ///
    /// # Errors
    /// As for [`Sender::send`].
    #[inline(never)]
    fn send_out_of_line(&self, args: &SendArgs<'_>) -> Result<isize, Errno> {
        self.send(args)
    }

    /// Posts an RMA operation.
    ///
    /// # Errors
    /// `FI_EINVAL` when it is injected and too large, or the local and remote lengths differ, and
    /// errors of the data path.
    fn rma(&self, args: &RmaArgs<'_>) -> Result<isize, Errno> {
        self.ep().rma_out_of_line(args)
    }

    /// Out-of-line variant of [`Sender::rma`], for calls with lists, transmit contexts, and
    /// endpoints with triggers or prefixes. Without it, the fast path would be inlined into each
    /// of their calls.
    ///
    /// # Errors
    /// As for [`Sender::rma`].
    #[inline(never)]
    fn rma_out_of_line(&self, args: &RmaArgs<'_>) -> Result<isize, Errno> {
        self.rma(args)
    }

    /// Posts an atomic operation that [`crate::objects::atomic`] has validated.
    ///
    /// # Errors
    /// `FI_EINVAL` when it is injected and too large, and errors of the data path.
    #[inline]
    fn atomic(&self, args: &AtomicArgs<'_>) -> Result<isize, Errno> {
        self.ep().atomic(args)
    }
}

impl Sender for Ep {
    #[inline(always)]
    fn send(&self, args: &SendArgs<'_>) -> Result<isize, Errno> {
        entry::check_not_forked(self.core.creator)?;
        self.check_inject(args.flags, args.iov)?;
        calls::send(&mut self.core.dom.gate.lock(), self.core.idx(), args)?;
        Ok(0)
    }

    #[inline(always)]
    fn rma(&self, args: &RmaArgs<'_>) -> Result<isize, Errno> {
        entry::check_not_forked(self.core.creator)?;
        self.check_inject(args.flags, args.iov)?;
        calls::rma(&mut self.core.dom.gate.lock(), self.core.idx(), args)?;
        Ok(0)
    }
}

/// Object to which receives are posted: an endpoint, or a context that endpoints share.
pub(crate) trait Receiver {
    /// Returns the flags of plain receive calls.
    fn rx_flags(&self) -> u64;

    /// Returns the flags of every receive.
    fn rx_always(&self) -> u64;

    /// Returns the flags of a receive call with `flags`.
    ///
    /// # Errors
    /// `FI_EBADFLAGS` for flags that do not apply to such a call or contradict each other.
    #[inline]
    fn rx_msg_flags(&self, flags: u64) -> Result<u64, Errno> {
        let probe = flags & (fi::FI_PEEK | fi::FI_CLAIM) != 0;
        let alone = flags & fi::FI_DISCARD != 0 && !probe;
        let both = flags & fi::FI_MULTI_RECV != 0 && probe;
        if flags & !(RX_MSG_FLAGS | CLASSES) != 0 || alone || both {
            return Err(bad_flags(flags, RX_MSG_FLAGS));
        }
        Ok((flags & RX_MSG_FLAGS) | self.rx_always())
    }

    /// Posts a receive, or a request to peek at, claim or discard a message.
    ///
    /// # Errors
    /// `FI_EINVAL` for a claim without a context or a multi-receive buffer in several parts, and
    /// errors of the data path.
    fn recv(&self, args: &RecvArgs<'_>) -> Result<isize, Errno>;

    /// Out-of-line variant of [`Receiver::recv`], for calls with lists.
    ///
    /// # Errors
    /// As for [`Receiver::recv`].
    #[inline(never)]
    fn recv_out_of_line(&self, args: &RecvArgs<'_>) -> Result<isize, Errno> {
        self.recv(args)
    }
}

/// Refuses a claim without a context, and a multi-receive buffer in several parts.
#[inline(always)]
pub(crate) fn check_recv(args: &RecvArgs<'_>) -> Result<(), Errno> {
    let nameless = args.flags & fi::FI_CLAIM != 0 && args.context == 0;
    let scattered = args.flags & fi::FI_MULTI_RECV != 0 && args.iov.len() != 1;
    if nameless || scattered {
        return Err(unfit_recv(nameless));
    }
    Ok(())
}

#[cold]
fn unfit_recv(nameless: bool) -> Errno {
    let why = if nameless {
        "a claimed message is named by its context, which is null"
    } else {
        "a buffer for many messages is one buffer, not a list"
    };
    because(fi::FI_EINVAL, format_args!("{why}"))
}

impl Receiver for Ep {
    #[inline]
    fn rx_flags(&self) -> u64 {
        self.rx_op_flags.get_relaxed() | self.core.rx_always.get_relaxed()
    }

    #[inline]
    fn rx_always(&self) -> u64 {
        self.core.rx_always.get_relaxed()
    }

    #[inline(always)]
    fn recv(&self, args: &RecvArgs<'_>) -> Result<isize, Errno> {
        entry::check_not_forked(self.core.creator)?;
        check_recv(args)?;
        calls::recv(&mut self.core.dom.gate.lock(), self.core.idx(), args)?;
        Ok(0)
    }
}

impl Ep {
    #[cold]
    fn too_long_to_inject(&self, len: usize) -> Errno {
        let most = self.core.inject_size;
        because(
            fi::FI_EINVAL,
            format_args!(
                "{len} bytes cannot be injected, at most {most} can (inject_size of fi_tx_attr)"
            ),
        )
    }

    /// Returns the flags of plain transmit calls.
    #[inline]
    pub(crate) fn tx_flags(&self) -> u64 {
        self.tx_op_flags.get_relaxed() | self.core.tx_always.get_relaxed()
    }

    /// Returns the flags of inject calls.
    #[inline]
    pub(crate) fn inject_flags(&self) -> u64 {
        (self.tx_op_flags.get_relaxed() & !(LEVELS | fi::FI_COMPLETION)) | fi::FI_INJECT
    }

    /// Returns the flags of a transmit call with `flags`.
    ///
    /// # Errors
    /// `FI_EBADFLAGS` for flags that do not apply to such a call.
    #[inline]
    pub(crate) fn tx_msg_flags(&self, flags: u64) -> Result<u64, Errno> {
        if flags & !(TX_MSG_FLAGS | CLASSES) != 0 {
            return Err(bad_flags(flags, TX_MSG_FLAGS));
        }
        Ok((flags & TX_MSG_FLAGS) | self.core.tx_always.get_relaxed())
    }

    /// Refuses an injected operation above the negotiated size.
    #[inline]
    pub(super) fn check_inject(&self, flags: u64, iov: &[Mem]) -> Result<(), Errno> {
        if flags & fi::FI_INJECT != 0 && total_len(iov) > self.core.inject_size {
            return Err(self.too_long_to_inject(total_len(iov)));
        }
        Ok(())
    }

    /// Posts an atomic operation that [`crate::objects::atomic`] has validated.
    ///
    /// # Errors
    /// `FI_EINVAL` when it is injected and too large, and errors of the data path.
    #[inline]
    pub(crate) fn atomic(&self, args: &AtomicArgs<'_>) -> Result<isize, Errno> {
        entry::check_not_forked(self.core.creator)?;
        self.check_inject(args.flags, args.operand)?;
        calls::atomic(&mut self.core.dom.gate.lock(), self.core.idx(), args)?;
        Ok(0)
    }
}
