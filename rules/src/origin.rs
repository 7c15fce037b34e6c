// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Local variables and the origins of expressions.
//!
//! A variable keeps the origin of its initial value. A pattern with one part (`Some(x)`, `&x`)
//! passes the origin on; the parts of other patterns are unknown.

use crate::facts::{Origin, Ty};
use crate::types;

/// Local variables in the order of their declaration; the last of a name counts.
#[derive(Default)]
pub(crate) struct Locals {
    names: Vec<(String, Origin)>,
}

impl Locals {
    /// Returns a mark for `leave`.
    pub(crate) fn enter(&self) -> usize {
        self.names.len()
    }

    /// Removes variables declared since `mark`.
    pub(crate) fn leave(&mut self, mark: usize) {
        self.names.truncate(mark);
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Origin> {
        self.names.iter().rev().find(|(n, _)| n == name).map(|(_, origin)| origin)
    }

    pub(crate) fn declare(&mut self, name: String, origin: Origin) {
        self.names.push((name, origin));
    }

    /// Declares the variables of a pattern that is matched with a value of `origin`.
    pub(crate) fn bind(&mut self, pat: &syn::Pat, origin: Origin, self_ty: Option<&Ty>) {
        match pat {
            syn::Pat::Ident(ident) => self.declare(ident.ident.to_string(), origin),
            syn::Pat::Type(t) => {
                self.bind(&t.pat, Origin::Of(types::ty(&t.ty, self_ty)), self_ty);
            }
            syn::Pat::Reference(r) => self.bind(&r.pat, origin, self_ty),
            syn::Pat::Paren(p) => self.bind(&p.pat, origin, self_ty),
            syn::Pat::TupleStruct(t) => {
                let origin = if t.elems.len() == 1 { origin } else { Origin::Unknown };
                for part in &t.elems {
                    self.bind(part, origin.clone(), self_ty);
                }
            }
            syn::Pat::Tuple(t) => self.bind_unknown(t.elems.iter(), self_ty),
            syn::Pat::Slice(s) => self.bind_unknown(s.elems.iter(), self_ty),
            syn::Pat::Or(o) => self.bind_unknown(o.cases.iter().take(1), self_ty),
            syn::Pat::Struct(s) => {
                self.bind_unknown(s.fields.iter().map(|field| &*field.pat), self_ty);
            }
            _ => {}
        }
    }

    fn bind_unknown<'a>(
        &mut self,
        parts: impl Iterator<Item = &'a syn::Pat>,
        self_ty: Option<&Ty>,
    ) {
        for part in parts {
            self.bind(part, Origin::Unknown, self_ty);
        }
    }
}

/// Returns the origin of an expression's value.
pub(crate) fn origin(expr: &syn::Expr, locals: &Locals, self_ty: Option<&Ty>) -> Origin {
    let inner = |e: &syn::Expr| origin(e, locals, self_ty);
    match expr {
        syn::Expr::Path(p) if p.qself.is_none() => match p.path.get_ident() {
            Some(name) => match locals.find(&name.to_string()) {
                Some(origin) => origin.clone(),
                None => Origin::Path(types::path(&p.path, self_ty)),
            },
            None => Origin::Path(types::path(&p.path, self_ty)),
        },
        syn::Expr::Field(f) => {
            let name = match &f.member {
                syn::Member::Named(name) => name.to_string(),
                syn::Member::Unnamed(index) => index.index.to_string(),
            };
            Origin::Field(Box::new(inner(&f.base)), name)
        }
        syn::Expr::MethodCall(c) => {
            Origin::Method(Box::new(inner(&c.receiver)), c.method.to_string())
        }
        syn::Expr::Call(c) => call(c, locals, self_ty),
        syn::Expr::Struct(s) => {
            Origin::Of(Ty { path: types::path(&s.path, self_ty), args: Vec::new() })
        }
        syn::Expr::Cast(c) => Origin::Of(types::ty(&c.ty, self_ty)),
        syn::Expr::Reference(r) => inner(&r.expr),
        syn::Expr::Paren(p) => inner(&p.expr),
        syn::Expr::Group(g) => inner(&g.expr),
        syn::Expr::Try(t) => inner(&t.expr),
        syn::Expr::Index(i) => inner(&i.expr),
        syn::Expr::Unary(u) if matches!(u.op, syn::UnOp::Deref(_)) => inner(&u.expr),
        _ => Origin::Unknown,
    }
}

/// Origin of a call: `Some(x)` and its like pass the origin of `x` on.
fn call(c: &syn::ExprCall, locals: &Locals, self_ty: Option<&Ty>) -> Origin {
    let syn::Expr::Path(function) = &*c.func else {
        return Origin::Unknown;
    };
    let wraps = ["Some", "Ok", "Err"].iter().any(|name| function.path.is_ident(name));
    match c.args.first() {
        Some(first) if wraps => origin(first, locals, self_ty),
        _ => Origin::Path(types::path(&function.path, self_ty)),
    }
}
