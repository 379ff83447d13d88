//! Label selectors.

use std::collections::BTreeSet;

use larder_objects::validation::{is_label_value, is_qualified_name};
use smol_str::SmolStr;

use crate::{object::Object, status::ApiError};

/// Requirements on labels, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: SmolStr,
    /// The condition must not hold.
    is_negated: bool,
    condition: Condition,
}

/// A condition on a label. Without the label, none holds.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Exists,
    In(BTreeSet<SmolStr>),
    GreaterThan(i64),
    LessThan(i64),
}

impl LabelSelector {
    /// Parses the grammar of `labelSelector=`: `a`, `!a`, `a=1`, `a==1`, `a!=1`, `a in (1,2)`, `a notin (1,2)`, `a>1`,
    /// `a<1`, joined by commas.
    ///
    /// # Errors
    ///
    /// 400 with what was found and what was expected.
    pub(crate) fn parse(text: &str) -> Result<Self, ApiError> {
        let reject =
            |why: String| ApiError::bad_request(format!("unable to parse requirement: {why}"));
        let tokens = tokens(text);
        let mut rest = tokens.as_slice();
        let mut requirements = Vec::new();
        while !rest.is_empty() {
            let (requirement, after) = Requirement::parse(rest).map_err(reject)?;
            requirements.push(requirement);
            rest = match after {
                [] => after,
                [",", more @ ..] if !more.is_empty() => more,
                [found, ..] => {
                    return Err(ApiError::bad_request(format!(
                        "found '{found}', expected: ',' or 'end of string'"
                    )));
                }
            };
        }
        Ok(Self { requirements })
    }

    /// Whether it lets everything through.
    pub(super) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub(super) fn matches(&self, object: &Object) -> bool {
        self.requirements.iter().all(|requirement| {
            let holds = object
                .label(&requirement.key)
                .is_some_and(|value| requirement.condition.holds(value));
            holds != requirement.is_negated
        })
    }
}

impl Condition {
    fn holds(&self, value: &str) -> bool {
        let number = || value.parse::<i64>();
        match self {
            Self::Exists => true,
            Self::In(values) => values.contains(value),
            Self::GreaterThan(bound) => number().is_ok_and(|number| number > *bound),
            Self::LessThan(bound) => number().is_ok_and(|number| number < *bound),
        }
    }
}

/// Whether `c` ends a word.
fn is_special(c: char) -> bool {
    matches!(c, '!' | '=' | '<' | '>' | '(' | ')' | ',') || c.is_whitespace()
}

/// The words and signs of `text`.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let length = match rest.find(is_special) {
            Some(0) if rest.starts_with("!=") || rest.starts_with("==") => 2,
            Some(0) => 1,
            found => found.unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(if token == "==" { "=" } else { token });
        rest = after.trim_start();
    }
    tokens
}

fn is_word(token: &str) -> bool {
    !token.starts_with(is_special)
}

impl Requirement {
    /// Reads one requirement and returns it with what follows.
    fn parse<'t, 'a>(tokens: &'t [&'a str]) -> Result<(Self, &'t [&'a str]), String> {
        let (key, is_negated, condition, rest) = match tokens {
            ["!", key, rest @ ..] if is_word(key) => (key, true, Condition::Exists, rest),
            [] => return Err("found '', expected: identifier".to_owned()),
            [found, ..] if !is_word(found) => {
                return Err(format!("found '{found}', expected: identifier"));
            }
            [key, sign @ ("=" | "!="), rest @ ..] => {
                // `a=` selects the empty value.
                let (value, rest) = match rest {
                    [value, rest @ ..] if is_word(value) => (*value, rest),
                    rest => ("", rest),
                };
                let values = BTreeSet::from([label_value(value)?]);
                (key, *sign == "!=", Condition::In(values), rest)
            }
            [key, sign @ (">" | "<"), bound, rest @ ..] if is_word(bound) => {
                let bound = bound
                    .parse()
                    .map_err(|_| format!("'{bound}' is not an integer"))?;
                let condition = match *sign {
                    ">" => Condition::GreaterThan(bound),
                    _ => Condition::LessThan(bound),
                };
                (key, false, condition, rest)
            }
            [key, word @ ("in" | "notin"), "(", rest @ ..] => {
                let (values, rest) = set(rest)?;
                (key, *word == "notin", Condition::In(values), rest)
            }
            [key, rest @ ..] if !rest.first().is_some_and(|next| is_word(next)) => {
                (key, false, Condition::Exists, rest)
            }
            [_, "in" | "notin", rest @ ..] => {
                let found = rest.first().unwrap_or(&"");
                return Err(format!("found '{found}' expected: '('"));
            }
            [_, rest @ ..] => {
                return Err(format!(
                    "found '{}', expected: in, notin, =, ==, !=, gt, lt",
                    rest[0]
                ));
            }
        };
        if !is_qualified_name(key) {
            return Err(format!("'{key}' is not a label key"));
        }
        let requirement = Self {
            key: SmolStr::new(key),
            is_negated,
            condition,
        };
        Ok((requirement, rest))
    }
}

/// Values of a set, and the tokens that follow it.
type Values<'t, 'a> = (BTreeSet<SmolStr>, &'t [&'a str]);

/// Reads the values up to and with the closing parenthesis; two commas in a row enclose the empty value.
fn set<'t, 'a>(mut tokens: &'t [&'a str]) -> Result<Values<'t, 'a>, String> {
    let mut values = BTreeSet::new();
    let mut expects_value = true;
    loop {
        match tokens {
            [value, rest @ ..] if expects_value && is_word(value) => {
                values.insert(label_value(value)?);
                (expects_value, tokens) = (false, rest);
            }
            [sign @ ("," | ")"), rest @ ..] => {
                if expects_value {
                    values.insert(SmolStr::default());
                }
                if *sign == ")" {
                    return Ok((values, rest));
                }
                (expects_value, tokens) = (true, rest);
            }
            [found, ..] => {
                return Err(format!("found '{found}', expected: ',' or ')'"));
            }
            [] => return Err("found '', expected: ',' or ')'".to_owned()),
        }
    }
}

fn label_value(value: &str) -> Result<SmolStr, String> {
    if is_label_value(value) {
        Ok(value.into())
    } else {
        Err(format!("'{value}' is not a label value"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::testing::pod;

    #[track_caller]
    fn check_labels(selector: &str, expected: bool) {
        let selector = LabelSelector::parse(selector).unwrap();
        assert_eq!(selector.matches(&pod()), expected, "{selector:?}");
    }

    #[test]
    fn every_label_operator_selects() {
        for selector in [
            "",
            "app",
            "!other",
            "app=web",
            "app==web",
            "app!=db",
            "other!=x",
            "app in (db, web)",
            "app notin (db)",
            "other notin (db)",
            "weight>6",
            "weight<8",
            "tier=",
            "tier in (,x)",
            "app=web,weight>6,!other",
            " app = web , tier ",
            "in in (a),!in",
        ] {
            if selector.starts_with("in") {
                check_labels(selector, false);
            } else {
                check_labels(selector, true);
            }
        }
        for selector in [
            "!app",
            "app=db",
            "app!=web",
            "app notin (web)",
            "weight>7",
            "app>1",
            "other",
            "other in (,)",
        ] {
            check_labels(selector, false);
        }
    }

    #[test]
    fn bad_label_selectors_are_rejected() {
        for selector in [
            "a b", "a in b", "a in (b", ",", "a,", "=", "a=b=c", "a>x", "-a=b", "a=-b", "a=b c",
            "(a)", "/a",
        ] {
            let error = LabelSelector::parse(selector).unwrap_err();
            assert_eq!(error.reason(), "BadRequest", "{selector}");
        }
    }
}
