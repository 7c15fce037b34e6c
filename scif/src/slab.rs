// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Generational slab of connections: access in O(1), and an id never leads to a later connection in
//! the same slot.

/// Mask of a generation: 30 bits, so that an id and a kind fit one epoll token.
const GENERATION_MASK: u32 = (1 << 30) - 1;

/// Identifier of a connection of an endpoint. Never names a later one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ConnId {
    /// Small and dense index, suitable for a table of the caller whose entries are checked against
    /// the whole id.
    pub index: u32,
    /// Generation of the index.
    pub generation: u32,
}

impl ConnId {
    /// Returns the index as `usize`.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Returns the id that the next `insert` will use. `None` if no further index can be counted.
    pub(crate) fn next_id(&self) -> Option<ConnId> {
        match self.free.last() {
            Some(&index) => {
                let generation = self.entries.get(index as usize)?.generation;
                Some(ConnId { index, generation })
            }
            None => Some(ConnId { index: u32::try_from(self.entries.len()).ok()?, generation: 0 }),
        }
    }

    /// Inserts `value` under the id that `next_id` returned.
    pub(crate) fn insert(&mut self, value: T) -> Option<ConnId> {
        let id = self.next_id()?;
        match self.free.pop() {
            Some(_) => self.entries.get_mut(id.index as usize)?.value = Some(value),
            None => self.entries.push(Entry { generation: 0, value: Some(value) }),
        }
        Some(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut T> {
        match self.entries.get_mut(id.index as usize) {
            Some(Entry { generation, value }) if *generation == id.generation => value.as_mut(),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: ConnId) -> Option<&T> {
        match self.entries.get(id.index as usize) {
            Some(Entry { generation, value }) if *generation == id.generation => value.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, id: ConnId) -> Option<T> {
        let entry =
            self.entries.get_mut(id.index as usize).filter(|e| e.generation == id.generation)?;
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        self.free.push(id.index);
        Some(value)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConnId> {
        let used = self.entries.iter().zip(0u32..).filter(|(entry, _)| entry.value.is_some());
        used.map(|(entry, index)| ConnId { index, generation: entry.generation })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_ids_lead_nowhere() {
        let mut slab = Slab::new();
        let a = slab.insert('a').unwrap();
        let b = slab.insert('b').unwrap();
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        let next = slab.next_id().unwrap();
        let c = slab.insert('c').unwrap();
        assert_eq!((c, c.index), (next, a.index));
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.get_mut(c), Some(&mut 'c'));
        assert_eq!(slab.ids().collect::<Vec<_>>(), [c, b]);
        assert_eq!(slab.iter_mut().count(), slab.len());
    }
}
