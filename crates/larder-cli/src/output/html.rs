//! Trees as a page of HTML: one file, without external requests.
//!
//! Invariants:
//! 1. Every text of a tree is escaped; the only markup is that of this module.
//! 2. The page loads nothing: its Content-Security-Policy permits its own style and script, by their digests.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ring::digest::{SHA256, digest};

use super::{
    escaped,
    tree::{Branch, TableCell},
};

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// One tree of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// Identifies it in its page.
    pub(crate) id: String,
    pub(crate) html: String,
}

impl Card {
    pub(crate) fn new(id: impl Into<String>, tree: &Branch) -> Self {
        let id = id.into();
        let mut html = String::new();
        let state = match tree.state {
            "" => String::new(),
            state => format!(" data-state=\"{}\"", text(state)),
        };
        let _ = write!(html, "<article id=\"{}\"{state}>", text(&id));
        branch(&mut html, tree, "h2");
        html.push_str("</article>");
        Self { id, html }
    }
}

/// The Content-Security-Policy of every page, which may follow its server if it is `live`.
pub(crate) fn policy(live: bool) -> String {
    let hash = |text: &str| BASE64.encode(digest(&SHA256, text.as_bytes()));
    let connect = if live { "connect-src 'self'; " } else { "" };
    format!(
        "default-src 'none'; {connect}style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    )
}

/// Writes a page of one card for each tree, one after the other. `about` stands below the summary.
///
/// # Errors
///
/// `out` cannot be written.
pub(crate) fn write_page(
    out: &mut dyn Write,
    title: &str,
    summary: &str,
    about: &str,
    trees: impl IntoIterator<Item = Branch>,
) -> io::Result<()> {
    out.write_all(head(title, summary, about, None).as_bytes())?;
    for (number, tree) in trees.into_iter().enumerate() {
        let card = Card::new(format!("card-{number}"), &tree);
        out.write_all(card.html.as_bytes())?;
    }
    out.write_all(foot().as_bytes())
}

/// A page without trees, which follows its server at the path `live`.
pub(crate) fn live_page(title: &str, summary: &str, live: &str) -> String {
    head(title, summary, "", Some(live)) + &foot()
}

/// What stands before the cards: the title, the lines below it, and the path of a page that follows its server.
fn head(title: &str, summary: &str, about: &str, live: Option<&str>) -> String {
    let (title, summary, policy) = (text(title), text(summary), policy(live.is_some()));
    let live = live
        .map(|path| format!(" data-live=\"{}\"", text(path)))
        .unwrap_or_default();
    let about = match about {
        "" => String::new(),
        about => format!("<p class=\"dim\">{}</p>\n", text(about)),
    };
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body{live}>
<header>
<h1>{title}</h1>
<p id="summary">{summary}</p>
{about}<div id="states" role="group" aria-label="Show only"></div>
<div class="tools">
<label>Search <input type="search" id="search" autocomplete="off" spellcheck="false" aria-keyshortcuts="/"></label>
<button type="button" id="open">Expand all</button>
<button type="button" id="close">Collapse all</button>
<span role="status" id="state"></span>
</div>
</header>
<main id="cards">"#
    )
}

/// What stands after the cards.
fn foot() -> String {
    format!(
        "</main>\n<footer><p>Keys: <kbd>/</kbd> search, <kbd>j</kbd> and <kbd>k</kbd> next and previous, \
        <kbd>Enter</kbd> open or close.</p></footer>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

/// A branch and what is below it; its line is a heading in the element `heading`, if that is not empty.
fn branch(html: &mut String, tree: &Branch, heading: &str) {
    let cells: Vec<_> = tree.cells.iter().map(cell).collect();
    // The blanks are where a narrow page breaks the line.
    let cells = cells.join(" ");
    let line = match heading {
        "" => cells,
        heading => format!("<{heading}>{cells}</{heading}>"),
    };
    if tree.children.is_empty() && tree.text.is_empty() {
        let _ = write!(html, "<div class=\"row\">{line}</div>");
        return;
    }
    let open = if tree.is_folded { "" } else { " open" };
    let _ = write!(html, "<details{open}><summary>{line}</summary>");
    if !tree.text.is_empty() {
        let lines: Vec<_> = tree.text.iter().map(cell).collect();
        let _ = write!(html, "<pre>{}</pre>", lines.join("\n"));
    }
    if !tree.children.is_empty() {
        html.push_str("<ul>");
        for child in &tree.children {
            html.push_str("<li>");
            branch(html, child, "");
            html.push_str("</li>");
        }
        html.push_str("</ul>");
    }
    html.push_str("</details>");
}

fn cell(cell: &TableCell) -> String {
    let (class, _) = cell.paint.class_and_code();
    let time = cell
        .time
        .map(|time| {
            let time = format!("{time:.0}");
            format!(" <time datetime=\"{time}\" title=\"{time}\">{time}</time>")
        })
        .unwrap_or_default();
    // An empty one keeps its column.
    format!("<span class=\"{class}\">{}{time}</span>", text(&cell.text))
}

/// Text for an element or an attribute.
fn text(text: &str) -> String {
    escaped(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_of_a_name_is_text() {
        let tree = Branch::new().bold("</article><script>alert(1)</script>");
        let tree = tree.with([Branch::new().plain("a\"b'&c")]);
        let card = Card::new("\"><img src=x>", &tree);
        assert!(
            !card.html.contains("<script") && !card.html.contains("<img"),
            "{}",
            card.html
        );
        assert!(card.html.contains("a&quot;b&#39;&amp;c"), "{}", card.html);
    }

    #[test]
    fn style_and_script_cannot_end_their_elements() {
        for text in [STYLE, SCRIPT] {
            assert!(!text.contains("</") && !text.contains("<!--"));
        }
    }

    #[test]
    fn page_has_no_address_of_another_server() {
        let page = live_page("t", "", "/");
        for word in ["http:", "https:", "url(", "@import", " src=", " href="] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
