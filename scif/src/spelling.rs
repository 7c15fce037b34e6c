// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Detection of settings that do not exist: found by their prefix, and reported with the nearest
//! existing name.
//!
//! Not about: values.

/// Maximum number of unknown names that are reported; a program may use the prefix for many
/// purposes of its own.
const TOLD_MAX: usize = 8;

/// Returns a warning for each name of `set` that starts with `prefix` and is not in `known`.
pub fn unknown_settings(
    prefix: &str,
    known: &[String],
    set: impl Iterator<Item = String>,
) -> impl Iterator<Item = String> {
    set.filter(move |name| name.starts_with(prefix) && !known.contains(name))
        .map(move |name| match nearest(&name, known) {
            Some(nearest) => {
                format!("{name} is not a setting and has no effect, the nearest one is {nearest}")
            }
            None => format!("{name} is not a setting and has no effect"),
        })
        .take(TOLD_MAX)
}

/// Returns the name with the fewest changed, added and removed letters.
fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a String> {
    known.iter().min_by_key(|known| distance(name.as_bytes(), known.as_bytes()))
}

/// Returns the Levenshtein distance, computed one row at a time.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, x) in a.iter().enumerate() {
        let mut before = at;
        let mut left = at + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b) {
            let above = *cell;
            left = (before + usize::from(x != y)).min(above + 1).min(left + 1);
            *cell = left;
            before = above;
        }
        if let Some(first) = row.first_mut() {
            *first = at + 1;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_suggested() {
        let known = ["SCIF_DOMAIN", "SCIF_NODE", "SCIF_LOG"].map(str::to_owned);
        let set =
            ["SCIF_DOMIAN", "SCIF_LOG", "SCIF_NODES", "OTHER", "MY_SCIF_NODE"].map(str::to_owned);
        let told: Vec<String> = unknown_settings("SCIF_", &known, set.into_iter()).collect();
        assert_eq!(told.len(), 2);
        assert!(told[0].starts_with("SCIF_DOMIAN ") && told[0].ends_with(" SCIF_DOMAIN"));
        assert!(told[1].starts_with("SCIF_NODES ") && told[1].ends_with(" SCIF_NODE"));
        let many = (0..100).map(|i| format!("SCIF_{i}"));
        assert_eq!(unknown_settings("SCIF_", &known, many).count(), TOLD_MAX);
    }

    #[test]
    fn distances() {
        for (a, b, d) in [
            ("", "", 0),
            ("abc", "", 3),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), d, "{a} {b}");
        }
    }
}
