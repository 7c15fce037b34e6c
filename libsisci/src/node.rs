// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Node ids, adapters, and the names of a node's objects in the domain.
//!
//! Each object that peers reach listens at a name, which the kernel removes with its process. The
//! names are the directory of nodes: there is no other.

use crate::error::{Outcome, SciError, fail};

/// Node id of connections to all members of a reflective memory group.
pub(crate) const BROADCAST_NODE: u32 = 252;
/// Largest node id. Larger ones are refused as illegal.
const NODE_MAX: u32 = 4 * 65_537;
/// Number of adapter numbers that are legal. A legal number may name no adapter.
const ADAPTERS_MAX: u32 = 16;
/// Adapter number of the own host, which exists on each node (`SCI_LOCAL_HOST`).
pub(crate) const LOCAL_HOST: u32 = u32::MAX;
/// Maximum number of processes of one node that a probe finds.
pub(crate) const PROCESSES_MAX: u32 = 64;

/// Node id: a multiple of 4, neither 0 nor the broadcast node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct NodeId(u32);

impl NodeId {
    /// Returns the id with a number, if it is legal.
    pub(crate) fn new(number: u32) -> Option<NodeId> {
        let legal = (4..=NODE_MAX).contains(&number) && number % 4 == 0 && number != BROADCAST_NODE;
        legal.then_some(NodeId(number))
    }

    /// Returns the id with a number of the program.
    pub(crate) fn checked(number: u32) -> Outcome<NodeId> {
        NodeId::new(number).ok_or(SciError::IllegalNodeid.into())
    }

    /// Returns its number.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

/// Returns the SISCI node that belongs to a node of SCIF.
pub(crate) fn default_node(scif: u16) -> NodeId {
    let number = 4 * (u32::from(scif) + 1);
    NodeId(if number < BROADCAST_NODE { number } else { number + 4 })
}

/// Checks an adapter number against the number of adapters.
pub(crate) fn check_adapter(adapter: u32, count: u32) -> Outcome<()> {
    match adapter {
        LOCAL_HOST => Ok(()),
        n if n >= ADAPTERS_MAX => fail(SciError::IllegalAdapterno),
        n if n >= count => fail(SciError::NoSuchAdapterno),
        _ => Ok(()),
    }
}

/// Kind of an object that listens at a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// Process of a node.
    Process,
    /// Segment of a node.
    Segment,
    /// Interrupt without data.
    Interrupt,
    /// Interrupt with data.
    DataInterrupt,
}

impl Kind {
    fn part(self) -> &'static str {
        match self {
            Kind::Process => "process",
            Kind::Segment => "segment",
            Kind::Interrupt => "interrupt",
            Kind::DataInterrupt => "data",
        }
    }
}

/// Returns the name of an object of a node.
pub(crate) fn name_of(node: NodeId, kind: Kind, number: u32) -> String {
    format!("sisci/{}/{}/{number}", node.number(), kind.part())
}

/// Returns the name of one of the owners that share an interrupt number.
pub(crate) fn shared_name(node: NodeId, kind: Kind, number: u32, owner: u32) -> String {
    format!("sisci/{}/shared-{}/{number}.{owner}", node.number(), kind.part())
}

/// Returns the name of a member of a reflective memory group.
pub(crate) fn member_name(group: u32, member: u32) -> String {
    format!("sisci/{BROADCAST_NODE}/member/{group}.{member}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_multiples_of_four() {
        for (number, legal) in [(0, false), (4, true), (6, false), (252, false), (256, true)] {
            assert_eq!(NodeId::new(number).is_some(), legal, "{number}");
        }
        assert_eq!(NodeId::new(NODE_MAX + 4), None);
        assert!(default_node(u16::MAX).number() <= NODE_MAX);
        assert_eq!(name_of(NodeId(8), Kind::Segment, 3), "sisci/8/segment/3");
    }

    #[test]
    fn adapters_are_illegal_or_absent() {
        let code = |adapter| check_adapter(adapter, 2).err().map(|failure| failure.code);
        assert_eq!(code(1), None);
        assert_eq!(code(2), Some(SciError::NoSuchAdapterno));
        assert_eq!(code(16), Some(SciError::IllegalAdapterno));
        assert_eq!(code(LOCAL_HOST), None);
    }
}
