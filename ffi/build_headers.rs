// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Comparison of this crate with the installed libfabric.
//!
//! bindgen reads `wrapper.h`. Its output serves only a check at compile time
//! (`src/header_check.rs`): each field of the headers has the same offset in this crate, and each
//! constant the same value. The declarations of this crate are read from its sources by name, so a
//! new field or constant is checked without a list. Names that only one side has are allowed:
//! headers from 1.17 on are accepted, and also newer ones than this crate knows.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::{fs, panic};

use bindgen::callbacks::{
    EnumVariantCustomBehavior, EnumVariantValue, FieldInfo, IntKind, ParseCallbacks, Token,
};

/// Fields of this crate at the position of an unnamed union in newer headers.
const UNIONS: [(&str, &str, &str); 2] = [
    ("fi_domain_attr", "__bindgen_anon_1", "data_progress"),
    ("fi_mr_attr", "__bindgen_anon_1", "mr_iov"),
];

/// Bits that headers from 2.0 on define as 0, so that old programs compile. Programs compiled
/// earlier still send them.
const ZEROED_LATER: [&str; 2] = ["FI_NOTIFY_FLAGS_ONLY", "FI_RESTRICTED_COMP"];

/// Writes the files that `src/header_check.rs` includes to `out`. An error for a missing
/// prerequisite ends with the advice `install`.
pub(crate) fn write_checks(include: &[PathBuf], out: &Path, install: &str) -> Result<(), String> {
    let headers = read_headers(include, &out.join("headers.rs"), install)?;
    let checks = checks(&headers, &Declared::read(Path::new("src"))?)?;
    fs::write(out.join("checks.rs"), checks).map_err(|e| format!("cannot write checks.rs: {e}"))
}

/// Structures of peer providers that changed between 1.17 and 2.3.
const PEERS: &[&str] = &["fi_peer_rx_entry", "fi_ops_srx_owner"];

/// Declarations of the installed headers.
#[derive(Debug, Default)]
struct Headers {
    constants: BTreeMap<String, i128>,
    fields: BTreeMap<String, BTreeSet<String>>,
}

/// Collector of the declarations that bindgen parses.
#[derive(Debug, Clone, Default)]
struct Collector(Rc<RefCell<Headers>>);

impl ParseCallbacks for Collector {
    /// Removes a warning that newer headers put before the value of a deprecated macro; bindgen
    /// can't evaluate it.
    fn modify_macro(&self, _name: &str, tokens: &mut Vec<Token>) {
        let is = |t: Option<&Token>, text: &[u8]| t.is_some_and(|t| *t.raw == *text);
        if is(tokens.get(1), b"_Pragma") && is(tokens.get(4), b")") {
            tokens.drain(1..5);
        }
    }

    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        self.0.borrow_mut().constants.insert(name.to_owned(), value.into());
        None
    }

    fn enum_variant_behavior(
        &self,
        _enum: Option<&str>,
        name: &str,
        value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        let value = match value {
            EnumVariantValue::Signed(v) => v.into(),
            EnumVariantValue::Unsigned(v) => v.into(),
            EnumVariantValue::Boolean(v) => v.into(),
        };
        self.0.borrow_mut().constants.insert(name.to_owned(), value);
        None
    }

    fn field_visibility(&self, info: FieldInfo<'_>) -> Option<bindgen::FieldVisibilityKind> {
        let mut headers = self.0.borrow_mut();
        let fields = headers.fields.entry(info.type_name.to_owned()).or_default();
        fields.insert(info.field_name.to_owned());
        None
    }
}

/// Runs bindgen and writes its output to `to`.
fn read_headers(include: &[PathBuf], to: &Path, install: &str) -> Result<Headers, String> {
    // bindgen panics when it cannot load libclang.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let clang = panic::catch_unwind(bindgen::clang_version);
    panic::set_hook(hook);
    clang.map_err(|_| format!("libclang is missing; {install}"))?;

    let collector = Collector::default();
    let bindings = bindgen::builder()
        .header("wrapper.h")
        .clang_args(include.iter().map(|dir| format!("-I{}", dir.display())))
        .parse_callbacks(Box::new(collector.clone()))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .allowlist_type("fi_.*|fid.*")
        .allowlist_var("FI_.*")
        .generate_comments(false)
        .layout_tests(false)
        .derive_debug(false)
        .prepend_enum_name(false)
        .generate()
        .map_err(|e| format!("libfabric's headers cannot be read; {install} ({e})"))?;
    bindings.write_to_file(to).map_err(|e| format!("cannot write {}: {e}", to.display()))?;
    Ok(collector.0.take())
}

/// Declarations of this crate, by name.
#[derive(Default)]
struct Declared {
    constants: BTreeSet<String>,
    fields: BTreeMap<String, BTreeSet<String>>,
}

impl Declared {
    /// Reads `pub const`, `pub struct` and the public fields, one per line as rustfmt formats them,
    /// and the tables of constants.
    fn read(dir: &Path) -> Result<Self, String> {
        let mut declared = Self::default();
        let files = fs::read_dir(dir).map_err(|e| format!("cannot list {}: {e}", dir.display()))?;
        for file in files {
            let path = file.map_err(|e| format!("cannot list {}: {e}", dir.display()))?.path();
            if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path)
                    .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
                declared.add(&text);
            }
        }
        Ok(declared)
    }

    fn add(&mut self, source: &str) {
        let mut current: Option<&mut BTreeSet<String>> = None;
        for line in source.lines() {
            if let Some((name, _)) = line.strip_prefix("pub const ").and_then(|l| l.split_once(':'))
            {
                self.constants.insert(name.to_owned());
            } else if let Some(name) =
                line.strip_prefix("pub struct ").and_then(|l| l.strip_suffix(" {"))
            {
                current = Some(self.fields.entry(name.to_owned()).or_default());
            } else if line == "}" {
                current = None;
            } else if let (Some(fields), Some((name, _))) = (
                current.as_deref_mut(),
                line.strip_prefix("    pub ").and_then(|l| l.split_once(':')),
            ) {
                fields.insert(name.to_owned());
            } else {
                let members = line.split(',').filter_map(|member| member.trim().split_once(" = "));
                let names = members.map(|(name, _)| name.to_owned());
                self.constants.extend(names.filter(|name| name.starts_with("FI_")));
            }
        }
    }
}

/// Returns the text of the check: macro calls for `src/header_check.rs`, and their number.
fn checks(headers: &Headers, declared: &Declared) -> Result<String, String> {
    let (mut constants, mut fields) = (0, 0);
    let mut text = String::new();
    for (name, &value) in &headers.constants {
        let zeroed = value == 0 && ZEROED_LATER.contains(&name.as_str());
        if declared.constants.contains(name) && !zeroed {
            constants += 1;
            writeln!(text, "same_value!({name} = {value});").map_err(|e| e.to_string())?;
        }
    }
    // Before 2.0 these structures had more fields, which were removed later.
    let old = headers
        .fields
        .get("fi_peer_rx_entry")
        .is_some_and(|fields| !fields.contains("msg_size") || fields.contains("next"));
    for (name, ours) in &declared.fields {
        if old && PEERS.contains(&name.as_str()) {
            continue;
        }
        for field in headers.fields.get(name).into_iter().flatten() {
            let union = UNIONS.iter().find(|(s, f, _)| s == name && f == field);
            let our = union.map_or(field.as_str(), |(_, _, our)| our);
            if ours.contains(our) {
                fields += 1;
                writeln!(text, "same_field!({name}, {our} is {field});")
            } else {
                writeln!(text, "same_field!({name}, behind ours is {field});")
            }
            .map_err(|e| e.to_string())?;
        }
    }
    if constants == 0 || fields == 0 {
        return Err(format!(
            "the comparison with libfabric's headers is empty: \
             {constants} constants, {fields} fields"
        ));
    }
    writeln!(text, "#[cfg(test)] pub(crate) const CONSTANTS: usize = {constants};")
        .map_err(|e| e.to_string())?;
    writeln!(text, "#[cfg(test)] pub(crate) const FIELDS: usize = {fields};")
        .map_err(|e| e.to_string())?;
    Ok(text)
}
