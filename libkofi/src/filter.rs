// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! List of names from a setting: only these, or, after a leading `^`, all others.

use std::ffi::CStr;

/// Set of accepted names. Upper and lower case differ, as everywhere in the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    names: Vec<Vec<u8>>,
    negated: bool,
}

impl Filter {
    /// Creates a filter. Without a setting, it accepts all names.
    pub(crate) fn new(setting: Option<&CStr>) -> Self {
        let text = setting.map_or(&[][..], CStr::to_bytes);
        let (negated, text) = text.strip_prefix(b"^").map_or((false, text), |rest| (true, rest));
        let names = text.split(|byte| *byte == b',').filter(|name| !name.is_empty());
        Self { names: names.map(<[u8]>::to_vec).collect(), negated }
    }

    pub(crate) fn passes(&self, name: &[u8]) -> bool {
        self.names.is_empty() || self.names.iter().any(|known| known == name) != self.negated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_pass_or_not() {
        for (setting, a, b) in [
            (None, true, true),
            (Some(c""), true, true),
            (Some(c"a"), true, false),
            (Some(c"a,b"), true, true),
            (Some(c"^a"), false, true),
            (Some(c"A"), false, false),
        ] {
            let filter = Filter::new(setting);
            assert_eq!((filter.passes(b"a"), filter.passes(b"b")), (a, b), "{setting:?}");
        }
    }
}
