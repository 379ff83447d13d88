//! Reads variables, and collects mistakes and warnings.

use std::{path::PathBuf, time::Duration};

use larder_objects::go_duration;

use super::SettingsError;

/// The variables of a process.
pub(super) struct Environment<'a> {
    variables: &'a dyn Fn(&str) -> Option<String>,
    errors: Vec<String>,
    warnings: Vec<String>,
}

impl<'a> Environment<'a> {
    pub(super) fn new(variables: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            variables,
            errors: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The warnings, if there is no error.
    pub(super) fn finish(self) -> Result<Vec<String>, SettingsError> {
        if self.errors.is_empty() {
            Ok(self.warnings)
        } else {
            Err(SettingsError(self.errors))
        }
    }

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
        let value = self.raw(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        let value = self.text(name).unwrap_or_default();
        if value.eq_ignore_ascii_case("true") {
            return true;
        }
        if !value.is_empty() && !value.eq_ignore_ascii_case("false") {
            self.error(name, "expected true or false");
        }
        false
    }

    /// The position of the value among `words`, in any case; the first one is the default.
    pub(super) fn word(&mut self, name: &str, words: [&str; 2]) -> usize {
        let Some(value) = self.text(name) else {
            return 0;
        };
        let found = words
            .iter()
            .position(|word| word.eq_ignore_ascii_case(&value));
        found.unwrap_or_else(|| {
            self.error(name, &format!("expected {} or {}", words[0], words[1]));
            0
        })
    }

    fn parsed<T: Copy>(
        &mut self,
        name: &str,
        default: T,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        let Some(text) = self.text(name) else {
            return default;
        };
        parse(&text).unwrap_or_else(|| {
            self.error(name, expected);
            default
        })
    }

    pub(super) fn number(&mut self, name: &str, default: u32) -> u32 {
        self.parsed(name, default, "expected a number", |text| text.parse().ok())
    }

    pub(super) fn decimal(&mut self, name: &str, default: f64) -> f64 {
        let expected = "expected a number that is not negative";
        self.parsed(name, default, expected, |text| {
            let number: f64 = text.parse().ok()?;
            (number.is_finite() && number >= 0.0).then_some(number)
        })
    }

    /// A number of seconds, at most a year.
    pub(super) fn seconds(&mut self, name: &str, default: Duration) -> Duration {
        let expected = "expected a number of seconds";
        self.parsed(name, default, expected, |text| {
            let seconds = text.parse::<u32>().ok()?;
            Some(Duration::from_secs(seconds.into()).min(super::MAX_TIME))
        })
    }

    /// A time with its unit, at most a year; `None` for 0.
    pub(super) fn duration(&mut self, name: &str, default: Duration) -> Option<Duration> {
        let expected = "expected a duration such as 30s or 5m, or 0";
        let time = self.parsed(name, default, expected, |text| {
            Some(go_duration::parse(text).ok()?.min(super::MAX_TIME))
        });
        (!time.is_zero()).then_some(time)
    }
}
