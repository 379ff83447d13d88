//! Reads variables, and collects mistakes and warnings.

use std::{path::PathBuf, str::FromStr, time::Duration};

use larder_objects::go_duration;

/// The variables of a process.
pub(super) struct Environment<'a> {
    pub(super) variables: &'a dyn Fn(&str) -> Option<String>,
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Environment<'_> {
    pub(super) fn error(&mut self, name: &str, problem: &str) {
        self.errors.push(format!("{name}: {problem}"));
    }

    pub(super) fn warn(&mut self, warning: &str) {
        self.warnings.push(warning.to_owned());
    }

    /// The value as it stands, also an empty one.
    pub(super) fn raw(&self, name: &str) -> Option<String> {
        (self.variables)(name)
    }

    /// The value without blanks around it; an empty one counts as none.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        Some(self.raw(name)?.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// What `parse` makes of the value; `None` if there is none, or it is a mistake.
    pub(super) fn parsed<T>(
        &mut self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let parsed = parse(&self.text(name)?);
        if parsed.is_none() {
            self.error(name, &format!("expected {expected}"));
        }
        parsed
    }

    /// What the value stands for among `words`, in any case; what the first one does, if there is none.
    pub(super) fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> T {
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let found = self.parsed(name, &known.join(" or "), |text| {
            words
                .iter()
                .find(|(word, _)| word.eq_ignore_ascii_case(text))
        });
        found.unwrap_or(&words[0]).1
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        let parse = |text: &str| text.to_ascii_lowercase().parse().ok();
        self.parsed(name, "true or false", parse) == Some(true)
    }

    pub(super) fn number<T: FromStr>(&mut self, name: &str, default: T) -> T {
        self.parsed(name, "a number", |text| text.parse().ok())
            .unwrap_or(default)
    }

    /// A path.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// A number of seconds; `None` without a value, or for 0.
    pub(super) fn seconds(&mut self, name: &str) -> Option<Duration> {
        let parse = |text: &str| text.parse::<u32>().ok();
        let seconds = self.parsed(name, "a number of seconds", parse)?;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// A time with its unit; `None` for 0.
    pub(super) fn duration(&mut self, name: &str, default: Duration) -> Option<Duration> {
        let parse = |text: &str| go_duration::parse(text).ok();
        let time = self.parsed(name, "a duration such as 30s or 5m, or 0", parse);
        Some(time.unwrap_or(default)).filter(|time| !time.is_zero())
    }
}
