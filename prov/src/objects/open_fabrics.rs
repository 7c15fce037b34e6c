// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! List of the open fabrics and domains of this process, for fi_getinfo(3).

use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libfabric_sys as fi;
use scif::Maker;

use crate::domain::DomainShared;

/// Fabric that C holds, and the domains opened on it that C may hold.
#[derive(Debug)]
struct OpenFabric {
    fabric: usize,
    creator: Maker,
    /// Domains by address; a closed one cannot be upgraded any more.
    domains: Vec<(usize, Weak<DomainShared>)>,
}

/// Open fabrics, oldest first.
static OPEN: Mutex<Vec<OpenFabric>> = Mutex::new(Vec::new());

fn lock_open() -> MutexGuard<'static, Vec<OpenFabric>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn remember(fabric: *mut fi::fid_fabric) {
    lock_open().push(OpenFabric {
        fabric: fabric.expose_provenance(),
        creator: Maker::here(),
        domains: Vec::new(),
    });
}

pub(super) fn remember_domain(
    fabric: *mut fi::fid_fabric,
    domain: *mut fi::fid_domain,
    shared: &Arc<DomainShared>,
) {
    if let Some(open) = lock_open().iter_mut().find(|open| open.fabric == fabric.addr()) {
        open.domains.retain(|(_, domain)| domain.strong_count() > 0);
        open.domains.push((domain.expose_provenance(), Arc::downgrade(shared)));
    }
}

pub(super) fn forget(fabric: *mut fi::fid_fabric) {
    lock_open().retain(|open| open.fabric != fabric.addr());
}

/// Returns the fabric and the domain that a program has open, for fi_getinfo(3); null without any.
/// A forked child ignores the objects of its parent.
pub(crate) fn first_open() -> (*mut fi::fid_fabric, *mut fi::fid_domain) {
    let open = lock_open();
    let Some(first) = open.iter().find(|open| !open.creator.is_ancestor()) else {
        return (ptr::null_mut(), ptr::null_mut());
    };
    let mut domains = first.domains.iter().filter(|(_, domain)| domain.strong_count() > 0);
    let domain = domains.next().map_or(0, |(domain, _)| *domain);
    (ptr::with_exposed_provenance_mut(first.fabric), ptr::with_exposed_provenance_mut(domain))
}
