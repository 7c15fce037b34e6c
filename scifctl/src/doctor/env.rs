// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Environment of the doctor, which MPI programs of the same shell would inherit; the only file
//! that reads it.

use std::collections::BTreeMap;

/// Variables with their values. Names and values that are no text are absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment(BTreeMap<String, String>);

impl Environment {
    pub(crate) fn of_process() -> Environment {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Environment(std::env::vars_os().filter_map(text).collect())
    }

    /// Returns the value of a variable that is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a variable has this value, in any case of letters.
    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.get(name).is_some_and(|set| set.eq_ignore_ascii_case(value))
    }

    /// Whether a switch is set to false.
    pub(crate) fn is_off(&self, name: &str) -> bool {
        ["0", "no", "off", "false", "n"].iter().any(|off| self.is(name, off))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Environment {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment(pairs.iter().map(owned).collect())
    }
}
