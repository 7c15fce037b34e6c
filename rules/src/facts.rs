// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Facts of one source file that the rules need: items, imports, paths and calls.
//!
//! Plain data, so that files are parsed on several threads; syn's trees stay on theirs.

use crate::lexer::Comment;

/// Path as written, segment by segment.
pub(crate) type Path = Vec<String>;

/// Type as written, without references, pointers and lifetimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ty {
    /// Path of a named type or of the first trait; empty for tuples, slices and arrays.
    pub path: Path,
    pub args: Vec<Ty>,
}

/// Origin of a value, as far as the syntax shows it; its type follows once all files are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Of(Ty),
    Field(Box<Origin>, String),
    Method(Box<Origin>, String),
    /// Result of the function, or value of the constant, with this path.
    Path(Path),
    Unknown,
}

/// Kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Struct,
    Enum,
    Union,
    Alias,
    Trait,
    Function,
    Constant,
    Macro,
}

impl ItemKind {
    pub(crate) fn is_type(self) -> bool {
        matches!(self, Self::Struct | Self::Enum | Self::Union | Self::Alias | Self::Trait)
    }
}

/// Item outside of functions.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub scope: Path,
    pub name: String,
    pub kind: ItemKind,
    pub line: usize,
    pub fields: Vec<(String, Ty)>,
    /// Result of a function, type of a constant, target of an alias.
    pub ty: Option<Ty>,
    /// Names of the methods that a trait declares.
    pub methods: Vec<Method>,
}

#[derive(Clone, Debug)]
pub(crate) struct Method {
    pub name: String,
    pub result: Option<Ty>,
}

/// `impl` block.
#[derive(Clone, Debug)]
pub(crate) struct Impl {
    pub scope: Path,
    pub ty: Ty,
    pub test: bool,
    pub methods: Vec<Method>,
    /// `type Target` of an `impl Deref`.
    pub target: Option<Ty>,
}

/// One leaf of a `use` declaration.
#[derive(Clone, Debug)]
pub(crate) struct Import {
    pub scope: Path,
    pub path: Path,
    pub alias: String,
    pub glob: bool,
    /// Re-export: gives a name to others and is no use of its own.
    pub public: bool,
    pub test: bool,
    pub line: usize,
}

/// Path in an expression, a type or a pattern.
#[derive(Clone, Debug)]
pub(crate) struct PathUse {
    pub scope: Path,
    pub path: Path,
    pub line: usize,
}

/// Method call outside of tests.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub scope: Path,
    pub receiver: Origin,
    pub method: String,
    pub line: usize,
}

/// `mod name;`, or `mod name { ... }`.
#[derive(Clone, Debug)]
pub(crate) struct ModDecl {
    pub scope: Path,
    pub name: String,
    pub inline: bool,
    pub test: bool,
    pub path_attr: Option<String>,
    pub line: usize,
}

/// Name that the file declares: of an item, a field, a parameter, a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub name: String,
    pub line: usize,
}

/// Facts of one Rust file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub mods: Vec<ModDecl>,
    pub items: Vec<Item>,
    pub impls: Vec<Impl>,
    pub imports: Vec<Import>,
    pub paths: Vec<PathUse>,
    pub calls: Vec<Call>,
    pub declared: Vec<Declared>,
    pub comments: Vec<Comment>,
    pub has_tests: bool,
    /// Message of syn if the file is no Rust.
    pub error: Option<String>,
}
