//! `docs/api/CRATE.txt` records the public API of each library, so that a change of it shows in review.
//!
//! `UPDATE_EXPECT=1 cargo test -p larder-e2e --test repository public_api` rewrites the files.
//!
//! An item counts as public if it says `pub`: the lint `unreachable_pub` rejects those that no user can reach. So the
//! sources are read as text, as rustfmt leaves them: an item ends at the first line that is not indented and ends with
//! `}`, `;` or `,`. The listing has one section for each file, without docs, bodies and private fields. `pub use` and
//! `pub mod` show which paths lead there.

#![expect(clippy::unwrap_used, reason = "a test panics with what it saw")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use expect_test::expect_file;

#[test]
fn public_api_matches_the_record() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let docs = crates.join("../docs/api").canonicalize().unwrap();
    for root in fs::read_dir(crates)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let name = root.file_name().unwrap().to_str().unwrap();
        // The library of a program is for itself.
        let is_program = root.join("src/main.rs").exists();
        if name != "larder-e2e" && !is_program && root.join("src/lib.rs").exists() {
            let mut files = BTreeMap::new();
            read(&root.join("src"), "", &mut files);
            let record = docs.join(format!("{name}.txt"));
            expect_file![record].assert_eq(&listing(&files));
        }
    }
}

/// Adds the files below `directory` by their path below `src`, but for those with unit tests.
fn read(directory: &Path, below: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            read(&path, &format!("{below}{name}/"), files);
        } else if !name.ends_with("tests.rs") && name != "testing.rs" && !below.ends_with("tests/")
        {
            files.insert(format!("{below}{name}"), fs::read_to_string(&path).unwrap());
        }
    }
}

fn listing(files: &BTreeMap<String, String>) -> String {
    let items: BTreeMap<_, _> = files
        .iter()
        .map(|(file, text)| (file, items(&text.lines().collect::<Vec<_>>())))
        .collect();
    let types: BTreeSet<_> = items
        .values()
        .flatten()
        .filter_map(Item::type_name)
        .collect();
    let mut text = String::new();
    for (file, items) in items {
        let lines: Vec<_> = items.iter().flat_map(|item| item.lines(&types)).collect();
        if !lines.is_empty() {
            write!(text, "# {file}\n{}\n\n", lines.join("\n")).unwrap();
        }
    }
    text
}

/// One item of a file, of a block or of a body, without comments.
struct Item<'a> {
    attributes: Vec<String>,
    lines: Vec<&'a str>,
}

/// The items of `lines`, none of which only tests compile or docs hide.
fn items<'a>(lines: &[&'a str]) -> Vec<Item<'a>> {
    let (mut items, mut attributes, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines
        .iter()
        .filter(|line| !line.trim().is_empty() && !is_comment(line))
    {
        open.push(*line);
        let is_attribute = open[0].starts_with('#');
        // `pub type A =` ends at an indented line.
        let is_end = !line.starts_with(' ') || open[0].ends_with('=');
        let ends: &[char] = if is_attribute {
            &[']']
        } else {
            &['}', ';', ',']
        };
        if !is_end || !line.ends_with(ends) {
            continue;
        }
        let lines = std::mem::take(&mut open);
        if is_attribute {
            attributes.push(joined(&lines));
        } else {
            let attributes = std::mem::take(&mut attributes);
            let is_left_out = |attribute: &String| {
                attribute.starts_with("#[cfg(test)]") || attribute.starts_with("#[doc(hidden)]")
            };
            if !attributes.iter().any(is_left_out) {
                items.push(Item { attributes, lines });
            }
        }
    }
    items
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// `lines` as one.
fn joined(lines: &[&str]) -> String {
    let words: Vec<_> = lines
        .iter()
        .flat_map(|line| line.split_whitespace())
        .collect();
    let mut text = words.join(" ");
    for (spaced, plain) in [
        ("( ", "("),
        (", )", ")"),
        (" )", ")"),
        (", >", ">"),
        ("< ", "<"),
        (" .", "."),
        (", }", " }"),
        ("#[source] ", ""),
    ] {
        text = text.replace(spaced, plain);
    }
    text
}

impl Item<'_> {
    /// What the item says before its body or value.
    fn head(&self) -> String {
        let text = joined(&self.lines);
        let end = text
            .find(" {")
            .or_else(|| text.find(" = "))
            .unwrap_or(text.len());
        text[..end].trim_end_matches([';', ',']).to_owned()
    }

    /// The items of its body.
    fn body(&self) -> Vec<Item<'_>> {
        let body = self
            .lines
            .iter()
            .skip_while(|line| !line.ends_with('{'))
            .skip(1);
        items(
            &body
                .map(|line| line.strip_prefix("    ").unwrap_or(line))
                .collect::<Vec<_>>(),
        )
    }

    fn is_public(&self) -> bool {
        self.lines[0].starts_with("pub ")
    }

    /// The name of a public type.
    fn type_name(&self) -> Option<String> {
        let rest = self.lines[0].strip_prefix("pub ")?;
        let kinds = ["struct ", "enum ", "trait ", "type "];
        let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
        Some(name(rest).to_owned())
    }

    /// The lines of the listing. `types` are the public ones of the crate.
    fn lines(&self, types: &BTreeSet<String>) -> Vec<String> {
        let head = self.head();
        if head.starts_with("impl") {
            return self.block(&head, types);
        }
        if is_call(&head) {
            return vec![joined(&self.lines)];
        }
        if !self.is_public() {
            return Vec::new();
        }
        let kept = ["derive", "non_exhaustive", "must_use", "deprecated", "cfg"];
        // Only tests have what an attribute gives to them.
        let is_kept = |attribute: &&String| {
            kept.iter().any(|kept| attribute[2..].starts_with(kept))
                && !attribute.starts_with("#[cfg_attr(test,")
        };
        let mut lines: Vec<_> = self.attributes.iter().filter(is_kept).cloned().collect();
        match head.split(' ').nth(1).unwrap_or_default() {
            "struct" if self.lines[0].ends_with('{') => {
                let fields = self.body();
                let public = fields.iter().filter(|field| field.is_public());
                lines.push(format!("{head} {{"));
                lines.extend(
                    public
                        .clone()
                        .map(|field| format!("    {}", joined(&field.lines))),
                );
                if public.count() < fields.len().saturating_sub(1) {
                    lines.push("    // private fields".to_owned());
                }
                lines.push("}".to_owned());
            }
            "enum" | "trait" | "unsafe" if self.lines[0].ends_with('{') || self.lines.len() > 1 => {
                lines.push(format!("{head} {{"));
                let members = self.body();
                let members = members.iter().filter(|member| member.lines != ["}"]);
                let is_trait = !head.starts_with("pub enum");
                let shown = |member: &Item<'_>| {
                    if is_trait {
                        format!("    {};", member.head())
                    } else {
                        format!("    {}", joined(&member.lines))
                    }
                };
                lines.extend(members.map(shown));
                lines.push("}".to_owned());
            }
            "struct" if head.contains('(') && !head.contains("(pub ") => {
                let name = head.split('(').next().unwrap();
                lines.push(format!("{name}(/* private */);"));
            }
            "type" | "use" => lines.push(joined(&self.lines)),
            _ => lines.push(format!("{head};")),
        }
        lines
    }

    /// The lines of an `impl`.
    fn block(&self, head: &str, types: &BTreeSet<String>) -> Vec<String> {
        let subject = head.split(" where ").next().unwrap();
        match subject.split_once(" for ") {
            Some((_, of)) if types.contains(name(of)) => vec![head.to_owned()],
            Some(_) => Vec::new(),
            None => {
                let members = self.body();
                let members = members.iter().filter_map(|member| match member.head() {
                    _ if member.is_public() => Some(format!("{head} {{ {}; }}", member.head())),
                    call if is_call(&call) => {
                        Some(format!("{head} {{ {} }}", joined(&member.lines)))
                    }
                    _ => None,
                });
                members.collect()
            }
        }
    }
}

/// Whether the item calls a macro that may write public items.
fn is_call(head: &str) -> bool {
    head.split_once('!').is_some_and(|(called, _)| {
        called == name(called) && !["macro_rules", "thread_local"].contains(&called)
    })
}

/// The name at the beginning of `text`, after a reference.
fn name(text: &str) -> &str {
    let text = text.trim_start_matches('&');
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn listing_has_what_is_public_without_bodies() {
    let text = r#"
//! Docs.

use std::fmt;

pub use inner::Shown as Renamed;

/// Docs.
#[derive(Clone)]
#[cfg_attr(test, derive(Debug))]
#[expect(
    clippy::all,
    reason = "x"
)]
pub struct Shown {
    /// Docs.
    pub field: BTreeMap<
        u8,
        u8,
    >,
    hidden: u8,
}

pub struct Unit;

pub struct Tuple(u8);

struct Private;

#[non_exhaustive]
pub enum Choice {
    /// Docs.
    #[error("{0}")]
    One(u8),
    Two { a: u8 },
}

pub type Long =
    Box<dyn Fn() -> u8>;

pub trait Reader: Send {
    fn read(
        &self,
        into: u8,
    ) -> u8;
    fn given(&self) {
        self.read(1);
    }
}

impl Shown {
    /// Docs.
    pub const fn method<T>(
        &self,
        at: u8,
    ) -> u8
    where
        T: Copy,
    {
        1
    }

    pub(crate) fn internal(&self) {}
    setters! {
        a: u8,
    }
}

impl Drop for Shown {
    fn drop(&mut self) {}
}

impl Drop for Private {
    fn drop(&mut self) {}
}

pub const LIMIT: usize = 1 << 3;

#[doc(hidden)]
pub fn secret() {}

#[cfg(test)]
mod tests {
    pub fn nothing() {}
}
"#;
    let expected = "\
# lib.rs
pub use inner::Shown as Renamed;
#[derive(Clone)]
pub struct Shown {
    pub field: BTreeMap<u8, u8>,
    // private fields
}
pub struct Unit;
pub struct Tuple(/* private */);
#[non_exhaustive]
pub enum Choice {
    One(u8),
    Two { a: u8 },
}
pub type Long = Box<dyn Fn() -> u8>;
pub trait Reader: Send {
    fn read(&self, into: u8) -> u8;
    fn given(&self);
}
impl Shown { pub const fn method<T>(&self, at: u8) -> u8 where T: Copy; }
impl Shown { setters! { a: u8 } }
impl Drop for Shown
pub const LIMIT: usize;

";
    let files = BTreeMap::from([("lib.rs".to_owned(), text.to_owned())]);
    assert_eq!(listing(&files), expected);
}
