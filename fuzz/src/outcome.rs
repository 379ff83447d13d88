//! The outcome of an input.

use std::{fmt::Display, hash::BuildHasher};

use foldhash::fast::FixedState;

/// Longest text that counts for a trace, in bytes.
const MAX_TRACED: usize = 512;

/// What became of an input: whether it was accepted, and a trace of how it was read.
///
/// The driver keeps inputs whose trace is new. So a trace holds what distinguishes two ways through a parser, such as
/// the fields and the rule of an error, and nothing that any other input changes as well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) is_accepted: bool,
    pub(crate) trace: u64,
}

impl Outcome {
    pub(crate) fn accepted() -> Self {
        Self::new(true)
    }

    pub(crate) fn rejected(reason: &impl Display) -> Self {
        Self::new(false).with(reason)
    }

    pub(crate) fn new(is_accepted: bool) -> Self {
        Self {
            is_accepted,
            trace: u64::from(is_accepted),
        }
    }

    /// Adds a text, without its numbers and what it quotes.
    pub(crate) fn with(self, text: &impl Display) -> Self {
        let text = text.to_string();
        let (mut is_quoted, mut is_escaped) = (false, false);
        let kept = text.bytes().take(MAX_TRACED).filter(|byte| {
            let was_quoted = is_quoted;
            is_quoted ^= *byte == b'"' && !is_escaped;
            is_escaped = was_quoted && *byte == b'\\' && !is_escaped;
            !was_quoted && !byte.is_ascii_digit()
        });
        let kept: Vec<u8> = kept.collect();
        self.with_number(FixedState::default().hash_one(kept))
    }

    /// Adds a number by its magnitude.
    pub(crate) fn with_size(self, number: usize) -> Self {
        self.with_number(u64::from(number.checked_ilog2().map_or(0, |log| log + 1)))
    }

    fn with_number(mut self, number: u64) -> Self {
        self.trace = FixedState::default().hash_one((self.trace, number));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_differ_by_rule_and_not_by_value() {
        let trace = |text: &str| Outcome::rejected(&text).trace;
        assert_eq!(trace(r#"line 1: "a": bad"#), trace(r#"line 22: "b": bad"#));
        assert_eq!(trace(r#"A("\"b\\")"#), trace(r#"A("c")"#));
        assert_ne!(trace("line 1: bad"), trace("line 1: worse"));
    }
}
