// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
#![expect(unsafe_code, reason = "declares the C objects that calls may recover from pointers")]
//! C objects on which others are opened: fabric, domain and address vector.
//!
//! Their operation tables name the functions that open these others. They stand above, in `fabric`,
//! `domain` and `av`.

use std::sync::{Arc, OnceLock};

use libfabric_sys as fi;

use crate::base::addr::LocalHost;
use crate::base::entry;
use crate::domain::DomainShared;
use crate::state::eq_queue::EqShared;
use crate::state::fabric::FabricShared;

/// Object behind `struct fid_fabric`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(super) fid: fi::fid_fabric,
    pub(super) shared: Arc<FabricShared>,
}

// SAFETY: repr(C) with a fid_fabric first; FI_CLASS_FABRIC is in Fabric objects only. An Arc of a
// Sync type follows the fid.
unsafe impl entry::Object for Fabric {
    const FCLASS: usize = fi::FI_CLASS_FABRIC;
}

entry::created_by!(Fabric, |object| object.shared.creator);

impl Fabric {
    pub(crate) fn shared(&self) -> &Arc<FabricShared> {
        &self.shared
    }
}

/// Object behind `struct fid_domain`.
#[repr(C)]
pub(crate) struct Domain {
    pub(super) fid: fi::fid_domain,
    pub(crate) shared: Arc<DomainShared>,
}

// SAFETY: repr(C) with a fid_domain first; FI_CLASS_DOMAIN is in Domain objects only. An Arc of
// Sync state follows the fid.
unsafe impl entry::Object for Domain {
    const FCLASS: usize = fi::FI_CLASS_DOMAIN;
}

entry::created_by!(Domain, |object| object.shared.creator);

/// Object behind `struct fid_av`.
#[repr(C)]
pub(crate) struct Av {
    pub(super) fid: fi::fid_av,
    pub(super) dom: Arc<DomainShared>,
    pub(super) index: u32,
    pub(super) reader: LocalHost,
    /// Whether insertions are reported through an event queue.
    pub(super) events: bool,
    /// Whether the source of a message is reported only as set by `fi_av_set_user_id`.
    pub(super) users: bool,
    /// Whether only other processes may change the addresses.
    pub(super) read_only: bool,
    pub(super) eq: OnceLock<Arc<EqShared>>,
}

// SAFETY: repr(C) with a fid_av first; FI_CLASS_AV is in Av objects only. The fields after the fid
// are Sync; the domain lock guards everything else.
unsafe impl entry::Object for Av {
    const FCLASS: usize = fi::FI_CLASS_AV;
}

entry::created_by!(Av, |object| object.dom.creator);

impl Av {
    /// Domain of this vector.
    pub(crate) fn domain(&self) -> &Arc<DomainShared> {
        &self.dom
    }

    /// Index in `DomainState::avs`.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }
}
