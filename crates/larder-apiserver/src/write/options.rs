//! Options of writes and deletions.

use serde::Deserialize;
use serde_json::Value;
use smol_str::SmolStr;

use crate::{
    json::decode,
    query::Query,
    status::{ApiError, Cause},
};

/// The treatment of unknown fields of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Dropped.
    Ignore,
    /// Dropped, and each named in a `Warning` header.
    #[default]
    Warn,
    /// The request is rejected.
    Strict,
}

/// Parameters of a create, update or patch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteParams {
    /// Everything happens but the storing.
    pub(crate) dry_run: bool,
    pub(crate) field_validation: FieldValidation,
    /// The new object is what a patch makes of the old one.
    pub(crate) patch: bool,
}

impl WriteParams {
    /// The parameters of a write whose options are called `options`: `CreateOptions`, ...
    pub(crate) fn parse(query: &Query<'_>, options: &'static str) -> Result<Self, ApiError> {
        let field_validation = match query.get("fieldValidation") {
            None => FieldValidation::default(),
            Some("Ignore") => FieldValidation::Ignore,
            Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let supported = ["", "Ignore", "Strict", "Warn"];
                let cause = Cause::unsupported("fieldValidation", other, &supported);
                return Err(ApiError::invalid(options, "", vec![cause]));
            }
        };
        Ok(Self {
            dry_run: dry_run(query.all("dryRun"), options)?,
            field_validation,
            patch: options == "PatchOptions",
        })
    }
}

fn dry_run<'a>(
    values: impl Iterator<Item = &'a str>,
    options: &'static str,
) -> Result<bool, ApiError> {
    let values: Vec<_> = values.filter(|value| !value.is_empty()).collect();
    if values.iter().any(|value| *value != "All") {
        let shown = Value::from(values).to_string();
        let cause = Cause::unsupported("dryRun", format_args!("{shown}"), &["All"]);
        return Err(ApiError::invalid(options, "", vec![cause]));
    }
    Ok(!values.is_empty())
}

/// Options of a deletion, from the body or the query.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) preconditions: Option<Preconditions>,
    propagation_policy: Option<String>,
    dry_run: Vec<String>,
    #[serde(skip)]
    pub(crate) dry: bool,
}

/// The preconditions of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Preconditions {
    pub(crate) uid: Option<SmolStr>,
    pub(crate) resource_version: Option<SmolStr>,
}

impl DeleteOptions {
    /// Without grace.
    pub(crate) fn immediate() -> Self {
        Self {
            grace_period_seconds: Some(0),
            ..Self::default()
        }
    }

    /// The options in the query, where they are when there is no body.
    pub(crate) fn of_query(query: &Query<'_>) -> Result<Self, ApiError> {
        Self {
            grace_period_seconds: query.number("gracePeriodSeconds")?,
            propagation_policy: query.get("propagationPolicy").map(str::to_owned),
            dry_run: query.all("dryRun").map(str::to_owned).collect(),
            ..Self::default()
        }
        .checked()
    }

    /// The options that `body` holds.
    pub(crate) fn of_body(body: &Value) -> Result<Self, ApiError> {
        let kind = body["kind"].as_str().unwrap_or_default();
        if !matches!(kind, "" | "DeleteOptions") {
            let version = body["apiVersion"].as_str().unwrap_or_default();
            return Err(ApiError::bad_request(format!(
                "no kind \"{kind}\" is registered for version \"{version}\" in scheme \"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27\""
            )));
        }
        let options: Self = decode(body).map_err(|why| {
            ApiError::bad_request(format!("the body is not DeleteOptions: {why}"))
        })?;
        options.checked()
    }

    fn checked(mut self) -> Result<Self, ApiError> {
        let options = &mut self;
        options.dry = dry_run(options.dry_run.iter().map(String::as_str), "DeleteOptions")?;
        if let Some(policy) = &options.propagation_policy
            && !matches!(&**policy, "Foreground" | "Background" | "Orphan")
        {
            let supported = ["Foreground", "Background", "Orphan", "nil"];
            let cause = Cause::unsupported("propagationPolicy", policy, &supported);
            return Err(ApiError::invalid("DeleteOptions", "", vec![cause]));
        }
        if options.grace_period_seconds.is_some_and(|grace| grace < 0) {
            // As upstream: a negative period means one second.
            options.grace_period_seconds = Some(1);
        }
        Ok(self)
    }
}
