// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Slab: a vector with vacant entries for the objects of a domain, addressed by small dense
//! indexes.
//!
//! An insertion takes the entry freed last, or grows the vector; every operation is O(1). An index
//! has no generation. Its holder (a handle given to C, a binding) keeps the object open, which
//! `close` enforces with -FI_EBUSY.

/// Objects named by `u32` indexes that stay valid until the object is removed.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    /// Index of the entry freed last, or the length of `entries` when none is vacant.
    next: usize,
    len: usize,
}

#[derive(Debug)]
enum Entry<T> {
    Vacant { next: usize },
    Occupied(T),
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab { entries: Vec::new(), next: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Stores `value` and returns its index; `None` when 2^32 - 1 objects are open.
    pub(crate) fn insert(&mut self, value: T) -> Option<u32> {
        let at = self.next;
        let index = u32::try_from(at).ok().filter(|i| *i != u32::MAX)?;
        match self.entries.get_mut(at) {
            Some(entry) => {
                let Entry::Vacant { next } = *entry else {
                    return None;
                };
                *entry = Entry::Occupied(value);
                self.next = next;
            }
            None => {
                self.entries.push(Entry::Occupied(value));
                self.next = self.entries.len();
            }
        }
        self.len += 1;
        Some(index)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        if matches!(entry, Entry::Vacant { .. }) {
            return None;
        }
        let old = std::mem::replace(entry, Entry::Vacant { next: self.next });
        self.next = index as usize;
        self.len -= 1;
        match old {
            Entry::Occupied(value) => Some(value),
            Entry::Vacant { .. } => None,
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        match self.entries.get(index as usize) {
            Some(Entry::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match self.entries.get_mut(index as usize) {
            Some(Entry::Occupied(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns the highest index ever used plus one, for a loop that must not hold a borrow between
    /// its steps.
    #[inline]
    pub(crate) fn bound(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(&self.entries).filter_map(|(index, entry)| match entry {
            Entry::Occupied(value) => Some((index, value)),
            Entry::Vacant { .. } => None,
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0u32..).zip(&mut self.entries).filter_map(|(index, entry)| match entry {
            Entry::Occupied(value) => Some((index, value)),
            Entry::Vacant { .. } => None,
        })
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_dense_and_reused() {
        let mut slab = Slab::new();
        let all: Vec<u32> = (0..5).map(|v| slab.insert(v).unwrap()).collect();
        assert_eq!(all, [0, 1, 2, 3, 4]);
        assert_eq!(slab.remove(1), Some(1));
        assert_eq!(slab.remove(3), Some(3));
        assert_eq!(slab.remove(3), None);
        assert_eq!(slab.len(), 3);
        assert_eq!(slab.insert(30), Some(3));
        assert_eq!(slab.insert(10), Some(1));
        assert_eq!(slab.insert(50), Some(5));
        assert_eq!(slab.get(3), Some(&30));
        *slab.get_mut(1).unwrap() += 1;
        assert_eq!(
            slab.iter().map(|(i, v)| (i, *v)).collect::<Vec<_>>(),
            [(0, 0), (1, 11), (2, 2), (3, 30), (4, 4), (5, 50)]
        );
        assert_eq!(slab.bound(), 6);
    }

    #[test]
    fn out_of_range_is_none() {
        let mut slab: Slab<u8> = Slab::new();
        assert!(slab.get(0).is_none());
        assert!(slab.get_mut(u32::MAX).is_none());
        assert!(slab.remove(7).is_none());
        assert_eq!(slab.len(), 0);
    }

    #[test]
    fn emptied_slab_fills_again() {
        let mut slab = Slab::new();
        for round in 0..3 {
            let ids: Vec<u32> = (0..4).map(|v| slab.insert(v + round).unwrap()).collect();
            for id in ids {
                assert!(slab.remove(id).is_some());
            }
            assert_eq!(slab.len(), 0);
            assert_eq!(slab.bound(), 4);
        }
    }
}
