// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rule `width`: no line of code or comment is too wide.

use crate::source::Source;
use crate::violation::{Rule, Violation};

/// Characters of a line, above which it is too wide.
const WIDTH_MAX: usize = 100;

/// Checks a file; a line whose one word is a link may be wider.
pub(crate) fn check(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let width = line.chars().count();
        let link =
            || line.split_whitespace().any(|w| w.contains("://") && w.len() > WIDTH_MAX - 20);
        if width > WIDTH_MAX && !link() {
            let text = format!("{width} characters, at most {WIDTH_MAX}");
            found.push(Violation::new(Rule::Width, &source.path, index + 1, "", text));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_above_the_limit_is_a_violation() {
        let fits = format!("//{}", "é".repeat(WIDTH_MAX - 2));
        assert!(check(&Source::new("a.rs", &fits)).is_empty());
        let wide = check(&Source::new("a.rs", &format!("\n{fits}x\n")));
        assert!(matches!(&wide[..], [v] if v.line == 2));
    }

    #[test]
    fn a_link_may_be_wider() {
        let link = format!("// https://{}", "a".repeat(WIDTH_MAX));
        assert!(check(&Source::new("a.rs", &link)).is_empty());
    }
}
