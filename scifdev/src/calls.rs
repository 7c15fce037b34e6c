// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! ioctls of the driver: from numbers and structures of either encoding to calls of the engine, and
//! back.
//!
//! Not about the recognition of endpoints. Source: `scif_fdioctl` of the drivers.

use std::os::fd::RawFd;
use std::time::Duration;

use scif::PortId;
use scif::abi::{self, Call, Encoding};
use scif_api::{Endpoints, Failure, FenceSide, Result, Signal};

use scif_ring::counter::AtomicCounter;

use crate::memory::InOut;
use crate::{defects, memory, ours, real, sets};

/// Maximum number of bytes that a non-blocking call moves: the size of a queue.
const QUEUE: usize = 4095;

/// Implements ioctl(2) on an endpoint.
///
/// # Errors
/// Errors of the driver; EINVAL for a number that is not of this device.
pub(crate) fn serve(endpoints: &Endpoints, fd: RawFd, number: u32, argument: usize) -> Result<i32> {
    defects::release_unmapped(endpoints);
    let encoding = ours::encoding(endpoints, fd)?;
    if number == abi::GET_VERSION && encoding == Encoding::Pointer {
        return Ok(abi::VERSION);
    }
    let call = encoding.call(number).ok_or(Failure::Invalid)?;
    match call {
        Call::Bind => bind(endpoints, fd, argument),
        Call::Listen => endpoints.listen(fd, value(argument)),
        Call::Connect => connect(endpoints, fd, argument),
        Call::AcceptReq => accept(endpoints, fd, argument),
        Call::AcceptReg => put_accepted(endpoints, fd, encoding, argument),
        Call::Send | Call::Recv => message(endpoints, fd, call, argument),
        Call::Reg => register(endpoints, fd, argument),
        Call::Unreg => {
            let unreg: abi::Unreg = memory::get(argument)?;
            endpoints.unregister(fd, unreg.offset, length(unreg.len)?)
        }
        Call::ReadFrom | Call::WriteTo | Call::VReadFrom | Call::VWriteTo => {
            transfer(endpoints, fd, call, argument)
        }
        Call::GetNodeIds => nodes(endpoints, encoding, argument),
        Call::FenceMark => fence_mark(endpoints, fd, argument),
        Call::FenceWait => endpoints.fence_wait(fd, value(argument)),
        Call::FenceSignal => fence_signal(endpoints, fd, argument),
    }?;
    Ok(0)
}

/// Converts an int argument.
fn value(argument: usize) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "the driver looks at the low half")]
    let low = argument as i32;
    low
}

fn length(len: u64) -> Result<usize> {
    usize::try_from(len).map_err(|_| Failure::Invalid)
}

fn address(at: u64) -> Result<usize> {
    usize::try_from(at).map_err(|_| Failure::BadAddress)
}

/// Reads and writes only the int, although the number encodes eight bytes.
fn bind(endpoints: &Endpoints, fd: RawFd, argument: usize) -> Result<()> {
    let argument = InOut::<i32>::new(argument)?;
    #[expect(clippy::cast_possible_truncation, reason = "as the driver does")]
    #[expect(clippy::cast_sign_loss, reason = "as the driver does")]
    let port = endpoints.bind(fd, argument.get() as u16)?;
    argument.put(i32::from(port));
    Ok(())
}

fn connect(endpoints: &Endpoints, fd: RawFd, argument: usize) -> Result<()> {
    let argument = InOut::<abi::Connect>::new(argument)?;
    let mut connect = argument.get();
    let dst = PortId::new(connect.peer.node, connect.peer.port);
    let connected = match defects::connect_unbound(endpoints, fd, dst) {
        Some(connected) => connected,
        None => endpoints.connect(fd, dst),
    };
    sets::settle(endpoints, fd, false);
    connect.own.port = connected?;
    connect.own.node = endpoints.node();
    argument.put(connect);
    Ok(())
}

fn accept(endpoints: &Endpoints, fd: RawFd, argument: usize) -> Result<()> {
    let argument = InOut::<abi::Accept>::new(argument)?;
    let mut accept = argument.get();
    if accept.flags & !abi::ACCEPT_SYNC != 0 {
        return Err(Failure::Invalid);
    }
    let taken = endpoints.accept(fd, accept.flags != 0);
    sets::settle(endpoints, fd, false);
    let (peer, accepted) = taken?;
    // Not usable yet, so a program run by exec does not inherit it.
    real::set_cloexec(accepted, true);
    accept.cookie = match ours::keep(endpoints, accepted, fd) {
        Ok(cookie) => cookie,
        Err(failure) => {
            endpoints.close(accepted)?;
            return Err(failure);
        }
    };
    accept.peer = abi::PortAddr { node: peer.node, port: peer.port };
    argument.put(accept);
    Ok(())
}

/// Replaces the endpoint of this number by the accepted one, whatever its state.
fn put_accepted(
    endpoints: &Endpoints,
    fd: RawFd,
    encoding: Encoding,
    argument: usize,
) -> Result<()> {
    let cookie: u64 = memory::get(argument)?;
    let accepted = ours::take_kept(cookie).ok_or(Failure::Os(rustix::io::Errno::NOENT))?;
    sets::forget(fd);
    endpoints.replace(accepted, fd)?;
    endpoints.set_label(fd, ours::label(encoding))
}

fn message(endpoints: &Endpoints, fd: RawFd, call: Call, argument: usize) -> Result<()> {
    let argument = InOut::<abi::Msg>::new(argument)?;
    let mut msg = argument.get();
    msg.out_len = 0;
    if msg.len != 0 {
        let len = usize::try_from(msg.len).map_err(|_| Failure::Invalid)?;
        let wait = msg.flags & abi::BLOCK != 0;
        if msg.flags != 0 && !wait {
            return Err(Failure::Invalid);
        }
        let sure = if wait { len } else { QUEUE };
        let buffer = memory::buffer(address(msg.msg)?, len, sure, call == Call::Recv);
        let moved = if call == Call::Recv {
            if buffer.is_err() {
                endpoints.receivable(fd)?;
            }
            endpoints.receive(fd, &buffer?, wait)?
        } else {
            if buffer.is_err() {
                endpoints.usable(fd)?;
            }
            let sent = endpoints.send(fd, &buffer?, wait)?;
            if sent != 0 {
                stall(endpoints)?;
            }
            sent
        };
        sets::settle(endpoints, fd, moved < len);
        msg.out_len = i32::try_from(moved).map_err(|_| Failure::Broken)?;
    }
    argument.put(msg);
    Ok(())
}

/// Time for which mainline's driver waits for space in the queue of a node.
const STALL: Duration = Duration::from_secs(3);
/// Number of sends of this process that moved bytes.
static SENDS: AtomicCounter = AtomicCounter::new(0);

/// Emulates a full queue of the peer's node. The driver notifies the node through it, after the
/// bytes are in the queue of the connection.
///
/// # Errors
/// ENODEV for every send that the settings select.
fn stall(endpoints: &Endpoints) -> Result<()> {
    let config = endpoints.config();
    let nth = config.device_stall;
    if !config.device_traps || nth == 0 || (SENDS.add(1) + 1) % nth != 0 {
        return Ok(());
    }
    std::thread::sleep(STALL);
    Err(Failure::NoNode)
}

fn register(endpoints: &Endpoints, fd: RawFd, argument: usize) -> Result<()> {
    let argument = InOut::<abi::Reg>::new(argument)?;
    let mut reg = argument.get();
    defects::check_pinning(endpoints, fd, &reg)?;
    let memory = (address(reg.addr)?, length(reg.len)?);
    let offset = defects::suggested_offset(endpoints, &reg);
    reg.out_offset = endpoints.register(fd, memory, offset, reg.prot, reg.flags)?;
    argument.put(reg);
    Ok(())
}

fn transfer(endpoints: &Endpoints, fd: RawFd, call: Call, argument: usize) -> Result<()> {
    let t: abi::Transfer = memory::get(argument)?;
    let len = length(t.len)?;
    match call {
        Call::ReadFrom => endpoints.read_from(fd, t.loffset, len, t.roffset, t.flags),
        Call::WriteTo => endpoints.write_to(fd, t.loffset, len, t.roffset, t.flags),
        Call::VReadFrom => endpoints.read_to_memory(fd, address(t.addr)?, len, t.roffset, t.flags),
        _ => endpoints.write_from_memory(fd, address(t.addr)?, len, t.roffset, t.flags),
    }
}

fn nodes(endpoints: &Endpoints, encoding: Encoding, argument: usize) -> Result<()> {
    match encoding {
        Encoding::Struct => {
            let argument = InOut::<abi::NodeIds>::new(argument)?;
            let mut ids = argument.get();
            ids.len = list_nodes(endpoints, ids.nodes, ids.own, ids.len)?;
            argument.put(ids);
        }
        Encoding::Pointer => {
            let argument = InOut::<abi::NodeIds3>::new(argument)?;
            let mut ids = argument.get();
            ids.len = list_nodes(endpoints, ids.nodes, ids.own, ids.len)?;
            argument.put(ids);
        }
    }
    Ok(())
}

/// Writes the nodes that fit, and the own one. Returns their total number.
fn list_nodes(endpoints: &Endpoints, to: u64, me: u64, room: i32) -> Result<i32> {
    let (online, own) = endpoints.nodes()?;
    let (to, me) = (address(to)?, address(me)?);
    let listed = defects::listed_nodes(endpoints, &online);
    let fitting = listed.min(usize::try_from(room).unwrap_or(0));
    memory::check_put::<u16>(to, fitting)?;
    memory::put(me, own)?;
    for (i, node) in online.iter().take(fitting).enumerate() {
        memory::put(to + i * size_of::<u16>(), *node)?;
    }
    i32::try_from(online.len()).map_err(|_| Failure::Broken)
}

/// Converts the side that issued the RMAs of a fence.
fn side(flags: i32) -> Result<FenceSide> {
    match flags {
        abi::FENCE_INIT_SELF => Ok(FenceSide::Own),
        abi::FENCE_INIT_PEER => Ok(FenceSide::Peer),
        _ => Err(Failure::Invalid),
    }
}

fn fence_mark(endpoints: &Endpoints, fd: RawFd, argument: usize) -> Result<()> {
    let fence: abi::FenceMark = memory::get(argument)?;
    endpoints.usable(fd)?;
    let side = side(fence.flags)?;
    let to = address(fence.mark)?;
    let to = InOut::<i32>::new(to)?;
    to.put(endpoints.fence_mark(fd, side)?);
    Ok(())
}

fn fence_signal(endpoints: &Endpoints, fd: RawFd, argument: usize) -> Result<()> {
    let fence: abi::FenceSignal = memory::get(argument)?;
    endpoints.usable(fd)?;
    let side = side(fence.flags & !(abi::SIGNAL_LOCAL | abi::SIGNAL_REMOTE))?;
    let local = (fence.flags & abi::SIGNAL_LOCAL != 0)
        .then_some(Signal { offset: fence.loff, value: fence.lval });
    let remote = (fence.flags & abi::SIGNAL_REMOTE != 0)
        .then_some(Signal { offset: fence.roff, value: fence.rval });
    endpoints.fence_signal(fd, side, local, remote)
}
