// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! State of the windows of one endpoint in one process: its mappings for copying, and the peer's
//! answers about its mappings.
//!
//! Not shared with other sharers: each process has its own mappings.

use std::sync::{Arc, Mutex};

use scif::sorted::SortedMap;
use scif::sys::mmap::Mapping;
use scif::sys::pages::{self, Area, FileId};
use scif::sys::{family, maps};

use super::loans::Loan;
use super::space::Spaces;
use super::table::{Place, Window};
use crate::failure::{Failure, Result};
use crate::lock::take;

/// Maximum number of mappings kept for copying, and of answers. All mappings are dropped when it is
/// reached.
const KEPT: usize = 256;

/// Mapped window: whether it is the peer's, and its offset in the arena.
type Key = (bool, u64);

#[derive(Debug, Default)]
struct Known {
    copies: SortedMap<Key, Arc<Mapping>>,
    /// Parts of the peer's arena that the program mapped, and may still map.
    mapped: Vec<Part>,
    /// Answers of the peer to `MappedQuery`, by serial number.
    answers: SortedMap<u32, bool>,
    /// Whether this process ever registered pages that were not moved.
    unmoved: bool,
    /// Ranges of deleted windows on which RMA may be in progress, by offset and length.
    hidden: Vec<(u64, u64)>,
    /// Ranges of the own arena outside all windows, with pages that could not move back yet.
    left: Vec<(u64, u64)>,
    /// Loans of the own arena to windows of other connections.
    lent: Vec<Arc<Loan>>,
    /// Loans of other arenas to own windows.
    borrowed: Vec<Arc<Loan>>,
}

/// Part of an arena of the peer's process that was mapped for the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Address of the mapping.
    pub(crate) begin: usize,
    pub(crate) len: usize,
    /// Offset in the arena.
    pub(crate) from: u64,
    pub(crate) arena: FileId,
    /// Serial number of the window.
    pub(crate) serial: u32,
}

impl Part {
    fn end(&self) -> usize {
        self.begin + self.len
    }

    /// Whether it overlaps a range of the arena.
    fn touches(&self, at: u64, end: u64) -> bool {
        self.from < end && self.from + self.len as u64 > at
    }
}

/// State of the windows of one endpoint in one process.
#[derive(Debug, Default)]
pub(crate) struct WindowState(Mutex<Known>);

impl WindowState {
    /// Returns the mapping to copy from or to, for a window in an arena.
    pub(crate) fn mapping(
        &self,
        spaces: Spaces<'_>,
        of_peer: bool,
        window: &Window,
        at: u64,
    ) -> Result<Arc<Mapping>> {
        // Another sharer that inspects this process could not distinguish a kept mapping from one
        // of the program.
        let shared = family::has_fork_group() && spaces.own.table.sharers.shared();
        let mut known = take(&self.0);
        if shared {
            known.copies.clear();
        }
        let len = usize::try_from(window.len).map_err(|_| Failure::NoMemory)?;
        let writable = window.write || !of_peer;
        if let Some(map) = known.copies.get(&(of_peer, at)).filter(|map| map.is_like(len, writable))
        {
            return Ok(Arc::clone(map));
        }
        if known.copies.len() >= KEPT {
            // Mappings in use are kept alive by their users.
            known.copies.clear();
        }
        let arena = if of_peer { spaces.peer.arena() } else { spaces.own.arena() };
        let map = Arc::new(Mapping::part(arena, at, len, writable)?);
        if !shared {
            known.copies.insert((of_peer, at), Arc::clone(&map));
        }
        Ok(map)
    }

    /// Drops the mappings of own windows.
    pub(crate) fn forget(&self, windows: &[&Window]) {
        let mut known = take(&self.0);
        for window in windows {
            if let Place::Arena(at) = window.place {
                known.copies.remove(&(false, at));
            }
        }
    }

    /// Notes that a window may have pages of this process in place from now on.
    pub(crate) fn set_unmoved(&self) {
        take(&self.0).unmoved = true;
    }

    /// Whether a window may have pages of this process in place.
    pub(crate) fn has_unmoved(&self) -> bool {
        take(&self.0).unmoved
    }

    /// Notes a range of deleted windows on which RMA may be in progress.
    pub(crate) fn hide(&self, range: (u64, u64)) {
        take(&self.0).hidden.push(range);
    }

    /// Ends that state for all windows in a range.
    pub(crate) fn end_hiding(&self, (at, len): (u64, u64)) {
        let end = at.saturating_add(len);
        take(&self.0).hidden.retain(|(begin, size)| *begin < at || begin + size > end);
    }

    /// Whether RMA may be in progress on the deleted window at an offset.
    pub(crate) fn is_hidden(&self, offset: u64) -> bool {
        let hidden = &take(&self.0).hidden;
        hidden.iter().any(|(at, len)| (*at..at + len).contains(&offset))
    }

    /// Records ranges of the own arena, outside all windows, with pages that remain to be moved
    /// back.
    pub(crate) fn leave(&self, ranges: Vec<(u64, u64)>) {
        take(&self.0).left.extend(ranges);
    }

    pub(crate) fn has_left(&self) -> bool {
        !take(&self.0).left.is_empty()
    }

    /// Takes the recorded ranges, for another attempt.
    pub(crate) fn take_left(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut take(&self.0).left)
    }

    /// Drops the mappings that this process uses for copies, since another process now uses the
    /// endpoint, too. See `mapping`.
    pub(crate) fn forget_copies(&self) {
        take(&self.0).copies.clear();
    }

    /// Forgets everything in a forked child. The parent's mappings do not exist there, and none of
    /// its memory lies in an arena.
    pub(crate) fn forget_all(&self) {
        let gone = std::mem::take(&mut *take(&self.0));
        drop(gone);
    }

    /// Records that the program has mapped windows of the peer.
    pub(crate) fn map(&self, parts: &[Part]) {
        let mut known = take(&self.0);
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return;
        };
        // A replaced part is dropped from the list.
        known.mapped.retain(|part| part.begin < first.begin || part.end() > last.end());
        known.mapped.extend_from_slice(parts);
    }

    /// Whether the program still maps a range of the peer's arena, in any process that shares the
    /// endpoint. The kernel is asked, since the program may have unmapped it by any means.
    pub(crate) fn maps(&self, spaces: Spaces<'_>, at: u64, len: u64) -> bool {
        let end = at.saturating_add(len);
        let Ok(arena) = pages::file_id(spaces.peer.arena()) else {
            return true;
        };
        self.maps_any(
            spaces,
            |part| part.arena == arena && part.touches(at, end),
            |area| area.shows(arena, at, end),
        )
    }

    /// Whether the program still maps pages of a window of the peer that lie in the arena of
    /// another connection.
    pub(crate) fn maps_lent(&self, spaces: Spaces<'_>, serial: u32) -> bool {
        let arena = pages::file_id(spaces.peer.arena());
        self.maps_any(
            spaces,
            |part| Ok(part.arena) != arena && part.serial == serial,
            // The window of a mapping in another sharer is unknown.
            Area::is_of_arena,
        )
    }

    /// Whether the program still maps a window of the peer in this process.
    pub(crate) fn is_anything_mapped(&self) -> bool {
        mappings(&take(&self.0).mapped).is_none_or(|areas| !areas.is_empty())
    }

    /// Whether a part selected by `is_asked` is still mapped in this process, or another sharer has
    /// an area for which `shows` holds.
    fn maps_any(
        &self,
        spaces: Spaces<'_>,
        is_asked: impl Fn(&Part) -> bool,
        shows: impl Fn(&Area) -> bool,
    ) -> bool {
        let mut known = take(&self.0);
        // Thousands of other parts need no query.
        let (mine, others): (Vec<Part>, Vec<Part>) =
            known.mapped.iter().partition(|part| is_asked(part));
        let Some(areas) = mappings(&mine) else {
            return true;
        };
        known.mapped = others;
        known.mapped.extend(mine.iter().filter(|part| {
            areas.iter().any(|area| area.begin < part.end() && area.end > part.begin)
        }));
        drop(known);
        // Mappings for copying are not kept in other sharers.
        let others = || spaces.own.table.sharers.others().into_iter().map(pages::areas_of);
        areas.iter().any(&shows)
            || others().any(|areas| areas.is_none_or(|areas| areas.iter().any(&shows)))
    }

    /// Records a loan of the own arena to a window of another connection.
    pub(crate) fn lend(&self, loan: Arc<Loan>) {
        let lent = &mut take(&self.0).lent;
        // Ended loans are dropped before the list grows, because a window may be registered again
        // and again.
        if lent.len() == lent.capacity() {
            lent.retain(|loan| !loan.has_ended());
        }
        lent.push(loan);
    }

    /// Records a loan of another connection's arena to an own window.
    pub(crate) fn borrow(&self, loan: Arc<Loan>) {
        take(&self.0).borrowed.push(loan);
    }

    /// Whether an own window has pages of the arena of another connection.
    pub(crate) fn has_borrowed(&self, serial: u32) -> bool {
        take(&self.0).borrowed.iter().any(|loan| loan.is_of(serial))
    }

    /// Ends the loans to windows that were deleted.
    pub(crate) fn give_back(&self, gone: &[&Window]) {
        for window in gone {
            if matches!(window.place, Place::Unmoved { .. }) {
                self.end_loans(window.serial);
            }
        }
    }

    /// Ends the loans to an own window.
    pub(crate) fn end_loans(&self, serial: u32) {
        let mut known = take(&self.0);
        known.borrowed.retain(|loan| {
            let ends = loan.is_of(serial);
            if ends {
                loan.end();
            }
            !ends
        });
    }

    /// Returns the parts of a range of the own arena that are lent.
    pub(crate) fn lent_of(&self, range: (u64, u64)) -> Vec<(u64, u64)> {
        let mut known = take(&self.0);
        known.lent.retain(|loan| !loan.has_ended());
        known.lent.iter().filter_map(|loan| loan.part_of(range)).collect()
    }

    /// Handles the loss of the peer's node. With `replace`, areas where the program maps the peer's
    /// pages become absent memory, which raises SIGBUS. Returns whether there were any. Mappings of
    /// the library itself stay.
    pub(crate) fn lose_mappings(&self, replace: bool) -> bool {
        let mut known = take(&self.0);
        let mapped = std::mem::take(&mut known.mapped);
        let mut found = false;
        // The provider, which is on top of the calls, handles the end of its connections itself.
        for area in maps::except_parts(&mappings(&mapped).unwrap_or_default()) {
            found = true;
            if replace {
                if let Err(errno) = pages::make_absent(&area) {
                    log::warn!(
                        "mapping at {:#x} of memory of a lost node could not be replaced: \
                         memfd_create or mmap: {errno}; accesses raise no SIGBUS and see old data. \
                         Restart the program",
                        area.begin
                    );
                }
            }
        }
        found
    }

    /// Stores the peer's answer to `MappedQuery`.
    pub(crate) fn answered(&self, serial: u32, mapped: bool) {
        let mut known = take(&self.0);
        if known.answers.len() < KEPT {
            known.answers.insert(serial, mapped);
        }
    }

    /// Takes an answer, if it has arrived.
    pub(crate) fn answer(&self, serial: u32) -> Option<bool> {
        take(&self.0).answers.remove(&serial)
    }
}

/// Returns the areas that show arenas of the peer's process now, at the addresses of `at`. `None`
/// if this is unknown. Other addresses are not considered: if the peer is this process, the
/// program's own windows may lie there.
fn mappings(at: &[Part]) -> Option<Vec<Area>> {
    let mut out = Vec::new();
    for part in at {
        let (begin, end) = (part.begin, part.end());
        let there = pages::areas(begin, end).ok()?;
        out.extend(
            there
                .iter()
                .filter(|area| area.shared && area.file == part.arena)
                .map(|area| area.between(begin, end)),
        );
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use scif::sys::pages::PAGE;

    use super::*;
    use crate::{Pages, connected, endpoints};

    #[test]
    fn lost_node_replaces_mappings_of_the_program_only() {
        const PARTS: usize = 3;
        let _alone = scif::sys::children::none();
        let scif = endpoints("lost-mappings", 0);
        let (a, b) = connected(&scif, &scif);
        let memory = Pages::new(PARTS * PAGE).unwrap();
        let offset = scif.register(a, (memory.addr(), memory.len()), 0, 3, 0).unwrap();
        let map = |len, offset| scif.map(b, (0, len), offset, 3, 0).unwrap();
        let epd = scif.0.get(b).unwrap();
        let is_mapped = |at| pages::areas(at, at + PAGE).unwrap().iter().any(Area::is_of_arena);
        // The middle page of one area belongs to the library.
        let at = map(memory.len(), offset);
        let middle = Mapping::for_library(PAGE, true, || Ok::<_, Errno>(at + PAGE)).unwrap();
        assert!(epd.windows.lose_mappings(true));
        assert_eq!([0, 1, 2].map(|page| is_mapped(at + page * PAGE)), [false, true, false]);
        drop(middle);
        let all = map(memory.len(), offset);
        let whole = Mapping::for_library(memory.len(), true, || Ok::<_, Errno>(all)).unwrap();
        assert!(!epd.windows.lose_mappings(true), "none of the program");
        assert!(is_mapped(all));
        drop(whole);
        for page in [0, 2] {
            drop(Mapping::adopt(at + page * PAGE, PAGE, true).unwrap());
        }
        scif.close(a).unwrap();
        scif.close(b).unwrap();
    }

    #[test]
    fn ended_loans_are_removed() {
        let (lender, borrower) = (WindowState::default(), WindowState::default());
        for serial in 0..1000 {
            let loan = Loan::new((0, 4096), serial);
            lender.lend(Arc::clone(&loan));
            borrower.borrow(loan);
            if serial >= 10 {
                borrower.end_loans(serial);
            }
        }
        assert!(take(&lender.0).lent.len() < 64);
        assert_eq!(lender.lent_of((0, 8192)).len(), 10, "those that have not");
        assert!(borrower.has_borrowed(9) && !borrower.has_borrowed(10));
    }
}
