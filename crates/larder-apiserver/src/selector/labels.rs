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
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    DoesNotExist,
    In(BTreeSet<SmolStr>),
    NotIn(BTreeSet<SmolStr>),
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
                [SelectorToken::Comma, more @ ..] if !more.is_empty() => more,
                [found, ..] => {
                    return Err(ApiError::bad_request(format!(
                        "found '{}', expected: ',' or 'end of string'",
                        found.as_str()
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
        self.requirements
            .iter()
            .all(|requirement| requirement.operator.accepts(object.label(&requirement.key)))
    }
}

impl Operator {
    fn accepts(&self, value: Option<&str>) -> bool {
        let number = || value?.parse::<i64>().ok();
        match self {
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            // A label that is absent is not in any set.
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
            Self::LessThan(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectorToken<'a> {
    Word(&'a str),
    Not,
    Equal,
    NotEqual,
    Greater,
    Less,
    Open,
    Close,
    Comma,
}

impl SelectorToken<'_> {
    fn as_str(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Not => "!",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Greater => ">",
            Self::Less => "<",
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
        }
    }
}

fn tokens(text: &str) -> Vec<SelectorToken<'_>> {
    let special =
        |c: char| matches!(c, '!' | '=' | '<' | '>' | '(' | ')' | ',') || c.is_whitespace();
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '!' if rest.starts_with("!=") => (SelectorToken::NotEqual, 2),
            '=' if rest.starts_with("==") => (SelectorToken::Equal, 2),
            '!' => (SelectorToken::Not, 1),
            '=' => (SelectorToken::Equal, 1),
            '>' => (SelectorToken::Greater, 1),
            '<' => (SelectorToken::Less, 1),
            '(' => (SelectorToken::Open, 1),
            ')' => (SelectorToken::Close, 1),
            ',' => (SelectorToken::Comma, 1),
            _ => {
                let length = rest.find(special).unwrap_or(rest.len());
                (SelectorToken::Word(&rest[..length]), length)
            }
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    tokens
}

impl Requirement {
    /// Reads one requirement and returns it with what follows.
    fn parse<'t, 'a>(
        tokens: &'t [SelectorToken<'a>],
    ) -> Result<(Self, &'t [SelectorToken<'a>]), String> {
        use SelectorToken::{Equal, Greater, Less, Not, NotEqual, Open, Word};
        let (key, operator, rest) = match tokens {
            [Not, Word(key), rest @ ..] => (key, Operator::DoesNotExist, rest),
            [Word(key), sign @ (Equal | NotEqual), rest @ ..] => {
                // `a=` selects the empty value.
                let (value, rest) = match rest {
                    [Word(value), rest @ ..] => (*value, rest),
                    rest => ("", rest),
                };
                let values = BTreeSet::from([label_value(value)?]);
                let operator = match sign {
                    Equal => Operator::In(values),
                    _ => Operator::NotIn(values),
                };
                (key, operator, rest)
            }
            [Word(key), sign @ (Greater | Less), Word(bound), rest @ ..] => {
                let bound = bound
                    .parse()
                    .map_err(|_| format!("'{bound}' is not an integer"))?;
                let operator = match sign {
                    Greater => Operator::GreaterThan(bound),
                    _ => Operator::LessThan(bound),
                };
                (key, operator, rest)
            }
            [Word(key), Word(word @ ("in" | "notin")), Open, rest @ ..] => {
                let (values, rest) = set(rest)?;
                let operator = match *word {
                    "in" => Operator::In(values),
                    _ => Operator::NotIn(values),
                };
                (key, operator, rest)
            }
            [Word(key), rest @ ..] if !matches!(rest, [Word(_), ..]) => {
                (key, Operator::Exists, rest)
            }
            [Word(_), Word("in" | "notin"), rest @ ..] => {
                let found = rest.first().map_or("", SelectorToken::as_str);
                return Err(format!("found '{found}' expected: '('"));
            }
            [Word(_), found, ..] => {
                return Err(format!(
                    "found '{}', expected: in, notin, =, ==, !=, gt, lt",
                    found.as_str()
                ));
            }
            [found, ..] => {
                return Err(format!("found '{}', expected: identifier", found.as_str()));
            }
            [] => return Err("found '', expected: identifier".to_owned()),
        };
        if !is_qualified_name(key) {
            return Err(format!("'{key}' is not a label key"));
        }
        let key = SmolStr::new(key);
        Ok((Self { key, operator }, rest))
    }
}

/// Values of a set, and the tokens that follow it.
type Values<'t, 'a> = (BTreeSet<SmolStr>, &'t [SelectorToken<'a>]);

/// Reads the values up to and with the closing parenthesis; two commas in a row enclose the empty value.
fn set<'t, 'a>(mut tokens: &'t [SelectorToken<'a>]) -> Result<Values<'t, 'a>, String> {
    let mut values = BTreeSet::new();
    let mut expects_value = true;
    loop {
        match tokens {
            [SelectorToken::Word(value), rest @ ..] if expects_value => {
                values.insert(label_value(value)?);
                expects_value = false;
                tokens = rest;
            }
            [SelectorToken::Comma, rest @ ..] => {
                if expects_value {
                    values.insert(SmolStr::default());
                }
                expects_value = true;
                tokens = rest;
            }
            [SelectorToken::Close, rest @ ..] => {
                if expects_value {
                    values.insert(SmolStr::default());
                }
                return Ok((values, rest));
            }
            [found, ..] => {
                return Err(format!("found '{}', expected: ',' or ')'", found.as_str()));
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
