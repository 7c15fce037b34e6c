// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "opens objects of another provider through C")]
//! Network of a domain: objects of another provider of libfabric, opened through the host.
//!
//! Not about messages (`wire`). A program that selects this provider alone makes the host hide all
//! others. The flags of the query make it answer all the same. The functions of the network's
//! objects are called by one thread at a time, under the gate of the domain that has them.

mod wire;

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::net::SocketAddrV4;
use std::ptr;
use std::sync::{Arc, OnceLock};

use libfabric_sys as fi;
use scif::Maker;
use scif_ring::domain_lock::{ElidableLock, ElidableLockGuard};

use crate::base::addr::{ADDR_LEN, Addr};
use crate::base::errno::{self, Errno};
use crate::base::log::{Subsys, info, warn};
use crate::base::net_settings::NetChoice;
use crate::base::{env, host};
pub(crate) use wire::EndpointWire;

/// Flag of `fi_getinfo` for providers that the selection of the user hides (`OFI_GETINFO_HIDDEN`).
const HIDDEN: u64 = 1 << 60;
/// Flag of `fi_getinfo` that leaves out utility providers (`OFI_CORE_PROV_ONLY`), among which is
/// this one.
const CORE_ONLY: u64 = 1 << 59;

/// Capabilities for reads of memory.
const READ_CAPS: u64 = fi::FI_RMA | fi::FI_READ | fi::FI_REMOTE_READ;
/// Modes of memory registration that reads obey. Buffers of messages are not registered.
const READ_MODES: c_int = fi::FI_MR_VIRT_ADDR | fi::FI_MR_ALLOCATED | fi::FI_MR_PROV_KEY;

/// Order of reads, so that several may be in progress.
const READ_ORDER: u64 = fi::FI_ORDER_RMA_RAR;

/// Calls a function of an object of the network.
macro_rules! call {
    ($object:expr, $table:ident . $function:ident ($($argument:expr),*)) => {{
        let object = $object;
        // SAFETY: an open object of the network's provider, which its owner closes when dropped.
        let table = unsafe { (*object).$table };
        // SAFETY: the table of an open object is static, and has the functions of version 1.17.
        let function = unsafe { (*table).$function };
        // SAFETY: the arguments meet the function's manual page; the gate is held.
        unsafe { function(object.cast(), $($argument),*) }
    }};
}
use call;

/// Calls a function of the common part of an object of the network.
macro_rules! call_fid {
    ($object:expr, $function:ident ($($argument:expr),*)) => {{
        let fid: *mut fi::fid = $object.cast();
        $crate::net::call!(fid, ops.$function($($argument),*))
    }};
}
use call_fid;

/// Objects of the network that the endpoints of a domain share.
#[derive(Debug)]
struct NetObjects {
    provider: &'static CStr,
    info: *mut fi::fi_info,
    fabric: *mut fi::fid_fabric,
    domain: *mut fi::fid_domain,
    av: *mut fi::fid_av,
    /// Numbers of the addresses in the vector.
    peers: HashMap<SocketAddrV4, u64>,
    /// Addresses by number, with the number of their uses.
    uses: HashMap<u64, (SocketAddrV4, usize)>,
    /// Capability to read memory of peers; `None` without.
    reads: Option<ReadRules>,
    /// Number of endpoints whose descriptors are watched.
    watched: usize,
}

/// Rules of a network for reads.
#[derive(Clone, Copy, Debug)]
struct ReadRules {
    /// Whether memory of a peer is named by its address there, not by an offset.
    by_address: bool,
    /// Whether the network chooses the keys.
    chooses_keys: bool,
    /// Largest key that this side may choose.
    key_max: u64,
    /// Length in bytes of the longest read.
    len_max: usize,
    /// Whether reads of one peer's memory are executed in order.
    is_ordered: bool,
}

// SAFETY: the objects may be used by any thread, one at a time, and the gate is a lock.
unsafe impl Send for NetObjects {}

/// Network of a domain.
pub(crate) struct NetDomain {
    openers: fi::Openers,
    gate: ElidableLock<NetObjects>,
    provider: &'static CStr,
    creator: Maker,
}

impl fmt::Debug for NetDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetDomain").field("provider", &self.provider).finish_non_exhaustive()
    }
}

/// Returns the error of a call of a network that returned `code`.
fn checked(provider: &CStr, call: &str, code: c_int) -> Result<(), Errno> {
    if code == 0 {
        return Ok(());
    }
    note_failure(provider, format_args!("{call}: {}", errno::text(-code)));
    Err(-code)
}

/// Logs the failure of a call of a network. Its caller logs what cannot be done without it.
fn note_failure(provider: &CStr, event: fmt::Arguments<'_>) {
    info(
        Subsys::Fabric,
        format_args!(
            "network {}: {event}. FI_LOG_LEVEL=warn shows its own lines",
            provider.to_string_lossy()
        ),
    );
}

impl NetDomain {
    /// Returns the network in `at`. If there is none, opens the first usable one of those that the
    /// user has chosen.
    ///
    /// # Errors
    /// `FI_ENODATA`: the host has no such provider. Errors of the provider.
    pub(crate) fn open<'a>(
        at: &'a OnceLock<Arc<NetDomain>>,
        providers: &[&'static CStr],
    ) -> Result<&'a Arc<NetDomain>, Errno> {
        open_in(at, providers, |objects| {
            ElidableLock::shared_with(objects, |wait| scif::keep_errno(wait))
        })
    }

    /// Returns the network in `at` as [`NetDomain::open`]. A new one has no lock.
    ///
    /// # Errors
    /// As [`NetDomain::open`].
    ///
    /// # Safety
    /// No two threads use the network at once, see [`ElidableLock::elided`].
    pub(crate) unsafe fn open_serial<'a>(
        at: &'a OnceLock<Arc<NetDomain>>,
        providers: &[&'static CStr],
    ) -> Result<&'a Arc<NetDomain>, Errno> {
        // SAFETY: by the contract of this function.
        open_in(at, providers, |objects| unsafe { ElidableLock::elided(objects) })
    }

    fn try_open(
        provider: &'static CStr,
        gate: impl FnOnce(NetObjects) -> ElidableLock<NetObjects>,
    ) -> Result<NetDomain, Errno> {
        let openers = host::openers().ok_or(fi::FI_ENODATA)?;
        let mut objects = NetObjects {
            provider,
            info: find_any(&openers, provider)?,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            av: ptr::null_mut(),
            peers: HashMap::new(),
            uses: HashMap::new(),
            reads: None,
            watched: 0,
        };
        let opened = objects.open(&openers);
        let net = NetDomain { openers, gate: gate(objects), provider, creator: Maker::here() };
        opened.map(|()| net)
    }

    #[inline]
    fn lock(&self) -> ElidableLockGuard<'_, NetObjects> {
        self.gate.lock()
    }

    /// Returns the name of the provider.
    pub(crate) fn provider(&self) -> &'static CStr {
        self.provider
    }
}

/// Returns the network in `at`, which is opened with the lock of `gate` if there is none.
fn open_in<'a>(
    at: &'a OnceLock<Arc<NetDomain>>,
    providers: &[&'static CStr],
    gate: impl FnOnce(NetObjects) -> ElidableLock<NetObjects>,
) -> Result<&'a Arc<NetDomain>, Errno> {
    if let Some(net) = at.get() {
        return Ok(net);
    }
    let provider = first_usable(providers).ok_or(fi::FI_ENODATA)?;
    match NetDomain::try_open(provider, gate) {
        Ok(opened) => Ok(at.get_or_init(|| Arc::new(opened))),
        Err(errno) => {
            log_unopened(providers, provider, errno);
            Err(errno)
        }
    }
}

/// Logs that the network of a provider cannot be opened.
fn log_unopened(providers: &[&'static CStr], provider: &CStr, errno: Errno) {
    if log_missing_domain(providers) {
        return;
    }
    let name = provider.to_string_lossy();
    let remedy = match name.split_once(';') {
        // The utility asks for its core without the flag for hidden providers.
        Some((core, _)) => format!(
            "A layered provider finds its core only if FI_PROVIDER names it: set \
             FI_PROVIDER='scif,{core};scif'"
        ),
        None => "Set FI_SCIF_NET to a provider that fi_info lists ('tcp', or 'net' of \
                 libfabric 1.17), or to 'none'"
            .to_owned(),
    };
    warn(
        Subsys::Fabric,
        format_args!("the network {name} cannot be opened: {}. {remedy}", errno::text(errno)),
    );
}

/// Returns the info of the provider's endpoints for messages in order, with reads of memory if it
/// has them, in the domain that the user has chosen.
fn find_any(openers: &fi::Openers, provider: &CStr) -> Result<*mut fi::fi_info, Errno> {
    let domain = env::env().net.domain;
    let find_first = |caps, order| {
        let found = find(openers, provider, domain, (caps, order))?;
        domain.map_or(Ok(found), |name| in_domain(openers, found, name))
    };
    find_first(READ_CAPS, READ_ORDER)
        .or_else(|_| find_first(READ_CAPS, 0))
        .or_else(|_| find_first(0, 0))
}

/// Returns the first info of a list whose domain has that name. `net` of libfabric 1.17 ignores the
/// name in hints.
fn in_domain(
    openers: &fi::Openers,
    list: *mut fi::fi_info,
    name: &CStr,
) -> Result<*mut fi::fi_info, Errno> {
    let found = infos(list).find(|info| domain_of(info) == Some(name)).map(ptr::from_ref);
    // SAFETY: an info of the list, which is copied without its successors.
    let own = found.map(|info| unsafe { (openers.dupinfo)(info) });
    // SAFETY: made by getinfo, and not used below.
    unsafe { (openers.freeinfo)(list) };
    match own {
        Some(info) if info.is_null() => Err(fi::FI_ENOMEM),
        Some(info) => Ok(info),
        None => Err(fi::FI_ENODATA),
    }
}

/// Returns the infos of a list that nobody frees meanwhile.
fn infos<'a>(list: *const fi::fi_info) -> impl Iterator<Item = &'a fi::fi_info> {
    // SAFETY: null, or an info of a list of getinfo.
    std::iter::successors(unsafe { list.as_ref() }, |info| unsafe { info.next.as_ref() })
}

fn domain_of(info: &fi::fi_info) -> Option<&CStr> {
    // SAFETY: a part of the info, or null.
    let attr = unsafe { info.domain_attr.as_ref() }?;
    // SAFETY: a C string that lives as long as the info.
    (!attr.name.is_null()).then(|| unsafe { CStr::from_ptr(attr.name) })
}

/// Returns the names of the domains of a provider, each once.
fn domains(openers: &fi::Openers, provider: &CStr) -> Vec<String> {
    let Ok(list) = find(openers, provider, None, (0, 0)) else { return Vec::new() };
    let mut names = Vec::new();
    for name in infos(list).filter_map(domain_of) {
        let name = name.to_string_lossy().into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    // SAFETY: made by getinfo, and not used below.
    unsafe { (openers.freeinfo)(list) };
    names
}

/// Logs that the domain chosen by the user does not exist, with those that do. Returns false if the
/// cause is another one.
fn log_missing_domain(providers: &[&'static CStr]) -> bool {
    let (Some(wanted), Some(openers)) = (env::env().net.domain, host::openers()) else {
        return false;
    };
    let wanted = wanted.to_string_lossy();
    for provider in providers {
        let names = domains(&openers, provider);
        if names.is_empty() || names.iter().any(|name| *name == wanted) {
            continue;
        }
        warn(
            Subsys::Fabric,
            format_args!(
                "FI_SCIF_NET_DOMAIN={wanted}: {} has no such domain, so no network is opened. Set \
                 it to one of: {}",
                provider.to_string_lossy(),
                names.join(", ")
            ),
        );
        return true;
    }
    false
}

fn find(
    openers: &fi::Openers,
    provider: &CStr,
    domain: Option<&CStr>,
    (caps, order): (u64, u64),
) -> Result<*mut fi::fi_info, Errno> {
    // SAFETY: null asks for an empty info.
    let hints = unsafe { (openers.dupinfo)(ptr::null()) };
    // SAFETY: null, or a new info that nobody else has.
    let Some(wanted) = (unsafe { hints.as_mut() }) else {
        return Err(fi::FI_ENOMEM);
    };
    wanted.caps = fi::FI_MSG | caps;
    wanted.mode = fi::FI_CONTEXT | fi::FI_CONTEXT2;
    wanted.addr_format = fi::FI_SOCKADDR_IN;
    // SAFETY: a part of the new info, or null.
    if let Some(ep) = unsafe { wanted.ep_attr.as_mut() } {
        ep.type_ = fi::FI_EP_RDM;
    }
    // SAFETY: as above.
    if let Some(tx) = unsafe { wanted.tx_attr.as_mut() } {
        tx.msg_order = fi::FI_ORDER_SAS | order;
    }
    // SAFETY: as above.
    if let Some(rx) = unsafe { wanted.rx_attr.as_mut() } {
        rx.msg_order = fi::FI_ORDER_SAS | order;
    }
    // SAFETY: as above.
    if let Some(attr) = unsafe { wanted.domain_attr.as_mut() } {
        if let Some(name) = domain {
            // SAFETY: a C string. `freeinfo` frees the copy.
            attr.name = unsafe { libc::strdup(name.as_ptr()) };
        }
        attr.threading = fi::FI_THREAD_DOMAIN;
        attr.control_progress = fi::FI_PROGRESS_MANUAL;
        attr.data_progress = fi::FI_PROGRESS_MANUAL;
        attr.resource_mgmt = fi::FI_RM_ENABLED;
        attr.mr_mode = READ_MODES;
    }
    // SAFETY: as above.
    if let Some(fabric) = unsafe { wanted.fabric_attr.as_mut() } {
        // SAFETY: a C string. `freeinfo` frees the copy.
        fabric.prov_name = unsafe { libc::strdup(provider.as_ptr()) };
    }
    let mut found = ptr::null_mut();
    let is_layered = provider.to_bytes().contains(&b';');
    let flags = if is_layered { HIDDEN } else { HIDDEN | CORE_ONLY };
    // SAFETY: the hints are complete, and `found` receives the result.
    let code = unsafe {
        (openers.getinfo)(fi::Host::OLDEST, ptr::null(), ptr::null(), flags, hints, &raw mut found)
    };
    // SAFETY: made by dupinfo, and not used below.
    unsafe { (openers.freeinfo)(hints) };
    checked(provider, "fi_getinfo", code)?;
    if found.is_null() { Err(fi::FI_ENODATA) } else { Ok(found) }
}

impl NetObjects {
    fn open(&mut self, openers: &fi::Openers) -> Result<(), Errno> {
        self.reads = read_rules(self.info);
        // SAFETY: an info of getinfo, which lives as long as the objects.
        let attr = unsafe { (*self.info).fabric_attr };
        // SAFETY: the attributes of that info, and space for the result.
        let code = unsafe { (openers.fabric)(attr, &raw mut self.fabric, ptr::null_mut()) };
        checked(self.provider, "fi_fabric", code)?;
        let (info, context) = (self.info, ptr::null_mut());
        let code = call!(self.fabric, ops.domain(info, &raw mut self.domain, context));
        checked(self.provider, "fi_domain", code)?;
        let mut attr = fi::fi_av_attr {
            type_: fi::FI_AV_UNSPEC,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        let context = ptr::null_mut();
        let code = call!(self.domain, ops.av_open(&raw mut attr, &raw mut self.av, context));
        checked(self.provider, "fi_av_open", code)
    }

    /// Returns the number of the peer with that name, for one use.
    fn peer(&mut self, name: SocketAddrV4) -> Result<u64, Errno> {
        let number = match self.peers.get(&name) {
            Some(known) => *known,
            None => self.insert(name)?,
        };
        self.uses.entry(number).or_insert((name, 0)).1 += 1;
        Ok(number)
    }

    fn insert(&mut self, name: SocketAddrV4) -> Result<u64, Errno> {
        let bytes: [u8; ADDR_LEN] = Addr::this_host(*name.ip(), name.port()).to_bytes();
        let mut number = fi::FI_ADDR_NOTAVAIL;
        let (addr, context) = (bytes.as_ptr().cast(), ptr::null_mut());
        match call!(self.av, ops.insert(addr, 1, &raw mut number, 0, context)) {
            1 => {
                self.peers.insert(name, number);
                Ok(number)
            }
            code if code < 0 => Err(-code),
            _ => Err(fi::FI_EADDRNOTAVAIL),
        }
    }

    /// Returns the name of a peer for lines of the log.
    fn shown(&self, number: u64) -> String {
        self.uses
            .get(&number)
            .map_or("a peer that has left".to_owned(), |(name, _)| name.to_string())
    }

    /// Ends one use of a number. After the last one the vector forgets its address.
    fn release(&mut self, mut number: u64) {
        let Some((name, uses)) = self.uses.get_mut(&number) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.peers.remove(name);
            self.uses.remove(&number);
            let code = call!(self.av, ops.remove(&raw mut number, 1, 0));
            let _ = checked(self.provider, "fi_av_remove", code);
        }
    }
}

/// Returns the rules for reads of an info; `None` without the capability.
fn read_rules(info: *mut fi::fi_info) -> Option<ReadRules> {
    // SAFETY: an info of getinfo, or null.
    let info = unsafe { info.as_ref() }?;
    // SAFETY: a part of the info, or null.
    let domain = unsafe { info.domain_attr.as_ref() }?;
    // SAFETY: as above.
    let ep = unsafe { info.ep_attr.as_ref() }?;
    // SAFETY: as above.
    let tx = unsafe { info.tx_attr.as_ref() }?;
    let key_bits = u32::try_from(domain.mr_key_size).unwrap_or(8).min(8) * 8;
    (info.caps & READ_CAPS == READ_CAPS && key_bits > 0).then(|| ReadRules {
        by_address: domain.mr_mode & fi::FI_MR_VIRT_ADDR != 0,
        chooses_keys: domain.mr_mode & fi::FI_MR_PROV_KEY != 0,
        key_max: u64::MAX >> (64 - key_bits),
        len_max: ep.max_msg_size,
        is_ordered: tx.msg_order & READ_ORDER != 0,
    })
}

/// Closes an object of the network, unless it is null.
fn close<T>(provider: &CStr, object: *mut T, name: &str) {
    if !object.is_null() {
        let _ = checked(provider, name, call_fid!(object, close()));
    }
}

impl Drop for NetDomain {
    fn drop(&mut self) {
        // The sockets belong to the parent as well.
        if self.creator.is_ancestor() {
            return;
        }
        let objects = self.gate.get_mut();
        close(self.provider, objects.av, "fi_close of the address vector");
        close(self.provider, objects.domain, "fi_close of the domain");
        close(self.provider, objects.fabric, "fi_close of the fabric");
        // SAFETY: made by getinfo, and not used below.
        unsafe { (self.openers.freeinfo)(objects.info) };
    }
}

/// Returns the reason for which a chosen network cannot be used, if there is one.
fn why_ignored(node: &scif::Node) -> Option<&'static str> {
    if node.kind() != scif::TransportKind::Soft {
        return Some("FI_SCIF_TRANSPORT is not 'soft'");
    }
    // libkofi has no functions that open another provider.
    host::openers().is_none().then_some("no libfabric with other providers has loaded this one")
}

/// Whether a provider can carry messages, and the user has not excluded it.
fn is_usable(openers: &fi::Openers, provider: &CStr) -> bool {
    !env::is_excluded(provider)
        && find_any(openers, provider).is_ok_and(|info| {
            // SAFETY: made by getinfo, and not used below.
            unsafe { (openers.freeinfo)(info) };
            true
        })
}

/// Returns the first usable provider, or the last one, whose failure to open is then logged.
fn first_usable(providers: &[&'static CStr]) -> Option<&'static CStr> {
    let (last, others) = providers.split_last()?;
    let openers = host::openers();
    let is_usable =
        |provider: &&&CStr| openers.as_ref().is_some_and(|openers| is_usable(openers, provider));
    Some(others.iter().find(is_usable).unwrap_or(last))
}

/// Returns a provider that this libfabric has, for a line of the log: `tcp` or `net`.
pub(crate) fn suggested() -> &'static CStr {
    first_usable(NetChoice::Auto.providers()).unwrap_or(c"tcp")
}

/// Returns the providers of the network to try, unless the choice of the user is ignored; empty
/// without a network.
pub(crate) fn chosen(node: &scif::Node) -> &'static [&'static CStr] {
    let providers = env::env().net.choice.providers();
    if providers.is_empty() {
        return &[];
    }
    let Some(why) = why_ignored(node) else { return providers };
    // The user has not asked for one.
    if env::env().net.choice == NetChoice::Auto {
        return &[];
    }
    static LOGGED: std::sync::Once = std::sync::Once::new();
    LOGGED.call_once(|| {
        warn(
            Subsys::Fabric,
            format_args!("FI_SCIF_NET is ignored, since {why}. Set FI_SCIF_NET to 'none'"),
        );
    });
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_host_there_is_no_network() {
        for providers in [&[c"tcp"][..], &[c"tcp", c"net"]] {
            assert_eq!(NetDomain::open(&OnceLock::new(), providers).err(), Some(fi::FI_ENODATA));
        }
        let node = crate::state::fabric::open_node().unwrap();
        assert!(why_ignored(&node).is_some_and(|why| why.contains("libfabric")));
    }

    #[test]
    fn no_network_is_opened_unless_one_is_chosen() {
        let node = crate::state::fabric::open_node().unwrap();
        assert!(chosen(&node).is_empty());
    }
}
