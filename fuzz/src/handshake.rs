// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Hostile callers: the first packet of an honest caller is captured, changed, and sent to the
//! victim with other descriptors.
//!
//! The honest caller is this process, which connects to a listener of its own. The listener takes
//! the packet unchanged, so this file does not depend on its format. Names are from
//! `scif/src/transport/soft/names.rs`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};

use crate::mutate::Mutator;

/// Maximum number of descriptors of one packet.
const FDS: usize = 16;
/// Number of silent callers that are kept open.
const MUTE: usize = 48;
/// Number of uses of one captured packet.
const USES: u32 = 12;

/// Packet and its descriptors.
pub(crate) struct Packet {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// Source of hostile callers of one victim.
pub(crate) struct Callers {
    domain: String,
    victim: u16,
    /// Port of the honest client, or 0.
    honest: u16,
    listener: OwnedFd,
    /// Port of the listener that captures packets.
    pub(crate) trap: u16,
    caught: Option<(Packet, u32)>,
    mute: Vec<OwnedFd>,
    serial: u32,
}

fn socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

impl Callers {
    pub(crate) fn new(
        domain: &str,
        [victim, honest]: [u16; 2],
        trap: u16,
    ) -> rustix::io::Result<Callers> {
        let listener = socket()?;
        let name = format!("scif/{domain}/0/{trap}");
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&listener, 16)?;
        Ok(Callers {
            domain: domain.to_owned(),
            victim,
            honest,
            listener,
            trap,
            caught: None,
            mute: Vec::new(),
            serial: 0,
        })
    }

    /// Captures the packet of a pending honest connect to the trap. The close of the socket refuses
    /// the caller. Returns whether there was one.
    pub(crate) fn catch(&mut self) -> rustix::io::Result<bool> {
        let socket = match accept(&self.listener) {
            Ok(socket) => socket,
            Err(Errno::AGAIN) => return Ok(false),
            Err(e) => return Err(e),
        };
        let mut bytes = vec![0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        bytes.truncate(got.bytes);
        self.caught = Some((Packet { bytes, fds }, 0));
        Ok(true)
    }

    /// Whether another honest packet is needed.
    pub(crate) fn is_hungry(&self) -> bool {
        self.caught.as_ref().is_none_or(|(_, uses)| *uses >= USES)
    }

    /// Connects to the victim with a changed packet. Returns whether a connect was possible.
    pub(crate) fn call(&mut self, mutator: &mut Mutator) -> rustix::io::Result<bool> {
        let Some((packet, uses)) = &mut self.caught else {
            return Ok(false);
        };
        *uses += 1;
        let socket = socket()?;
        self.serial += 1;
        let source = match mutator.rng.below(32) {
            0 => None,
            1 => Some(format!("scif/{}/0/{}/x{}", self.domain, self.trap, self.serial)),
            2 => Some(format!("scif/elsewhere/0/{}/1.{}", self.trap, self.serial)),
            other => Some(format!(
                "scif/{}/0/{}/{}.{}",
                self.domain,
                if other < 6 && self.honest != 0 {
                    usize::from(self.honest)
                } else {
                    1100 + mutator.rng.below(60_000)
                },
                std::process::id(),
                self.serial
            )),
        };
        if let Some(source) = source {
            bind(&socket, &SocketAddrUnix::new_abstract_name(source.as_bytes())?)?;
        }
        let victim = format!("scif/{}/0/{}", self.domain, self.victim);
        match connect(&socket, &SocketAddrUnix::new_abstract_name(victim.as_bytes())?) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::CONNREFUSED) => return Ok(false),
            Err(e) => return Err(e),
        }
        let bytes = mutator.packet(&packet.bytes);
        let others = replaced(mutator, packet.fds.len())?;
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        for (at, fd) in packet.fds.iter().enumerate() {
            match others.get(at) {
                Some(Some(other)) => fds.push(other.as_fd()),
                _ => fds.push(fd.as_fd()),
            }
        }
        match mutator.rng.below(12) {
            0 => fds.truncate(mutator.rng.below(fds.len() + 1)),
            1 => fds.reverse(),
            2 => fds.extend(fds.clone()),
            3 => (0..FDS.saturating_sub(fds.len())).for_each(|_| fds.push(self.listener.as_fd())),
            _ => {}
        }
        fds.truncate(FDS);
        for _ in 0..1 + mutator.rng.below(3) / 2 {
            send(&socket, &bytes, &fds);
        }
        if mutator.rng.one_in(8) {
            if self.mute.len() >= MUTE {
                self.mute.swap_remove(mutator.rng.below(MUTE));
            }
            self.mute.push(socket);
        }
        Ok(true)
    }
}

/// Returns other descriptors for some of the honest ones.
fn replaced(mutator: &mut Mutator, count: usize) -> rustix::io::Result<Vec<Option<OwnedFd>>> {
    (0..count)
        .map(|_| {
            if !mutator.rng.one_in(4) {
                return Ok(None);
            }
            Ok(Some(match mutator.rng.below(6) {
                0 => rustix::pipe::pipe()?.0,
                1 => OwnedFd::from(std::fs::File::open("/dev/zero").map_err(|_| Errno::NOENT)?),
                2 => socket()?,
                _ => memory(mutator)?,
            }))
        })
        .collect()
}

/// Returns a memfd whose size and seals may be wrong.
fn memory(mutator: &mut Mutator) -> rustix::io::Result<OwnedFd> {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let sizes = [0, 1, 4095, 4096, 8192, 192_512, 192_512 + 4096, 4_198_400, 1 << 35];
    ftruncate(&fd, mutator.rng.pick(&sizes).unwrap_or(0))?;
    let all = [
        SealFlags::SHRINK,
        SealFlags::GROW,
        SealFlags::SEAL,
        SealFlags::WRITE,
        SealFlags::FUTURE_WRITE,
    ];
    let seals = match mutator.rng.below(4) {
        0 => SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        _ => all.into_iter().filter(|_| mutator.rng.one_in(2)).collect(),
    };
    fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// Sends a packet; the result is ignored.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags);
}
