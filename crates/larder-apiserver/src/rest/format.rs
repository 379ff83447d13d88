//! How objects appear in a response: as they are, or as rows of a table.

use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::Value;

use crate::status::ApiError;
use crate::store::{EventType, Object};

/// What the client wants to see of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// The objects.
    Objects,
}

impl Format {
    /// The format that the client accepts.
    ///
    /// # Errors
    ///
    /// 406: the client takes nothing that this server makes.
    pub(super) fn accepted(headers: &HeaderMap) -> Result<Self, ApiError> {
        let Some(accept) = headers.get(header::ACCEPT) else {
            return Ok(Self::Objects);
        };
        let accept = accept.to_str().unwrap_or_default();
        let ranges = accept.split(',').map(str::trim);
        ranges
            .filter(|range| !range.contains(";as="))
            .map(|range| range.split(';').next().unwrap_or(range))
            .find(|range| matches!(*range, "application/json" | "application/*" | "*/*" | ""))
            .map(|_| Self::Objects)
            .ok_or_else(ApiError::not_acceptable)
    }

    /// The watch frame for `object`.
    pub(crate) fn event(self, event: EventType, object: &Object) -> Bytes {
        match self {
            Self::Objects => object.frame(event),
        }
    }

    /// The object of a bookmark.
    pub(crate) fn bookmark(self, object: Value) -> Value {
        match self {
            Self::Objects => object,
        }
    }
}
