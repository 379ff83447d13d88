//! `docs/api/CRATE.txt` records the public API of each library, so that a change of it shows in review.
//!
//! `UPDATE_EXPECT=1 cargo test -p larder-e2e --test public_api` rewrites the files.
//!
//! The sources are read with `syn`, since rustdoc's own listing needs a nightly compiler. The listing has the public
//! items that a path of public modules and re-exports leads to, without bodies, docs and private fields. Items under
//! `#[doc(hidden)]` are omitted. Methods and implemented traits are matched to types by name, which is unique within a
//! crate.

#![expect(clippy::unwrap_used, reason = "a test panics with what it saw")]

mod listing;
mod tree;

use std::path::Path;

use expect_test::expect_file;

#[test]
fn public_api_matches_the_record() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let docs = crates.join("../docs/api").canonicalize().unwrap();
    for library in [
        "larder",
        "larder-actions",
        "larder-agent",
        "larder-apiserver",
        "larder-objects",
        "larder-on-change",
        "larder-pods",
        "larder-projection",
        "larder-transport",
        "larder-watch",
    ] {
        let root = tree::Module::load(&crates.join(library).join("src/lib.rs"));
        let listing = listing::of(&root, &library.replace('-', "_"));
        expect_file![docs.join(format!("{library}.txt"))].assert_eq(&listing);
    }
}

#[test]
fn listing_has_exactly_the_items_that_paths_lead_to() {
    let root = tree::Module::parse(
        r#"
        mod inner {
            /// Docs.
            #[derive(Clone)]
            pub struct Shown { pub field: u8, hidden: u8 }
            impl Shown { pub fn method(&self) -> u8 { 1 } fn private(&self) {} }
            impl Drop for Shown { fn drop(&mut self) {} }
            pub struct NotReexported;
            impl NotReexported { pub fn nothing() {} }
        }
        pub mod outer { pub fn function() {} pub(crate) fn internal() {} }
        pub use inner::Shown;
        pub use other_crate::Thing as Renamed;
        #[doc(hidden)] pub fn secret() {}
        #[cfg(test)] mod tests { pub fn nothing() {} }
        "#,
    );
    let expected = "\
# demo
#[derive(Clone)]
pub struct Shown {
    pub field: u8,
    // private fields
}
pub use other_crate::Thing as Renamed;

# demo::outer
pub fn function();

# Methods and traits
impl Drop for Shown
impl Shown { pub fn method(&self) -> u8; }
";
    assert_eq!(listing::of(&root, "demo"), expected);
}

#[test]
fn reexport_of_a_reexport_leads_to_the_item() {
    let root = tree::Module::parse(
        r#"
        mod a {
            mod deep {
                pub struct Chained { pub field: u8 }
                impl Chained { pub fn method(&self) {} }
                pub enum Before { One }
                pub fn by_glob() {}
                pub mod shared { pub struct Inside; }
                pub use elsewhere::Foreign;
            }
            pub(crate) use self::deep::{shared, Before as Between, Chained, Foreign};
            pub use self::deep::*;
        }
        pub use a::{shared::{self, Inside}, Between as After, Chained, Foreign, by_glob};
        pub mod all { pub use crate::a::*; }
        pub use circle::Circle;
        mod circle { pub use crate::Circle; }
        "#,
    );
    let expected = "\
# demo
pub struct Inside;
pub enum After {
    One,
}
pub struct Chained {
    pub field: u8,
}
pub use elsewhere::Foreign;
pub fn by_glob();
pub use circle::Circle;

# demo::all
pub struct Chained {
    pub field: u8,
}
pub enum Before {
    One,
}
pub fn by_glob();
pub use elsewhere::Foreign;

# demo::all::shared
pub struct Inside;

# demo::shared
pub struct Inside;

# Methods and traits
impl Chained { pub fn method(&self); }
";
    assert_eq!(listing::of(&root, "demo"), expected);
}
