//! The public items of a crate as text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Fields, File, Ident, ImplItem, Item, ItemImpl, ItemUse, Macro, Type, UseTree,
    parse_quote,
};

use super::tree::{Module, is_left_out, is_public};

/// Lists the public API of the crate `name`.
pub(crate) fn of(root: &Module, name: &str) -> String {
    let mut listing = Listing {
        root,
        sections: BTreeMap::new(),
        types: BTreeSet::new(),
        globs: Vec::new(),
    };
    listing.module(root, &[], name);
    let mut text = String::new();
    for (module, items) in &listing.sections {
        writeln!(text, "# {module}").unwrap();
        for item in items {
            text += item;
        }
        text.push('\n');
    }
    let mut implementations = BTreeSet::new();
    listing.implementations(root, &mut implementations);
    text += "# Methods and traits\n";
    for line in implementations {
        writeln!(text, "{line}").unwrap();
    }
    text
}

/// Most imports between a re-export and its item. Without an end, imports that name each other would be followed.
const MAX_STEPS: usize = 8;

/// What a path leads to.
enum Found<'a> {
    Item(&'a Item),
    /// The module at this path from the root.
    Module(Vec<String>),
    /// A path out of the crate.
    Elsewhere(Vec<String>),
}

struct Listing<'a> {
    root: &'a Module,
    /// Items by the public path of their module.
    sections: BTreeMap<String, Vec<String>>,
    /// Names of the public types and traits.
    types: BTreeSet<String>,
    /// The modules of the globs that are being listed.
    globs: Vec<Vec<String>>,
}

impl<'a> Listing<'a> {
    /// Lists what is public in `module`, which is at `path` and is known to users as `public`.
    fn module(&mut self, module: &'a Module, path: &[String], public: &str) {
        for item in &module.items {
            match item {
                Item::Use(reexport)
                    if is_public(&reexport.vis) && !is_left_out(&reexport.attrs) =>
                {
                    self.reexport(reexport, path, public);
                }
                _ => self.item(item, None, public),
            }
        }
        for (name, child) in &module.children {
            if child.is_public {
                let path = [path, std::slice::from_ref(name)].concat();
                self.module(&child.module, &path, &format!("{public}::{name}"));
            }
        }
    }

    /// Lists what a re-export in the module at `path` makes public.
    fn reexport(&mut self, reexport: &ItemUse, path: &[String], public: &str) {
        for (segments, name) in leaves(reexport) {
            let target = |modules: &[String]| self.resolve(modules, path, MAX_STEPS);
            if name == "*" {
                match segments
                    .split_last()
                    .and_then(|(_, modules)| target(modules))
                {
                    Some(target) => self.glob(&target, public),
                    None => self.add(public, format!("pub use {};\n", segments.join("::"))),
                }
                continue;
            }
            for found in self.follow(&segments, path, MAX_STEPS) {
                match found {
                    Found::Item(item) => self.item(item, Some(&name), public),
                    Found::Module(path) => {
                        let module = self.at(&path);
                        self.module(module, &path, &format!("{public}::{name}"));
                    }
                    Found::Elsewhere(segments) => {
                        let is_renamed = segments.last() != Some(&name);
                        let renamed = is_renamed.then(|| format!(" as {name}"));
                        let (text, renamed) = (segments.join("::"), renamed.unwrap_or_default());
                        self.add(public, format!("pub use {text}{renamed};\n"));
                    }
                }
            }
        }
    }

    /// Lists what is public in the module at `path`, which is known to users under `public`. Not within itself.
    fn glob(&mut self, path: &[String], public: &str) {
        if self.globs.iter().any(|open| open == path) {
            return;
        }
        self.globs.push(path.to_owned());
        self.module(self.at(path), path, public);
        self.globs.pop();
    }

    fn at(&self, path: &[String]) -> &'a Module {
        let children = path.iter();
        children.fold(self.root, |module, name| &module.children[name].module)
    }

    /// What a path in the module at `path` leads to.
    fn follow(&self, segments: &[String], path: &[String], steps: usize) -> Vec<Found<'a>> {
        let (name, modules) = segments.split_last().expect("a path has a name");
        let module = self.resolve(modules, path, steps);
        let found = module.map(|module| self.find(name, &module, steps));
        match found.unwrap_or_default() {
            found if found.is_empty() => vec![Found::Elsewhere(segments.to_vec())],
            found => found,
        }
    }

    /// The path of the module that `modules`, in the module at `path`, lead to; `None` if that leaves the crate.
    fn resolve(&self, modules: &[String], path: &[String], steps: usize) -> Option<Vec<String>> {
        let mut reached = match modules.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            _ => path.to_vec(),
        };
        for name in modules {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => drop(reached.pop()),
                name => {
                    let mut found = self.find(name, &reached, steps).into_iter();
                    reached = found.find_map(|found| match found {
                        Found::Module(path) => Some(path),
                        Found::Item(_) | Found::Elsewhere(_) => None,
                    })?;
                }
            }
        }
        Some(reached)
    }

    /// What `name` means in the module at `path`: its own items, or else what it imports under that name, or else by a
    /// glob. Imports are followed for `steps` at most.
    fn find(&self, name: &str, path: &[String], steps: usize) -> Vec<Found<'a>> {
        let module = self.at(path);
        let items = module.items.iter();
        let named = items.filter(|item| ident(item).is_some_and(|ident| ident == name));
        let mut found: Vec<_> = named.map(Found::Item).collect();
        if module.children.contains_key(name) {
            found.push(Found::Module([path, &[name.to_owned()]].concat()));
        }
        let Some(steps) = steps.checked_sub(1).filter(|_| found.is_empty()) else {
            return found;
        };
        let imports: Vec<_> = module
            .items
            .iter()
            .filter_map(import)
            .flat_map(leaves)
            .collect();
        for (segments, bound) in &imports {
            if bound == name {
                found.extend(self.follow(segments, path, steps));
            }
        }
        for (segments, bound) in &imports {
            let modules = &segments[..segments.len() - 1];
            if found.is_empty()
                && bound == "*"
                && let Some(module) = self.resolve(modules, path, steps)
            {
                found = self.find(name, &module, steps);
            }
        }
        found
    }

    fn item(&mut self, item: &Item, renamed: Option<&str>, public: &str) {
        let Some(mut item) = shown(item.clone()) else {
            return;
        };
        if let (Some(renamed), Some(ident)) = (renamed, ident_mut(&mut item)) {
            *ident = Ident::new(renamed, ident.span());
        }
        if let (Item::Struct(_) | Item::Enum(_) | Item::Trait(_) | Item::Type(_), Some(ident)) =
            (&item, ident(&item))
        {
            self.types.insert(ident.to_string());
        }
        let has_private = matches!(&item, Item::Struct(item) if item.attrs.iter().any(is_marker));
        if let Item::Struct(item) = &mut item {
            item.attrs.retain(|attribute| !is_marker(attribute));
        }
        let mut text = print(item);
        if has_private {
            text = match text.strip_suffix("}\n") {
                Some(open) => format!(
                    "{}\n    // private fields\n}}\n",
                    open.trim_end().trim_end_matches("{}").trim_end()
                ),
                None => text.replace("()", "(/* private */)"),
            };
        }
        self.add(public, text);
    }

    fn add(&mut self, public: &str, text: String) {
        self.sections
            .entry(public.to_owned())
            .or_default()
            .push(text);
    }

    /// Lists the public methods of the public types, and the traits that they implement. What a macro of the same module
    /// writes is listed as the macro's call.
    fn implementations(&self, module: &Module, lines: &mut BTreeSet<String>) {
        let mut macros = Vec::new();
        for item in &module.items {
            let block = match item {
                Item::Impl(block) => block,
                Item::Macro(item) => {
                    match &item.ident {
                        Some(name) => macros.push(name),
                        None if macros.iter().any(|name| item.mac.path.is_ident(*name)) => {
                            lines.insert(call(&item.mac));
                        }
                        None => {}
                    }
                    continue;
                }
                _ => continue,
            };
            let Type::Path(of) = &*block.self_ty else {
                continue;
            };
            let of = of.path.segments.last().unwrap().ident.to_string();
            if !self.types.contains(&of) || is_left_out(&block.attrs) {
                continue;
            }
            let head = head(block);
            if block.trait_.is_some() {
                lines.insert(head);
            } else {
                let methods = block.items.iter().filter_map(method);
                lines.extend(methods.map(|method| format!("{head} {{ {method} }}")));
            }
        }
        for child in module.children.values() {
            self.implementations(&child.module, lines);
        }
    }
}

/// `impl<K> Trait for Type<K> where …`, on one line.
fn head(block: &ItemImpl) -> String {
    let mut empty = block.clone();
    empty.items.clear();
    empty.attrs.clear();
    let text = print(Item::Impl(empty));
    one_line(text.trim_end().trim_end_matches("{}"))
}

fn method(item: &ImplItem) -> Option<String> {
    let mut block: ItemImpl = parse_quote!(impl X {});
    match item {
        ImplItem::Fn(method) if is_public(&method.vis) && !is_left_out(&method.attrs) => {
            let mut method = method.clone();
            method.attrs.clear();
            method.block = parse_quote!({});
            block.items.push(ImplItem::Fn(method));
        }
        ImplItem::Const(constant) if is_public(&constant.vis) && !is_left_out(&constant.attrs) => {
            let mut constant = constant.clone();
            constant.attrs.clear();
            constant.expr = parse_quote!(_);
            block.items.push(ImplItem::Const(constant));
        }
        ImplItem::Macro(item) => return Some(call(&item.mac)),
        _ => return None,
    }
    let text = one_line(&print(Item::Impl(block)));
    let text = text
        .strip_prefix("impl X {")
        .unwrap()
        .trim_end_matches('}')
        .trim();
    Some(without_body(text))
}

/// A call of a macro, without the comments on what it writes.
fn call(called: &Macro) -> String {
    let mut tokens = Vec::new();
    for token in called.tokens.clone() {
        let is_comment =
            matches!(&token, TokenTree::Group(group) if group.to_string().starts_with("[doc"));
        if is_comment {
            tokens.pop();
        } else {
            tokens.push(token);
        }
    }
    let tokens: TokenStream = tokens.into_iter().collect();
    let name = &called
        .path
        .segments
        .last()
        .expect("a path has a name")
        .ident;
    one_line(&format!("{name}! {{ {tokens} }}"))
}

fn without_body(text: &str) -> String {
    match text
        .trim_end()
        .strip_suffix("{}")
        .or_else(|| text.trim_end().strip_suffix('{'))
    {
        Some(signature) => format!("{};", signature.trim_end()),
        None => text.to_owned(),
    }
}

fn one_line(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    words
        .join(" ")
        .replace("( ", "(")
        .replace(", )", ")")
        .replace(" )", ")")
        .replace(", >", ">")
}

/// The item as users see it; `None` if it is not public.
fn shown(mut item: Item) -> Option<Item> {
    let visibility = match &item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        _ => return None,
    };
    if !is_public(visibility) {
        return None;
    }
    let attributes = match &mut item {
        Item::Const(item) => &mut item.attrs,
        Item::Enum(item) => &mut item.attrs,
        Item::Fn(item) => &mut item.attrs,
        Item::Static(item) => &mut item.attrs,
        Item::Struct(item) => &mut item.attrs,
        Item::Trait(item) => &mut item.attrs,
        Item::Type(item) => &mut item.attrs,
        _ => return None,
    };
    if is_left_out(attributes) {
        return None;
    }
    keep_contract(attributes);
    match &mut item {
        Item::Const(item) => *item.expr = parse_quote!(_),
        Item::Static(item) => *item.expr = parse_quote!(_),
        Item::Fn(item) => *item.block = parse_quote!({}),
        Item::Enum(item) => {
            for variant in &mut item.variants {
                keep_contract(&mut variant.attrs);
                for field in &mut variant.fields {
                    field.attrs.clear();
                }
            }
        }
        Item::Struct(item) => {
            let has_private = hide_private(&mut item.fields);
            item.attrs
                .extend(has_private.then(|| parse_quote!(#[private])));
        }
        Item::Trait(item) => {
            for member in &mut item.items {
                match member {
                    syn::TraitItem::Fn(member) => {
                        member.attrs.clear();
                        member.default = member.default.take().map(|_| parse_quote!({}));
                    }
                    syn::TraitItem::Const(member) => member.attrs.clear(),
                    syn::TraitItem::Type(member) => member.attrs.clear(),
                    _ => {}
                }
            }
        }
        _ => {}
    }
    Some(item)
}

fn is_marker(attribute: &Attribute) -> bool {
    attribute.path().is_ident("private")
}

/// Removes the attributes that say nothing about how the item may be used.
fn keep_contract(attributes: &mut Vec<Attribute>) {
    attributes.retain(|attribute| {
        ["derive", "non_exhaustive", "must_use", "deprecated", "cfg"]
            .iter()
            .any(|name| attribute.path().is_ident(name))
    });
    for attribute in attributes {
        if attribute.path().is_ident("must_use") {
            *attribute = parse_quote!(#[must_use]);
        }
    }
}

/// Removes private fields; returns whether there were any.
fn hide_private(fields: &mut Fields) -> bool {
    let all = fields.len();
    match fields {
        Fields::Named(named) => {
            named.named = std::mem::take(&mut named.named)
                .into_iter()
                .filter(|field| is_public(&field.vis))
                .collect();
        }
        Fields::Unnamed(unnamed) => {
            let kept = std::mem::take(&mut unnamed.unnamed)
                .into_iter()
                .filter(|field| is_public(&field.vis));
            unnamed.unnamed = kept.collect();
        }
        Fields::Unit => {}
    }
    for field in fields.iter_mut() {
        field.attrs.clear();
    }
    fields.len() < all
}

fn print(item: Item) -> String {
    let is_function = matches!(item, Item::Fn(_));
    let file = File {
        shebang: None,
        attrs: Vec::new(),
        items: vec![item],
    };
    let text = prettyplease::unparse(&file);
    if is_function {
        return format!("{}\n", without_body(&text));
    }
    text
}

fn ident(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

fn ident_mut(item: &mut Item) -> Option<&mut Ident> {
    match item {
        Item::Const(item) => Some(&mut item.ident),
        Item::Enum(item) => Some(&mut item.ident),
        Item::Fn(item) => Some(&mut item.sig.ident),
        Item::Static(item) => Some(&mut item.ident),
        Item::Struct(item) => Some(&mut item.ident),
        Item::Trait(item) => Some(&mut item.ident),
        Item::Type(item) => Some(&mut item.ident),
        _ => None,
    }
}

/// The import, unless only tests compile it.
fn import(item: &Item) -> Option<&ItemUse> {
    match item {
        Item::Use(import) if !is_left_out(&import.attrs) => Some(import),
        _ => None,
    }
}

/// The paths of an import, each with the name that it gets; `*` for a glob.
fn leaves(import: &ItemUse) -> Vec<(Vec<String>, String)> {
    let mut leaves = Vec::new();
    flatten(&import.tree, &mut Vec::new(), &mut leaves);
    leaves
}

fn flatten(tree: &UseTree, path: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    let mut leaf = |name: &Ident, bound: &Ident| {
        let mut path = path.clone();
        // `a::{self}` is `a`.
        if name != "self" {
            path.push(name.to_string());
        }
        let bound = match path.last() {
            Some(last) if bound == "self" => last.clone(),
            _ => bound.to_string(),
        };
        leaves.push((path, bound));
    };
    match tree {
        UseTree::Name(name) => leaf(&name.ident, &name.ident),
        UseTree::Rename(name) => leaf(&name.ident, &name.rename),
        UseTree::Glob(_) => leaves.push(([&path[..], &["*".to_owned()]].concat(), "*".to_owned())),
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            flatten(&inner.tree, path, leaves);
            path.pop();
        }
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, path, leaves);
            }
        }
    }
}
