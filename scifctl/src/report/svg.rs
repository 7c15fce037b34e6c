// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Drawing of a report: the traffic matrix, the sizes of the messages, and the time spent waiting.

use std::fmt::Write;

use crate::report::job::{TrafficJob, class_name, sum, waiting_percent};
use crate::table::bytes;

/// Width of the drawing, and the left edge of each part, in units of the drawing.
const WIDTH: usize = 960;
const LEFT: usize = 90;
/// Width of the matrix and of the bars.
const INNER: usize = 780;
/// Number of rows up to which a cell of the matrix has its number.
const NUMBERS: usize = 12;
/// Number of processes up to which each has a label; with more, every n-th has one.
const LABELS: usize = 32;
/// Height of the bars of the sizes.
const BARS: usize = 180;

/// Text of a drawing, and the height used so far.
struct Page {
    text: String,
    y: usize,
}

impl Page {
    fn put(&mut self, part: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(part);
        self.text.push('\n');
    }

    /// Writes text whose anchor is `start`, `middle` or `end`.
    fn label(&mut self, (x, y): (usize, usize), anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.put(format_args!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>"));
    }

    fn head(&mut self, text: &str) {
        self.y += 36;
        let y = self.y;
        self.put(format_args!("<text x=\"20\" y=\"{y}\" class=\"head\">{text}</text>"));
        self.y += 14;
    }

    fn bar(&mut self, (x, y): (usize, usize), (width, height): (usize, usize), colour: &str) {
        self.put(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"/>"
        ));
    }
}

/// Returns `part` of `whole` in `units`, rounded up, so that a little is visible.
fn share(part: u64, whole: u64, units: usize) -> usize {
    let scaled = (u128::from(part) * units as u128).div_ceil(u128::from(whole.max(1)));
    usize::try_from(scaled).unwrap_or(units).min(units)
}

/// Returns the colour of a cell: white for 0, the darker the more, by powers of two.
fn shade(part: u64, most: u64) -> String {
    if part == 0 {
        return "#ffffff".to_owned();
    }
    let bits = |n: u64| u64::from(u64::BITS - n.leading_zeros());
    let steps = share(20u64.saturating_sub(bits(most) - bits(part)).max(1), 20, 200);
    format!("rgb({},{},{})", 235 - steps, 242 - steps * 3 / 4, 250 - steps / 3)
}

/// Draws a job.
pub(super) fn draw(job: &TrafficJob) -> String {
    let mut page = Page { text: String::new(), y: 0 };
    matrix(&mut page, job);
    sizes(&mut page, job);
    waiting(&mut page, job);
    let height = page.y + 20;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n\
         <style>text {{ font: 12px sans-serif; fill: #222 }} \
         .head {{ font: bold 16px sans-serif }} .light {{ fill: #fff }}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n{}</svg>\n",
        page.text
    )
}

fn matrix(page: &mut Page, job: &TrafficJob) {
    let all = sum(job.sent.iter().flatten());
    page.head(&format!(
        "Bytes sent, from row to column: {} in {} messages",
        bytes(all.bytes),
        all.ops
    ));
    let mut names: Vec<String> = job.names().collect();
    let rows = names.len();
    if job.has_others() {
        names.push("other".to_owned());
    }
    let cell = (INNER / names.len().max(1)).clamp(2, 60);
    let most = job.sent.iter().flatten().map(|amount| amount.bytes).max().unwrap_or(0);
    let every = names.len().div_ceil(LABELS).max(1);
    page.y += 18;
    let top = page.y;
    for (column, name) in names.iter().enumerate().step_by(every) {
        page.label((LEFT + column * cell + cell / 2, top - 6), "middle", name);
    }
    for (row, amounts) in job.sent.iter().enumerate() {
        let y = top + row * cell;
        if let Some(name) = names.get(row).filter(|_| row % every == 0) {
            page.label((LEFT - 8, y + cell / 2 + 4), "end", name);
        }
        for (column, amount) in amounts.iter().take(names.len()).enumerate() {
            let x = LEFT + column * cell;
            let colour = shade(amount.bytes, most);
            page.put(format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"{cell}\" height=\"{cell}\" fill=\"{colour}\" \
                 stroke=\"#ccc\" stroke-width=\"0.5\"><title>{} bytes, {} messages</title></rect>",
                amount.bytes, amount.ops
            ));
            if rows <= NUMBERS && amount.ops > 0 {
                let class = if amount.bytes > most / 4 { " class=\"light\"" } else { "" };
                page.put(format_args!(
                    "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\"{class}>{}</text>",
                    x + cell / 2,
                    y + cell / 2 + 4,
                    bytes(amount.bytes)
                ));
            }
        }
    }
    page.y = top + rows * cell;
}

fn sizes(page: &mut Page, job: &TrafficJob) {
    page.head("Messages by size in bytes (each bar: from this size up to the next)");
    let sizes = job.sizes();
    let used = || sizes.iter().enumerate().filter(|(_, count)| **count > 0).map(|(at, _)| at);
    let (Some(first), Some(last)) = (used().min(), used().max()) else {
        page.y += 20;
        page.label((LEFT, page.y), "start", "no messages");
        return;
    };
    let most = sizes.iter().max().copied().unwrap_or(0);
    let step = (INNER / (last - first + 1)).min(60);
    let base = page.y + 20 + BARS;
    for (at, count) in sizes.iter().enumerate().take(last + 1).skip(first) {
        let x = LEFT + (at - first) * step;
        let height = if *count > 0 { share(*count, most, BARS) } else { 0 };
        page.bar((x + 2, base - height), (step.saturating_sub(4), height), "#3b75af");
        page.label((x + step / 2, base + 16), "middle", &class_name(at));
        if *count > 0 {
            page.label((x + step / 2, base - height - 4), "middle", &short(*count));
        }
    }
    page.y = base + 20;
}

/// Returns a count in at most 5 characters.
fn short(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{}k", count / 1000),
        10_000_000..10_000_000_000 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", count / 1_000_000_000),
    }
}

fn waiting(page: &mut Page, job: &TrafficJob) {
    page.head("Time spent waiting, as a share of the time with an open endpoint");
    let height = if job.processes.len() <= LABELS { 18 } else { 6 };
    let every = job.processes.len().div_ceil(LABELS).max(1);
    for (at, process) in job.processes.iter().enumerate() {
        let y = page.y;
        let percent = waiting_percent(process);
        page.bar((LEFT, y), (INNER, height - 2), "#eeeeee");
        page.bar((LEFT, y), (share(percent, 100, INNER), height - 2), "#d1803c");
        if at % every == 0 {
            page.label((LEFT - 8, y + height / 2 + 4), "end", &process.name());
            let text = format!("{percent}% of {}", seconds(process.open_ns));
            page.label((LEFT + 6, y + height / 2 + 4), "start", &text);
        }
        page.y += height;
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_is_visible_and_nothing_is_not() {
        assert_eq!((share(1, 1_000_000, 100), share(0, 5, 100), share(9, 3, 100)), (1, 0, 100));
        assert_eq!(shade(0, 10), "#ffffff");
        assert_ne!(shade(1, u64::MAX), shade(u64::MAX, u64::MAX));
    }

    #[test]
    fn counts_and_times_are_short() {
        assert_eq!((short(9999).as_str(), short(123_456).as_str()), ("9999", "123k"));
        assert_eq!(seconds(1_234_567_890), "1.234 s");
    }
}
