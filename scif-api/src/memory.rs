// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Pages of Rust programs to register or to map. A peer may write to these pages at any time, so
//! they are only copied from and to.
//!
//! Not about registering and mapping themselves (`window`).

use scif::sys::mmap::Mapping;
use scif::sys::pages::PAGE;

use crate::failure::{Failure, Result};

/// Whole pages of this program or of a peer, unmapped when dropped. Registered pages stay
/// registered.
#[derive(Debug)]
pub struct Pages {
    map: Mapping,
    len: usize,
}

impl Pages {
    /// Allocates zeroed private memory of at least `len` bytes, to be registered.
    ///
    /// # Errors
    /// [`Failure::NoMemory`].
    pub fn new(len: usize) -> Result<Pages> {
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or(Failure::NoMemory)?;
        let map = Mapping::private(len)?;
        Ok(Pages { map, len })
    }

    /// Takes ownership of a mapping that was made for a program.
    pub(super) fn adopt(addr: usize, len: usize, writable: bool) -> Result<Pages> {
        let map = Mapping::adopt(addr, len, writable)?;
        Ok(Pages { map, len })
    }

    /// Returns the address of the pages, for `register`.
    #[must_use]
    pub fn addr(&self) -> usize {
        self.map.address()
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: there is at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies `bytes` to the pages, from byte `at` on.
    ///
    /// # Errors
    /// [`Failure::Invalid`]: out of range, or the pages were mapped read-only.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let place = self.map.bytes(at, bytes.len()).map_err(|_| Failure::Invalid)?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    /// Copies from the pages to `bytes`, from byte `at` on.
    ///
    /// # Errors
    /// [`Failure::Invalid`]: out of range.
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let place = self.map.bytes_to_read(at, bytes.len()).map_err(|_| Failure::Invalid)?;
        place.copy_to_slice(bytes);
        Ok(())
    }

    /// Loads the eight bytes at `at`, a multiple of 8, as one word with acquire ordering.
    ///
    /// # Errors
    /// [`Failure::Invalid`]: out of range, or not aligned.
    pub fn load(&self, at: usize) -> Result<u64> {
        let words = self.map.words(at, 1).map_err(|_| Failure::Invalid)?;
        Ok(words.get(0).ok_or(Failure::Invalid)?.get())
    }

    /// Stores eight bytes at `at`, a multiple of 8, as one word with release ordering.
    ///
    /// # Errors
    /// [`Failure::Invalid`]: out of range, not aligned or read-only.
    pub fn store(&self, at: usize, value: u64) -> Result<()> {
        self.map.word64(at).map_err(|_| Failure::Invalid)?.set(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_copied_from_and_to() {
        let pages = Pages::new(1).unwrap();
        assert_eq!((pages.len(), pages.addr() % PAGE, pages.is_empty()), (PAGE, 0, false));
        pages.write(10, b"abc").unwrap();
        let mut back = [0; 3];
        pages.read(10, &mut back).unwrap();
        assert_eq!(&back, b"abc");
        pages.store(64, 7).unwrap();
        assert_eq!(pages.load(64), Ok(7));
        assert_eq!(pages.write(PAGE - 1, b"ab"), Err(Failure::Invalid));
        assert_eq!(pages.load(PAGE), Err(Failure::Invalid));
        assert_eq!(pages.store(4, 1), Err(Failure::Invalid));
    }
}
