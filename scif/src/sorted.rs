// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Map in a sorted vector.
//!
//! For at most some thousand entries: an insertion and a removal move all later ones. Each type of
//! a `BTreeMap` adds about 8 KB of code to a library, one of this map about 1 KB.

/// Map whose entries are in the order of their keys.
#[derive(Clone, Debug)]
pub struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> SortedMap<K, V> {
    /// Returns an empty map, without an allocation.
    #[must_use]
    pub const fn new() -> SortedMap<K, V> {
        SortedMap(Vec::new())
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all entries. Keeps the allocation.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns all entries.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Returns all entries, whose values may be changed.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// Returns all keys.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.iter().map(|(key, _)| key)
    }

    /// Returns all values.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Returns all values, without the map.
    pub fn into_values(self) -> impl DoubleEndedIterator<Item = V> {
        self.0.into_iter().map(|(_, value)| value)
    }

    /// Keeps the entries that `keep` accepts.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
    }

    /// Returns the first entry.
    #[must_use]
    pub fn first(&self) -> Option<(&K, &V)> {
        self.0.first().map(|(key, value)| (key, value))
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    fn find(&self, key: &K) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(key))
    }

    /// Whether there is an entry for `key`.
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_ok()
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &K) -> Option<&V> {
        let at = self.find(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Returns the value of `key`, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Returns the value of `key`. A missing one is made by `make` first.
    #[allow(clippy::indexing_slicing, reason = "the place was found or has just been filled")]
    pub fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        let at = self.find(&key).unwrap_or_else(|at| {
            self.0.insert(at, (key, make()));
            at
        });
        &mut self.0[at].1
    }

    /// Sets the value of `key`, and returns the earlier one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => self.0.get_mut(at).map(|(_, old)| std::mem::replace(old, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Removes the entry for `key`, and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Returns the last entry whose key is at most `key`.
    pub fn at_or_before(&self, key: &K) -> Option<(&K, &V)> {
        let end = self.0.partition_point(|(other, _)| other <= key);
        self.0.get(end.checked_sub(1)?).map(|(key, value)| (key, value))
    }

    /// Returns the last entry whose key is at most `key`, to be changed.
    pub fn at_or_before_mut(&mut self, key: &K) -> Option<(&K, &mut V)> {
        let end = self.0.partition_point(|(other, _)| other <= key);
        self.0.get_mut(end.checked_sub(1)?).map(|(key, value)| (&*key, value))
    }

    /// Returns the entries whose keys are less than `key`.
    pub fn before(&self, key: &K) -> &[(K, V)] {
        self.0.split_at(self.0.partition_point(|(other, _)| other < key)).0
    }

    /// Returns the entries whose keys are at least `key`.
    pub fn since(&self, key: &K) -> &[(K, V)] {
        self.0.split_at(self.0.partition_point(|(other, _)| other < key)).1
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> SortedMap<K, V> {
        SortedMap::new()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    /// Of entries with one key, the last one remains.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> SortedMap<K, V> {
        let mut map = SortedMap::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn behaves_as_a_tree() {
        let (mut map, mut tree) = (SortedMap::new(), BTreeMap::new());
        let mut seed = 1u32;
        for step in 0..5000 {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
            let key = (seed >> 16) % 60;
            match (seed >> 8) % 4 {
                0 => assert_eq!(map.remove(&key), tree.remove(&key)),
                1 => {
                    *map.get_or_insert_with(key, || 7) += 1;
                    *tree.entry(key).or_insert(7) += 1;
                }
                _ => assert_eq!(map.insert(key, step), tree.insert(key, step)),
            }
            let begin = (seed >> 4) % 60;
            assert_eq!(map.get(&begin), tree.get(&begin));
            assert_eq!(map.get_mut(&begin), tree.get_mut(&begin));
            assert_eq!(map.at_or_before(&begin), tree.range(..=begin).next_back());
            let found = map.at_or_before_mut(&begin).map(|(key, value)| (*key, *value));
            assert_eq!(found, tree.range(..=begin).next_back().map(|(key, value)| (*key, *value)));
            let (before, rest) = (map.before(&begin), map.since(&begin));
            assert!(before.iter().map(|(key, _)| key).eq(tree.range(..begin).map(|(key, _)| key)));
            assert!(rest.iter().map(|(key, _)| key).eq(tree.range(begin..).map(|(key, _)| key)));
            assert_eq!(map.first(), tree.first_key_value());
            assert!(map.iter().eq(tree.iter()) && map.len() == tree.len());
        }
        map.retain(|key, _| key % 2 == 0);
        tree.retain(|key, _| key % 2 == 0);
        assert!(map.keys().eq(tree.keys()) && map.values().eq(tree.values()));
        assert!(map.into_values().eq(tree.into_values()));
    }
}
