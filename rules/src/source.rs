// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Finds the source files of the tree and reads them on all processors.

use std::io;
use std::path::Path;
use std::sync::Mutex;

use crate::extract;
use crate::facts::Facts;

/// Directories that hold no sources, at any depth.
const SKIPPED: [&str; 5] = ["target", "build", "vendor", ".git", "autom4te.cache"];

/// Suffixes of checked files.
const SUFFIXES: [&str; 6] = [".rs", ".c", ".cc", ".h", ".sh", ".py"];

/// Source file of any language.
pub(crate) struct Source {
    /// Path from the root of the tree, with `/`.
    pub path: String,
    pub text: String,
    /// Facts of a Rust file; empty for other languages.
    pub facts: Facts,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let facts = if path.ends_with(".rs") { extract::facts(text) } else { Facts::default() };
        Self { path: path.to_owned(), text: text.to_owned(), facts }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

/// Reads the tree below `root`, sorted by path.
///
/// # Errors
/// Errors of the file system.
pub(crate) fn read(root: &Path) -> io::Result<Vec<Source>> {
    let mut paths = Vec::new();
    walk(root, "", &mut paths)?;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (queue, done) = (Mutex::new(paths), Mutex::new(Ok(Vec::new())));
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop());
    let work = || {
        while let Some(path) = next() {
            let source = std::fs::read(root.join(&path))
                .map(|bytes| Source::new(&path, &String::from_utf8_lossy(&bytes)));
            let Ok(mut done) = done.lock() else { return };
            match (source, &mut *done) {
                (Ok(source), Ok(sources)) => sources.push(source),
                (Err(error), done) => *done = Err(error),
                _ => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let mut sources: Vec<Source> =
        done.into_inner().unwrap_or_else(|_| Err(io::Error::other("a reader panicked")))?;
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn walk(root: &Path, below: &str, found: &mut Vec<String>) -> io::Result<()> {
    for entry in root.join(below).read_dir()? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(root, &path, found)?;
            }
        } else if SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) {
            found.push(path);
        }
    }
    Ok(())
}
