//! Successive reports: redrawn in place on a terminal, as changed lines in a pipe.

use std::{collections::HashSet, os::fd::AsFd};

use rustix::termios::tcgetwinsize;

use super::style::{Paint, Style};

/// Columns and rows of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// Size of a terminal that does not report its own.
const USUAL_SIZE: Size = Size {
    columns: 80,
    rows: 24,
};

impl Size {
    /// That of a terminal.
    pub(crate) fn of(terminal: impl AsFd) -> Self {
        match tcgetwinsize(terminal) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Self {
                columns: size.ws_col.into(),
                rows: size.ws_row.into(),
            },
            _ => USUAL_SIZE,
        }
    }
}

/// A report, and the same report without ages. Both have the same lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScreenReport<'a> {
    pub(crate) text: &'a str,
    /// Decides whether a line has changed: ages always do.
    pub(crate) ageless: &'a str,
}

/// The lines of the last report, and how many of them are on the terminal.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    known: HashSet<String>,
    drawn: usize,
}

impl Screen {
    /// The bytes that replace the last report by `report` on a terminal. Lines are cut to its width, since a wrapped
    /// line could not be redrawn, and changed lines are bold.
    pub(crate) fn redraw(&mut self, report: ScreenReport<'_>, size: Size, style: Style) -> String {
        let is_first = self.known.is_empty();
        // The cursor needs a line, too.
        let room = size.rows.saturating_sub(1).max(1);
        let lines = self.take(report);
        let is_cut = lines.len() > room;
        let shown = if is_cut { room - 1 } else { lines.len() };
        let hidden = lines.len() - shown;
        let mut text = self.back();
        for &(line, is_new) in &lines[..shown] {
            let cut = cut(line, size.columns);
            if is_new && !is_first {
                text += &style.paint(Paint::Bold, cut);
            } else {
                text += &cut;
            }
            text += "\x1b[K\n";
        }
        if is_cut {
            let more = format!("… {hidden} more lines");
            text += &style.paint(Paint::Dim, cut(&more, size.columns));
            text += "\x1b[K\n";
        }
        text += "\x1b[J";
        self.drawn = shown + usize::from(is_cut);
        text
    }

    /// The bytes that remove the last report from the terminal.
    pub(crate) fn erase(&mut self) -> String {
        let text = self.back() + "\x1b[J";
        self.drawn = 0;
        text
    }

    /// Moves the cursor to the first line of the last report.
    fn back(&self) -> String {
        match self.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A\r"),
        }
    }

    /// The lines to print in a pipe: all of the first report, then those that changed.
    pub(crate) fn changes(&mut self, report: ScreenReport<'_>) -> String {
        self.take(report)
            .into_iter()
            .filter(|(_, is_new)| *is_new)
            .flat_map(|(line, _)| [line, "\n"])
            .collect()
    }

    /// The lines of `report`, and whether each is new; the next report is compared with this one.
    fn take<'a>(&mut self, report: ScreenReport<'a>) -> Vec<(&'a str, bool)> {
        // Columns may become wider, which does not count as a change.
        let keys: Vec<_> = report
            .ageless
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        let lines = report
            .text
            .lines()
            .zip(&keys)
            .map(|(line, key)| (line, !self.known.contains(key)))
            .collect();
        self.known = keys.into_iter().collect();
        lines
    }
}

/// `line`, with an ellipsis at its end if it is longer than `columns`, where colors take no column.
pub(crate) fn cut(line: &str, columns: usize) -> String {
    let mut is_color = false;
    let columns_of: Vec<_> = line
        .chars()
        .map(|character| {
            let was_color = is_color || character == '\x1b';
            is_color = was_color && character != 'm';
            usize::from(!was_color)
        })
        .collect();
    if columns_of.iter().sum::<usize>() <= columns {
        return line.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let characters = line.chars().zip(columns_of);
    let fitting = characters.map_while(|(character, columns)| {
        left = left.checked_sub(columns)?;
        Some(character)
    });
    let mut cut: String = fitting.collect();
    cut.push('…');
    if line.contains('\x1b') {
        cut.push_str("\x1b[0m");
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size {
        columns: 8,
        rows: 4,
    };

    /// A report in which everything after `@` is an age.
    fn draw(screen: &mut Screen, text: &str, style: Style) -> String {
        let ageless = ageless(text);
        let report = ScreenReport {
            text,
            ageless: &ageless,
        };
        screen.redraw(report, SIZE, style)
    }

    fn ageless(text: &str) -> String {
        let lines = text.lines();
        let lines = lines.map(|line| line.split('@').next().unwrap_or_default());
        lines.flat_map(|line| [line, "\n"]).collect()
    }

    #[test]
    fn report_is_redrawn_in_place_within_the_terminal() {
        let mut screen = Screen::default();
        let first = draw(&mut screen, "one\nabcdefghij\n", Style::PLAIN);
        assert_eq!(first, "one\x1b[K\nabcdefg…\x1b[K\n\x1b[J");
        let second = draw(&mut screen, "1\n2\n3\n4\n5\n", Style::PLAIN);
        assert_eq!(second, "\x1b[2A\r1\x1b[K\n2\x1b[K\n… 3 mor…\x1b[K\n\x1b[J");
        let third = draw(&mut screen, "1\n", Style::PLAIN);
        assert_eq!(third, "\x1b[3A\r1\x1b[K\n\x1b[J");
    }

    #[test]
    fn colors_take_no_column() {
        let line = Style::COLOR.paint(Paint::Red, "12345678");
        assert_eq!(cut(&line, 8), line);
        assert_eq!(cut(&line, 4), "\x1b[31m123…\x1b[0m");
    }

    #[test]
    fn changed_lines_are_emphasized_and_ages_are_not() {
        let mut screen = Screen::default();
        draw(&mut screen, "a@1s\nb@1s\n", Style::COLOR);
        let text = draw(&mut screen, "a  @2s\nc@0s\n", Style::COLOR);
        assert_eq!(
            text,
            "\x1b[2A\ra  @2s\x1b[K\n\x1b[1mc@0s\x1b[0m\x1b[K\n\x1b[J"
        );
    }

    #[test]
    fn pipe_gets_changed_lines_only() {
        let mut screen = Screen::default();
        for (text, expected) in [
            ("a@1s\nb@1s\n", "a@1s\nb@1s\n"),
            ("a@2s\nb@2s\n", ""),
            ("a@3s\nc@0s\n", "c@0s\n"),
        ] {
            let ageless = ageless(text);
            let ageless = ageless.as_str();
            assert_eq!(screen.changes(ScreenReport { text, ageless }), expected);
        }
    }
}
