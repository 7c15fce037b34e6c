// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Conversion of syn's types and paths to those of `facts`.

use crate::facts::{Path, Ty};

/// Converts a path; `Self` becomes the type of the `impl` block.
pub(crate) fn path(path: &syn::Path, self_ty: Option<&Ty>) -> Path {
    let mut segments: Path = path.segments.iter().map(|s| s.ident.to_string()).collect();
    if let (Some("Self"), Some(ty)) = (segments.first().map(String::as_str), self_ty) {
        segments.splice(0..1, ty.path.iter().cloned());
    }
    segments
}

/// Converts a type; references, pointers and parentheses vanish.
pub(crate) fn ty(from: &syn::Type, self_ty: Option<&Ty>) -> Ty {
    let convert = |inner: &syn::Type| ty(inner, self_ty);
    match from {
        syn::Type::Reference(r) => convert(&r.elem),
        syn::Type::Ptr(p) => convert(&p.elem),
        syn::Type::Paren(p) => convert(&p.elem),
        syn::Type::Group(g) => convert(&g.elem),
        syn::Type::Slice(s) => Ty { path: Path::new(), args: vec![convert(&s.elem)] },
        syn::Type::Array(a) => Ty { path: Path::new(), args: vec![convert(&a.elem)] },
        syn::Type::Tuple(t) => {
            Ty { path: Path::new(), args: t.elems.iter().map(convert).collect() }
        }
        syn::Type::ImplTrait(t) => bounds(t.bounds.iter(), self_ty),
        syn::Type::TraitObject(t) => bounds(t.bounds.iter(), self_ty),
        syn::Type::Path(p) if p.qself.is_none() => named(&p.path, self_ty),
        _ => Ty::default(),
    }
}

fn named(from: &syn::Path, self_ty: Option<&Ty>) -> Ty {
    if let (true, Some(ty)) = (from.is_ident("Self"), self_ty) {
        return ty.clone();
    }
    let mut args = Vec::new();
    if let Some(syn::PathArguments::AngleBracketed(angle)) =
        from.segments.last().map(|segment| &segment.arguments)
    {
        for arg in &angle.args {
            match arg {
                syn::GenericArgument::Type(t) => args.push(ty(t, self_ty)),
                syn::GenericArgument::AssocType(a) => args.push(ty(&a.ty, self_ty)),
                _ => {}
            }
        }
    }
    Ty { path: path(from, self_ty), args }
}

fn bounds<'a>(mut from: impl Iterator<Item = &'a syn::TypeParamBound>, self_ty: Option<&Ty>) -> Ty {
    let first = from.find_map(|bound| match bound {
        syn::TypeParamBound::Trait(t) => Some(named(&t.path, self_ty)),
        _ => None,
    });
    first.unwrap_or_default()
}

/// Returns the type of a function's result.
pub(crate) fn result(output: &syn::ReturnType, self_ty: Option<&Ty>) -> Option<Ty> {
    match output {
        syn::ReturnType::Default => None,
        syn::ReturnType::Type(_, t) => Some(ty(t, self_ty)),
    }
}

/// Whether attributes make an item part of tests alone: `#[test]`, `#[cfg(test)]`,
/// `#[cfg(all(test, ...))]`.
pub(crate) fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            let words = || text.split(|c: char| !c.is_alphanumeric() && c != '_');
            words().any(|word| word == "test") && !words().any(|w| w == "not" || w == "any")
        }
        _ => false,
    })
}

/// Returns the file named by `#[path = "..."]`.
pub(crate) fn path_attr(attrs: &[syn::Attribute]) -> Option<String> {
    attrs.iter().find_map(|attr| match &attr.meta {
        syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(s), .. }) => Some(s.value()),
            _ => None,
        },
        _ => None,
    })
}
