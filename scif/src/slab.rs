// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Generational slab: a vector with vacant entries, addressed by small dense indexes.
//!
//! An insertion takes the entry freed last, or grows the vector; every operation is O(1). An id
//! never leads to a later value in the same entry. A caller that keeps its values open as long as
//! it names them may use the index alone.

/// Mask of a generation: 30 bits, so that an id and a kind fit one epoll token.
const GENERATION_MASK: u32 = (1 << 30) - 1;

/// Identifier of a value of a slab. Never names a later one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SlabId {
    /// Small and dense index, suitable for a table of the caller whose entries are checked against
    /// the whole id.
    pub index: u32,
    /// Generation of the index.
    pub generation: u32,
}

/// Identifier of a connection of an endpoint.
pub type ConnId = SlabId;

impl SlabId {
    /// Returns the index as `usize`.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Key of the values of a slab: an index alone, or a [`SlabId`].
pub trait SlabKey: Copy {
    /// Type of the generation of an entry.
    type Generation: Copy;
    /// Returns a key.
    fn new(index: u32, generation: Self::Generation) -> Self;
    /// Returns the index.
    fn index(self) -> usize;
    /// Whether the key has that generation.
    fn is_of(self, generation: Self::Generation) -> bool;
    /// Returns the generation after the removal of a value.
    fn after(generation: Self::Generation) -> Self::Generation;
}

impl SlabKey for u32 {
    type Generation = ();

    #[inline]
    fn new(index: u32, (): ()) -> u32 {
        index
    }

    #[inline]
    fn index(self) -> usize {
        self as usize
    }

    #[inline]
    fn is_of(self, (): ()) -> bool {
        true
    }

    fn after((): ()) {}
}

impl SlabKey for SlabId {
    type Generation = u32;

    #[inline]
    fn new(index: u32, generation: u32) -> SlabId {
        SlabId { index, generation }
    }

    #[inline]
    fn index(self) -> usize {
        self.index as usize
    }

    #[inline]
    fn is_of(self, generation: u32) -> bool {
        self.generation == generation
    }

    fn after(generation: u32) -> u32 {
        ((generation + 1) & GENERATION_MASK).max(1)
    }
}

#[derive(Debug)]
struct Entry<T, G> {
    generation: G,
    content: Content<T>,
}

#[derive(Debug)]
enum Content<T> {
    Vacant { next: usize },
    Occupied(T),
}

/// Values with keys that stay valid until the value is removed.
#[derive(Debug)]
pub struct Slab<T, K: SlabKey = u32> {
    entries: Vec<Entry<T, K::Generation>>,
    /// Index of the entry freed last, or the length of `entries` when none is vacant.
    next: usize,
    len: usize,
    /// Generation of new entries.
    first: K::Generation,
}

impl<T> Slab<T> {
    /// Returns an empty slab with indexes as keys.
    #[must_use]
    pub const fn new() -> Slab<T> {
        Slab { entries: Vec::new(), next: 0, len: 0, first: () }
    }
}

impl<T> Slab<T, SlabId> {
    /// Returns an empty slab in which ids begin with a generation. A generation that no earlier
    /// slab had makes ids differ from those of earlier slabs.
    #[must_use]
    pub const fn with_generation(first: u32) -> Slab<T, SlabId> {
        Slab { entries: Vec::new(), next: 0, len: 0, first: first & GENERATION_MASK }
    }
}

impl<T, K: SlabKey> Slab<T, K> {
    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the key that the next `insert` will use; `None` with 2^32 - 1 values.
    #[must_use]
    pub fn next_key(&self) -> Option<K> {
        let index = u32::try_from(self.next).ok().filter(|index| *index != u32::MAX)?;
        let generation = self.entries.get(self.next).map_or(self.first, |entry| entry.generation);
        Some(K::new(index, generation))
    }

    /// Stores `value` under the key that `next_key` returned.
    pub fn insert(&mut self, value: T) -> Option<K> {
        let key = self.next_key()?;
        match self.entries.get_mut(self.next) {
            Some(Entry { content, .. }) => {
                let Content::Vacant { next } = *content else {
                    return None;
                };
                *content = Content::Occupied(value);
                self.next = next;
            }
            None => {
                let content = Content::Occupied(value);
                self.entries.push(Entry { generation: self.first, content });
                self.next = self.entries.len();
            }
        }
        self.len += 1;
        Some(key)
    }

    /// Removes a value.
    pub fn remove(&mut self, key: K) -> Option<T> {
        let entry = self.entries.get_mut(key.index()).filter(|e| key.is_of(e.generation))?;
        if matches!(entry.content, Content::Vacant { .. }) {
            return None;
        }
        let old = std::mem::replace(&mut entry.content, Content::Vacant { next: self.next });
        entry.generation = K::after(entry.generation);
        self.next = key.index();
        self.len -= 1;
        match old {
            Content::Occupied(value) => Some(value),
            Content::Vacant { .. } => None,
        }
    }

    /// Returns a value.
    #[inline]
    #[must_use]
    pub fn get(&self, key: K) -> Option<&T> {
        match self.entries.get(key.index()) {
            Some(Entry { generation, content: Content::Occupied(value) })
                if key.is_of(*generation) =>
            {
                Some(value)
            }
            _ => None,
        }
    }

    /// Returns a value to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        match self.entries.get_mut(key.index()) {
            Some(Entry { generation, content: Content::Occupied(value) })
                if key.is_of(*generation) =>
            {
                Some(value)
            }
            _ => None,
        }
    }

    /// Returns the highest index ever used plus one, for a loop that must not hold a borrow between
    /// its steps.
    #[inline]
    #[must_use]
    pub fn bound(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Returns the values with their keys, by index.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        (0u32..).zip(&self.entries).filter_map(|(index, entry)| match &entry.content {
            Content::Occupied(value) => Some((K::new(index, entry.generation), value)),
            Content::Vacant { .. } => None,
        })
    }

    /// Returns the values, to be changed, with their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        (0u32..).zip(&mut self.entries).filter_map(|(index, entry)| match &mut entry.content {
            Content::Occupied(value) => Some((K::new(index, entry.generation), value)),
            Content::Vacant { .. } => None,
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
    fn old_ids_lead_nowhere() {
        let mut slab = Slab::with_generation(0);
        let a = slab.insert('a').unwrap();
        let b = slab.insert('b').unwrap();
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let next = slab.next_key().unwrap();
        let c = slab.insert('c').unwrap();
        assert_eq!((c, c.index), (next, a.index));
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.get_mut(c), Some(&mut 'c'));
        assert_eq!(slab.iter().map(|(id, _)| id).collect::<Vec<_>>(), [c, b]);
        assert_eq!(slab.iter_mut().count(), slab.len());
    }

    #[test]
    fn indexes_are_dense_and_reused() {
        let mut slab = Slab::new();
        assert_eq!((0..5).map(|v| slab.insert(v).unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!([1, 3, 3].map(|index| slab.remove(index)), [Some(1), Some(3), None]);
        assert_eq!(slab.len(), 3);
        assert_eq!([30, 10, 50].map(|v| slab.insert(v).unwrap()), [3, 1, 5]);
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
        assert!(slab.is_empty());
    }

    #[test]
    fn emptied_slab_fills_again_with_other_ids() {
        let mut slab = Slab::with_generation(u32::MAX);
        let mut seen = Vec::new();
        for round in 0..3 {
            let ids: Vec<_> = (0..4).map(|v| slab.insert(v + round).unwrap()).collect();
            for id in ids {
                assert!(!seen.contains(&id) && id.generation != 0);
                assert!(slab.remove(id).is_some());
                seen.push(id);
            }
            assert!(slab.is_empty());
            assert_eq!(slab.bound(), 4);
        }
    }
}
