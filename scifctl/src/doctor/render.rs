// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Report of the findings: a table of at most 100 columns, or a JSON document.

use serde_json::{Value, json};

use super::finding::{Finding, State};

const WIDTH: usize = 100;
/// Width in columns of the first column with its gap.
const STATE_WIDTH: usize = 8;

/// Returns the worst state.
pub(crate) fn worst(findings: &[Finding]) -> State {
    findings.iter().map(|finding| finding.state).max().unwrap_or(State::Ok)
}

pub(crate) fn document(findings: &[Finding]) -> Value {
    let object = |finding: &Finding| {
        json!({
            "state": finding.state.name(),
            "subject": finding.subject,
            "meaning": finding.meaning,
            "action": finding.action,
        })
    };
    let all: Vec<Value> = findings.iter().map(object).collect();
    json!({"state": worst(findings).name(), "findings": all})
}

pub(crate) fn table(findings: &[Finding]) -> String {
    let widest = findings.iter().map(|finding| finding.subject.chars().count()).max();
    let subject_width = widest.unwrap_or(0).max("SUBJECT".len()) + 2;
    let indent = STATE_WIDTH + subject_width;
    let mut out = format!("{:STATE_WIDTH$}{:subject_width$}MEANING\n", "STATE", "SUBJECT");
    for finding in findings {
        let mut lines = wrapped(&finding.meaning, WIDTH.saturating_sub(indent));
        if !finding.action.is_empty() {
            lines.extend(wrapped(&format!("do: {}", finding.action), WIDTH - indent));
        }
        for (number, line) in lines.iter().enumerate() {
            let (state, subject) = match number {
                0 => (finding.state.name(), finding.subject.as_str()),
                _ => ("", ""),
            };
            let row = format!("{state:STATE_WIDTH$}{subject:subject_width$}{line}");
            out.push_str(row.trim_end());
            out.push('\n');
        }
    }
    let count = |state: State| findings.iter().filter(|f| f.state == state).count();
    let counts = [State::Ok, State::Slower, State::Broken].map(|s| (count(s), s.name()));
    let counts = counts.map(|(n, name)| format!("{n} {name}")).join(", ");
    out + &counts + "\n"
}

/// Breaks a text into lines of at most `width` columns. A longer word, such as a path, has its own
/// line, and is cut there.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut pieces = Vec::new();
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        pieces.extend(letters.chunks(width.max(1)).map(|part| part.iter().collect::<String>()));
    }
    for piece in pieces {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            *line = piece;
        } else if line.chars().count() + 1 + piece.chars().count() <= width {
            line.push(' ');
            line.push_str(&piece);
        } else {
            lines.push(piece);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> [Finding; 2] {
        let path = format!("/{}", "x".repeat(200));
        [
            Finding::ok("kernel", "Linux 6.1"),
            Finding::broken(
                "provider path",
                format!("{path} does not exist"),
                "set it ".repeat(30),
            ),
        ]
    }

    #[test]
    fn no_line_exceeds_the_width_and_no_letter_is_lost() {
        let text = table(&samples());
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!((text.matches('x').count(), text.matches("set").count()), (202, 30), "{text}");
        assert!(text.starts_with("STATE   SUBJECT        MEANING\nok      kernel         Linux"));
        assert!(text.ends_with("1 ok, 0 slower, 1 broken\n"));
    }

    #[test]
    fn the_worst_state_is_the_exit_status() {
        assert_eq!(worst(&samples()).exit_status(), 2);
        assert_eq!(worst(&[]).exit_status(), 0);
        assert_eq!(document(&samples())["findings"][1]["state"], "broken");
        let slower = [Finding::slower("x", "y", "z"), Finding::ok("x", "y")];
        assert_eq!(worst(&slower).exit_status(), 1);
    }
}
