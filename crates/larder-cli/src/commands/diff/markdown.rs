//! Differences as Markdown, for a comment on a change.
//!
//! Invariants:
//! 1. The title is escaped. Names and values are inside code, and cannot leave it: a fence is longer than each run of
//!    backticks in it.
//! 2. The text is bounded, because a comment is: what is left out is counted.

use std::io::{self, Write};

use super::{
    compare::{Comparison, PodDiff},
    container::Verdict,
    edits::Edit,
    report::{containers, notes, pods, summary, unless, verdict},
    tree::{PodTrees, differences},
};
use crate::output::{count, escaped};

/// Head of the table.
const HEADER: &str = "| pod | container | verdict |\n| --- | --- | --- |\n";
/// Longest line about what is not known.
const MAX_NOTE_BYTES: usize = 300;
/// Longest title.
const MAX_TITLE_BYTES: usize = 100;
/// Bytes for the heading, the summary, and what is left out.
const MAX_REST: usize = 1000;

pub(super) fn write(
    out: &mut dyn Write,
    title: Option<&str>,
    comparison: &Comparison<'_>,
    show_secrets: bool,
    most: usize,
) -> io::Result<()> {
    let notes = notes(comparison);
    // A fifth is for what is not known.
    let most = most.saturating_sub(MAX_REST);
    let (most, most_notes) = (most / 5 * 4, most / 5);
    if let Some(title) = title {
        writeln!(out, "### {}\n", heading(title))?;
    }
    let sides = code(&comparison.sides.to_string());
    if comparison.is_empty() {
        writeln!(out, "{}\n\n{sides}", summary(comparison))?;
        return write_notes(out, &notes, most_notes);
    }
    writeln!(out, "**{}**\n\n{sides}\n", summary(comparison))?;
    let mut rows = HEADER.to_owned();
    let mut not_shown = 0;
    for pod in pods(comparison) {
        let row = row(pod);
        if rows.len() + row.len() > most {
            not_shown += 1;
        } else {
            rows += &row;
        }
    }
    let mut room = most.saturating_sub(rows.len());
    // Objects that no pod references have no row.
    if rows.len() > HEADER.len() {
        out.write_all(rows.as_bytes())?;
    }
    if not_shown > 0 {
        let pods = count(not_shown, "pod");
        writeln!(
            out,
            "\nLeft out of the table, because it is too long: {pods}."
        )?;
    }
    write_notes(out, &notes, most_notes)?;
    let (mut left_out, mut count) = (0, 0);
    for tree in differences(comparison, show_secrets, PodTrees::WithOwnChanges) {
        count += 1;
        let text = block(&tree.flat());
        match room.checked_sub(text.len()) {
            Some(left) => {
                room = left;
                out.write_all(text.as_bytes())?;
            }
            None => left_out += 1,
        }
    }
    if left_out > 0 {
        writeln!(
            out,
            "\nLeft out, because they are too long: {left_out} of {count}."
        )?;
    }
    Ok(())
}

fn row(pod: &PodDiff<'_>) -> String {
    let name = code(&pod.key.to_string());
    if let Edit::Removed(_) = pod.sides {
        return format!("| {name} | | removed |\n");
    }
    let containers = containers(pod)
        .into_iter()
        .filter(|one| !matches!(one.verdict, Verdict::Same));
    let rows = containers.map(|container| {
        let verdicts = match container.verdict {
            // The reason may quote names.
            Verdict::Fails(_) | Verdict::Neither(_) | Verdict::Unknown { .. } => {
                code(&verdict(container))
            }
            _ => verdict(container),
        };
        let unless = container.unless.iter().map(unless).map(|text| code(&text));
        let verdict = unless.chain([verdicts]).collect::<Vec<_>>().join("<br>");
        let container = code(container.container.name);
        format!("| {name} | {container} | {verdict} |\n")
    });
    rows.collect()
}

/// A list of what is not known and not read, as much as has room in `most` bytes.
fn write_notes(out: &mut dyn Write, notes: &[String], most: usize) -> io::Result<()> {
    if notes.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let (mut room, mut left_out) = (most, 0);
    for note in notes {
        let cut = &note[..note.floor_char_boundary(MAX_NOTE_BYTES)];
        let line = format!("- {}\n", code(cut));
        match room.checked_sub(line.len()) {
            Some(left) => {
                room = left;
                out.write_all(line.as_bytes())?;
            }
            None => left_out += 1,
        }
    }
    match left_out {
        0 => Ok(()),
        more => writeln!(out, "- and {more} more that are not compared"),
    }
}

/// The title as text on one line.
fn heading(title: &str) -> String {
    let cut = &title[..title.floor_char_boundary(MAX_TITLE_BYTES)];
    let mut text = String::new();
    for character in escaped(cut).chars() {
        match character {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '~' | '|' => text.extend(['\\', character]),
            _ => text.push(character),
        }
    }
    text
}

/// The text as code on one line of a table.
fn code(text: &str) -> String {
    let text = escaped(text).replace('|', "\\|").replace('`', "'");
    format!("`{text}`")
}

/// The text, folded, with its first line as the heading.
fn block(text: &str) -> String {
    let (title, text) = text.split_once('\n').unwrap_or((text, ""));
    let title = title
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('`', "'");
    let fence = fence(text);
    format!(
        "\n<details><summary><code>{title}</code></summary>\n\n{fence}diff\n{text}{fence}\n\n</details>\n"
    )
}

/// Backticks, one more than any run in the text.
fn fence(text: &str) -> String {
    let runs = text.split(|character| character != '`').map(str::len);
    "`".repeat(runs.max().unwrap_or(0).max(2) + 1)
}
