//! The form of objects in a response: complete, reduced to their metadata, or as rows of a table.

use bytes::Bytes;
use http::{HeaderMap, header};
use serde_json::{Value, json};

use super::{
    list::ListBody,
    params::ListParams,
    read,
    table::{Include, partial, table},
};
use crate::{
    clock::Clock,
    object::{EventType, Object, framed},
    query::Query,
    resource::ApiKind,
    status::ApiError,
    store::Page,
    unread::Pieces,
};

/// The form of objects that the client requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    /// The objects.
    Objects,
    /// Their metadata alone.
    Metadata,
    /// Rows; ages are as of the clock.
    Table { include: Include, clock: Clock },
}

impl Format {
    /// The first format of the client's `Accept` that this server makes.
    ///
    /// # Errors
    ///
    /// 406: it makes none of them. `Accept` without JSON, such as protobuf only, ends here.
    pub(super) fn accepted(
        headers: &HeaderMap,
        query: &Query<'_>,
        clock: Clock,
    ) -> Result<Self, ApiError> {
        let accept = headers
            .get(header::ACCEPT)
            .map_or("*/*", |accept| accept.to_str().unwrap_or_default());
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            if !matches!(
                parts.next(),
                Some("application/json" | "application/*" | "*/*" | "")
            ) {
                continue;
            }
            let parameter = |name: &str| {
                let mut parameters = range.split(';').skip(1).map(str::trim);
                parameters.find_map(|text| text.strip_prefix(name)?.strip_prefix('='))
            };
            let is_meta = parameter("g") == Some("meta.k8s.io") && parameter("v") == Some("v1");
            match parameter("as") {
                None => return Ok(Self::Objects),
                Some("Table") if is_meta => {
                    let include = match query.get("includeObject") {
                        Some("Object") => Include::Object,
                        Some("None") => Include::Nothing,
                        _ => Include::Metadata,
                    };
                    return Ok(Self::Table { include, clock });
                }
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") if is_meta => {
                    return Ok(Self::Metadata);
                }
                _ => {}
            }
        }
        Err(ApiError::not_acceptable())
    }

    /// One object.
    pub(super) fn object(self, object: &Object) -> Bytes {
        match self {
            Self::Objects => object.json(),
            Self::Metadata => partial(&object.value()["metadata"]).to_string().into(),
            Self::Table { include, clock } => {
                let metadata = json!({"resourceVersion": object.version.to_string()});
                let objects = std::iter::once(object.value());
                table(object.kind, objects, metadata, include, clock.now())
                    .to_string()
                    .into()
            }
        }
    }

    /// A page of a list, as the body `B`.
    pub(super) fn list<B: From<ListBody> + From<Bytes>>(
        self,
        kind: ApiKind,
        page: Page,
        params: &ListParams,
    ) -> B {
        let list = match self {
            Self::Objects => return ListBody::new(kind, page, params).into(),
            Self::Metadata => {
                let items = page
                    .objects
                    .iter()
                    .map(|object| partial(&object.value()["metadata"]));
                json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": read::list_metadata(&page, params),
                    "items": items.collect::<Vec<_>>(),
                })
            }
            Self::Table { include, clock } => {
                let metadata = read::list_metadata(&page, params);
                let objects = page.objects.iter().map(|object| object.value());
                table(kind, objects, metadata, include, clock.now())
            }
        };
        Bytes::from(list.to_string()).into()
    }

    /// The watch frame for `object`.
    pub(super) fn event(self, event: EventType, object: &Object) -> Pieces {
        match self {
            Self::Objects => object.frame(event),
            Self::Metadata | Self::Table { .. } => framed(event, self.object(object)),
        }
        .into()
    }

    /// The object of a bookmark.
    pub(super) fn bookmark(self, kind: ApiKind, metadata: Value) -> Value {
        match self {
            Self::Objects => {
                let resource = kind.resource();
                json!({"apiVersion": resource.api_version(), "kind": resource.name, "metadata": metadata})
            }
            Self::Metadata => partial(&metadata),
            Self::Table { include, clock } => {
                table(kind, std::iter::empty(), metadata, include, clock.now())
            }
        }
    }
}
