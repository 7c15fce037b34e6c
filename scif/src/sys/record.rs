// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Record that this process writes and others may read at any time: counters of a plain type, and
//! words around them.
#![expect(unsafe_code, reason = "a reference to counters in mapped memory")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use scif_ring::SharedWords;
use zerocopy::{FromBytes, IntoBytes};

use super::mmap::{Mapping, OutOfRange};

/// Record with counters of type `T`, to which it dereferences.
pub struct Record<T> {
    counters: NonNull<T>,
    words: SharedWords,
    /// Memory of the record: a mapping, or else words of this process alone.
    _map: Option<Arc<Mapping>>,
    _private: Vec<u64>,
}

// SAFETY: the memory is not tied to a thread, and only the owner of the record writes it.
unsafe impl<T: Send> Send for Record<T> {}

impl<T> fmt::Debug for Record<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("words", &self.words).finish_non_exhaustive()
    }
}

impl<T: FromBytes + IntoBytes> Record<T> {
    /// Returns the record in the `count` words of `map` from `offset` bytes on, with its counters
    /// at word `at`. The caller makes one record over these words.
    ///
    /// # Errors
    /// The words are not inside, or not writable.
    pub fn mapped(
        map: Arc<Mapping>,
        offset: usize,
        count: usize,
        at: usize,
    ) -> Result<Record<T>, OutOfRange> {
        let words = map.words(offset, count)?;
        let base = NonNull::new(map.at(offset, 8 * count, 8, true)?).ok_or(OutOfRange)?;
        Record::over(base, words, (count, at), (Some(map), Vec::new()))
    }

    /// Returns a record in memory of this process alone, of `count` zeroed words.
    ///
    /// # Errors
    /// The counters at word `at` are not inside.
    pub fn private(count: usize, at: usize) -> Result<Record<T>, OutOfRange> {
        let mut memory = vec![0_u64; count];
        let base = NonNull::new(memory.as_mut_ptr()).ok_or(OutOfRange)?.cast::<u8>();
        // SAFETY: aligned words that live as long as the record, which keeps the memory.
        let words = unsafe { SharedWords::new(base, count) };
        Record::over(base, words, (count, at), (None, memory))
    }

    fn over(
        base: NonNull<u8>,
        words: SharedWords,
        (count, at): (usize, usize),
        (map, private): (Option<Arc<Mapping>>, Vec<u64>),
    ) -> Result<Record<T>, OutOfRange> {
        let end = at.checked_mul(8).and_then(|at| at.checked_add(size_of::<T>()));
        if align_of::<T>() > 8 || end.is_none_or(|end| end > 8 * count) {
            return Err(OutOfRange);
        }
        let counters = base.map_addr(|base| base.saturating_add(8 * at)).cast();
        Ok(Record { counters, words, _map: map, _private: private })
    }
}

impl<T> Record<T> {
    /// Returns the words of the record, those of the counters included.
    #[inline]
    pub fn words(&self) -> SharedWords {
        self.words
    }
}

impl<T> Deref for Record<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `over` has checked range and alignment, any bytes are a valid T, and the memory
        // lives as long as the record. Other processes cannot write it: it is sealed against new
        // writable mappings and writes, or belongs to this process alone.
        unsafe { self.counters.as_ref() }
    }
}

impl<T> DerefMut for Record<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; the record is the only owner of its words, and is borrowed
        // mutably.
        unsafe { self.counters.as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_words_of_the_record() {
        let map = Arc::new(Mapping::anonymous(4096).unwrap());
        let mut mapped: Record<[u64; 2]> = Record::mapped(Arc::clone(&map), 64, 16, 4).unwrap();
        mapped[1] += 7;
        assert_eq!(mapped.words().get(5).unwrap().get(), 7);
        assert_eq!(map.word64(64 + 40).unwrap().get(), 7);
        let mut private: Record<[u64; 2]> = Record::private(8, 6).unwrap();
        private[0] = 3;
        assert_eq!((private.words().get(6).unwrap().get(), private[1]), (3, 0));
    }

    #[test]
    fn counters_outside_are_refused() {
        assert!(Record::<[u64; 2]>::private(8, 7).is_err());
        assert!(Record::<[u64; 2]>::private(8, usize::MAX).is_err());
        let map = Arc::new(Mapping::anonymous(4096).unwrap());
        assert!(Record::<[u64; 2]>::mapped(Arc::clone(&map), 4096 - 64, 16, 4).is_err());
        assert!(Record::<[u64; 2]>::mapped(map, 4, 16, 4).is_err());
    }
}
