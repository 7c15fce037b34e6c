// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Rule `doc-word`, and the frequency of some words in comments.

use crate::lexer::{Comment, CommentKind};
use crate::source::Source;
use crate::violation::{Rule, Violation};

/// First words that no doc comment begins with; `same` stands for "the same".
const FIRST_WORDS: [&str; 23] = [
    "what", "how", "where", "who", "whose", "which", "why", "when", "those", "that", "it", "they",
    "nobody", "nothing", "so", "as", "same", "it's", "this", "these", "its", "their", "such",
];

/// Groups of counted words, with the number per 1,000 words of comments that is allowed.
const COUNTED: [(&[&str], f64); 5] = [
    (&["what"], 2.0),
    (&["who"], 1.0),
    (&["those"], 1.0),
    (&["nobody"], 1.0),
    (&["told", "said", "asked"], 1.0),
];

/// Checks the first word of each doc comment of a file.
pub(crate) fn doc_words(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for comment in doc_starts(&source.facts.comments) {
        if let Some(word) = first_word(&comment.text) {
            if FIRST_WORDS.contains(&word.as_str()) {
                let word = if word == "same" { "the same".to_owned() } else { word };
                let text = format!("doc comment begins with \"{word}\": {}", comment.text);
                found.push(Violation::new(Rule::DocWord, &source.path, comment.line, &word, text));
            }
        }
    }
    found
}

/// Returns the first line of each doc comment: consecutive lines of one kind are one comment.
fn doc_starts(comments: &[Comment]) -> impl Iterator<Item = &Comment> {
    let mut last = (0, CommentKind::Plain);
    comments.iter().filter(move |comment| {
        let continues = last == (comment.line.wrapping_sub(1), comment.kind);
        last = (comment.line, comment.kind);
        comment.kind != CommentKind::Plain && !continues
    })
}

/// First word in lower case; `same` for "the same ...", nothing for code and links.
fn first_word(text: &str) -> Option<String> {
    let mut words = text.split_whitespace().map(clean);
    let first = words.next()?;
    if first == "the" && words.next().is_some_and(|second| second == "same") {
        return Some("same".to_owned());
    }
    (!first.is_empty() && first.chars().all(|c| c.is_alphabetic() || c == '\'')).then_some(first)
}

fn clean(word: &str) -> String {
    let outside = |c: char| matches!(c, ',' | '.' | ':' | ';' | '!' | '?' | '(' | ')' | '"' | '*');
    word.trim_matches(outside).to_lowercase()
}

/// Returns the number of doc comments.
pub(crate) fn doc_comments(sources: &[Source]) -> usize {
    sources.iter().map(|source| doc_starts(&source.facts.comments).count()).sum()
}

/// One row of the word report.
pub(crate) struct Frequency {
    pub words: String,
    pub count: usize,
    /// Number per 1,000 words of comments.
    pub rate: f64,
    pub limit: f64,
}

/// Counts the words of comments, and the frequency of each group of `COUNTED`.
pub(crate) fn frequencies<'a>(
    sources: impl Iterator<Item = &'a Source>,
) -> (usize, Vec<Frequency>) {
    let mut total = 0;
    let mut counts = [0usize; COUNTED.len()];
    for comment in sources.flat_map(|source| &source.facts.comments) {
        for word in comment.text.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_') {
            if word.is_empty() {
                continue;
            }
            total += 1;
            let word = word.to_lowercase();
            for ((words, _), count) in COUNTED.iter().zip(&mut counts) {
                *count += usize::from(words.contains(&word.as_str()));
            }
        }
    }
    let row = |((words, limit), count): (&(&[&str], f64), usize)| Frequency {
        words: words.join("/"),
        count,
        rate: count as f64 * 1000.0 / total.max(1) as f64,
        limit: *limit,
    };
    (total, COUNTED.iter().zip(counts).map(row).collect())
}
