//! The type of an unquoted scalar, by the rules of `sigs.k8s.io/yaml` (YAML 1.1 as its `goyaml.v2` has it).
//!
//! `yes`, `on` and `y` are booleans, `0644` and `0o644` are octal, `1_000` is a thousand, `12:30` and dates are text.

use serde_json::{Number, Value};

use crate::{digits::split_sign, go_base64};

/// The value of plain `text`; `None` when it is text.
pub(super) fn plain(text: &str) -> Result<Option<Value>, String> {
    let value = match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => {
            return Err("infinity and not-a-number have no form in JSON".to_owned());
        }
        _ => {
            return Ok(match text.as_bytes()[0] {
                b'0'..=b'9' | b'+' | b'-' => number(&text.replace('_', "")),
                b'.' => float(text),
                _ => None,
            });
        }
    };
    Ok(Some(value))
}

/// The text that `!!binary` base64 stands for.
pub(super) fn binary(text: &str) -> Result<Value, String> {
    let packed: String = text.split_ascii_whitespace().collect();
    go_base64::decode(&packed)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .map(Value::String)
        .ok_or_else(|| "a !!binary value is not base64 of UTF-8 text".to_owned())
}

fn number(text: &str) -> Option<Value> {
    integer(text).or_else(|| float(text))
}

/// A signed integer with Go's prefixes: `0x`, `0o`, `0b` and the bare `0` for octal.
fn integer(text: &str) -> Option<Value> {
    let (negative, digits) = split_sign(text);
    // Rust's parsers take a sign of their own.
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        Some(prefix) if prefix.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    Number::from_i128(if negative { -magnitude } else { magnitude }).map(Value::Number)
}

/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`
fn float(text: &str) -> Option<Value> {
    // Rust reads the same form, and words: `inf`, `nan`.
    if text.ends_with(|c: char| c.is_ascii_alphabetic()) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    // Written as JSON and read into an integer field, 1e3 is 1000.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole and in range, as just checked"
    )]
    let value = if value.fract() == 0.0 && value.abs() < 9e15 {
        Number::from(value as i64)
    } else {
        Number::from_f64(value)?
    };
    Some(Value::Number(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Value) {
        let value = plain(text).unwrap().unwrap_or_else(|| json!(text));
        assert_eq!(value, expected, "{text}");
    }

    #[test]
    fn integers_have_gos_prefixes_and_underscores() {
        check("0644", json!(420));
        check("0o644", json!(420));
        check("0x1F", json!(31));
        check("0b101", json!(5));
        check("-0b101", json!(-5));
        check("+7", json!(7));
        check("-0644", json!(-420));
        check("1_000", json!(1000));
        check("0", json!(0));
        check("18446744073709551615", json!(u64::MAX));
        check("-9223372036854775808", json!(i64::MIN));
    }

    #[test]
    fn floats_are_numbers_and_whole_ones_integers() {
        check("1.5", json!(1.5));
        check("1e3", json!(1000));
        check(".5", json!(0.5));
        check("-2.", json!(-2));
        check("08", json!(8));
        check("1E400", json!("1E400"));
    }

    #[test]
    fn booleans_and_null_are_those_of_yaml_1_1() {
        for text in ["y", "Yes", "on", "TRUE"] {
            check(text, json!(true));
        }
        for text in ["n", "NO", "Off", "false"] {
            check(text, json!(false));
        }
        check("~", json!(null));
        check("yEs", json!("yEs"));
        check("nULL", json!("nULL"));
    }

    #[test]
    fn text_that_resembles_a_number_stays_text() {
        for text in [
            "12:30",
            "2026-03-01",
            "1.2.3",
            "10Mi",
            "1e",
            "0x",
            "0xg",
            "-",
            "+",
            "--1",
            "+-1",
            ".",
            ".e1",
            "1_",
            "0b",
            "١",
            "100m",
            "1.5Gi",
            "- a",
            "v1",
            "0o",
            "0o9",
            "1e5x",
            "..data",
        ] {
            let expected = if text == "1_" { json!(1) } else { json!(text) };
            check(text, expected);
        }
    }

    #[test]
    fn numbers_without_json_form_are_refused() {
        assert!(plain(".inf").is_err() && plain("-.INF").is_err() && plain(".nan").is_err());
    }
}
