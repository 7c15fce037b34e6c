// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Every call to send and to receive one message, tagged or not. Each is behind one function, so
//! that a case can test all of them. Also the sizes at which providers change their protocols.

use scif_fabtests::fi::Result;
use scif_fabtests::prelude::*;

/// Sizes around cache lines, slots, pages, inject limits, fragments and beyond.
pub(crate) const SIZES: &[usize] = &[
    0,
    1,
    2,
    7,
    8,
    9,
    16,
    24,
    31,
    32,
    33,
    39,
    40,
    41,
    47,
    48,
    49,
    55,
    56,
    57,
    63,
    64,
    65,
    127,
    128,
    129,
    191,
    192,
    193,
    255,
    256,
    1000,
    2048,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    12_288,
    16_383,
    16_384,
    16_385,
    32_768,
    65_535,
    65_536,
    65_537,
    131_072,
    200_001,
    1 << 20,
    (4 << 20) + 3,
];

/// Call that sends a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendCall {
    Send,
    Sendv,
    Sendmsg,
    /// `sendmsg` with these flags.
    Flags(u64),
    Inject,
    Senddata,
    Injectdata,
}

/// Call that receives a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecvCall {
    Recv,
    Recvv,
    Recvmsg,
}

impl SendCall {
    /// Whether the call produces no completion.
    pub(crate) const fn silent(self) -> bool {
        matches!(self, SendCall::Inject | SendCall::Injectdata)
    }

    /// Whether the buffer is reusable on return.
    pub(crate) const fn injects(self) -> bool {
        match self {
            SendCall::Inject | SendCall::Injectdata => true,
            SendCall::Flags(flags) => flags & sys::FI_INJECT != 0,
            _ => false,
        }
    }

    /// Whether the message carries remote CQ data.
    pub(crate) const fn has_data(self) -> bool {
        match self {
            SendCall::Senddata | SendCall::Injectdata => true,
            SendCall::Flags(flags) => flags & sys::FI_REMOTE_CQ_DATA != 0,
            _ => false,
        }
    }
}

/// One message to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Msg {
    pub(crate) buf: Buf,
    pub(crate) dest: u64,
    /// Tag of the message; `None` is untagged.
    pub(crate) tag: Option<u64>,
    pub(crate) context: usize,
    pub(crate) data: u64,
}

/// Splits a buffer into `count` pieces. The first one contains the whole prefix.
fn in_pieces(rig: &Rig<'_>, buf: Buf, count: usize) -> Vec<Buf> {
    let prefix = rig.prefix().min(buf.len());
    let mut pieces = buf.sub(prefix, buf.len() - prefix).split(count);
    if let Some(first) = pieces.first_mut() {
        *first = buf.sub(0, prefix + first.len());
    }
    pieces
}

/// Sends a message, without repetition.
pub(crate) fn send(rig: &Rig<'_>, way: SendCall, letter: &Msg) -> Result {
    let (ep, to, context, data) = (&rig.ep, letter.dest, letter.context, letter.data);
    let pieces = || in_pieces(rig, letter.buf, rig.info.tx().iov_limit.clamp(1, 3));
    match (way, letter.tag) {
        (SendCall::Send, None) => ep.send(letter.buf, to, context),
        (SendCall::Send, Some(tag)) => ep.tsend(letter.buf, to, tag, context),
        (SendCall::Sendv, None) => ep.sendv(&pieces(), to, context),
        (SendCall::Sendv, Some(tag)) => ep.tsendv(&pieces(), to, tag, context),
        (SendCall::Sendmsg, None) => ep.sendmsg(&pieces(), to, context, data, sys::FI_COMPLETION),
        (SendCall::Sendmsg, Some(tag)) => ep.tsendmsg(
            &pieces(),
            TaggedMsg { data, ..TaggedMsg::to(to, tag, context) },
            sys::FI_COMPLETION,
        ),
        (SendCall::Flags(flags), None) => {
            ep.sendmsg(&pieces(), to, context, data, flags | sys::FI_COMPLETION)
        }
        (SendCall::Flags(flags), Some(tag)) => ep.tsendmsg(
            &pieces(),
            TaggedMsg { data, ..TaggedMsg::to(to, tag, context) },
            flags | sys::FI_COMPLETION,
        ),
        (SendCall::Inject, None) => ep.inject(letter.buf, to),
        (SendCall::Inject, Some(tag)) => ep.tinject(letter.buf, to, tag),
        (SendCall::Senddata, None) => ep.senddata(letter.buf, data, to, context),
        (SendCall::Senddata, Some(tag)) => ep.tsenddata(letter.buf, data, to, tag, context),
        (SendCall::Injectdata, None) => ep.injectdata(letter.buf, data, to),
        (SendCall::Injectdata, Some(tag)) => ep.tinjectdata(letter.buf, data, to, tag),
    }
}

/// Posts a receive, without repetition; `tag` is the tag and the ignored bits.
pub(crate) fn receive(
    rig: &Rig<'_>,
    into: RecvCall,
    buf: Buf,
    src: u64,
    tag: Option<(u64, u64)>,
    context: usize,
) -> Result {
    let ep = &rig.inbox;
    let pieces = || in_pieces(rig, buf, rig.info.rx().iov_limit.clamp(1, 4));
    match (into, tag) {
        (RecvCall::Recv, None) => ep.recv(buf, src, context),
        (RecvCall::Recv, Some((tag, ignore))) => ep.trecv(buf, src, tag, ignore, context),
        (RecvCall::Recvv, None) => ep.recvv(&pieces(), src, context),
        (RecvCall::Recvv, Some((tag, ignore))) => ep.trecvv(&pieces(), src, tag, ignore, context),
        (RecvCall::Recvmsg, None) => ep.recvmsg(&pieces(), src, context, sys::FI_COMPLETION),
        (RecvCall::Recvmsg, Some((tag, ignore))) => {
            ep.trecvmsg(&pieces(), TaggedMsg::from(src, tag, ignore, context), sys::FI_COMPLETION)
        }
    }
}

/// Maximum size that a call can carry.
pub(crate) fn limit(rig: &Rig<'_>, way: SendCall) -> usize {
    if way.injects() { rig.info.tx().inject_size } else { usize::MAX }
}

/// Checks the completion of a send.
pub(crate) fn check_sent(entry: &Entry, tagged: bool) -> Outcome {
    let kind = if tagged { sys::FI_TAGGED } else { sys::FI_MSG };
    check_eq!(
        entry.flags & (sys::FI_SEND | sys::FI_RECV),
        sys::FI_SEND,
        "flags {:#x}",
        entry.flags
    );
    check_eq!(entry.flags & (sys::FI_MSG | sys::FI_TAGGED), kind, "flags {:#x}", entry.flags);
    Ok(())
}

/// Checks the completion of a receive against its message.
pub(crate) fn check_received(
    entry: &Entry,
    len: usize,
    tag: Option<u64>,
    data: Option<u64>,
) -> Outcome {
    let kind = if tag.is_some() { sys::FI_TAGGED } else { sys::FI_MSG };
    check_eq!(entry.len, len);
    check_eq!(
        entry.flags & (sys::FI_SEND | sys::FI_RECV),
        sys::FI_RECV,
        "flags {:#x}",
        entry.flags
    );
    check_eq!(entry.flags & (sys::FI_MSG | sys::FI_TAGGED), kind, "flags {:#x}", entry.flags);
    if let Some(tag) = tag {
        check_eq!(entry.tag, tag);
    }
    let has_data = entry.flags & sys::FI_REMOTE_CQ_DATA != 0;
    check_eq!(has_data, data.is_some(), "flags {:#x}", entry.flags);
    if let Some(data) = data {
        check_eq!(entry.data, data);
    }
    Ok(())
}

/// Checks the first `len` bytes of a buffer, and that the rest is still `untouched`.
pub(crate) fn check_bytes(buf: &Buf, len: usize, seed: u64, untouched: u8) -> Outcome {
    if let Some(at) = buf.differs(len, seed) {
        return Err(Fail::here(format_args!("byte {at} of {len} is wrong")));
    }
    let rest = buf.get(len, buf.len() - len);
    check!(
        rest.iter().all(|&byte| byte == untouched),
        "bytes after the {len} of the message were written"
    );
    Ok(())
}

/// Order of a message and its receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timing {
    /// The receive is posted first.
    Expected,
    /// The message arrives first.
    Unexpected,
}

/// Transfers one message of every size from rank 0 to rank 1 with these calls, in both orders.
pub(crate) fn every_size(rig: &Rig<'_>, way: SendCall, into: RecvCall, tagged: bool) -> Outcome {
    for &size in SIZES.iter().filter(|&&size| size <= limit(rig, way)) {
        for timing in [Timing::Expected, Timing::Unexpected] {
            one_message(rig, way, into, tagged, size, timing)
                .map_err(|fail| fail.with(format_args!("{way:?} {into:?} {size} B {timing:?}")))?;
        }
    }
    Ok(())
}

/// Transfers one message without a tag from rank 0 to rank 1, by `fi_send` and `fi_recv`.
pub(crate) fn plain_message(rig: &Rig<'_>, size: usize, timing: Timing) -> Outcome {
    one_message(rig, SendCall::Send, RecvCall::Recv, false, size, timing)
}

/// Transfers one message from rank 0 to rank 1.
pub(crate) fn one_message(
    rig: &Rig<'_>,
    way: SendCall,
    into: RecvCall,
    tagged: bool,
    size: usize,
    timing: Timing,
) -> Outcome {
    const UNTOUCHED: u8 = 0xa5;
    let seed = u64::try_from(size).map_err(Fail::here)? + 1;
    let tag = tagged.then_some(0x1234_5678_9abc_0000 | (seed & 0xffff));
    let data = 0x8765_4321;
    let context = 0x1000 + size;
    let prefix = rig.prefix();
    if rig.rank.index == 0 {
        let buf = Buf::new(prefix + size);
        buf.sub(prefix, size).fill_pattern(seed);
        let letter = Msg { buf, dest: rig.peer(), tag, context, data };
        if timing == Timing::Expected {
            rig.barrier()?;
        }
        rig.post(|| send(rig, way, &letter))?;
        if way.injects() {
            letter.buf.fill(0x5a);
        }
        if timing == Timing::Unexpected {
            rig.barrier()?;
        }
        if !way.silent() {
            check_sent(&rig.sent(context)?, tagged)?;
        }
    } else {
        let buf = Buf::new(prefix + size + 64);
        buf.fill(UNTOUCHED);
        if timing == Timing::Unexpected {
            rig.barrier()?;
        }
        let tag_ignore = tag.map(|tag| (tag, 0));
        rig.post(|| receive(rig, into, buf, sys::FI_ADDR_UNSPEC, tag_ignore, context))?;
        if timing == Timing::Expected {
            rig.barrier()?;
        }
        let entry = rig.received(context)?;
        check_received(&entry, prefix + size, tag, way.has_data().then_some(data))?;
        check_bytes(&buf.sub(prefix, size + 64), size, seed, UNTOUCHED)?;
        check!(
            buf.get(0, prefix).iter().all(|&byte| byte == UNTOUCHED),
            "the prefix of the receive was written"
        );
    }
    rig.barrier()
}
