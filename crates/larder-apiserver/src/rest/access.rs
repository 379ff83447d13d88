//! Authorization and admission of requests.

use bytes::Bytes;
use http::HeaderMap;
use smol_str::SmolStr;

use super::{message::object_body, read};
use crate::{
    ApiError, ApiServer, Authorization, User,
    authorize::{self, Attempt, NodeWrite},
    query::Query,
    request::{ResourcePath, Verb},
    resource::Kind,
    selector::FieldSelector,
    write::namespaces,
};

impl ApiServer {
    /// Rejects what `user` may not do.
    pub(super) fn authorize(
        &self,
        user: &User,
        verb: Verb,
        target: &ResourcePath,
        query: &Query<'_>,
    ) -> Result<(), ApiError> {
        let selector = query.get("fieldSelector").unwrap_or("");
        let selector = FieldSelector::parse(selector, target.kind.resource())?;
        let attempt = Attempt {
            verb,
            group: target.kind.resource().group,
            resource: target.kind.resource().plural,
            subresource: target.subresource.as_deref(),
            namespace: target.namespace.as_deref(),
            name: target
                .name
                .as_ref()
                .or(selector.name())
                .map(SmolStr::as_str),
            node_name: selector.node_name().map(SmolStr::as_str),
        };
        self.options()
            .authorization
            .decide(self.store(), user, &attempt)
            .map_err(|why| authorize::denied(user, &attempt, &why))
    }

    /// Checks what no authorizer can: some namespaces stay, and nodes write only what concerns them.
    pub(super) fn admit(
        &self,
        user: &User,
        verb: Verb,
        target: &ResourcePath,
        headers: &HeaderMap,
        body: &Bytes,
    ) -> Result<(), ApiError> {
        if (target.kind, verb) == (Kind::Namespace, Verb::Delete) {
            return namespaces::check_may_go(target.name.as_deref().unwrap_or_default());
        }
        let authorization = self.options().authorization;
        let writes = matches!(
            verb,
            Verb::Create | Verb::Update | Verb::Patch | Verb::Delete
        );
        if authorization == Authorization::AllowAll || !writes {
            return Ok(());
        }
        let body = match verb {
            Verb::Create => Some(object_body(headers, body)?),
            _ => None,
        };
        let named = target.name.clone().unwrap_or_default();
        let write = NodeWrite {
            verb,
            kind: target.kind,
            subresource: target.subresource.as_deref(),
            key: &read::key(target.namespace.as_ref(), &named),
            body: body.as_ref(),
        };
        authorization.admit(self.store(), user, &write)
    }
}
