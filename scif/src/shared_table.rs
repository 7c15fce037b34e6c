// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Shared tables: words of memory that processes of a host share by a name.
//!
//! The first process to open a shared table creates it. The name lasts until the last holder has
//! closed it or died; nothing remains afterwards. Other holders are as untrusted as peers: each
//! word may have any value at any time.
//!
//! Not about the meaning of the words, nor about the search for a holder (`transport`).

use scif_ring::{SharedU64, SharedWords};

use crate::error::{Error, Result};
use crate::node::Node;
use crate::sys::fork::Maker;
use crate::transport::Hold;

/// Maximum length of a name in bytes.
const NAME_MAX: usize = 64;

/// A shared table, as one holder sees it.
#[derive(Debug)]
pub struct SharedTable {
    words: SharedWords,
    writable: bool,
    maker: Maker,
    /// Last field, so that it is dropped last.
    hold: Box<dyn Hold>,
}

/// Guard of the lock of a shared table. No other holder has the lock while the guard exists.
#[derive(Debug)]
pub struct SharedTableLock<'a>(&'a SharedTable);

impl Drop for SharedTableLock<'_> {
    fn drop(&mut self) {
        self.0.hold.unlock();
    }
}

impl SharedTable {
    /// Opens the table `name` of `count` words for writing. `fill` gives initial values of a new
    /// table, as pairs of index and value; other words are zero.
    ///
    /// # Errors
    /// [`Error::Os`] with `EINVAL` for a name that is empty or longer than 64 bytes, or with the
    /// errno of a failed system call.
    pub fn open(
        node: &Node,
        name: &str,
        count: usize,
        fill: &[(usize, u64)],
    ) -> Result<SharedTable> {
        let make = |map: &crate::sys::mmap::Mapping| {
            let words = map.words(0, count)?;
            for (at, value) in fill {
                if let Some(word) = words.get(*at) {
                    word.set(*value);
                }
            }
            Ok(())
        };
        let hold = node.transport_arc().shared_table(&plain(name)?, 8 * count, Some(&make))?;
        SharedTable::over(hold, count, true)
    }

    /// Opens the table `name` for reading only.
    ///
    /// # Errors
    /// [`Error::Os`] with `ENOENT` if no such table exists, and as [`SharedTable::open`].
    pub fn open_to_read(node: &Node, name: &str, count: usize) -> Result<SharedTable> {
        let hold = node.transport_arc().shared_table(&plain(name)?, 8 * count, None)?;
        SharedTable::over(hold, count, false)
    }

    fn over(hold: Box<dyn Hold>, count: usize, writable: bool) -> Result<SharedTable> {
        Ok(SharedTable { words: hold.map().words(0, count)?, writable, maker: Maker::here(), hold })
    }

    /// Returns its address in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.hold.map().address()
    }

    /// Whether it was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns word `at`, together with everything written before it; `None` beyond the end.
    #[must_use]
    pub fn load(&self, at: usize) -> Option<u64> {
        self.words.get(at).map(|word| word.get())
    }

    /// Writes word `at` after everything written before. Has no effect beyond the end, or on a
    /// table opened for reading.
    pub fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at).filter(|_| self.writable) {
            SharedU64::set(&word, value);
        }
    }

    /// Blocks until no other holder has the lock, then takes it. The kernel releases the lock of a
    /// holder that dies.
    ///
    /// # Errors
    /// [`Error::Os`] if a holder keeps it for seconds; [`Error::Forked`] in a child of the process
    /// that opened the table.
    pub fn lock(&self) -> Result<SharedTableLock<'_>> {
        if self.maker.is_ancestor() {
            return Err(Error::Forked);
        }
        self.hold.lock()?;
        Ok(SharedTableLock(self))
    }
}

/// Returns a name in letters that every transport accepts.
fn plain(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::Os { call: "name of a shared table", errno: rustix::io::Errno::INVAL });
    }
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-' {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02x}"));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::node::TransportKind;
    use crate::sys::children;

    fn node(runtime_dir: Option<std::path::PathBuf>) -> Arc<Node> {
        let config = Config {
            domain: Some(format!("table-test-{}", std::process::id())),
            runtime_dir,
            ..Config::default()
        };
        Node::open(config, TransportKind::Soft).unwrap()
    }

    fn errno(result: Result<SharedTable>) -> Option<i32> {
        result.err().and_then(|e| e.raw_os_error())
    }

    #[test]
    fn holders_share_words_until_the_last_one_closes() {
        let dir = std::env::temp_dir().join(format!("scif-table-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let _alone = children::none();
        for node in [node(None), node(Some(dir.clone()))] {
            let none = rustix::io::Errno::NOENT.raw_os_error();
            assert_eq!(errno(SharedTable::open_to_read(&node, "a/b", 512)), Some(none));
            let first = SharedTable::open(&node, "a/b", 512, &[(3, 30)]).unwrap();
            let second = SharedTable::open(&node, "a/b", 512, &[(3, 99)]).unwrap();
            let reader = SharedTable::open_to_read(&node, "a/b", 512).unwrap();
            assert_eq!(second.load(3), Some(30), "made once");
            second.store(4, 40);
            assert_eq!((first.load(4), reader.load(4)), (Some(40), Some(40)));
            reader.store(4, 41);
            assert_eq!(first.load(4), Some(40));
            assert_eq!(first.load(512), None);
            // A table of another length is a different one.
            assert!(SharedTable::open(&node, "a/b", 1024, &[]).is_err());
            drop(first);
            drop(second);
            // The remaining holder makes the table known to others.
            let late = SharedTable::open(&node, "a/b", 512, &[]).unwrap();
            assert_eq!(late.load(4), Some(40));
            drop(late);
            drop(reader);
            assert_eq!(errno(SharedTable::open_to_read(&node, "a/b", 512)), Some(none));
            let anew = SharedTable::open(&node, "a/b", 512, &[]).unwrap();
            assert_eq!(anew.load(4), Some(0));
        }
        let left = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["lock"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// Increments the first word under the lock.
    fn increment(shared_table: &SharedTable) {
        let _locked = shared_table.lock().unwrap();
        let seen = shared_table.load(0).unwrap();
        std::thread::yield_now();
        shared_table.store(0, seen + 1);
    }

    #[test]
    fn locks_exclude_other_holders() {
        let node = node(None);
        let tables = [
            SharedTable::open(&node, "locked", 64, &[]).unwrap(),
            SharedTable::open(&node, "locked", 64, &[]).unwrap(),
        ];
        std::thread::scope(|scope| {
            for shared_table in &tables {
                scope.spawn(|| (0..200).for_each(|_| increment(shared_table)));
            }
        });
        let [first, _] = &tables;
        assert_eq!(first.load(0), Some(400));
    }

    #[test]
    fn names_are_of_any_letters_and_short() {
        assert_eq!(plain("a.b c").unwrap(), "a%2eb%20c");
        assert!(plain("").is_err());
        assert!(plain(&"x".repeat(65)).is_err());
    }
}
