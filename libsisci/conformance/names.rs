// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Exported names and numbers, compared with the header.

use std::collections::BTreeSet;

use crate::api::{Api, Case, numbers};

pub(crate) const CASES: &[Case] = &[
    ("each function of the header has its three names", functions_have_three_names),
    ("each number of the header is a data object", numbers_are_exported),
    ("public numbers have their values", public_numbers),
    ("flags of one function differ", flags_of_one_function_differ),
    ("codes of the header have a text", codes_have_a_text),
];

const HEADER: &str = include_str!("../include/sisci_api.h");
const ERRORS: &str = include_str!("../include/sisci_error.h");

fn functions_have_three_names(api: &Api) {
    let names: BTreeSet<&str> = HEADER
        .lines()
        .filter_map(|line| line.split_once("SISCI_FUNCTION(")?.1.split_once(")("))
        .map(|(name, _)| name)
        .collect();
    assert!(names.len() > 100, "{} functions in the header", names.len());
    for name in names {
        let plain = api.symbol(name).unwrap_or_else(|| panic!("no {name}"));
        for spelling in ["ST", "MT"] {
            let full = format!("_SISCI_PUBLIC_FUNC_{spelling}_{name}");
            assert_eq!(api.symbol(&full), Some(plain), "{full}");
        }
    }
}

fn numbers_are_exported(api: &Api) {
    let names = numbers("");
    assert!(names.len() > 100, "{} numbers in the header", names.len());
    for name in names {
        api.constant(name);
    }
    for doubled in ["ADAPTER_PHYS_MEM_NODEID", "ADAPTER_PHYS_MBX_NODEID"] {
        api.constant(&format!("SCI_Q_SCI_Q_{doubled}"));
    }
    api.constant("WRITE_BACK_CACHE_MAP");
}

fn public_numbers(api: &Api) {
    for (name, value) in [
        ("USE_CALLBACK", 1),
        ("EMPTY", 2),
        ("PRIVATE", 4),
        ("BROADCAST", 0x40000),
        ("AUTO_ID", 0x2000_0000),
        ("DMA_WAIT", 4),
        ("DMA_READ", 0x10),
        ("FIXED_INTNO", 2),
        ("COUNTING_INT", 0x20),
        ("FIXED_MAP_ADDR", 1),
        ("READONLY_MAP", 2),
        ("SHARED_MAP", 0x2000),
        ("CACHE_FLUSH", 0x10_0000),
        ("CACHE_INVALIDATE", 0x20_0000),
    ] {
        assert_eq!(api.flag(name), value, "{name}");
    }
    assert_eq!(api.constant("SCI_INFINITE_TIMEOUT"), u32::MAX);
}

fn flags_of_one_function_differ(api: &Api) {
    for set in [
        &["USE_CALLBACK", "EMPTY", "PRIVATE", "AUTO_ID", "BROADCAST", "ALLOW_UNICAST"][..],
        &["USE_CALLBACK", "ASYNCHRONOUS_CONNECT", "BROADCAST"],
        &["FORCE_DISCONNECT", "NOTIFY"],
        &["NO_FLUSH", "NO_STORE_BARRIER"],
        &["BLOCK_READ", "ERROR_CHECK"],
        &["BLOCK_READ", "USE_CALLBACK"],
        &["USE_CALLBACK", "DMA_READ", "DMA_WAIT", "DMA_GLOBAL", "DMA_SYSDMA", "DMA_USER_MEM"],
        &["USE_CALLBACK", "FIXED_INTNO", "SHARED_INT", "COUNTING_INT"],
    ] {
        let mut seen = 0;
        for name in set {
            let flag = api.flag(name);
            assert_eq!((flag.count_ones(), seen & flag), (1, 0), "{name} of {set:?}");
            seen |= flag;
        }
    }
}

fn codes_have_a_text(api: &Api) {
    let codes = ERRORS.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(" = (SISCI_ERR_MASK | 0x")?;
        Some((name, u32::from_str_radix(rest.split_once(')')?.0, 16).unwrap()))
    });
    let codes: Vec<(&str, u32)> = codes.collect();
    assert!(codes.len() > 35, "{} codes in the header", codes.len());
    for (name, code) in codes {
        assert_eq!(api.error_string(code), name);
    }
}
