// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Kernel information about the program's pages beyond their place. See `proc_pid_smaps(5)`.
//!
//! Not about moving them (`pages`).

use std::io::BufRead;

use super::maps;

/// Wanted page size of memory that replaces other memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PageSizeHint {
    /// Default of the system.
    Any,
    /// Huge pages: some were present, or the program had set MADV_HUGEPAGE.
    Large,
    /// Small pages: the program had set MADV_NOHUGEPAGE.
    Small,
}

/// Flags permitted on an area special pages are moved: readable and writable memory without
/// properties that the new pages would lack. Excluded are, for example, locked memory, wanted huge
/// pages, memory not copied by fork, and watched memory.
const PLAIN: [&str; 9] = ["rd", "wr", "mr", "mw", "me", "ac", "nr", "sd", "nh"];

/// Whether `begin..end` is plain memory: private, without a file or name (as the heap has one),
/// present throughout, readable and writable. Locked, huge or otherwise special pages do not
/// qualify, nor areas that contain `apart`.
pub(crate) fn is_plain(begin: usize, end: usize, apart: usize) -> bool {
    std::fs::read("/proc/self/smaps")
        .is_ok_and(|text| is_plain_in(&String::from_utf8_lossy(&text), begin, end, apart))
}

fn is_plain_in(text: &str, begin: usize, end: usize, apart: usize) -> bool {
    let mut reached = begin;
    let mut inside = false;
    for line in text.lines() {
        // Every area ends with one such line, which is also the last of the kernel's list.
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if inside && !flags.split_whitespace().all(|flag| PLAIN.contains(&flag)) {
                return false;
            }
        } else if let Some(size) =
            line.strip_prefix("AnonHugePages:").or_else(|| line.strip_prefix("Locked:"))
        {
            if inside && size.split_whitespace().next() != Some("0") {
                return false;
            }
        } else if line.starts_with(|c: char| c.is_ascii_digit() || ('a'..='f').contains(&c)) {
            let Some(area) = maps::parse(line) else {
                return false;
            };
            inside = area.begin < end && area.end > begin;
            if !inside {
                continue;
            }
            let special = area.shared || area.exec || area.file.ino != 0 || !area.name.is_empty();
            if area.begin > reached
                || special
                || !(area.read && area.write)
                || (area.begin..area.end).contains(&apart)
            {
                return false;
            }
            reached = area.end;
        }
    }
    reached >= end
}

/// Whether the area at an address is excluded from forked children. Costs time for each page before
/// it.
pub(super) fn is_kept_from_children(at: usize) -> bool {
    std::fs::File::open("/proc/self/smaps")
        .is_ok_and(|smaps| is_kept_in(std::io::BufReader::new(smaps), at))
}

fn is_kept_in(smaps: impl BufRead, at: usize) -> bool {
    let mut inside = false;
    for line in smaps.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if inside {
                return flags.split_whitespace().any(|flag| flag == "dc");
            }
        } else if let Some(area) = maps::parse(&line) {
            inside = (area.begin..area.end).contains(&at);
            if area.begin > at {
                break;
            }
        }
    }
    false
}

/// Returns the present or wanted page size of the first area in a range. Reads the list up to that
/// area, which costs time for each of the pages.
pub(super) fn wanted(begin: usize, end: usize) -> PageSizeHint {
    std::fs::File::open("/proc/self/smaps")
        .map_or(PageSizeHint::Any, |smaps| wanted_in(std::io::BufReader::new(smaps), begin, end))
}

fn wanted_in(smaps: impl BufRead, begin: usize, end: usize) -> PageSizeHint {
    let (mut inside, mut any) = (false, false);
    for line in smaps.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if inside {
                let has = |flag| flags.split_whitespace().any(|f| f == flag);
                return match (any || has("hg"), has("nh")) {
                    (true, _) => PageSizeHint::Large,
                    (false, true) => PageSizeHint::Small,
                    (false, false) => PageSizeHint::Any,
                };
            }
        } else if let Some(area) = maps::parse(&line) {
            inside = area.begin < end && area.end > begin;
            if area.begin >= end {
                break;
            }
        } else if inside {
            if let Some(size) = line.strip_prefix("AnonHugePages:") {
                any = size.split_whitespace().next() != Some("0");
            }
        }
    }
    PageSizeHint::Any
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
7f0000000000-7f0000004000 rw-p 00000000 00:00 0 \n\
Size:                 16 kB\n\
AnonHugePages:         0 kB\n\
Locked:                0 kB\n\
VmFlags: rd wr mr mw me ac sd \n\
7f0000004000-7f0000008000 rw-p 00000000 00:00 0 \n\
AnonHugePages:         0 kB\n\
Locked:                4 kB\n\
VmFlags: rd wr mr mw me lo ac \n\
7f0000008000-7f000000c000 rw-p 00000000 00:00 0                          [heap]\n\
AnonHugePages:         0 kB\n\
Locked:                0 kB\n\
VmFlags: rd wr mr mw me ac \n\
7f000000c000-7f0000010000 rw-p 00000000 00:00 0 \n\
AnonHugePages:      2048 kB\n\
Locked:                0 kB\n\
VmFlags: rd wr mr mw me ac \n\
7f0000010000-7f0000014000 rw-p 00000000 00:00 0 \n\
AnonHugePages:         0 kB\n\
Locked:                0 kB\n\
VmFlags: rd wr mr mw me dc ac \n";

    #[test]
    fn only_plain_pages_are_plain() {
        let base = 0x7f00_0000_0000;
        let plain = |from: usize, to: usize| is_plain_in(LIST, base + from, base + to, 0);
        assert!(plain(0, 0x4000) && plain(0x1000, 0x2000));
        assert!(!plain(0, 0x5000), "locked");
        assert!(!plain(0x8000, 0x9000), "heap");
        assert!(!plain(0xc000, 0xd000), "huge");
        assert!(!plain(0x10000, 0x11000), "not for children");
        assert!(!plain(0x13000, 0x15000), "nothing there");
        assert!(!is_plain_in(LIST, base, base + 0x1000, base + 0x3000), "ours");
    }

    #[test]
    fn dontfork_areas_are_recognised() {
        let base = 0x7f00_0000_0000;
        let kept = |from: usize| is_kept_in(LIST.as_bytes(), base + from);
        assert_eq!(
            [0, 0xc000, 0x10000, 0x13fff, 0x14000].map(kept),
            [false, false, true, true, false]
        );
    }

    #[test]
    fn pages_are_wanted_by_area() {
        let base = 0x7f00_0000_0000;
        let wanted =
            |list: &str, from: usize| wanted_in(list.as_bytes(), base + from, base + from + 0x1000);
        assert_eq!([0, 0x8000, 0x20000].map(|at| wanted(LIST, at)), [PageSizeHint::Any; 3]);
        assert_eq!(wanted(LIST, 0xc000), PageSizeHint::Large, "there are some");
        for (flag, hint) in [("hg", PageSizeHint::Large), ("nh", PageSizeHint::Small)] {
            assert_eq!(wanted(&LIST.replace("dc", flag), 0x11000), hint);
        }
    }
}
