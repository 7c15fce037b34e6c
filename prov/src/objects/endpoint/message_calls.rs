// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! C entry points and operation tables of messages, for the modules `msg` and `tagged`, which
//! differ in the tag.

/// Defines the entry points of a kind of messages, and the functions that post a `$msg`.
///
/// `rx tag` has the arguments of plain receives that select a message, the `tag` of
/// [`RecvArgs`](crate::engine::types::args::RecvArgs), and the same for a `$msg`. `tx tag` has the
/// same for sends. Plain receives drop the flags `$unfit`, and `recvmsg` refuses them.
macro_rules! message_calls {
    (
        $prefix:literal, $msg:ty, unfit: $unfit:expr,
        rx tag: ($($rx_arg:ident),*) $rx_tag:expr, |$rx_msg:ident| $rx_msg_tag:expr,
        tx tag: ($($tx_arg:ident),*) $tx_tag:expr, |$tx_msg:ident| $tx_msg_tag:expr $(,)?
    ) => {
        /// `fi_recv` or `fi_trecv`
        unsafe extern "C" fn recv<R: Receiver + Object>(
            ep: *mut fid_ep,
            buf: *mut c_void,
            len: usize,
            _desc: *mut c_void,
            src: fi_addr_t,
            $($rx_arg: u64,)*
            context: *mut c_void,
        ) -> isize {
            guard(concat!("fi_", $prefix, "recv"), || {
                // SAFETY: C passes an open endpoint or context.
                let ep = unsafe { object::<R, _>(ep) }?;
                // SAFETY: the buffer belongs to the operation until it completes.
                let buf = unsafe { buffer(buf, len) }?;
                let flags = ep.rx_flags() & !$unfit;
                ep.recv(&RecvArgs {
                    iov: &[buf],
                    src,
                    tag: $rx_tag,
                    context: context.expose_provenance(),
                    flags,
                })
            })
        }

        /// `fi_recvv` or `fi_trecvv`
        unsafe extern "C" fn recvv<R: Receiver + Object>(
            ep: *mut fid_ep,
            iov: *const iovec,
            _desc: *mut *mut c_void,
            count: usize,
            src: fi_addr_t,
            $($rx_arg: u64,)*
            context: *mut c_void,
        ) -> isize {
            guard(concat!("fi_", $prefix, "recvv"), || {
                // SAFETY: C passes an open endpoint or context.
                let ep = unsafe { object::<R, _>(ep) }?;
                // SAFETY: the buffers belong to the operation until it completes.
                let iov = unsafe { Buffers::from_iovec(iov, count) }?;
                let flags = ep.rx_flags() & !$unfit;
                ep.recv_out_of_line(&RecvArgs {
                    iov: iov.as_slice(),
                    src,
                    tag: $rx_tag,
                    context: context.expose_provenance(),
                    flags,
                })
            })
        }

        /// `fi_recvmsg` or `fi_trecvmsg`
        ///
        /// With `FI_PEEK` or `FI_DISCARD` the buffers are ignored.
        ///
        /// # Errors
        /// `-FI_EBADFLAGS` for unknown or contradicting flags, `-FI_EINVAL` for `FI_CLAIM` without
        /// a context.
        unsafe extern "C" fn recvmsg<R: Receiver + Object>(
            ep: *mut fid_ep,
            msg: *const $msg,
            flags: u64,
        ) -> isize {
            guard(concat!("fi_", $prefix, "recvmsg"), || {
                // SAFETY: C passes an open endpoint or context.
                let ep = unsafe { object::<R, _>(ep) }?;
                // SAFETY: null or a message of the caller.
                let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: the buffers belong to the operation until it completes.
                unsafe { receive(ep, msg, flags) }
            })
        }

        /// Posts the receive that `msg` describes.
        ///
        /// # Safety
        /// The list of `msg` has the length given in it, and its buffers belong to the operation
        /// until it completes.
        #[inline(always)]
        pub(crate) unsafe fn receive<R: Receiver>(
            ep: &R,
            $rx_msg: &$msg,
            flags: u64,
        ) -> Result<isize, Errno> {
            let flags = ep.rx_msg_flags(flags)?;
            if flags & $unfit != 0 {
                return Err(fi::FI_EBADFLAGS);
            }
            let iov = if flags & (fi::FI_PEEK | fi::FI_DISCARD) == 0 {
                // SAFETY: the buffers belong to the operation until it completes.
                unsafe { Buffers::from_iovec($rx_msg.msg_iov, $rx_msg.iov_count) }?
            } else {
                Buffers::none()
            };
            ep.recv_out_of_line(&RecvArgs {
                iov: iov.as_slice(),
                src: $rx_msg.addr,
                tag: $rx_msg_tag,
                context: $rx_msg.context.expose_provenance(),
                flags,
            })
        }

        /// `fi_send` or `fi_tsend`
        unsafe extern "C" fn send<S: Sender + Object>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            _desc: *mut c_void,
            dest: fi_addr_t,
            $($tx_arg: u64,)*
            context: *mut c_void,
        ) -> isize {
            guard(concat!("fi_", $prefix, "send"), || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: the buffer belongs to the operation until it completes.
                let buf = unsafe { buffer(buf, len) }?;
                let flags = ep.tx_flags();
                ep.send(&SendArgs {
                    iov: &[buf],
                    tag: $tx_tag,
                    data: None,
                    dest,
                    context: context.expose_provenance(),
                    flags,
                })
            })
        }

        /// `fi_sendv` or `fi_tsendv`
        unsafe extern "C" fn sendv<S: Sender + Object>(
            ep: *mut fid_ep,
            iov: *const iovec,
            _desc: *mut *mut c_void,
            count: usize,
            dest: fi_addr_t,
            $($tx_arg: u64,)*
            context: *mut c_void,
        ) -> isize {
            guard(concat!("fi_", $prefix, "sendv"), || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: the buffers belong to the operation until it completes.
                let iov = unsafe { Buffers::from_iovec(iov, count) }?;
                let flags = ep.tx_flags();
                ep.send_out_of_line(&SendArgs {
                    iov: iov.as_slice(),
                    tag: $tx_tag,
                    data: None,
                    dest,
                    context: context.expose_provenance(),
                    flags,
                })
            })
        }

        /// `fi_sendmsg` or `fi_tsendmsg`
        ///
        /// # Errors
        /// `-FI_EBADFLAGS` for unknown flags.
        unsafe extern "C" fn sendmsg<S: Sender + Object>(
            ep: *mut fid_ep,
            msg: *const $msg,
            flags: u64,
        ) -> isize {
            guard(concat!("fi_", $prefix, "sendmsg"), || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: null or a message of the caller.
                let msg = unsafe { msg.as_ref() }.ok_or(fi::FI_EINVAL)?;
                // SAFETY: the buffers belong to the operation until it completes.
                unsafe { transmit(ep, msg, flags) }
            })
        }

        /// Posts the message that `msg` describes.
        ///
        /// # Safety
        /// The list of `msg` has the length given in it, and its buffers belong to the operation
        /// until it completes.
        #[inline(always)]
        pub(crate) unsafe fn transmit<S: Sender>(
            ep: &S,
            $tx_msg: &$msg,
            flags: u64,
        ) -> Result<isize, Errno> {
            let flags = ep.tx_msg_flags(flags)?;
            // SAFETY: the buffers belong to the operation until it completes.
            let iov = unsafe { Buffers::from_iovec($tx_msg.msg_iov, $tx_msg.iov_count) }?;
            ep.send_out_of_line(&SendArgs {
                iov: iov.as_slice(),
                tag: $tx_msg_tag,
                data: (flags & fi::FI_REMOTE_CQ_DATA != 0).then_some($tx_msg.data),
                dest: $tx_msg.addr,
                context: $tx_msg.context.expose_provenance(),
                flags,
            })
        }

        /// `fi_inject` or `fi_tinject`
        ///
        /// # Errors
        /// `-FI_EINVAL` for more than the inject size.
        unsafe extern "C" fn inject<S: Sender + Object>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            dest: fi_addr_t,
            $($tx_arg: u64,)*
        ) -> isize {
            guard(concat!("fi_", $prefix, "inject"), || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: the buffer is read before this call returns.
                let buf = unsafe { buffer(buf, len) }?;
                let (tag, flags) = ($tx_tag, ep.inject_flags());
                ep.send(&SendArgs { iov: &[buf], tag, data: None, dest, context: 0, flags })
            })
        }

        /// `fi_senddata` or `fi_tsenddata`
        unsafe extern "C" fn senddata<S: Sender + Object>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            _desc: *mut c_void,
            data: u64,
            dest: fi_addr_t,
            $($tx_arg: u64,)*
            context: *mut c_void,
        ) -> isize {
            guard(concat!("fi_", $prefix, "senddata"), || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: the buffer belongs to the operation until it completes.
                let buf = unsafe { buffer(buf, len) }?;
                let flags = ep.tx_flags();
                ep.send(&SendArgs {
                    iov: &[buf],
                    tag: $tx_tag,
                    data: Some(data),
                    dest,
                    context: context.expose_provenance(),
                    flags,
                })
            })
        }

        /// `fi_injectdata` or `fi_tinjectdata`
        ///
        /// # Errors
        /// `-FI_EINVAL` for more than the inject size.
        unsafe extern "C" fn injectdata<S: Sender + Object>(
            ep: *mut fid_ep,
            buf: *const c_void,
            len: usize,
            data: u64,
            dest: fi_addr_t,
            $($tx_arg: u64,)*
        ) -> isize {
            guard(concat!("fi_", $prefix, "injectdata"), || {
                // SAFETY: C passes an open endpoint.
                let ep = unsafe { object::<S, _>(ep) }?;
                // SAFETY: the buffer is read before this call returns.
                let buf = unsafe { buffer(buf, len) }?;
                let (tag, flags) = ($tx_tag, ep.inject_flags());
                ep.send(&SendArgs { iov: &[buf], tag, data: Some(data), dest, context: 0, flags })
            })
        }
    };
}
pub(crate) use message_calls;

/// Defines the tables of message operations of each kind of object: `message_tables!(TYPE, NOSYS)`.
/// The operations are functions of the module, generic over the object.
macro_rules! message_tables {
    ($table:ty, $nosys:path) => {
        pub(crate) static OPS: $table = ops::<Ep>();
        /// Operations of an endpoint with message prefixes.
        pub(crate) static PREFIX_OPS: $table = ops::<Prefixed>();
        /// Operations of an endpoint with triggered operations.
        pub(crate) static TRIGGER_OPS: $table = ops::<Triggered>();
        /// Operations of a shared receive context.
        pub(crate) static SRX_OPS: $table = rx_ops::<Srx>();
        /// Operations of a transmit context.
        pub(crate) static TX_CTX_OPS: $table = tx_ops::<TxCtx>();
        /// Operations of a receive context.
        pub(crate) static RX_CTX_OPS: $table = rx_ops::<RxCtx>();

        const fn ops<E: Receiver + Sender + Object>() -> $table {
            let mut table = tx_ops::<E>();
            (table.recv, table.recvv, table.recvmsg) = (recv::<E>, recvv::<E>, recvmsg::<E>);
            table
        }

        const fn tx_ops<S: Sender + Object>() -> $table {
            let mut table = $nosys;
            (table.send, table.sendv, table.sendmsg) = (send::<S>, sendv::<S>, sendmsg::<S>);
            (table.inject, table.senddata) = (inject::<S>, senddata::<S>);
            table.injectdata = injectdata::<S>;
            table
        }

        const fn rx_ops<R: Receiver + Object>() -> $table {
            let mut table = $nosys;
            (table.recv, table.recvv, table.recvmsg) = (recv::<R>, recvv::<R>, recvmsg::<R>);
            table
        }
    };
}
pub(crate) use message_tables;
