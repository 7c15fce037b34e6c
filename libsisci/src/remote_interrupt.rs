// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Interrupts of other processes, to trigger.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use scif::monitor::sisci::layout::{ObjectKind, record};
use scif::monitor::sisci::{ObjectFields, ObjectRecord};
use scif::sys::fork::PrivateFd;
use scif::sys::{epoll, unix};

use crate::desc::Desc;
use crate::error::{Outcome, SciError, fail};
use crate::interrupt::{DATA_MAX, OWNERS_MAX};
use crate::lock::take;
use crate::node::{self, Kind, NodeId};
use crate::wire::{self, Deadline, Input, Packet, PacketKind, receive};

/// One owner of the number.
struct Owner {
    /// Connection, which ends with the owner.
    socket: PrivateFd,
    output: OwnedFd,
}

/// Interrupt of other processes: one owner, or all that share the number.
pub(crate) struct RemoteInterrupt {
    desc: Arc<Desc>,
    pub(crate) kind: Kind,
    node: NodeId,
    owners: Mutex<Vec<Owner>>,
    /// Record for `scifctl`.
    shown: ObjectRecord,
}

/// Whether a descriptor of an owner is one to which a trigger can be written without blocking.
fn takes_triggers(output: &OwnedFd, kind: Kind) -> bool {
    match kind {
        Kind::DataInterrupt => unix::is_packet_socket(output),
        _ => epoll::is_event(output),
    }
}

impl Owner {
    fn connect(
        desc: &Desc,
        (kind, name): (Kind, &str),
        adapter: u32,
        deadline: Deadline,
    ) -> Outcome<Owner> {
        let context = &desc.context;
        let socket = context.connect(name, deadline)?;
        let request = Packet {
            node: context.settings.node.number(),
            adapter,
            ..Packet::new(PacketKind::Connect)
        };
        request.send_first(&socket)?;
        let (_, mut fds) = wire::answer(&socket, deadline)?;
        let output = fds.pop().filter(|output| takes_triggers(output, kind));
        Ok(Owner { socket, output: output.ok_or(SciError::ConnectionRefused)? })
    }

    fn is_alive(&self) -> bool {
        matches!(receive(&self.socket), Input::Nothing)
    }
}

impl RemoteInterrupt {
    /// Connects (`SCIConnectInterrupt`, `SCIConnectDataInterrupt`).
    ///
    /// # Errors
    /// `NoSuchSegment`, which is also `SCI_ERR_NO_SUCH_INTNO`; `Timeout`; errors of the
    /// numbers.
    pub(crate) fn connect(
        desc: &Arc<Desc>,
        kind: Kind,
        (node, adapter, number): (u32, u32, u32),
        deadline: Deadline,
    ) -> Outcome<Arc<RemoteInterrupt>> {
        desc.context.check_adapter(adapter)?;
        let node = NodeId::checked(node)?;
        if desc.context.is_lost(node.number()) {
            return fail(SciError::NoSuchSegment);
        }
        let mut owners = Vec::new();
        let alone = node::name_of(node, kind, number);
        match Owner::connect(desc, (kind, &alone), adapter, deadline) {
            Ok(owner) => owners.push(owner),
            Err(failure) if failure.code == SciError::NoSuchSegment => {
                for owner in 0..OWNERS_MAX {
                    let name = node::shared_name(node, kind, number, owner);
                    owners.extend(Owner::connect(desc, (kind, &name), adapter, deadline).ok());
                }
            }
            Err(failure) => return Err(failure),
        }
        if owners.is_empty() {
            return fail(SciError::NoSuchSegment);
        }
        desc.hold();
        let is_data = kind == Kind::DataInterrupt;
        let shown_kind = if is_data { ObjectKind::DataTrigger } else { ObjectKind::Trigger };
        let fields = ObjectFields {
            adapter: u64::from(adapter),
            peers: owners.len() as u64,
            ..ObjectFields::new(shown_kind, node.number(), number)
        };
        let shown = desc.context.publish(&fields);
        let (desc, owners) = (Arc::clone(desc), Mutex::new(owners));
        Ok(Arc::new(RemoteInterrupt { desc, kind, node, owners, shown }))
    }

    /// Triggers the interrupt at all live owners.
    ///
    /// # Errors
    /// `NotConnected` if none is left; `Nospc` if the queue of one is full; `OutOfRange` for data
    /// that is too long.
    pub(crate) fn trigger(&self, data: &[u8]) -> Outcome<()> {
        if data.len() > DATA_MAX {
            return fail(SciError::OutOfRange);
        }
        let mut owners = take(&self.owners);
        let before = owners.len();
        owners.retain(Owner::is_alive);
        if owners.len() != before {
            self.shown.set(record::PEERS, owners.len() as u64);
        }
        if owners.is_empty() || self.desc.context.is_lost(self.node.number()) {
            return fail(SciError::NotConnected);
        }
        if self.kind == Kind::Interrupt {
            owners.iter().for_each(|owner| epoll::signal(&owner.output));
            self.shown.count();
            return Ok(());
        }
        let mut packet = Vec::with_capacity(1 + data.len());
        packet.push(1);
        packet.extend_from_slice(data);
        for owner in owners.iter() {
            match unix::send(&owner.output, &packet, &[]) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return fail(SciError::Nospc),
                Err(Errno::PIPE | Errno::CONNRESET) => return fail(SciError::NotConnected),
                Err(errno) => return Err(errno.into()),
            }
        }
        self.shown.count();
        Ok(())
    }

    /// Disconnects.
    pub(crate) fn disconnect(&self) {
        for owner in take(&self.owners).drain(..) {
            let _ = Packet::new(PacketKind::Bye).send(&owner.socket, &[]);
        }
        self.desc.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_of_another_kind_is_refused() {
        let event = epoll::inherited_event().unwrap();
        let (packets, _end) = unix::pair().unwrap();
        let (_a, stream) = scif::sys::descriptor::pair(true).unwrap();
        assert!(takes_triggers(&event, Kind::Interrupt));
        assert!(takes_triggers(&packets, Kind::DataInterrupt));
        for (wrong, kind) in [
            (&packets, Kind::Interrupt),
            (&stream, Kind::Interrupt),
            (&event, Kind::DataInterrupt),
            (&stream, Kind::DataInterrupt),
        ] {
            assert!(!takes_triggers(wrong, kind), "{kind:?}");
        }
    }
}
