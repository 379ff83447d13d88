//! Why a request of the API for other programs has no result.
//!
//! Invariant: such a response is JSON of its own type, so that no generated client takes it for the result or for text.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{json, written};

/// Why a request has no result.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Problem {
    /// For people.
    error: String,
    #[serde(skip)]
    status: StatusCode,
}

impl Problem {
    pub(super) fn new(status: StatusCode, error: impl Into<String>) -> Self {
        let error = error.into();
        Self { error, status }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, json(written(&self))).into_response()
    }
}
