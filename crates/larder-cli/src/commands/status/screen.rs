//! Successive reports: redrawn in place on a terminal, as changed lines in a pipe.

use std::collections::HashSet;

use crate::output::Style;

/// Columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The last report, and how many lines of it are on the terminal.
#[derive(Debug, Default)]
pub(super) struct Screen {
    lines: Vec<String>,
    drawn: usize,
}

impl Screen {
    /// The bytes that replace the last report by `report` on a terminal. Lines are cut to its width, since a wrapped
    /// line could not be redrawn, and changed lines are bold.
    pub(super) fn redraw(&mut self, report: &str, size: Size, style: Style) -> String {
        let lines: Vec<_> = report.lines().map(str::to_owned).collect();
        // The cursor needs a line, too.
        let room = size.rows.saturating_sub(1).max(1);
        let (shown, hidden) = if lines.len() > room {
            (room - 1, lines.len() - (room - 1))
        } else {
            (lines.len(), 0)
        };
        let mut text = match self.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A\r"),
        };
        let is_first = self.lines.is_empty();
        let known: HashSet<_> = self.lines.iter().collect();
        for line in &lines[..shown] {
            let cut = cut(line, size.columns);
            if is_first || known.contains(line) {
                text += &cut;
            } else {
                text += &style.bold(cut);
            }
            text += "\x1b[K\n";
        }
        if hidden > 0 {
            let more = format!("… {hidden} more lines");
            text += &style.dim(cut(&more, size.columns));
            text += "\x1b[K\n";
        }
        text += "\x1b[J";
        self.drawn = shown + usize::from(hidden > 0);
        self.lines = lines;
        text
    }

    /// The lines to print in a pipe: all of the first report, then those that changed.
    pub(super) fn changes(&mut self, report: &str) -> String {
        let known: HashSet<_> = self.lines.drain(..).collect();
        self.lines = report.lines().map(str::to_owned).collect();
        let lines = self.lines.iter().filter(|line| !known.contains(*line));
        lines.flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}

/// `line`, with an ellipsis at its end if it is longer than `columns`.
fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    let mut cut: String = line.chars().take(columns.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        columns: 8,
        rows: 4,
    };

    #[test]
    fn report_is_redrawn_in_place_within_the_terminal() {
        let mut screen = Screen::default();
        let first = screen.redraw("one\nabcdefghij\n", SIZE, Style::PLAIN);
        assert_eq!(first, "one\x1b[K\nabcdefg…\x1b[K\n\x1b[J");
        let second = screen.redraw("1\n2\n3\n4\n5\n", SIZE, Style::PLAIN);
        assert_eq!(second, "\x1b[2A\r1\x1b[K\n2\x1b[K\n… 3 mor…\x1b[K\n\x1b[J");
        let third = screen.redraw("1\n", SIZE, Style::PLAIN);
        assert_eq!(third, "\x1b[3A\r1\x1b[K\n\x1b[J");
    }

    #[test]
    fn changed_lines_are_emphasized() {
        let mut screen = Screen::default();
        screen.redraw("a\nb\n", SIZE, Style::COLOR);
        let text = screen.redraw("a\nc\n", SIZE, Style::COLOR);
        assert_eq!(text, "\x1b[2A\ra\x1b[K\n\x1b[1mc\x1b[0m\x1b[K\n\x1b[J");
    }

    #[test]
    fn pipe_gets_changed_lines_only() {
        let mut screen = Screen::default();
        assert_eq!(screen.changes("a\nb\n"), "a\nb\n");
        assert_eq!(screen.changes("a\nb\n"), "");
        assert_eq!(screen.changes("a\nc\n"), "c\n");
    }
}
