// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Endpoints, connections, messages, poll and nodes of `scif.h`.

#![expect(unsafe_code, reason = "functions a C program calls by name, with pointers of its own")]

use libc::{c_int, c_long, c_short, c_uint, c_void};
use scif::PortId;
use scif_api::{Failure, PollFd, check_entries};

use crate::entry::{count, guard, length, memory};

/// `struct scif_portID`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ScifPortId {
    node: u16,
    port: u16,
}

/// `struct scif_pollepd`
#[repr(C)]
pub(crate) struct ScifPollEpd {
    epd: c_int,
    events: c_short,
    revents: c_short,
}

const _: () = assert!(size_of::<ScifPortId>() == 4 && align_of::<ScifPortId>() == 2);
const _: () = assert!(
    size_of::<ScifPollEpd>() == size_of::<PollFd>()
        && align_of::<ScifPollEpd>() == align_of::<PollFd>()
);

const BLOCK: c_int = 1;

/// `scif_epd_t scif_open(void)`
// SAFETY: scif.h declares this name with this signature.
#[unsafe(no_mangle)]
extern "C" fn scif_open() -> c_int {
    guard(-1, |endpoints| endpoints.open())
}

/// `int scif_close(scif_epd_t epd)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
extern "C" fn scif_close(epd: c_int) -> c_int {
    guard(-1, |endpoints| endpoints.close(epd).map(|()| 0))
}

/// `int scif_bind(scif_epd_t epd, uint16_t pn)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
extern "C" fn scif_bind(epd: c_int, pn: u16) -> c_int {
    guard(-1, |endpoints| endpoints.bind(epd, pn).map(c_int::from))
}

/// `int scif_listen(scif_epd_t epd, int backlog)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
extern "C" fn scif_listen(epd: c_int, backlog: c_int) -> c_int {
    guard(-1, |endpoints| endpoints.listen(epd, backlog).map(|()| 0))
}

/// `int scif_connect(scif_epd_t epd, struct scif_portID *dst)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_connect(epd: c_int, dst: *const ScifPortId) -> c_int {
    guard(-1, |endpoints| {
        if dst.is_null() {
            return Err(Failure::Invalid);
        }
        // SAFETY: not null; by the caller's contract a scif_portID, of which all bytes are valid.
        let dst = unsafe { dst.read_unaligned() };
        let dst = PortId::new(dst.node, dst.port);
        endpoints.connect(epd, dst).map(c_int::from)
    })
}

/// `int scif_accept(scif_epd_t epd, struct scif_portID *peer, scif_epd_t *newepd, int flags)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_accept(
    epd: c_int,
    peer: *mut ScifPortId,
    newepd: *mut c_int,
    flags: c_int,
) -> c_int {
    guard(-1, |endpoints| {
        if peer.is_null() || newepd.is_null() || !(0..=BLOCK).contains(&flags) {
            return Err(Failure::Invalid);
        }
        let (from, fd) = endpoints.accept(epd, flags == BLOCK)?;
        let from = ScifPortId { node: from.node, port: from.port };
        // SAFETY: not null; by the caller's contract space for a scif_portID.
        unsafe { peer.write_unaligned(from) };
        // SAFETY: not null; by the caller's contract space for a descriptor.
        unsafe { newepd.write_unaligned(fd) };
        Ok(0)
    })
}

/// Whether a message call waits. Bit 0 of its flags decides; other bits without it are refused.
fn waits(flags: c_int) -> Result<bool, Failure> {
    match (flags & BLOCK != 0, flags) {
        (true, _) => Ok(true),
        (false, 0) => Ok(false),
        (false, _) => Err(Failure::Invalid),
    }
}

/// `int scif_send(scif_epd_t epd, void *msg, int len, int flags)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_send(epd: c_int, msg: *mut c_void, len: c_int, flags: c_int) -> c_int {
    if len == 0 {
        return 0;
    }
    guard(-1, |endpoints| {
        let (len, wait) = (length(len)?, waits(flags)?);
        // SAFETY: by the caller's contract the message is readable. NULL is reported after the
        // state.
        let src = unsafe { memory(msg, len) };
        if src.is_err() {
            endpoints.usable(epd)?;
        }
        count(endpoints.send(epd, &src?, wait)?)
    })
}

/// `int scif_recv(scif_epd_t epd, void *msg, int len, int flags)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_recv(epd: c_int, msg: *mut c_void, len: c_int, flags: c_int) -> c_int {
    if len == 0 {
        return 0;
    }
    guard(-1, |endpoints| {
        let (len, wait) = (length(len)?, waits(flags)?);
        // SAFETY: by the caller's contract the buffer is writable. NULL is reported after the
        // state.
        let dst = unsafe { memory(msg, len) };
        if dst.is_err() {
            endpoints.receivable(epd)?;
        }
        count(endpoints.receive(epd, &dst?, wait)?)
    })
}

/// `int scif_poll(struct scif_pollepd *epds, unsigned int nepds, long timeout)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_poll(epds: *mut ScifPollEpd, nepds: c_uint, timeout: c_long) -> c_int {
    guard(-1, |endpoints| {
        let mut none = [];
        let entries: &mut [PollFd] = if nepds == 0 {
            &mut none
        } else {
            check_entries(epds.expose_provenance(), nepds)?;
            // NULL is refused even if a program has mapped page 0.
            if epds.is_null() {
                return Err(Failure::BadAddress);
            }
            let n = usize::try_from(nepds).map_err(|_| Failure::Invalid)?;
            // SAFETY: not null; the system has just read and written nepds entries at this address,
            // with the layout of struct pollfd (asserted above). By the caller's contract no other
            // thread uses them during the call.
            unsafe { std::slice::from_raw_parts_mut(epds.cast::<PollFd>(), n) }
        };
        // Cut to an int, the argument of poll(2).
        #[expect(clippy::cast_possible_truncation, reason = "what the drivers' library does")]
        let timeout = timeout as c_int;
        count(endpoints.poll(entries, timeout)?)
    })
}

/// `int scif_get_nodeIDs(uint16_t *nodes, int len, uint16_t *self)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
unsafe extern "C" fn scif_get_nodeIDs(nodes: *mut u16, len: c_int, own: *mut u16) -> c_int {
    guard(-1, |endpoints| {
        let room = usize::try_from(len).unwrap_or(0);
        if own.is_null() || (nodes.is_null() && room > 0) {
            return Err(Failure::BadAddress);
        }
        let (online, own_id) = endpoints.nodes()?;
        for (i, node) in online.iter().take(room).enumerate() {
            // SAFETY: not null; by the caller's contract space for `len` numbers, and `i` is less.
            unsafe { nodes.wrapping_add(i).write_unaligned(*node) };
        }
        // SAFETY: not null; by the caller's contract space for a number.
        unsafe { own.write_unaligned(own_id) };
        count(online.len())
    })
}

/// `int scif_get_fd(scif_epd_t epd)`
// SAFETY: as `scif_open`.
#[unsafe(no_mangle)]
extern "C" fn scif_get_fd(epd: c_int) -> c_int {
    epd
}
