// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Columns of text and texts of their cells. Numbers are aligned to the right, words to the left.

use scif_api::introspect::Endpoint;

/// Formats rows under a head, each column as wide as necessary.
pub(crate) fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        rows.iter()
            .filter_map(|row| row.get(i))
            .map(|cell| cell.chars().count())
            .chain(head.get(i).map(|name| name.len()))
            .max()
            .unwrap_or(0)
    };
    let is_number = |i: usize| {
        rows.iter()
            .filter_map(|row| row.get(i))
            .all(|cell| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-'))
    };
    let widths: Vec<(usize, bool)> =
        (0..head.len()).map(|i| (width(i), is_number(i) && !rows.is_empty())).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut out = String::new();
        for (cell, (width, right)) in cells.zip(&widths) {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            let (before, after) = if *right { (pad.as_str(), "") } else { ("", pad.as_str()) };
            out.push_str(before);
            out.push_str(cell);
            out.push_str(after);
            out.push_str("  ");
        }
        format!("{}\n", out.trim_end())
    };
    let mut out = line(&mut head.iter().copied());
    for row in rows {
        out.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    out
}

/// Formats a number of bytes with a unit.
pub(crate) fn bytes(n: u64) -> String {
    let units = ["", "K", "M", "G", "T", "P"];
    let mut value = n;
    let mut rest = 0;
    let mut unit = 0;
    while value >= 1024 && unit + 1 < units.len() {
        rest = value % 1024;
        value /= 1024;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or_default();
    if unit == 0 || (value >= 100) || rest == 0 {
        format!("{value}{name}")
    } else {
        format!("{value}.{}{name}", rest * 10 / 1024)
    }
}

/// Returns node and port of the peer, and its process id; a dash for each unknown one.
pub(crate) fn peer(endpoint: &Endpoint) -> (String, String) {
    endpoint.peer.map_or_else(
        || ("-".to_owned(), "-".to_owned()),
        |(id, pid)| (id.to_string(), if pid > 0 { pid.to_string() } else { "-".to_owned() }),
    )
}

/// Returns node and port of the endpoint; a dash for the port of an unbound one.
pub(crate) fn own(endpoint: &Endpoint) -> String {
    if endpoint.own.port == 0 {
        format!("{}:-", endpoint.own.node)
    } else {
        endpoint.own.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["1".into(), "a".into()], vec!["22".into(), "bcd".into()]];
        assert_eq!(columns(&["n", "word"], &rows), " n  word\n 1  a\n22  bcd\n");
        assert_eq!(columns(&["n"], &[]), "n\n");
    }

    #[test]
    fn bytes_are_short() {
        for (n, said) in [(0, "0"), (1023, "1023"), (1024, "1K"), (1536, "1.5K"), (5 << 30, "5G")] {
            assert_eq!(bytes(n), said);
        }
    }
}
