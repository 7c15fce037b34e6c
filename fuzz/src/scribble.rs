// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Stray stores into the memory that this process shares with its victim, found in the map of the
//! process.
//!
//! No structure of the library is used, so none protects the memory: every word that a hostile
//! process could change is changed.
#![expect(unsafe_code, reason = "shared memory is changed behind the back of its owner")]

use crate::mutate::Mutator;

/// Maximum length of a mapping in bytes. Arenas are longer and mostly holes, and are skipped.
const LONGEST: usize = 64 << 20;

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    from: usize,
    len: usize,
}

/// Returns the writable mappings of memfds of the engine in the text of `/proc/self/maps`.
pub(crate) fn mappings(maps: &str) -> Vec<Shared> {
    let ours = |line: &&str| line.contains(" rw-s ") && line.contains("/memfd:scif:");
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let [from, to] = [from, to].map(|n| usize::from_str_radix(n, 16).ok());
        let (from, len) = (from?, to?.checked_sub(from?)?);
        (len <= LONGEST).then_some(Shared { from, len })
    };
    maps.lines().filter(ours).filter_map(range).collect()
}

/// Changes `count` words, one after another. Returns the number of words changed.
pub(crate) fn scribble(mutator: &mut Mutator, count: usize) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let shared = mappings(&maps);
    let mut changed = 0;
    for _ in 0..count {
        let Some(map) = mutator.rng.pick(&shared) else {
            break;
        };
        let at = std::ptr::with_exposed_provenance_mut::<u64>(map.from + mutator.place(map.len));
        // SAFETY: an aligned word inside an existing mapping; this thread, the only one, unmaps
        // nothing meanwhile.
        let word = unsafe { at.read_volatile() };
        // SAFETY: as above; the mapping is shared and writable, and no reference to its bytes
        // exists.
        unsafe { at.write_volatile(mutator.change(word)) };
        changed += 1;
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_writable_memory_of_the_engine_is_found() {
        let maps = "7f00-8f00 rw-s 00000000 00:01 5 /memfd:scif:conn (deleted)\n\
                    9f00-af00 r--s 00000000 00:01 6 /memfd:scif:keys (deleted)\n\
                    bf00-cf00 rw-p 00000000 00:00 0 [heap]\n\
                    df00-100000000 rw-s 00000000 00:01 7 /memfd:scif:arena (deleted)\n";
        let found = mappings(maps);
        assert_eq!(found, [Shared { from: 0x7f00, len: 0x1000 }]);
    }
}
