// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! What one process knows of the windows of one endpoint: where it has mapped them for copying, which of its own are
//! deleted but still mapped by the peer, and which of the peer's the program has mapped.
//!
//! Not shared with other holders: each maps for itself.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use super::table::{Place, Window};
use crate::epd::{Link, Result, take};
use crate::sys::mmap::Mapping;
use crate::sys::pages;

/// Mappings for copying that are kept though their windows may be gone.
const KEPT: usize = 256;

/// Which window is mapped: the peer's or ours, and where in its arena.
type Key = (bool, u64);

#[derive(Debug, Default)]
struct Known {
    copies: BTreeMap<Key, Arc<Mapping>>,
    lingering: Vec<Window>,
    /// Windows of the peer that the program has mapped: serial number, place and length in the arena.
    mapped: Vec<(u32, u64, u64)>,
    /// What the peer answered to `AskMapped`.
    answers: BTreeMap<u32, bool>,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct WindowState(Mutex<Known>);

impl WindowState {
    /// Memory to copy from or to, of a window that lies in an arena.
    pub(crate) fn mapping(
        &self,
        arena: BorrowedFd<'_>,
        of_peer: bool,
        window: &Window,
        at: u64,
    ) -> Result<Arc<Mapping>> {
        let mut known = take(&self.0);
        let len = usize::try_from(window.len).map_err(|_| crate::epd::Failure::NoMemory)?;
        let writable = window.write || !of_peer;
        if let Some(map) = known
            .copies
            .get(&(of_peer, at))
            .filter(|map| map.is_like(len, writable))
        {
            return Ok(Arc::clone(map));
        }
        if known.copies.len() >= KEPT {
            // Those in use are held by who uses them.
            known.copies.clear();
        }
        let map = Arc::new(Mapping::part(arena, at, len, writable)?);
        known.copies.insert((of_peer, at), Arc::clone(&map));
        Ok(map)
    }

    /// Forgets the memory of one of our windows.
    pub(crate) fn forget(&self, window: &Window) {
        if let Place::Arena(at) = window.place {
            take(&self.0).copies.remove(&(false, at));
        }
    }

    pub(crate) fn linger(&self, window: Window) {
        take(&self.0).lingering.push(window);
    }

    pub(crate) fn lingering(&self) -> Vec<Window> {
        take(&self.0).lingering.clone()
    }

    pub(crate) fn lingers_no_more(&self, window: &Window) {
        take(&self.0).lingering.retain(|other| other != window);
    }

    /// The program maps a window of the peer.
    pub(crate) fn map(&self, serial: u32, at: u64, len: u64) {
        let mut known = take(&self.0);
        if !known.mapped.contains(&(serial, at, len)) {
            known.mapped.push((serial, at, len));
        }
    }

    /// Whether the program still maps a window of the peer: as the kernel says, since it may have unmapped it by any
    /// means.
    pub(crate) fn maps(&self, link: &Link, serial: u32) -> bool {
        let mut known = take(&self.0);
        let ranges: Vec<(u64, u64)> = known
            .mapped
            .iter()
            .filter(|(of, ..)| *of == serial)
            .map(|&(_, at, len)| (at, at.saturating_add(len)))
            .collect();
        if ranges.is_empty() {
            return false;
        }
        let Ok(arena) = pages::file_id(link.peer.arena()) else {
            return true;
        };
        let ours: Vec<usize> = known.copies.values().map(|map| map.address()).collect();
        let Ok(areas) = pages::areas(0, usize::MAX) else {
            return true;
        };
        let still = areas
            .iter()
            .filter(|area| area.shared && area.file == arena && !ours.contains(&area.begin))
            .any(|area| {
                let (begin, end) = (
                    area.offset,
                    area.offset.saturating_add((area.end - area.begin) as u64),
                );
                ranges.iter().any(|&(from, to)| begin < to && end > from)
            });
        if !still {
            known.mapped.retain(|(of, ..)| *of != serial);
        }
        still
    }

    /// The peer's answer to `AskMapped`: the serial number, and whether it is mapped in bit 0.
    pub(crate) fn answered(&self, answer: u32) {
        let mut known = take(&self.0);
        if known.answers.len() < KEPT {
            known.answers.insert(answer >> 1, answer & 1 != 0);
        }
    }

    /// Takes an answer, if it is there.
    pub(crate) fn answer(&self, serial: u32) -> Option<bool> {
        take(&self.0).answers.remove(&serial)
    }
}
