// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Binary interface between a program and the SCIF driver: numbers and structures of its ioctls, of
//! both generations.
//!
//! Not about calling them (`call`), nor about serving them (the package `scifdev`). Mainline Linux
//! and MPSS 4 encode the size of the structure in a number, MPSS 3 the size of a pointer; one
//! structure has two layouts. All values are compared with the drivers' at compile time. Source:
//! `include/uapi/linux/scif_ioctl.h`, and `scif_ioctl.h` of MPSS 3; 64-bit machines, little endian.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `'s'`
const TYPE: u32 = 0x73;
const WRITE: u32 = 1;
const READ_WRITE: u32 = 3;
const POINTER: usize = 8;

/// `SCIF_GET_VERSION`, known to MPSS 3 only, which returns [`VERSION`].
pub const GET_VERSION: u32 = TYPE << 8 | 23;
/// Version that the driver of MPSS 3 reports.
pub const VERSION: i32 = 1;
/// `SCIF_ACCEPT_SYNC`
pub const ACCEPT_SYNC: i32 = 1;
/// `SCIF_SEND_BLOCK`, `SCIF_RECV_BLOCK`
pub const BLOCK: i32 = 1;
/// `SCIF_FENCE_INIT_SELF`
pub const FENCE_INIT_SELF: i32 = 1;
/// `SCIF_FENCE_INIT_PEER`
pub const FENCE_INIT_PEER: i32 = 2;
/// `SCIF_SIGNAL_LOCAL`
pub const SIGNAL_LOCAL: i32 = 0x10;
/// `SCIF_SIGNAL_REMOTE`
pub const SIGNAL_REMOTE: i32 = 0x20;
/// `SCIF_MAP_FIXED`
pub const MAP_FIXED: i32 = 0x10;

/// Calls of the driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
#[expect(missing_docs, reason = "SCIF_ and the name, as the drivers write it")]
pub enum Call {
    Bind = 1,
    Listen = 2,
    Connect = 3,
    AcceptReq = 4,
    AcceptReg = 5,
    Send = 6,
    Recv = 7,
    Reg = 8,
    Unreg = 9,
    ReadFrom = 10,
    WriteTo = 11,
    VReadFrom = 12,
    VWriteTo = 13,
    GetNodeIds = 14,
    FenceMark = 15,
    FenceWait = 16,
    FenceSignal = 17,
}

const CALLS: [Call; 17] = [
    Call::Bind,
    Call::Listen,
    Call::Connect,
    Call::AcceptReq,
    Call::AcceptReg,
    Call::Send,
    Call::Recv,
    Call::Reg,
    Call::Unreg,
    Call::ReadFrom,
    Call::WriteTo,
    Call::VReadFrom,
    Call::VWriteTo,
    Call::GetNodeIds,
    Call::FenceMark,
    Call::FenceWait,
    Call::FenceSignal,
];

/// Size that is encoded in the ioctl numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Encoding {
    /// Size of the structure: mainline Linux, MPSS 4.
    Struct = 1,
    /// Size of a pointer to it: MPSS 3.
    Pointer = 2,
}

impl Encoding {
    /// Returns the ioctl number of a call.
    #[must_use]
    pub const fn number(self, call: Call) -> u32 {
        let (direction, size) = match (call, self) {
            // The argument is the value itself.
            (Call::Listen, _) => (WRITE, size_of::<i32>()),
            (Call::FenceWait, _) => (READ_WRITE, size_of::<i32>()),
            // An int behind a pointer, encoded with the size of the pointer in both.
            (Call::Bind, _) => (READ_WRITE, POINTER),
            (_, Encoding::Pointer) => (READ_WRITE, POINTER),
            (Call::Connect, _) => (READ_WRITE, size_of::<Connect>()),
            (Call::AcceptReq, _) => (READ_WRITE, size_of::<Accept>()),
            (Call::AcceptReg, _) => (READ_WRITE, size_of::<Cookie>()),
            (Call::Send | Call::Recv, _) => (READ_WRITE, size_of::<Msg>()),
            (Call::Reg, _) => (READ_WRITE, size_of::<Reg>()),
            (Call::Unreg, _) => (READ_WRITE, size_of::<Unreg>()),
            (Call::ReadFrom | Call::WriteTo | Call::VReadFrom | Call::VWriteTo, _) => {
                (READ_WRITE, size_of::<Transfer>())
            }
            (Call::GetNodeIds, _) => (READ_WRITE, size_of::<NodeIds>()),
            (Call::FenceMark, _) => (READ_WRITE, size_of::<FenceMark>()),
            (Call::FenceSignal, _) => (READ_WRITE, size_of::<FenceSignal>()),
        };
        // Sizes are at most 40, and the discriminant of `Call` is its number.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        let size = size as u32;
        direction << 30 | size << 16 | TYPE << 8 | call as u32
    }

    /// Returns the call with an ioctl number.
    #[must_use]
    pub fn call(self, number: u32) -> Option<Call> {
        CALLS.into_iter().find(|&call| self.number(call) == number)
    }
}

/// Whether a number has the driver's type byte, including numbers that are not assigned.
#[must_use]
pub const fn is_ours(number: u32) -> bool {
    number >> 8 & 0xff == TYPE
}

/// Target of the pointer of `SCIF_BIND`: the drivers access four bytes, but declare eight.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C, align(8))]
pub struct Bind {
    /// In: the port, 0 for any. Out: the assigned port.
    pub port: i32,
    /// Ignored.
    pub pad: u32,
}

/// `struct scif_port_id`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct PortAddr {
    /// Node.
    pub node: u16,
    /// Port on the node.
    pub port: u16,
}

/// `struct scifioctl_connect`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Connect {
    /// Out: the local address.
    pub own: PortAddr,
    /// In: the address of the peer.
    pub peer: PortAddr,
}

/// `struct scifioctl_accept`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Accept {
    /// In: [`ACCEPT_SYNC`] or 0.
    pub flags: i32,
    /// Out: the address of the peer.
    pub peer: PortAddr,
    /// Out: the argument of `SCIF_ACCEPTREG`.
    pub cookie: u64,
}

/// Target of the pointer of `SCIF_ACCEPTREG`.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Cookie {
    /// Cookie from [`Accept`].
    pub cookie: u64,
}

/// `struct scifioctl_msg`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Msg {
    /// Address of the message.
    pub msg: u64,
    /// Length in bytes.
    pub len: i32,
    /// [`BLOCK`] or 0.
    pub flags: i32,
    /// Out: number of bytes moved.
    pub out_len: i32,
    /// Ignored.
    pub pad: u32,
}

/// `struct scifioctl_reg`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Reg {
    /// Address of the memory.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// Requested offset, with [`MAP_FIXED`].
    pub offset: i64,
    /// Protection.
    pub prot: i32,
    /// [`MAP_FIXED`] or 0.
    pub flags: i32,
    /// Out: the assigned offset.
    pub out_offset: i64,
}

/// `struct scifioctl_unreg`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Unreg {
    /// Offset of the window.
    pub offset: i64,
    /// Length in bytes.
    pub len: u64,
}

/// `struct scifioctl_copy`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct Transfer {
    /// Local offset, for windows.
    pub loffset: i64,
    /// Length in bytes.
    pub len: u64,
    /// Remote offset.
    pub roffset: i64,
    /// Local address, for memory.
    pub addr: u64,
    /// `SCIF_RMA_*` flags.
    pub flags: i32,
    /// Ignored.
    pub pad: u32,
}

/// `struct scifioctl_fence_mark`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct FenceMark {
    /// Side that initiated the RMA, as [`FENCE_INIT_SELF`] or [`FENCE_INIT_PEER`].
    pub flags: i32,
    /// Ignored.
    pub pad: u32,
    /// Address of an int that receives the mark.
    pub mark: u64,
}

/// `struct scifioctl_fence_signal`
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct FenceSignal {
    /// Local offset of the stored value.
    pub loff: i64,
    /// Local value.
    pub lval: u64,
    /// Remote offset of the stored value.
    pub roff: i64,
    /// Remote value.
    pub rval: u64,
    /// Side that initiated the RMA, and the sides to signal.
    pub flags: i32,
    /// Ignored.
    pub pad: u32,
}

/// `struct scifioctl_node_ids` of mainline Linux and MPSS 4.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct NodeIds {
    /// Address of an array of `len` numbers.
    pub nodes: u64,
    /// Address of the own node's number.
    pub own: u64,
    /// In: capacity of the array. Out: number of nodes.
    pub len: i32,
    /// Ignored.
    pub pad: u32,
}

/// `struct scifioctl_nodeIDs` of MPSS 3.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct NodeIds3 {
    /// Address of an array of `len` numbers.
    pub nodes: u64,
    /// In: capacity of the array. Out: number of nodes.
    pub len: i32,
    /// Ignored.
    pub pad: u32,
    /// Address of the own node's number.
    pub own: u64,
}

/// Numbers from compiled driver headers: mainline Linux and MPSS 4, and MPSS 3.
const NUMBERS: [(Call, u32, u32); 17] = [
    (Call::Bind, 0xc008_7301, 0xc008_7301),
    (Call::Listen, 0x4004_7302, 0x4004_7302),
    (Call::Connect, 0xc008_7303, 0xc008_7303),
    (Call::AcceptReq, 0xc010_7304, 0xc008_7304),
    (Call::AcceptReg, 0xc008_7305, 0xc008_7305),
    (Call::Send, 0xc018_7306, 0xc008_7306),
    (Call::Recv, 0xc018_7307, 0xc008_7307),
    (Call::Reg, 0xc028_7308, 0xc008_7308),
    (Call::Unreg, 0xc010_7309, 0xc008_7309),
    (Call::ReadFrom, 0xc028_730a, 0xc008_730a),
    (Call::WriteTo, 0xc028_730b, 0xc008_730b),
    (Call::VReadFrom, 0xc028_730c, 0xc008_730c),
    (Call::VWriteTo, 0xc028_730d, 0xc008_730d),
    (Call::GetNodeIds, 0xc018_730e, 0xc008_730e),
    (Call::FenceMark, 0xc010_730f, 0xc008_730f),
    (Call::FenceWait, 0xc004_7310, 0xc004_7310),
    (Call::FenceSignal, 0xc028_7311, 0xc008_7311),
];

const _: () = {
    assert!(GET_VERSION == 0x7317);
    let mut i = 0;
    while i < NUMBERS.len() {
        #[expect(clippy::indexing_slicing, reason = "evaluated when it is compiled")]
        let (call, by_struct, by_pointer) = NUMBERS[i];
        assert!(Encoding::Struct.number(call) == by_struct);
        assert!(Encoding::Pointer.number(call) == by_pointer);
        i += 1;
    }
};

/// Returns the size of a field in bytes.
const fn len_of<S, T>(_field: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

/// Asserts the size of a structure, and the offsets and sizes of its fields.
macro_rules! laid_out {
    ($structure:ty, $size:literal, $($field:ident $offset:literal:$len:literal),*) => {
        const _: () = {
            assert!(size_of::<$structure>() == $size);
            $(
                assert!(std::mem::offset_of!($structure, $field) == $offset);
                assert!($offset + $len <= $size);
                assert!(len_of::<$structure, _>(|structure| &structure.$field) == $len);
            )*
        };
    };
}

laid_out!(Bind, 8, port 0:4);
laid_out!(PortAddr, 4, node 0:2, port 2:2);
laid_out!(Connect, 8, own 0:4, peer 4:4);
laid_out!(Accept, 16, flags 0:4, peer 4:4, cookie 8:8);
laid_out!(Cookie, 8, cookie 0:8);
laid_out!(Msg, 24, msg 0:8, len 8:4, flags 12:4, out_len 16:4);
laid_out!(Reg, 40, addr 0:8, len 8:8, offset 16:8, prot 24:4, flags 28:4, out_offset 32:8);
laid_out!(Unreg, 16, offset 0:8, len 8:8);
laid_out!(Transfer, 40, loffset 0:8, len 8:8, roffset 16:8, addr 24:8, flags 32:4);
laid_out!(FenceMark, 16, flags 0:4, mark 8:8);
laid_out!(FenceSignal, 40, loff 0:8, lval 8:8, roff 16:8, rval 24:8, flags 32:4);
laid_out!(NodeIds, 24, nodes 0:8, own 8:8, len 16:4);
laid_out!(NodeIds3, 24, nodes 0:8, len 8:4, own 16:8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_again_in_their_encoding_only() {
        for (call, by_struct, by_pointer) in NUMBERS {
            assert_eq!(Encoding::Struct.call(by_struct), Some(call));
            assert_eq!(Encoding::Pointer.call(by_pointer), Some(call));
            assert!(is_ours(by_struct) && is_ours(by_pointer));
            if by_struct != by_pointer {
                assert_eq!(Encoding::Struct.call(by_pointer), None);
                assert_eq!(Encoding::Pointer.call(by_struct), None);
            }
        }
        assert_eq!(Encoding::Pointer.call(GET_VERSION), None);
        assert!(is_ours(GET_VERSION) && !is_ours(0x5401));
    }
}
