//! Tables in kubectl's manner: a heading line, columns that line up, no lines between.

use super::escaped;

/// Widest column that is aligned; longer cells push the rest of their row to the right. No name of Kubernetes is longer,
/// and a hostile one must not widen every row.
const MAX_WIDTH: usize = 253;

/// The cells of a row, each with the heading of its column.
pub(crate) type Row<const N: usize> = [(&'static str, String); N];

/// A table of `rows` below `heading`.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let rows = rows.iter().map(|row| row.each_ref().map(String::as_str));
    columns(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())
}

/// Aligns `rows`, with three spaces between columns.
pub(crate) fn columns<const N: usize>(rows: &[[&str; N]]) -> String {
    let rows: Vec<_> = rows.iter().map(|row| row.map(escaped)).collect();
    let widths: [usize; N] = std::array::from_fn(|column| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0).min(MAX_WIDTH)
    });
    let mut text = String::new();
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        text += cells.collect::<Vec<_>>().join("   ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_without_trailing_blanks() {
        assert_eq!(
            columns(&[["A", "B"], ["long", "x"], ["y", ""]]),
            "A      B\nlong   x\ny\n"
        );
    }

    #[test]
    fn endless_names_widen_no_other_row() {
        let name = "x".repeat(100_000);
        let text = columns(&[["A", "B"], [&name, "y"]]);
        let lengths: Vec<_> = text.lines().map(str::len).collect();
        assert_eq!(lengths, [MAX_WIDTH + 4, 100_004]);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(columns(&[["a\x1b[2Jb\n", "c"]]), "a\\u{1b}[2Jb\\n   c\n");
    }
}
