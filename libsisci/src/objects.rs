// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Handles of the program. A handle is a number in the form of a pointer: closed and invented ones
//! are recognised.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::io::Errno;
use scif::slab::{Slab, SlabId};
use scif::sys::thread::spawn_quiet;

use crate::config::Settings;
use crate::context::Context;
use crate::copy_slots::{self, KnownMap};
use crate::desc::Desc;
use crate::dma::DmaQueue;
use crate::error::{Outcome, SciError, fail};
use crate::interrupt::Interrupt;
use crate::local_segment::LocalSegment;
use crate::map::{Map, Sequence};
use crate::remote_interrupt::RemoteInterrupt;
use crate::remote_segment::RemoteSegment;

/// Object behind a handle.
#[derive(Clone)]
pub(crate) enum Object {
    Desc(Arc<Desc>),
    Local(Arc<LocalSegment>),
    Remote(Arc<RemoteSegment>),
    Map(Arc<Map>),
    Sequence(Arc<Sequence>),
    Queue(Arc<DmaQueue>),
    Interrupt(Arc<Interrupt>),
    RemoteInterrupt(Arc<RemoteInterrupt>),
}

/// Type of objects that have handles.
pub(crate) trait Handled: Sized {
    /// Returns the object, if it has this type.
    fn of(object: &Object) -> Option<Arc<Self>>;
    /// Wraps an object.
    fn wrap(object: Arc<Self>) -> Object;
}

macro_rules! handled {
    ($($variant:ident: $type:ty;)*) => {
        $(
            impl Handled for $type {
                fn of(object: &Object) -> Option<Arc<$type>> {
                    match object {
                        Object::$variant(found) => Some(Arc::clone(found)),
                        _ => None,
                    }
                }

                fn wrap(object: Arc<$type>) -> Object {
                    Object::$variant(object)
                }
            }
        )*
    };
}

handled! {
    Desc: Desc;
    Local: LocalSegment;
    Remote: RemoteSegment;
    Map: Map;
    Sequence: Sequence;
    Queue: DmaQueue;
    Interrupt: Interrupt;
    RemoteInterrupt: RemoteInterrupt;
}

/// Library after `SCIInitialize`.
struct Library {
    context: Arc<Context>,
    /// Number of calls of `SCIInitialize` without their `SCITerminate`.
    users: usize,
    objects: Slab<Object, SlabId>,
}

static LIBRARY: RwLock<Option<Library>> = RwLock::new(None);

fn read() -> RwLockReadGuard<'static, Option<Library>> {
    LIBRARY.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Option<Library>> {
    LIBRARY.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the library, unless a parent of this process initialized it.
fn usable(library: &Option<Library>) -> Outcome<&Library> {
    let usable = library.as_ref().filter(|library| !library.context.is_inherited());
    usable.ok_or(SciError::NotInitialized.into())
}

/// Initializes the library (`SCIInitialize`), or counts one more user.
///
/// # Errors
/// Errors of the system.
pub(crate) fn initialize() -> Outcome<()> {
    let mut library = write();
    if let Some(library) = library.as_mut().filter(|library| !library.context.is_inherited()) {
        library.users += 1;
        return Ok(());
    }
    let settings = Settings::from_env();
    scif::logging::log_to_stderr("libsisci", settings.engine.log);
    let context = Context::new(settings)?;
    start_faults(&context)?;
    copy_slots::clear();
    let inherited =
        library.replace(Library { context, users: 1, objects: Slab::with_generation(1) });
    // Objects of the parent: their descriptors are closed in this process.
    if let Some(inherited) = inherited {
        std::mem::drop(inherited);
    }
    Ok(())
}

/// Starts the thread that injects losses, if there are any.
///
/// # Errors
/// Errors of the system when threads are short.
fn start_faults(context: &Arc<Context>) -> Outcome<()> {
    if context.faults.losses().is_empty() {
        return Ok(());
    }
    let context = Arc::clone(context);
    let inject = move || {
        for loss in context.faults.losses() {
            if !context.faults.wait(loss) {
                return;
            }
            log::warn!("node {}: lost, as SISCI_FAULT demands", loss.node.number());
            lose();
        }
    };
    spawn_quiet("sisci-fault", inject)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
    Ok(())
}

/// Loses the connections that injected faults cut off.
fn lose() {
    let found = |library: &Library| -> Vec<Object> {
        library.objects.iter().map(|(_, object)| object.clone()).collect()
    };
    // Without the lock: the ends of connections are events of the program.
    let objects = usable(&read()).map_or_else(|_| Vec::new(), found);
    for object in objects {
        match object {
            Object::Local(segment) => segment.lose(),
            Object::Remote(segment) => segment.lose(),
            _ => {}
        }
    }
}

/// Ends one use of the library (`SCITerminate`). The last one leaves the node, if all objects were
/// closed.
pub(crate) fn terminate() {
    let mut library = write();
    let Some(used) = library.as_mut() else { return };
    used.users = used.users.saturating_sub(1);
    if used.users > 0 || used.context.is_inherited() {
        return;
    }
    if !used.objects.is_empty() {
        used.users = 1;
        log::warn!(
            "SCITerminate: {} objects are not closed, and the library stays initialized. Remove \
             them, and call SCIClose, before SCITerminate",
            used.objects.len()
        );
        return;
    }
    used.context.leave();
    *library = None;
}

/// Returns the membership of the node.
///
/// # Errors
/// `NotInitialized`.
pub(crate) fn context() -> Outcome<Arc<Context>> {
    usable(&read()).map(|library| Arc::clone(&library.context))
}

fn id(handle: usize) -> SlabId {
    let index = u32::try_from(handle & 0xFFFF_FFFF).unwrap_or(u32::MAX);
    SlabId { index, generation: u32::try_from(handle >> 32).unwrap_or(0) }
}

/// Returns the object behind a handle.
///
/// # Errors
/// `IllegalParameter` for a handle of no object, or of one of another type; `NotInitialized`.
pub(crate) fn find<T: Handled>(handle: usize) -> Outcome<Arc<T>> {
    let library = read();
    let object = usable(&library)?.objects.get(id(handle)).and_then(T::of);
    object.ok_or(SciError::IllegalParameter.into())
}

/// Returns the mapping of a copy, whose later copies need no look at the table. `sequence` is 0 for
/// none.
///
/// # Errors
/// Errors of [`find`] for either handle.
pub(crate) fn find_for_copy(map: usize, sequence: usize) -> Outcome<Arc<Map>> {
    let library = read();
    let objects = &usable(&library)?.objects;
    let found = objects.get(id(map)).and_then(Map::of).ok_or(SciError::IllegalParameter)?;
    if sequence != 0 {
        let sequence = objects.get(id(sequence)).and_then(Sequence::of);
        sequence.ok_or(SciError::IllegalParameter)?;
    }
    let Map { addr, len, writable, .. } = *found;
    copy_slots::enter(&KnownMap { handle: map, addr, len, writable }, sequence);
    Ok(found)
}

/// Makes a handle, never 0.
///
/// # Errors
/// `ApiNospc`, `NotInitialized`.
pub(crate) fn insert<T: Handled>(object: Arc<T>) -> Outcome<usize> {
    let mut library = write();
    usable(&library)?;
    let Some(library) = library.as_mut() else { return fail(SciError::NotInitialized) };
    let id = library.objects.insert(T::wrap(object)).ok_or(SciError::ApiNospc)?;
    Ok((id.generation as usize) << 32 | id.index as usize)
}

/// Ends a handle.
pub(crate) fn remove(handle: usize) {
    let removed = {
        let mut library = write();
        copy_slots::remove(handle);
        library.as_mut().and_then(|library| library.objects.remove(id(handle)))
    };
    // Dropped without the lock: the drop of an object may remove files.
    drop(removed);
}

/// Ends the handle of an object that passes a check, and returns the object. One of several threads
/// that end the same handle gets it.
///
/// # Errors
/// Errors of [`find`] and of the check.
pub(crate) fn take_out<T: Handled>(
    handle: usize,
    check: impl FnOnce(&T) -> Outcome<()>,
) -> Outcome<Arc<T>> {
    let (found, removed) = {
        let mut library = write();
        usable(&library)?;
        let Some(library) = library.as_mut() else { return fail(SciError::NotInitialized) };
        let found = library.objects.get(id(handle)).and_then(T::of);
        let found = found.ok_or(SciError::IllegalParameter)?;
        check(&found)?;
        copy_slots::remove(handle);
        (found, library.objects.remove(id(handle)))
    };
    // Dropped without the lock: the drop of an object may remove files.
    drop(removed);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;
    use crate::local_segment::NewSegment;
    use crate::lock::take;
    use crate::map::{Mapped, Part};

    #[test]
    fn the_handle_of_a_mapping_ends_before_its_memory() {
        let _alone = take(&copy_slots::tests::ALONE);
        initialize().unwrap();
        let desc = Desc::new(context().unwrap());
        let new = NewSegment { id: 1, size: 4096, flags: flags::PRIVATE, callback: None };
        let segment = LocalSegment::new(&desc, new).unwrap();
        let part = Part { offset: 0, size: 4096, fixed: None, writable: true };
        let map = Map::new(Mapped::Local(Arc::clone(&segment)), part).unwrap();
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap();
        let first = format!("{:x}-", map.addr);
        // It has the inode, which no later mapping at the address shares.
        let line = maps().lines().find(|line| line.starts_with(&first)).unwrap().to_owned();
        let is_mapped = || maps().lines().any(|other| other == line);
        let handle = insert(Arc::clone(&map)).unwrap();
        find_for_copy(handle, 0).unwrap();
        map.hold().unwrap();
        let busy = take_out(handle, Map::begin_unmap).err();
        assert_eq!(busy, Some(SciError::Busy.into()));
        assert!(copy_slots::find(handle, 0).is_some(), "a mapping in use keeps its handle");
        map.release();
        let ended = take_out(handle, Map::begin_unmap).unwrap();
        assert!(copy_slots::find(handle, 0).is_none() && find::<Map>(handle).is_err());
        assert!(is_mapped());
        ended.finish_unmap().unwrap();
        assert!(!is_mapped());
        segment.remove(false).unwrap();
        terminate();
    }

    #[test]
    fn handles_are_not_null_and_not_reused() {
        let mut objects: Slab<u32, SlabId> = Slab::with_generation(1);
        let first = objects.insert(1).unwrap();
        assert_eq!(id((first.generation as usize) << 32 | first.index as usize), first);
        objects.remove(first);
        assert_ne!(objects.insert(2).unwrap(), first);
        assert!(first.generation > 0);
    }
}
