// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Table files of the rules: layers, banned words, exceptions, limits.
//!
//! One entry a line; `#` begins a comment, and empty lines are skipped.

use std::collections::BTreeMap;

use crate::violation::Exception;

/// One crate of `layers.txt`: a library, a program or a test program.
#[derive(Clone, Debug, Default)]
pub(crate) struct CrateEntry {
    pub layer: u32,
    /// Name by which other crates import it.
    pub name: String,
    /// File of the root module.
    pub root: String,
    /// Layer per module path (`data::wire`); `crate` stands for the root module itself, and a
    /// module without an entry has the layer of its parent.
    pub modules: BTreeMap<String, u32>,
}

/// Reads `layers.txt`: `crate LAYER NAME ROOT`, then lines `LAYER MODULE...` for that crate.
///
/// # Errors
/// Line and cause, if a line has neither form.
pub(crate) fn layers(text: &str) -> Result<Vec<CrateEntry>, String> {
    let mut crates: Vec<CrateEntry> = Vec::new();
    for (number, line) in entries(text) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["crate", layer, name, root] = words[..] {
            crates.push(CrateEntry {
                layer: layer.parse().map_err(|e| format!("{number}: {layer}: {e}"))?,
                name: name.to_owned(),
                root: root.to_owned(),
                modules: BTreeMap::new(),
            });
            continue;
        }
        let (Some(&layer), Some(entry)) = (words.first(), crates.last_mut()) else {
            return Err(format!("{number}: a layer before the first crate"));
        };
        let layer = layer.parse().map_err(|e| format!("{number}: {layer}: {e}"))?;
        for module in words.iter().skip(1) {
            if entry.modules.insert((*module).to_owned(), layer).is_some() {
                return Err(format!("{number}: {module} has two layers"));
            }
        }
    }
    Ok(crates)
}

/// Entry of `banned.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Banned {
    /// Directory or file that the entry is limited to; empty for the whole tree.
    pub scope: String,
    /// Whole identifier; `*word*` bans a word inside identifiers.
    pub name: String,
    /// Term of the glossary.
    pub instead: String,
}

/// Reads `banned.txt`: `[SCOPE:]NAME TERM...`.
///
/// # Errors
/// Line and cause, if a line has no term.
pub(crate) fn banned(text: &str) -> Result<Vec<Banned>, String> {
    let mut found = Vec::new();
    for (number, line) in entries(text) {
        let (name, instead) =
            line.split_once(char::is_whitespace).ok_or(format!("{number}: no term"))?;
        let (scope, name) = name.split_once(':').unwrap_or(("", name));
        found.push(Banned {
            scope: scope.to_owned(),
            name: name.to_owned(),
            instead: instead.trim().to_owned(),
        });
    }
    Ok(found)
}

/// Reads `exceptions.txt`: `RULE PATH KEY | REASON`.
///
/// # Errors
/// Line and cause, if a line has not three words before its reason.
pub(crate) fn exceptions(text: &str) -> Result<Vec<Exception>, String> {
    let mut found = Vec::new();
    for (number, line) in entries(text) {
        let (head, reason) = line.split_once('|').unwrap_or((line, ""));
        let words: Vec<&str> = head.split_whitespace().collect();
        let [rule, path, key] = words[..] else {
            return Err(format!("{number}: not RULE PATH KEY | REASON"));
        };
        found.push(Exception {
            line: number,
            rule: rule.to_owned(),
            path: path.to_owned(),
            key: key.to_owned(),
            reason: reason.trim().to_owned(),
        });
    }
    Ok(found)
}

/// Reads `limits.txt`: `RULE COUNT`.
///
/// # Errors
/// Line and cause, if a line has not this form.
pub(crate) fn limits(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let limit = |(number, line): (usize, &str)| {
        let (rule, count) =
            line.split_once(char::is_whitespace).ok_or(format!("{number}: not RULE COUNT"))?;
        let count = count.trim().parse().map_err(|e| format!("{number}: {count}: {e}"))?;
        Ok((rule.to_owned(), count))
    };
    entries(text).map(limit).collect()
}

fn entries(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim())
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| (index + 1, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_crates_and_modules() {
        let crates = layers("# c\ncrate 1 a a/lib.rs\n  0 x y::z\n 2 w\ncrate 0 b b.rs\n").unwrap();
        assert_eq!(crates.len(), 2);
        assert_eq!(crates[0].modules["y::z"], 0);
        assert_eq!(crates[0].modules["w"], 2);
        assert!(layers("0 x\n").is_err());
        assert!(layers("crate 0 a a.rs\n0 x\n1 x\n").is_err());
    }

    #[test]
    fn banned_words_with_scopes() {
        let found = banned("prov/:Deliver CompletionSink # c\n*nobody* none\n").unwrap();
        assert_eq!((found[0].scope.as_str(), found[0].name.as_str()), ("prov/", "Deliver"));
        assert_eq!((found[1].scope.as_str(), found[1].instead.as_str()), ("", "none"));
        assert!(banned("alone\n").is_err());
    }

    #[test]
    fn limits_per_rule() {
        assert_eq!(limits("# c\nwidth 3\n").unwrap()["width"], 3);
        assert!(limits("width\n").is_err() && limits("width x\n").is_err());
    }

    #[test]
    fn exceptions_with_reasons() {
        let found = exceptions("fields a.rs Env | plain configuration\n").unwrap();
        assert_eq!(found[0].reason, "plain configuration");
        assert!(exceptions("fields a.rs\n").is_err());
    }
}
