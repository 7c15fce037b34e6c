// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Writer of JSON, reduced to the parts that are used. Source: RFC 8259.

use std::fmt::{Display, Write};

/// Returns a quoted string.
pub(crate) fn text(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns a list of values that are JSON already.
pub(crate) fn list<T: Display>(values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("[{}]", values.join(","))
}

/// Object: names with values that are JSON already.
#[derive(Debug, Default)]
pub(crate) struct Object(Vec<String>);

impl Object {
    pub(crate) fn new() -> Object {
        Object::default()
    }

    /// Adds a number, `true`, `false`, `null`, or a value made by this module.
    pub(crate) fn with(mut self, name: &str, value: impl Display) -> Object {
        self.0.push(format!("{}:{value}", text(name)));
        self
    }

    pub(crate) fn with_text(self, name: &str, value: &str) -> Object {
        self.with(name, text(value))
    }
}

impl Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{{{}}}", self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_it_is_escaped() {
        assert_eq!(text("a\"b\\c\n\u{e9}"), "\"a\\\"b\\\\c\\u000a\u{e9}\"");
        let inner = Object::new().with("n", 3).with_text("s", "x");
        let all = Object::new().with("list", list([inner])).with("none", "null");
        assert_eq!(all.to_string(), r#"{"list":[{"n":3,"s":"x"}],"none":null}"#);
    }
}
