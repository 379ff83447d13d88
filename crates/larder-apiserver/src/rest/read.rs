//! Get and list.

use larder_objects::ObjectKey;
use serde_json::json;

use super::params::{At, Continue, ListParams};
use crate::{
    resource::ApiKind,
    status::ApiError,
    store::{Compacted, Page, Store},
};

/// One page of the list that `params` ask for.
///
/// # Errors
///
/// 410 when the page's version is gone, 504 when it is not reached.
pub(super) fn page(store: &Store, kind: ApiKind, params: &ListParams) -> Result<Page, ApiError> {
    let (asked, at, after) = match &params.at {
        At::NotOlderThan(version) => (Some(*version), None, None),
        At::Exactly(version) => (Some(*version), Some(*version), None),
        At::Continue(token) => (token.version, token.version, Some(token.after())),
    };
    store.version_from(asked.unwrap_or(0))?;
    store
        .list(kind, &params.filter, at, after.as_ref(), params.limit)
        .map_err(|Compacted { .. }| match &params.at {
            At::Continue(token) => {
                let inconsistent = Continue {
                    version: None,
                    ..token.clone()
                };
                ApiError::expired(
                    "The provided continue parameter is too old to display a consistent list result. Start a new list \
                     without it, or use the continue token of this response: the rest of the list then shows the present \
                     state, which may differ from what the pages before showed.",
                )
                .with_continue(inconsistent.encode())
            }
            _ => ApiError::expired("The resourceVersion for the provided list is too old."),
        })
}

/// Version, and how to continue.
pub(super) fn list_metadata(page: &Page, params: &ListParams) -> serde_json::Value {
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if let Some(ObjectKey { namespace, name }) = page.last.clone() {
        let version = Some(page.version);
        let token = Continue {
            version,
            namespace,
            name,
        };
        metadata["continue"] = token.encode().into();
        // As upstream: a selector makes the number unknown.
        if params.filter.takes_all() {
            metadata["remainingItemCount"] = page.remaining.into();
        }
    }
    metadata
}
