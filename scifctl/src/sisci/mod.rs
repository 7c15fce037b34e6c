// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Objects of SISCI: nodes, segments, connections, mappings and interrupts, from the state that the
//! processes of `libsisci.so` publish.

mod document;
mod texts;
mod view;

use scif::Config;

use crate::args::{SisciList, SisciOptions};
use crate::fabric;
use crate::failure::Result;
use view::SisciView;

/// Shows one list or all, once or repeatedly.
pub(crate) fn show(config: &Config, options: &SisciOptions) -> Result<()> {
    let lists: Vec<SisciList> =
        options.list.map_or_else(|| view::LISTS.to_vec(), |list| vec![list]);
    fabric::repeat(&options.watch, || {
        let view = SisciView::now(config)?.on_node(options.node);
        Ok((texts::tables(&lists, &view), document::lists(&lists, &view)))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use scif::monitor::report::Seen;
    use scif::monitor::sisci::layout::{
        BYTES, MAGIC, PROCESS_WORDS, RECORD_WORDS, VERSION, process, record,
    };
    use scif::monitor::sisci::report;
    use scif::sys::mmap::Mapping;

    use super::view::LISTS;
    use super::*;
    use crate::hostile::{INPUTS, Words};

    /// Number of objects in a hostile table.
    const OBJECTS: usize = 12;
    /// Number of words that differ from one table to the next.
    const CHANGES: usize = 16;

    /// Changes some words of a table. Most records stay those of an object.
    fn change(map: &Mapping, words: &mut Words) {
        let put = |at: usize, value: u64| map.word64(8 * at).unwrap().set_relaxed(value);
        for _ in 0..CHANGES {
            let first = PROCESS_WORDS + words.below(OBJECTS) * RECORD_WORDS;
            match words.below(4) {
                0 => put(words.below(64), words.odd()),
                _ => put(first + words.below(RECORD_WORDS), words.odd()),
            }
            put(first + record::SERIAL, words.next() % 4);
            put(first + record::KIND, words.next() % 9);
            put(first + record::STATE, words.next() % 14);
        }
        put(process::USED, if words.below(8) == 0 { words.odd() } else { OBJECTS as u64 });
        let own = [(process::MAGIC, MAGIC), (process::VERSION, VERSION)];
        own.into_iter().chain([(process::PID, 5), (process::START, 6)]).for_each(|(at, value)| {
            put(at, value);
        });
    }

    #[test]
    fn any_table_of_an_owner_is_shown() {
        let map = Mapping::anonymous(BYTES).unwrap();
        let seen = Seen { pid: 7, own_pid: 5, start: 6, state: 'S', command: "hostile".to_owned() };
        let mut words = Words(0x9e37_79b9_7f4a_7c15);
        let mut objects = 0;
        for _ in 0..INPUTS {
            change(&map, &mut words);
            let process = report::parse(&map, &seen).unwrap();
            objects += process.objects.len();
            let view = SisciView { processes: vec![process], hidden: BTreeMap::from([(8, 3)]) };
            let text = texts::tables(&LISTS, &view);
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
            assert!(document::lists(&LISTS, &view).is_object());
        }
        assert!(objects > INPUTS, "{objects}");
    }
}
