// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Comments of a Rust source, with their lines; strings and characters are skipped.
//!
//! The compiler's token stream has no plain comments, and syn sees no doc comments inside macros.

/// Kind of a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommentKind {
    /// `///` or `/**`.
    OuterDoc,
    /// `//!` or `/*!`.
    InnerDoc,
    /// Any other comment.
    Plain,
}

/// One line of a comment, or one block comment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Comment {
    pub line: usize,
    pub kind: CommentKind,
    /// Text without the comment marks.
    pub text: String,
}

/// Returns the comments of `source` in order.
pub(crate) fn comments(source: &str) -> Vec<Comment> {
    let mut scan = Scan { chars: source.chars().collect(), at: 0, line: 1, found: Vec::new() };
    while let Some(c) = scan.peek(0) {
        scan.step(c);
    }
    scan.found
}

struct Scan {
    chars: Vec<char>,
    at: usize,
    line: usize,
    found: Vec<Comment>,
}

impl Scan {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn advance(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn step(&mut self, c: char) {
        match (c, self.peek(1)) {
            ('/', Some('/')) => self.line_comment(),
            ('/', Some('*')) => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.character(),
            _ if c.is_alphanumeric() || c == '_' => self.word(),
            _ => {
                self.advance();
            }
        }
    }

    fn line_comment(&mut self) {
        let line = self.line;
        let mut text = String::new();
        while self.peek(0).is_some_and(|c| c != '\n') {
            text.extend(self.advance());
        }
        let (kind, text) = match text.as_bytes() {
            [b'/', b'/', b'/', b'/', ..] => (CommentKind::Plain, text.trim_start_matches('/')),
            [b'/', b'/', b'/', ..] => (CommentKind::OuterDoc, text.trim_start_matches('/')),
            [b'/', b'/', b'!', ..] => (CommentKind::InnerDoc, text.trim_start_matches("//!")),
            _ => (CommentKind::Plain, text.trim_start_matches('/')),
        };
        self.found.push(Comment { line, kind, text: text.trim().to_owned() });
    }

    fn block_comment(&mut self) {
        let line = self.line;
        let mut text = String::new();
        let mut depth = 0;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                (None, _) => break,
                _ => {
                    text.extend(self.advance());
                    continue;
                }
            }
            text.extend(self.advance());
            text.extend(self.advance());
            if depth == 0 {
                break;
            }
        }
        let kind = match text.as_bytes() {
            [b'/', b'*', b'*', b'/'] => CommentKind::Plain,
            [b'/', b'*', b'*', ..] => CommentKind::OuterDoc,
            [b'/', b'*', b'!', ..] => CommentKind::InnerDoc,
            _ => CommentKind::Plain,
        };
        let text = text.trim_matches(['/', '*', '!', ' ', '\n']).to_owned();
        self.found.push(Comment { line, kind, text });
    }

    /// Skips a string that begins here, with its escapes.
    fn string(&mut self) {
        self.advance();
        while let Some(c) = self.advance() {
            match c {
                '\\' => {
                    self.advance();
                }
                '"' => break,
                _ => {}
            }
        }
    }

    /// Skips a character, or the apostrophe of a lifetime.
    fn character(&mut self) {
        self.advance();
        if self.peek(0) == Some('\\') {
            self.advance();
            self.advance();
            while self.peek(0).is_some_and(|c| c != '\'' && c != '\n') {
                self.advance();
            }
            self.advance();
        } else if self.peek(1) == Some('\'') {
            self.advance();
            self.advance();
        }
    }

    /// Skips an identifier or a number, and a raw or byte string that begins with it.
    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(|c| c.is_alphanumeric() || c == '_') {
            self.advance();
        }
        let word: String = self.chars.iter().skip(start).take(self.at - start).collect();
        if matches!(word.as_str(), "r" | "br" | "cr") {
            self.raw_string();
        }
    }

    fn raw_string(&mut self) {
        let hashes = (0..).take_while(|&n| self.peek(n) == Some('#')).count();
        if self.peek(hashes) != Some('"') {
            return;
        }
        for _ in 0..=hashes {
            self.advance();
        }
        while let Some(c) = self.advance() {
            if c == '"' && (0..hashes).all(|n| self.peek(n) == Some('#')) {
                for _ in 0..hashes {
                    self.advance();
                }
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(usize, CommentKind, String)> {
        comments(source).into_iter().map(|c| (c.line, c.kind, c.text)).collect()
    }

    #[test]
    fn kinds_and_lines() {
        let source = "//! a\n/// b\n//// c\nfn f() {} // d\n/* e /* f */ */ /** g */\n";
        let kinds: Vec<_> = texts(source).into_iter().map(|(line, kind, _)| (line, kind)).collect();
        use CommentKind::{InnerDoc, OuterDoc, Plain};
        let expected =
            [(1, InnerDoc), (2, OuterDoc), (3, Plain), (4, Plain), (5, Plain), (5, OuterDoc)];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn strings_and_characters_hold_no_comments() {
        let source = "let a = \"// \\\" //\"; let b = r#\"\" // \"#; let c = '\"'; let d = '\\'';\n\
                      fn f<'a>(x: &'a str) {} // end\n";
        assert_eq!(texts(source), [(2, CommentKind::Plain, "end".to_owned())]);
    }
}
