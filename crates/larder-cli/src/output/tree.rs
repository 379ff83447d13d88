//! Trees of text: branches whose cells line up among siblings.

use std::fmt;

use jiff::Timestamp;

use super::{
    escaped,
    style::{Paint, Style},
};

/// One line, and the branches below it.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    pub(super) cells: Vec<TableCell>,
    /// A text of several lines, printed as it is below the line.
    pub(super) text: Vec<TableCell>,
    pub(super) children: Vec<Branch>,
    /// Whether a page shows the line only, until its reader opens it.
    pub(super) is_folded: bool,
    /// What a page counts, and filters by; empty if it does neither.
    pub(super) state: &'static str,
}

/// A piece of a line.
#[derive(Debug)]
pub(super) struct TableCell {
    pub(super) text: String,
    pub(super) paint: Paint,
    /// Follows the text: a page shows its age, with the time as a title.
    pub(super) time: Option<Timestamp>,
}

impl TableCell {
    fn new(paint: Paint, text: impl fmt::Display, time: Option<Timestamp>) -> Self {
        let text = escaped(&text.to_string()).into_owned();
        Self { text, paint, time }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    fn painted(&self, style: Style) -> String {
        style.paint(self.paint, &self.text)
    }
}

/// Adds a cell in this style.
macro_rules! cells {
    ($($name:ident $paint:ident)*) => {$(
        pub(crate) fn $name(self, text: impl fmt::Display) -> Self {
            self.cell(Paint::$paint, text)
        }
    )*};
}

impl Branch {
    cells! {
        plain Plain bold Bold dim Dim red Red yellow Yellow green Green
    }

    /// A line without cells.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A heading with these entries; `None` without any.
    pub(crate) fn list(title: &str, entries: impl IntoIterator<Item = Self>) -> Option<Self> {
        let list = Self::new().bold(title).with(entries);
        (!list.children.is_empty()).then_some(list)
    }

    /// Adds a cell.
    pub(crate) fn cell(mut self, paint: Paint, text: impl fmt::Display) -> Self {
        self.cells.push(TableCell::new(paint, text, None));
        self
    }

    /// Adds a cell for the age of `time` after `label`, on a page; empty without a time.
    pub(crate) fn age(mut self, label: &str, time: impl Into<Option<Timestamp>>) -> Self {
        let time = time.into();
        let label = time.map_or("", |_| label);
        self.cells.push(TableCell::new(Paint::Dim, label, time));
        self
    }

    /// Adds these branches below it.
    pub(crate) fn with(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children);
        self
    }

    /// Counts it under this state.
    pub(crate) fn in_state(mut self, state: &'static str) -> Self {
        self.state = state;
        self
    }

    /// Adds these lines below it.
    pub(crate) fn text<T: fmt::Display>(
        mut self,
        lines: impl IntoIterator<Item = (Paint, T)>,
    ) -> Self {
        let lines = lines
            .into_iter()
            .map(|(paint, line)| TableCell::new(paint, line, None));
        self.text.extend(lines);
        self
    }

    /// Closes it at first on a page.
    pub(crate) fn folded(mut self) -> Self {
        self.is_folded = true;
        self
    }

    pub(crate) fn push(&mut self, child: Self) {
        self.children.push(child);
    }

    /// Adds a heading and what is below it, unless nothing is.
    pub(crate) fn push_group(&mut self, group: Self) {
        if !group.children.is_empty() {
            self.children.push(group);
        }
    }

    pub(crate) fn extend(&mut self, children: impl IntoIterator<Item = Self>) {
        self.children.extend(children);
    }

    /// The tree as text, one line for each branch.
    pub(crate) fn render(&self, style: Style) -> String {
        let mut text = self.line(&[], style) + "\n";
        self.render_children("", style, &mut text);
        text
    }

    fn render_children(&self, indent: &str, style: Style, text: &mut String) {
        let widths = self.column_widths();
        for (index, child) in self.children.iter().enumerate() {
            let is_last = index + 1 == self.children.len();
            let (tick, below) = if is_last {
                ("└─ ", "   ")
            } else {
                ("├─ ", "│  ")
            };
            text.push_str(indent);
            text.push_str(tick);
            text.push_str(&child.line(&widths, style));
            text.push('\n');
            for line in &child.text {
                let line = line.painted(style);
                text.push_str(format!("{indent}{below}{line}").trim_end());
                text.push('\n');
            }
            child.render_children(&format!("{indent}{below}"), style, text);
        }
    }

    /// The tree as a difference: indented lines, whose signs are in the first column.
    pub(crate) fn flat(&self) -> String {
        let mut text = self.line(&[], Style::PLAIN) + "\n";
        self.flat_children("", &mut text);
        text
    }

    fn flat_children(&self, indent: &str, text: &mut String) {
        let widths = self.column_widths();
        for child in &self.children {
            let line = child.line(&widths, Style::PLAIN);
            let lines = child.text.iter().map(|line| line.text.as_str());
            let all = [(line.as_str(), "")].into_iter();
            for (line, below) in all.chain(lines.map(|line| (line, "  "))) {
                let (sign, rest) = match line.chars().next() {
                    Some(sign @ ('+' | '-' | '~')) => (sign, &line[1..]),
                    Some(' ') => (' ', &line[1..]),
                    _ => (' ', line),
                };
                text.push(sign);
                text.push_str(format!("{indent}{below}{rest}").trim_end());
                text.push('\n');
            }
            child.flat_children(&format!("{indent}  "), text);
        }
    }

    /// Widths of the columns of the children; the last cell of a line needs none.
    fn column_widths(&self) -> Vec<usize> {
        let mut widths = Vec::new();
        for child in &self.children {
            let aligned = child.cells.len().saturating_sub(1);
            widths.resize(widths.len().max(aligned), 0);
            for (width, cell) in widths.iter_mut().zip(&child.cells[..aligned]) {
                *width = cell.width().max(*width);
            }
        }
        widths
    }

    fn line(&self, widths: &[usize], style: Style) -> String {
        let last = self.cells.len().saturating_sub(1);
        let cells = self.cells.iter().enumerate().map(|(index, cell)| {
            let width = widths.get(index).copied().unwrap_or(0);
            let fill = if index == last {
                0
            } else {
                width.saturating_sub(cell.width()) + 2
            };
            cell.painted(style) + &" ".repeat(fill)
        });
        cells.collect::<String>().trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn siblings_line_up_and_levels_are_indented() {
        let leaf = |[a, b, c]: [&str; 3]| Branch::new().plain(a).plain(b).plain(c);
        let one = [leaf(["x", "1", "one"]), leaf(["long", "10", ""])];
        let tree = Branch::new().bold("root").dim("here").with([
            Branch::new().plain("a").with(one),
            Branch::new().plain("b").with([Branch::new().plain("c")]),
        ]);
        expect![[r#"
            root  here
            ├─ a
            │  ├─ x     1   one
            │  └─ long  10
            └─ b
               └─ c
        "#]]
        .assert_eq(&tree.render(Style::PLAIN));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let tree = Branch::new().plain("a\x1b[31mb\n");
        assert_eq!(tree.render(Style::PLAIN), "a\\u{1b}[31mb\\n\n");
    }
}
