// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Boards: words of memory that processes of a host share by a name.
//!
//! Whoever opens a board first makes it; the name lasts until the last holder has closed it or died, and nothing is left of it
//! then. Other holders are as little to be trusted as peers are: each word may be anything at any time.
//!
//! Not about what the words mean, nor about how a holder is found (`transport`).

use scif_ring::{Word64, Words};

use crate::error::{Error, Result};
use crate::node::Node;
use crate::sys::fork::Maker;
use crate::transport::Hold;

/// Longest name, in bytes.
const NAME_MAX: usize = 64;

/// A board, as one holder has it.
#[derive(Debug)]
pub struct Board {
    words: Words,
    writable: bool,
    maker: Maker,
    /// Last, so that it goes last.
    hold: Box<dyn Hold>,
}

/// While it lives no other holder has one.
#[derive(Debug)]
pub struct BoardLock<'a>(&'a Board);

impl Drop for BoardLock<'_> {
    fn drop(&mut self) {
        self.0.hold.unlock();
    }
}

impl Board {
    /// Opens the board `name` of `count` words to write it; `fill` says what a new one holds at first, word by word, where that is
    /// not zero.
    ///
    /// # Errors
    /// [`Error::Os`] with `EINVAL` for a name that is empty or longer than 64 bytes, and what the system says.
    pub fn open(node: &Node, name: &str, count: usize, fill: &[(usize, u64)]) -> Result<Board> {
        let make = |map: &crate::sys::mmap::Mapping| {
            let words = map.words(0, count)?;
            for (at, value) in fill {
                if let Some(word) = words.get(*at) {
                    word.set(*value);
                }
            }
            Ok(())
        };
        let hold = node
            .transport_arc()
            .board(&plain(name)?, 8 * count, Some(&make))?;
        Board::over(hold, count, true)
    }

    /// Opens the board `name` only to read it.
    ///
    /// # Errors
    /// [`Error::Os`] with `ENOENT` when there is none, and as [`Board::open`].
    pub fn open_to_read(node: &Node, name: &str, count: usize) -> Result<Board> {
        let hold = node.transport_arc().board(&plain(name)?, 8 * count, None)?;
        Board::over(hold, count, false)
    }

    fn over(hold: Box<dyn Hold>, count: usize, writable: bool) -> Result<Board> {
        Ok(Board {
            words: hold.map().words(0, count)?,
            writable,
            maker: Maker::here(),
            hold,
        })
    }

    /// Where this process has it.
    #[must_use]
    pub fn address(&self) -> usize {
        self.hold.map().address()
    }

    /// Whether it was opened to be written.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Word `at`, with all that was written before it was.
    #[must_use]
    pub fn load(&self, at: usize) -> Option<u64> {
        self.words.get(at).map(|word| word.get())
    }

    /// Writes word `at` behind all that was written before; nothing happens where there is none, or none to write.
    pub fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at).filter(|_| self.writable) {
            Word64::set(&word, value);
        }
    }

    /// Waits until no other holder has the lock. One that dies gives it back.
    ///
    /// # Errors
    /// [`Error::Os`] when a holder keeps it for seconds; [`Error::Forked`] in a child of the process that opened the board.
    pub fn lock(&self) -> Result<BoardLock<'_>> {
        if self.maker.is_ancestor() {
            return Err(Error::Forked);
        }
        self.hold.lock()?;
        Ok(BoardLock(self))
    }
}

/// A name in letters that every transport takes.
fn plain(name: &str) -> Result<String> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Error::Os {
            call: "name of a board",
            errno: rustix::io::Errno::INVAL,
        });
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
            domain: Some(format!("board-test-{}", std::process::id())),
            runtime_dir,
            ..Config::default()
        };
        Node::open(config, TransportKind::Soft).unwrap()
    }

    fn errno(result: Result<Board>) -> Option<i32> {
        result.err().and_then(|e| e.raw_os_error())
    }

    #[test]
    fn holders_see_the_same_words_until_the_last_leaves() {
        let dir = std::env::temp_dir().join(format!("scif-board-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let _alone = children::none();
        for node in [node(None), node(Some(dir.clone()))] {
            let none = rustix::io::Errno::NOENT.raw_os_error();
            assert_eq!(errno(Board::open_to_read(&node, "a/b", 512)), Some(none));
            let first = Board::open(&node, "a/b", 512, &[(3, 30)]).unwrap();
            let second = Board::open(&node, "a/b", 512, &[(3, 99)]).unwrap();
            let reader = Board::open_to_read(&node, "a/b", 512).unwrap();
            assert_eq!(second.load(3), Some(30), "made once");
            second.store(4, 40);
            assert_eq!((first.load(4), reader.load(4)), (Some(40), Some(40)));
            reader.store(4, 41);
            assert_eq!(first.load(4), Some(40));
            assert_eq!(first.load(512), None);
            // Of another length it is another's.
            assert!(Board::open(&node, "a/b", 1024, &[]).is_err());
            drop(first);
            drop(second);
            // Whoever is left tells others.
            let late = Board::open(&node, "a/b", 512, &[]).unwrap();
            assert_eq!(late.load(4), Some(40));
            drop(late);
            drop(reader);
            assert_eq!(errno(Board::open_to_read(&node, "a/b", 512)), Some(none));
            let anew = Board::open(&node, "a/b", 512, &[]).unwrap();
            assert_eq!(anew.load(4), Some(0));
        }
        let left = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["lock"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn locks_exclude_other_holders() {
        let node = node(None);
        let boards = [
            Board::open(&node, "locked", 64, &[]).unwrap(),
            Board::open(&node, "locked", 64, &[]).unwrap(),
        ];
        std::thread::scope(|scope| {
            for board in &boards {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _locked = board.lock().unwrap();
                        let seen = board.load(0).unwrap();
                        std::thread::yield_now();
                        board.store(0, seen + 1);
                    }
                });
            }
        });
        let [first, _] = &boards;
        assert_eq!(first.load(0), Some(400));
    }

    #[test]
    fn names_are_of_any_letters_and_short() {
        assert_eq!(plain("a.b c").unwrap(), "a%2eb%20c");
        assert!(plain("").is_err());
        assert!(plain(&"x".repeat(65)).is_err());
    }
}
