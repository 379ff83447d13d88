//! The query of a request.

use std::borrow::Cow;

use crate::status::ApiError;

/// The query of a request.
#[derive(Debug)]
pub(crate) struct Query<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'a> Query<'a> {
    pub(crate) fn parse(query: &'a str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).collect())
    }

    /// The first value of `name`; `None` when absent or empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next().filter(|value| !value.is_empty())
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| &**value)
    }

    /// Whether `name` is there and not `false` or `0`; as the API server reads booleans.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or(false)
    }

    pub(crate) fn optional_flag(&self, name: &str) -> Option<bool> {
        let value = self.all(name).next()?;
        Some(!(value.eq_ignore_ascii_case("false") || value == "0"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let parse = |value: &str| {
            let why = || format!("strconv.ParseInt: parsing \"{value}\": invalid syntax");
            value.parse().map_err(|_| ApiError::bad_request(why()))
        };
        self.get(name).map(parse).transpose()
    }
}
