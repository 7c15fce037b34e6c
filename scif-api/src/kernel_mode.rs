// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Calls that SCIF has for drivers: pinned pages, pages of the peer, events of nodes, PCI devices.
//!
//! The calls belong to the engine, not to `scif.h`. The memory is that of the process, pages
//! have no other addresses than their mappings, and no PCI device is behind a node. Source:
//! sections 3.6, 3.10.2 and 3.13 of the SCIF User Guide.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use scif::logging::warn_about_peer;
use scif::sys::fork::{self, Maker};
use scif::sys::memfd;
use scif::sys::mmap::Mapping;
use scif::sys::pages::{self, PAGE};
use scif::sys::thread::{self, contained};

use crate::endpoints::Endpoints;
use crate::failure::{Failure, Result};
use crate::lock::take;
use crate::memory::Pages;
use crate::node_events::NodeEvent;
use crate::registration::{self, is_movable, page_restore};
use crate::registry::Inner;
use crate::rma::map;

/// Interval between listings of the online nodes, while a handler is registered. A longer one
/// delays events.
const LOOK: Duration = Duration::from_millis(100);
/// Number of attempts to pin pages that are about to be moved back, one per `PAUSE`.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);
const READ: i32 = 1;
const WRITE: i32 = 2;

/// Handle of pinned pages. The process may unmap them or map something else at their address; the
/// handle still refers to the same pages. A forked child has copies of them and cannot use the
/// handle.
#[derive(Debug)]
pub struct PinnedPages(Arc<Pin>);

#[derive(Debug)]
struct Pin {
    /// Library's own mapping of the pages, which a forked child does not have.
    map: Mapping,
    maker: Maker,
    fd: Arc<OwnedFd>,
    len: usize,
    prot: i32,
    inner: Weak<Inner>,
}

impl Drop for Pin {
    /// Turns the pages back into private memory of the process, as soon as no window of another
    /// connection uses them in place. The caller holds no lock.
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade().filter(|_| !self.maker.is_ancestor()) {
            inner.orphan_arenas.keep_pinned(&self.fd);
            page_restore::take_back(&inner);
        }
    }
}

/// Pages of a window of the peer (`struct scif_range`), until [`Endpoints::put_pages`].
#[derive(Debug)]
pub struct PeerPages {
    /// Pages, as mapped by the library.
    pub pages: Pages,
    /// Whether the window may be read.
    pub read: bool,
    /// Whether the window may be written.
    pub write: bool,
    token: u64,
    inner: Arc<Inner>,
}

impl PeerPages {
    /// Number of pages.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pages.len() / PAGE
    }
}

impl Drop for PeerPages {
    fn drop(&mut self) {
        self.inner.pins.put_peer_pages(self.token);
    }
}

fn watch(inner: &Weak<Inner>) {
    let generation = fork::generation();
    while let Some(inner) = inner.upgrade().filter(|_| generation == fork::generation()) {
        if contained(|| inner.nodes().map(|now| inner.node_events.report_changes(&now))).is_none() {
            warn_about_peer!(
                "internal error while the online nodes were listed; node events are delayed until \
                 the next attempt. Please report it"
            );
        }
        drop(inner);
        std::thread::sleep(LOOK);
    }
}

impl Endpoints {
    /// Pins the pages at `addr` and returns a handle, from which any number of windows can be made
    /// (`scif_pin_pages`). `prot` is the access that these windows allow. `flags` must be 0: kernel
    /// addresses do not exist here. Blocks while RMAs of this process write to the pages. Blocks
    /// for up to about a second until pages of deleted windows are back.
    ///
    /// # Errors
    /// [`Failure::Invalid`]: flags, protection, or no whole pages. [`Failure::BadAddress`]: no
    /// memory at the address. [`Failure::NoMemory`]: pages that cannot be moved into shared memory.
    /// Examples are pages of a shared file mapping, and pages that RMAs write without a pause.
    pub fn pin_pages(&self, addr: usize, len: usize, prot: i32, flags: i32) -> Result<PinnedPages> {
        let whole = len != 0 && len % PAGE == 0 && addr % PAGE == 0;
        if flags != 0 || prot & !(READ | WRITE) != 0 || !whole {
            return Err(Failure::Invalid);
        }
        let end = addr.checked_add(len).ok_or(Failure::BadAddress)?;
        // A forked child starts its thread first, so that it is counted.
        self.0.in_this_process()?;
        for _ in 0..TRIES {
            let pinned = self.try_pin(addr, end, prot);
            if !matches!(pinned, Err(Failure::Again)) {
                return pinned;
            }
            std::thread::sleep(PAUSE);
        }
        Err(Failure::NoMemory)
    }

    /// Tries once. `Again`: another thread or an RMA uses the pages, or they are being moved back.
    fn try_pin(&self, addr: usize, end: usize, prot: i32) -> Result<PinnedPages> {
        let len = end - addr;
        self.0.targets.wait_for(addr, len);
        // Pages that are still shared from an earlier use could not be pinned.
        page_restore::take_back(&self.0);
        let areas = pages::areas(addr, end).map_err(|_| Failure::NoMemory)?;
        let again = || {
            let stays = page_restore::lies_in_window(&self.0, &areas, addr, end);
            if stays { Failure::NoMemory } else { Failure::Again }
        };
        let mut reached = addr;
        for area in &areas {
            if area.begin > reached || !(area.read || area.write) {
                return Err(Failure::BadAddress);
            }
            if !is_movable(area) {
                let own = self.0.is_own_arena(area.file);
                return Err(if own { again() } else { Failure::NoMemory });
            }
            reached = area.end;
        }
        if reached < end {
            return Err(Failure::BadAddress);
        }
        let fd = memfd::create(pages::PINNED_NAME, len)?;
        memfd::seal(&fd, memfd::FIXED_SIZE)?;
        let map = Mapping::part(&fd, 0, len, true)?;
        // Its drop moves the pages back if moving the rest fails. The guard is dropped earlier,
        // since it is made later.
        let pin = Arc::new(Pin {
            map,
            maker: Maker::here(),
            fd: Arc::new(fd),
            len,
            prot,
            inner: Arc::downgrade(&self.0),
        });
        let mover = page_restore::mover(&self.0);
        if !mover.may_move() {
            return Err(Failure::NoMemory);
        }
        for area in &areas {
            let (begin, end) = (area.begin.max(addr), area.end.min(end));
            let at = (begin - addr) as u64;
            let hold = |from, to| page_restore::hold_piece(&self.0, from, to);
            pages::move_in(area, begin..end, pin.fd.as_fd(), at, mover.guard(), hold).map_err(
                |errno| match errno {
                    Errno::FAULT => Failure::BadAddress,
                    Errno::STALE => again(),
                    _ => Failure::NoMemory,
                },
            )?;
        }
        Ok(PinnedPages(pin))
    }

    /// Frees the handle (`scif_unpin_pages`). The pages stay as long as a window uses them.
    pub fn unpin_pages(&self, pages: PinnedPages) {
        drop(pages);
    }

    /// Makes a window of pinned pages and returns its offset (`scif_register_pinned_pages`). RMA of
    /// the peer works on such windows; its mmap returns ENOMEM.
    ///
    /// # Errors
    /// As [`Endpoints::register`]; [`Failure::BadAddress`] in a forked child of the process that
    /// pinned them.
    pub fn register_pinned_pages(
        &self,
        fd: RawFd,
        pages: &PinnedPages,
        offset: i64,
        flags: i32,
    ) -> Result<i64> {
        let pin = &pages.0;
        if pin.maker.is_ancestor() {
            return Err(Failure::BadAddress);
        }
        self.with(fd, |epd| {
            let at = registration::register(
                &self.0,
                epd,
                (pin.map.address(), pin.len),
                offset,
                pin.prot,
                flags,
            )?;
            self.0.pins.registered(epd, at, (pin.map.address(), pin.len), Arc::clone(pin) as _);
            Ok(at)
        })
    }

    /// Maps pages of one window of the peer (`scif_get_pages`). They stay valid after the window is
    /// deleted, until they are put back.
    ///
    /// # Errors
    /// [`Failure::Invalid`], then errors of the endpoint's state, then [`Failure::NoWindow`] unless
    /// one window contains the range, [`Failure::NotPermitted`] for a window without any access,
    /// [`Failure::NoMemory`] for one that cannot be mapped.
    pub fn get_pages(&self, fd: RawFd, offset: i64, len: usize) -> Result<PeerPages> {
        if len == 0 || len % PAGE != 0 || offset % PAGE as i64 != 0 {
            return Err(Failure::Invalid);
        }
        self.with(fd, |epd| {
            let at = u64::try_from(offset).map_err(|_| Failure::NoWindow)?;
            let runs = epd.connected()?.peer.table.runs(at, len as u64, false, false)?;
            let first = runs.first().ok_or(Failure::NoWindow)?.window;
            if runs.iter().any(|run| run.window.serial != first.serial) {
                return Err(Failure::NoWindow);
            }
            let prot = if first.read { READ } else { 0 } | if first.write { WRITE } else { 0 };
            if prot == 0 {
                return Err(Failure::NotPermitted);
            }
            let addr = map::map(&self.0, epd, (0, len), offset, prot, 0)?;
            self.0.pins.get_peer_pages(epd.token);
            Ok(PeerPages {
                pages: Pages::adopt(addr, len, first.write)?,
                read: first.read,
                write: first.write,
                token: epd.token,
                inner: Arc::clone(&self.0),
            })
        })
    }

    /// Returns pages to the library (`scif_put_pages`).
    pub fn put_pages(&self, pages: PeerPages) {
        drop(pages);
    }

    /// Registers a `handler` for nodes that appear or disappear (`scif_event_register`). Nodes
    /// already present are not reported. A forked child does not inherit the handler.
    ///
    /// The service thread reports the loss of a node before it takes effect. The handler then has
    /// up to a second, and must put back its pages of that node. It may close endpoints and must
    /// not fork.
    ///
    /// # Errors
    /// [`Failure::NoMemory`]: no thread can be started; the handler is not registered.
    pub fn event_register(
        &self,
        handler: impl Fn(NodeEvent) + Send + Sync + 'static,
    ) -> Result<()> {
        // The service thread reports the loss of a node.
        self.0.in_this_process()?;
        let state = &self.0.node_events;
        let inherited = {
            let mut handlers = take(&state.handlers);
            // The first handler of this process starts the thread, and is added only if it runs.
            if handlers.here().is_empty() {
                *take(&state.known) = self.0.nodes()?;
                let inner = Arc::downgrade(&self.0);
                let started = thread::spawn_quiet("scif-nodes", move || watch(&inner));
                started.map_err(|_| Failure::NoMemory)?;
            }
            handlers.add(Arc::new(handler))
        };
        // Dropped without the lock: it is code of the program.
        drop(inherited);
        Ok(())
    }

    /// Looks up the PCI device behind a node (`scif_pci_dev`).
    ///
    /// # Errors
    /// [`Failure::NoNode`], always: nodes are processes.
    pub fn pci_dev(&self, _node: u16) -> Result<()> {
        Err(Failure::NoNode)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::Mutex;

    use scif::sys::{children, process};
    use scif::{Config, PortId};

    use super::*;
    use crate::faults::{happens, until};

    const FIXED: i32 = 0x10;
    const SYNC: i32 = 4;

    pub(crate) fn endpoints(name: &str, node: u16) -> Endpoints {
        Endpoints::new(Config {
            node,
            domain: Some(format!("{name}-{}", std::process::id())),
            ..Config::default()
        })
        .unwrap()
    }

    pub(crate) fn connected(a: &Endpoints, b: &Endpoints) -> (RawFd, RawFd) {
        let listener = a.open().unwrap();
        let port = a.bind(listener, 0).unwrap();
        a.listen(listener, 1).unwrap();
        let (_, node) = a.nodes().unwrap();
        let opener = b.open().unwrap();
        let accepted = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| a.accept(listener, true).unwrap().1);
            b.connect(opener, PortId::new(node, port)).unwrap();
            accepting.join().unwrap()
        });
        a.close(listener).unwrap();
        (accepted, opener)
    }

    fn is_shared(memory: &Pages) -> bool {
        pages::areas(memory.addr(), memory.addr() + 1).unwrap()[0].shared
    }

    #[test]
    fn pinned_pages_outlive_the_memory_for_several_windows() {
        let scif = endpoints("pin", 0);
        let (a, b) = connected(&scif, &scif);
        let (c, d) = connected(&scif, &scif);
        let memory = Pages::new(2 * PAGE).unwrap();
        memory.write(5, b"first").unwrap();
        assert_eq!(scif.pin_pages(memory.addr(), 2 * PAGE, 3, 0x20).err(), Some(Failure::Invalid));
        assert_eq!(scif.pin_pages(memory.addr(), 1, 3, 0).err(), Some(Failure::Invalid));
        assert_eq!(scif.pin_pages(PAGE, PAGE, 3, 0).err(), Some(Failure::BadAddress));
        let pinned = scif.pin_pages(memory.addr(), 2 * PAGE, 3, 0).unwrap();
        memory.write(PAGE, b"second").unwrap();
        assert_eq!(scif.register_pinned_pages(a, &pinned, 0x1000, FIXED), Ok(0x1000));
        assert_eq!(scif.register_pinned_pages(a, &pinned, 0x2000, FIXED), Err(Failure::InUse));
        // The memory was unmapped; the pages still exist.
        drop(memory);
        assert_eq!(scif.register_pinned_pages(c, &pinned, 0x8000, FIXED), Ok(0x8000));
        scif.unpin_pages(pinned);
        let seen = Pages::new(2 * PAGE).unwrap();
        let mut bytes = [0; 6];
        for (peer, offset) in [(b, 0x1000), (d, 0x8000)] {
            scif.read_to_memory(peer, seen.addr(), 2 * PAGE, offset, SYNC).unwrap();
            seen.read(5, &mut bytes[..5]).unwrap();
            assert_eq!(&bytes[..5], b"first");
            seen.read(PAGE, &mut bytes).unwrap();
            assert_eq!(&bytes, b"second");
        }
        seen.write(0, b"w").unwrap();
        scif.write_from_memory(b, seen.addr(), 1, 0x1000, SYNC).unwrap();
        scif.read_to_memory(d, seen.addr() + PAGE, 1, 0x8000, SYNC).unwrap();
        seen.read(PAGE, &mut bytes[..1]).unwrap();
        assert_eq!(&bytes[..1], b"w", "the same pages");
        scif.unregister(a, 0x1000, 2 * PAGE).unwrap();
        assert_eq!(scif.read_to_memory(b, seen.addr(), 1, 0x1000, SYNC), Err(Failure::NoWindow));
        scif.read_to_memory(d, seen.addr(), 1, 0x8000, SYNC).unwrap();
        for fd in [a, b, c, d] {
            scif.close(fd).unwrap();
        }
        // A service thread may be about to release the last pin.
        let end = scif::now_ns() + 10_000_000_000;
        while scif.0.pins.windows() != 0 {
            assert!(scif::now_ns() < end, "something is still pinned");
            std::thread::yield_now();
        }
    }

    #[test]
    fn deleted_window_keeps_no_pinned_pages() {
        let scif = endpoints("pin-late", 0);
        let (a, _b) = connected(&scif, &scif);
        let memory = Pages::new(PAGE).unwrap();
        let pinned = scif.pin_pages(memory.addr(), PAGE, 3, 0).unwrap();
        assert_eq!(scif.register_pinned_pages(a, &pinned, 0x1000, FIXED), Ok(0x1000));
        let held = || scif.0.pins.windows();
        assert_eq!(held(), 1);
        scif.unregister(a, 0x1000, PAGE).unwrap();
        let epd = scif.0.get(a).unwrap();
        // As if another thread had deleted the window first.
        let at = (memory.addr(), PAGE);
        scif.0.pins.registered(&epd, 0x1000, at, Arc::clone(&pinned.0) as _);
        assert_eq!(held(), 0);
    }

    #[test]
    fn unpinned_memory_is_private_again() {
        let scif = endpoints("unpin", 0);
        let memory = Pages::new(PAGE).unwrap();
        memory.write(0, b"kept").unwrap();
        let pinned = scif.pin_pages(memory.addr(), PAGE, 3, 0).unwrap();
        assert!(is_shared(&memory));
        scif.unpin_pages(pinned);
        assert!(!is_shared(&memory));
        let mut bytes = [0; 4];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
    }

    #[test]
    fn unpinned_memory_stays_for_a_window_in_place() {
        let scif = endpoints("unpin-late", 0);
        let (a, _b) = connected(&scif, &scif);
        let memory = Pages::new(PAGE).unwrap();
        let pinned = scif.pin_pages(memory.addr(), PAGE, 3, 0).unwrap();
        scif.register(a, (memory.addr(), PAGE), 0x1000, 3, FIXED).unwrap();
        scif.unpin_pages(pinned);
        assert!(is_shared(&memory));
        scif.unregister(a, 0x1000, PAGE).unwrap();
        assert!(!is_shared(&memory));
    }

    #[test]
    fn a_forked_child_has_copies_of_pinned_pages() {
        let scif = endpoints("pin-fork", 0);
        let (a, b) = connected(&scif, &scif);
        let memory = Pages::new(PAGE).unwrap();
        memory.write(0, b"kept").unwrap();
        let pinned = scif.pin_pages(memory.addr(), PAGE, 3, 0).unwrap();
        let child = children::in_child(|| {
            let mut bytes = [0; 4];
            let is_kept = memory.read(0, &mut bytes).is_ok() && &bytes == b"kept";
            let copied = is_kept && !is_shared(&memory);
            let refused =
                scif.register_pinned_pages(a, &pinned, 0x1000, FIXED) == Err(Failure::BadAddress);
            i32::from(copied && refused && memory.write(0, b"lost").is_ok())
        });
        assert_eq!(child.result(), 1);
        assert_eq!(scif.register_pinned_pages(a, &pinned, 0x1000, FIXED), Ok(0x1000));
        let mut bytes = [0; 4];
        let seen = Pages::new(PAGE).unwrap();
        scif.read_to_memory(b, seen.addr(), PAGE, 0x1000, SYNC).unwrap();
        seen.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"kept");
    }

    #[test]
    fn a_forked_child_that_pins_is_served() {
        let scif = endpoints("pin-first", 0);
        let memory = Pages::new(PAGE).unwrap();
        let child = children::in_child(|| {
            let alone = !scif.0.started_here() && pages::threads() == 1;
            let pinned = scif.pin_pages(memory.addr(), PAGE, 3, 0).is_ok();
            // This thread and the service thread.
            i32::from(alone && pinned && scif.0.started_here() && pages::threads() == 2)
        });
        assert_eq!(child.result(), 1);
    }

    #[test]
    fn forked_child_pins_once_possible() {
        let scif = endpoints("starved", 0);
        let child = children::in_child(|| {
            // One more descriptor, with which a start begins but fails.
            let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
            let before = process::limit_nofile(u64::from(next.unsigned_abs()) + 1);
            let failed = scif.open().is_err() && scif.open().is_err();
            process::limit_nofile(before);
            let opened = scif.open().is_ok();
            i32::from(failed && opened && pages::threads() == 2)
        });
        assert_eq!(child.result(), 1);
    }

    #[test]
    fn pages_of_the_peer_keep_the_endpoint_and_outlive_the_window() {
        let scif = endpoints("get", 0);
        let (a, b) = connected(&scif, &scif);
        let memory = Pages::new(4 * PAGE).unwrap();
        memory.write(PAGE, b"peer").unwrap();
        scif.register(a, (memory.addr(), 2 * PAGE), 0x1000, 3, FIXED).unwrap();
        scif.register(a, (memory.addr() + 2 * PAGE, 2 * PAGE), 0x3000, 1, FIXED).unwrap();
        assert_eq!(scif.get_pages(b, 0x1000, 1).err(), Some(Failure::Invalid));
        assert_eq!(
            scif.get_pages(b, 0x1000, 4 * PAGE).err(),
            Some(Failure::NoWindow),
            "two windows"
        );
        assert_eq!(scif.get_pages(b, 0x9000, PAGE).err(), Some(Failure::NoWindow));
        let range = scif.get_pages(b, 0x2000, PAGE).unwrap();
        assert_eq!((range.count(), range.read, range.write), (1, true, true));
        let mut bytes = [0; 4];
        range.pages.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"peer");
        assert_eq!(scif.close(b), Err(Failure::Invalid), "pages are out");
        scif.unregister(a, 0x1000, 2 * PAGE).unwrap();
        assert_eq!(scif.register(a, (memory.addr(), PAGE), 0x1000, 3, FIXED), Err(Failure::InUse));
        range.pages.write(0, b"mine").unwrap();
        memory.read(PAGE, &mut bytes).unwrap();
        assert_eq!(&bytes, b"mine");
        scif.put_pages(range);
        assert_eq!(scif.register(a, (memory.addr(), PAGE), 0x1000, 3, FIXED), Ok(0x1000));
        scif.close(b).unwrap();
        scif.close(a).unwrap();
    }

    #[test]
    fn node_events_are_reported_without_a_pci_device() {
        let scif = endpoints("events", 1);
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let recorder = Arc::clone(&recorded);
        scif.event_register(move |event| take(&recorder).push(event)).unwrap();
        let until = |event| {
            for _ in 0..1000 {
                if take(&recorded).contains(&event) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("never reported: {event:?}");
        };
        let _other = endpoints("events", 2);
        until(NodeEvent::Added(2));
        let config =
            Config { domain: Some(format!("events-{}", std::process::id())), ..Config::default() };
        let lost = super::super::FailedNode::new(&config, 2).unwrap();
        until(NodeEvent::Removed(2));
        let before = take(&recorded).len();
        drop(lost);
        for _ in 0..1000 {
            if take(&recorded).len() > before {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(
            *take(&recorded),
            [NodeEvent::Added(2), NodeEvent::Removed(2), NodeEvent::Added(2)]
        );
        assert_eq!(scif.pci_dev(2), Err(Failure::NoNode));
    }

    /// Registers a handler that records its events.
    fn record_events(scif: &Endpoints) -> Arc<Mutex<Vec<NodeEvent>>> {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let recorder = Arc::clone(&recorded);
        scif.event_register(move |event| take(&recorder).push(event)).unwrap();
        recorded
    }

    #[test]
    fn a_panicking_handler_leaves_other_handlers_and_events() {
        let scif = endpoints("handlers", 1);
        scif.event_register(|event| assert_eq!(event, NodeEvent::Added(0), "on purpose")).unwrap();
        let recorded = record_events(&scif);
        for node in [2, 3] {
            let other = endpoints("handlers", node);
            until("a later handler", || take(&recorded).contains(&NodeEvent::Added(node)));
            drop(other);
        }
        // As the service thread does before it closes the connections of a lost node.
        scif.0.node_events.loses(3);
        assert!(take(&recorded).contains(&NodeEvent::Removed(3)));
    }

    #[test]
    fn a_forked_child_has_its_own_handlers() {
        let scif = endpoints("events-fork", 1);
        let parents = record_events(&scif);
        let config = Config { node: 2, ..scif.config().clone() };
        let child = children::in_child(|| {
            let before = record_events(&scif);
            let other = Endpoints::new(config).unwrap();
            let reported = happens(|| take(&before).contains(&NodeEvent::Added(2)));
            drop(other);
            i32::from(reported) + 2 * i32::from(take(&parents).is_empty())
        });
        assert_eq!(child.result(), 3, "reported in the child, by its own handler only");
    }
}
