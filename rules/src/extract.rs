// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
//! Reads the facts of a file from its syntax tree.
//!
//! Arguments of macros are read where they parse as expressions; the bodies of `macro_rules!`
//! are not.

use proc_macro2::{Ident, Span};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::facts::{
    Call, Declared, Facts, Impl, Import, Item, ItemKind, Method, ModDecl, Origin, Path, PathUse, Ty,
};
use crate::origin::{Locals, origin};
use crate::{lexer, types};

/// Returns the facts of `source`.
pub(crate) fn facts(source: &str) -> Facts {
    let mut extractor = Extractor::default();
    match syn::parse_file(source) {
        Ok(file) => extractor.visit_file(&file),
        Err(error) => extractor.facts.error = Some(error.to_string()),
    }
    extractor.facts.comments = lexer::comments(source);
    extractor.facts
}

#[derive(Default)]
struct Extractor {
    facts: Facts,
    scope: Path,
    /// Depth of items that belong to tests.
    tests: usize,
    /// Depth of functions: items inside are local.
    functions: usize,
    self_ty: Option<Ty>,
    locals: Locals,
}

fn line(span: Span) -> usize {
    span.start().line
}

impl Extractor {
    fn declare(&mut self, name: &Ident) {
        self.facts.declared.push(Declared { name: name.to_string(), line: line(name.span()) });
    }

    fn item(&mut self, name: &Ident, kind: ItemKind) -> Item {
        self.declare(name);
        Item {
            scope: self.scope.clone(),
            name: name.to_string(),
            kind,
            line: line(name.span()),
            fields: Vec::new(),
            ty: None,
            methods: Vec::new(),
        }
    }

    fn add(&mut self, item: Item) {
        if self.functions == 0 {
            self.facts.items.push(item);
        }
    }

    fn add_typed(&mut self, name: &Ident, kind: ItemKind, ty: &syn::Type) {
        let mut item = self.item(name, kind);
        item.ty = Some(self.ty(ty));
        self.add(item);
    }

    fn ty(&self, from: &syn::Type) -> Ty {
        types::ty(from, self.self_ty.as_ref())
    }

    fn fields(&self, fields: &syn::Fields) -> Vec<(String, Ty)> {
        let name = |index: usize, field: &syn::Field| match &field.ident {
            Some(ident) => ident.to_string(),
            None => index.to_string(),
        };
        fields.iter().enumerate().map(|(i, f)| (name(i, f), self.ty(&f.ty))).collect()
    }

    fn used_path(&mut self, path: Path, span: Span) {
        if self.tests > 0 {
            return;
        }
        let scope = self.scope.clone();
        self.facts.paths.push(PathUse { scope, path, line: line(span) });
    }

    fn import(&mut self, prefix: &Path, tree: &syn::UseTree, public: bool) {
        let mut path = prefix.clone();
        let (alias, glob) = match tree {
            syn::UseTree::Path(p) => {
                path.push(p.ident.to_string());
                return self.import(&path, &p.tree, public);
            }
            syn::UseTree::Group(g) => {
                for tree in &g.items {
                    self.import(prefix, tree, public);
                }
                return;
            }
            syn::UseTree::Name(n) if n.ident == "self" => {
                (path.last().cloned().unwrap_or_default(), false)
            }
            syn::UseTree::Name(n) => {
                path.push(n.ident.to_string());
                (n.ident.to_string(), false)
            }
            syn::UseTree::Rename(r) => {
                if r.ident != "self" {
                    path.push(r.ident.to_string());
                }
                self.declare(&r.rename);
                (r.rename.to_string(), false)
            }
            syn::UseTree::Glob(_) => ("*".to_owned(), true),
        };
        let (scope, test, line) = (self.scope.clone(), self.tests > 0, line(tree.span()));
        self.facts.imports.push(Import { scope, path, alias, glob, public, test, line });
    }

    /// Visits a function with variables of its own.
    fn function(&mut self, sig: &syn::Signature, block: Option<&syn::Block>) {
        let mark = self.locals.enter();
        for input in &sig.inputs {
            match input {
                syn::FnArg::Receiver(_) => {
                    let of = self.self_ty.clone().map_or(Origin::Unknown, Origin::Of);
                    self.locals.declare("self".to_owned(), of);
                }
                syn::FnArg::Typed(t) => {
                    let of = Origin::Of(self.ty(&t.ty));
                    self.locals.bind(&t.pat, of, self.self_ty.as_ref());
                }
            }
        }
        self.visit_signature(sig);
        self.functions += 1;
        if let Some(block) = block {
            self.visit_block(block);
        }
        self.functions -= 1;
        self.locals.leave(mark);
    }

    /// Runs `visit` with `test` counted and the counts restored.
    fn within(&mut self, test: bool, visit: impl FnOnce(&mut Self)) {
        self.tests += usize::from(test);
        self.facts.has_tests |= test;
        visit(self);
        self.tests -= usize::from(test);
    }

    /// Binds `pat` to the value of `expr`.
    fn bind(&mut self, pat: &syn::Pat, expr: Option<&syn::Expr>) {
        let self_ty = self.self_ty.as_ref();
        let of = expr.map_or(Origin::Unknown, |e| origin(e, &self.locals, self_ty));
        self.locals.bind(pat, of, self_ty);
    }
}

impl<'a> Visit<'a> for Extractor {
    fn visit_attribute(&mut self, _: &'a syn::Attribute) {}

    fn visit_item(&mut self, item: &'a syn::Item) {
        let attrs = match item {
            syn::Item::Fn(i) => &i.attrs,
            syn::Item::Mod(i) => &i.attrs,
            syn::Item::Use(i) => &i.attrs,
            syn::Item::Impl(i) => &i.attrs,
            syn::Item::Struct(i) => &i.attrs,
            syn::Item::Enum(i) => &i.attrs,
            syn::Item::Const(i) => &i.attrs,
            syn::Item::Static(i) => &i.attrs,
            syn::Item::Trait(i) => &i.attrs,
            syn::Item::Type(i) => &i.attrs,
            _ => return visit::visit_item(self, item),
        };
        self.within(types::is_test(attrs), |this| visit::visit_item(this, item));
    }

    fn visit_item_mod(&mut self, i: &'a syn::ItemMod) {
        self.declare(&i.ident);
        let name = i.ident.to_string();
        self.facts.mods.push(ModDecl {
            scope: self.scope.clone(),
            name: name.clone(),
            inline: i.content.is_some(),
            test: self.tests > 0,
            path_attr: types::path_attr(&i.attrs),
            line: line(i.ident.span()),
        });
        self.scope.push(name);
        visit::visit_item_mod(self, i);
        self.scope.pop();
    }

    fn visit_item_use(&mut self, i: &'a syn::ItemUse) {
        let public = !matches!(i.vis, syn::Visibility::Inherited);
        self.import(&Path::new(), &i.tree, public);
    }

    fn visit_item_fn(&mut self, i: &'a syn::ItemFn) {
        let mut item = self.item(&i.sig.ident, ItemKind::Function);
        item.ty = types::result(&i.sig.output, None);
        self.add(item);
        let outer = self.self_ty.take();
        self.function(&i.sig, Some(&i.block));
        self.self_ty = outer;
    }

    fn visit_item_struct(&mut self, i: &'a syn::ItemStruct) {
        let mut item = self.item(&i.ident, ItemKind::Struct);
        item.fields = self.fields(&i.fields);
        self.add(item);
        visit::visit_item_struct(self, i);
    }

    fn visit_item_union(&mut self, i: &'a syn::ItemUnion) {
        let item = self.item(&i.ident, ItemKind::Union);
        self.add(item);
        visit::visit_item_union(self, i);
    }

    fn visit_item_enum(&mut self, i: &'a syn::ItemEnum) {
        let item = self.item(&i.ident, ItemKind::Enum);
        self.add(item);
        visit::visit_item_enum(self, i);
    }

    fn visit_variant(&mut self, i: &'a syn::Variant) {
        self.declare(&i.ident);
        visit::visit_variant(self, i);
    }

    fn visit_field(&mut self, i: &'a syn::Field) {
        if let Some(name) = &i.ident {
            self.declare(name);
        }
        visit::visit_field(self, i);
    }

    fn visit_item_type(&mut self, i: &'a syn::ItemType) {
        self.add_typed(&i.ident, ItemKind::Alias, &i.ty);
        visit::visit_item_type(self, i);
    }

    fn visit_item_const(&mut self, i: &'a syn::ItemConst) {
        self.add_typed(&i.ident, ItemKind::Constant, &i.ty);
        visit::visit_item_const(self, i);
    }

    fn visit_item_static(&mut self, i: &'a syn::ItemStatic) {
        self.add_typed(&i.ident, ItemKind::Constant, &i.ty);
        visit::visit_item_static(self, i);
    }

    fn visit_item_macro(&mut self, i: &'a syn::ItemMacro) {
        match &i.ident {
            Some(name) => {
                let item = self.item(name, ItemKind::Macro);
                self.add(item);
            }
            None => visit::visit_item_macro(self, i),
        }
    }

    fn visit_item_trait(&mut self, i: &'a syn::ItemTrait) {
        let mut item = self.item(&i.ident, ItemKind::Trait);
        let this = Ty { path: vec![i.ident.to_string()], args: Vec::new() };
        let outer = self.self_ty.replace(this);
        for member in &i.items {
            if let syn::TraitItem::Fn(f) = member {
                let result = types::result(&f.sig.output, self.self_ty.as_ref());
                item.methods.push(Method { name: f.sig.ident.to_string(), result });
            }
        }
        self.add(item);
        visit::visit_item_trait(self, i);
        self.self_ty = outer;
    }

    fn visit_trait_item_fn(&mut self, i: &'a syn::TraitItemFn) {
        self.declare(&i.sig.ident);
        self.function(&i.sig, i.default.as_ref());
    }

    fn visit_item_impl(&mut self, i: &'a syn::ItemImpl) {
        let ty = self.ty(&i.self_ty);
        let outer = self.self_ty.replace(ty.clone());
        let (mut methods, mut target) = (Vec::new(), None);
        for member in &i.items {
            match member {
                syn::ImplItem::Fn(f) => {
                    let result = types::result(&f.sig.output, self.self_ty.as_ref());
                    methods.push(Method { name: f.sig.ident.to_string(), result });
                }
                syn::ImplItem::Type(t) if t.ident == "Target" => target = Some(self.ty(&t.ty)),
                _ => {}
            }
        }
        let (scope, test) = (self.scope.clone(), self.tests > 0);
        self.facts.impls.push(Impl { scope, ty, test, methods, target });
        visit::visit_item_impl(self, i);
        self.self_ty = outer;
    }

    fn visit_impl_item_fn(&mut self, i: &'a syn::ImplItemFn) {
        self.within(types::is_test(&i.attrs), |this| {
            this.declare(&i.sig.ident);
            this.function(&i.sig, Some(&i.block));
        });
    }

    fn visit_impl_item_const(&mut self, i: &'a syn::ImplItemConst) {
        self.declare(&i.ident);
        visit::visit_impl_item_const(self, i);
    }

    fn visit_pat_ident(&mut self, i: &'a syn::PatIdent) {
        self.declare(&i.ident);
        visit::visit_pat_ident(self, i);
    }

    fn visit_path(&mut self, i: &'a syn::Path) {
        let local = i.get_ident().is_some_and(|n| self.locals.find(&n.to_string()).is_some());
        if !local {
            let path = types::path(i, self.self_ty.as_ref());
            self.used_path(path, i.span());
        }
        visit::visit_path(self, i);
    }

    fn visit_expr_method_call(&mut self, i: &'a syn::ExprMethodCall) {
        if self.tests == 0 {
            self.facts.calls.push(Call {
                scope: self.scope.clone(),
                receiver: origin(&i.receiver, &self.locals, self.self_ty.as_ref()),
                method: i.method.to_string(),
                line: line(i.method.span()),
            });
        }
        visit::visit_expr_method_call(self, i);
    }

    fn visit_block(&mut self, i: &'a syn::Block) {
        let mark = self.locals.enter();
        visit::visit_block(self, i);
        self.locals.leave(mark);
    }

    fn visit_local(&mut self, i: &'a syn::Local) {
        visit::visit_local(self, i);
        self.bind(&i.pat, i.init.as_ref().map(|init| &*init.expr));
    }

    fn visit_expr_let(&mut self, i: &'a syn::ExprLet) {
        visit::visit_expr_let(self, i);
        self.bind(&i.pat, Some(&i.expr));
    }

    fn visit_expr_if(&mut self, i: &'a syn::ExprIf) {
        let mark = self.locals.enter();
        self.visit_expr(&i.cond);
        self.visit_block(&i.then_branch);
        self.locals.leave(mark);
        if let Some((_, other)) = &i.else_branch {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, i: &'a syn::ExprWhile) {
        let mark = self.locals.enter();
        visit::visit_expr_while(self, i);
        self.locals.leave(mark);
    }

    fn visit_expr_for_loop(&mut self, i: &'a syn::ExprForLoop) {
        let mark = self.locals.enter();
        self.visit_expr(&i.expr);
        self.visit_pat(&i.pat);
        self.bind(&i.pat, Some(&i.expr));
        self.visit_block(&i.body);
        self.locals.leave(mark);
    }

    fn visit_expr_match(&mut self, i: &'a syn::ExprMatch) {
        self.visit_expr(&i.expr);
        for arm in &i.arms {
            let mark = self.locals.enter();
            self.bind(&arm.pat, Some(&i.expr));
            self.visit_arm(arm);
            self.locals.leave(mark);
        }
    }

    fn visit_expr_closure(&mut self, i: &'a syn::ExprClosure) {
        let mark = self.locals.enter();
        for input in &i.inputs {
            self.bind(input, None);
        }
        visit::visit_expr_closure(self, i);
        self.locals.leave(mark);
    }

    fn visit_macro(&mut self, i: &'a syn::Macro) {
        self.visit_path(&i.path);
        let list = Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
        if let Ok(args) = list.parse2(i.tokens.clone()) {
            for arg in &args {
                Visit::visit_expr(self, arg);
            }
        }
    }
}
