//! The modules of a crate, as its files declare them.

use std::{collections::BTreeMap, fs, path::Path};

use syn::{Attribute, Item, Visibility, parse_quote};

/// One module: its items, without its child modules and without what only tests compile.
pub(crate) struct Module {
    pub(crate) items: Vec<Item>,
    pub(crate) children: BTreeMap<String, Child>,
}

pub(crate) struct Child {
    pub(crate) is_public: bool,
    pub(crate) module: Module,
}

impl Module {
    /// Reads a crate from its root file.
    pub(crate) fn load(root: &Path) -> Self {
        Self::of_file(root, root.parent().unwrap())
    }

    /// Reads a crate whose modules are all inline.
    pub(crate) fn parse(text: &str) -> Self {
        Self::of_items(syn::parse_file(text).unwrap().items, Path::new(""))
    }

    fn of_file(file: &Path, children: &Path) -> Self {
        let text =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self::of_items(syn::parse_file(&text).unwrap().items, children)
    }

    fn of_items(all: Vec<Item>, folder: &Path) -> Self {
        let mut items = Vec::new();
        let mut children = BTreeMap::new();
        for item in all {
            let Item::Mod(declared) = item else {
                items.push(item);
                continue;
            };
            if is_left_out(&declared.attrs) {
                continue;
            }
            let name = declared.ident.to_string();
            let below = folder.join(&name);
            let module = match declared.content {
                Some((_, content)) => Self::of_items(content, &below),
                None => Self::of_file(&folder.join(format!("{name}.rs")), &below),
            };
            let is_public = is_public(&declared.vis);
            children.insert(name, Child { is_public, module });
        }
        Self { items, children }
    }
}

pub(crate) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether only tests compile the item, or its docs are hidden.
pub(crate) fn is_left_out(attributes: &[Attribute]) -> bool {
    let test: Attribute = parse_quote!(#[cfg(test)]);
    let hidden: Attribute = parse_quote!(#[doc(hidden)]);
    attributes
        .iter()
        .any(|attribute| *attribute == test || *attribute == hidden)
}
