//! The `token` subresource of service accounts.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::{
    Resource as _,
    api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use larder_objects::{
    ObjectKey, defaults::TOKEN_EXPIRATION_SECS, json_tree, validation::token_secs_problem,
};
use serde_json::Value;

use super::{Writer, metadata::check_name};
use crate::{
    json::{decode, text},
    object::Object,
    resource::ApiKind,
    status::{ApiError, Cause},
    tokens::ISSUER,
};

impl Writer {
    /// A token for the service account `key`: the request with its status.
    pub(crate) fn create_token(&self, key: &ObjectKey, mut body: Value) -> Result<Value, ApiError> {
        // Of whatever version it says to be.
        body["apiVersion"] = TokenRequest::API_VERSION.into();
        body["kind"] = TokenRequest::KIND.into();
        let mut request: TokenRequest = decode(&body).map_err(|why| {
            ApiError::bad_request(format!("the body is not a TokenRequest: {why}"))
        })?;
        let spec = request.spec.get_or_insert_default();
        let given = request.metadata.name.as_deref().unwrap_or_default();
        check_name(given, &key.name)?;
        let account = self.store.require(ApiKind::ServiceAccount, key)?;
        let seconds = spec.expiration_seconds.unwrap_or(TOKEN_EXPIRATION_SECS);
        if let Some(problem) = token_secs_problem(seconds) {
            let why = format_args!("{seconds}: {problem}");
            let cause = Cause::invalid("spec.expirationSeconds", why);
            return Err(ApiError::invalid("TokenRequest", "", vec![cause]));
        }
        let audiences = match spec.audiences.as_deref().unwrap_or_default() {
            [] => vec![ISSUER.to_owned()],
            given => given.to_vec(),
        };
        let bound_to = spec
            .bound_object_ref
            .as_ref()
            .map(|reference| self.bound_object(key, reference))
            .transpose()?;
        let is_bound = bound_to.is_some();
        let lifetime = SignedDuration::from_secs(seconds);
        let now = self.clock.now();
        let token = self
            .tokens
            .issue(&account, bound_to, &audiences, lifetime, now)
            .map_err(|_| ApiError::internal("cannot sign the token"))?;
        spec.audiences = Some(audiences);
        spec.expiration_seconds = Some(seconds);
        request.metadata.name = Some(key.name.to_string());
        request.metadata.namespace = Some(key.namespace.to_string());
        request.metadata.uid = Some(account.uid.to_string());
        request.metadata.creation_timestamp = Some(Time(now));
        request.status = Some(TokenRequestStatus {
            token: Some(token),
            expiration_timestamp: Some(Time(now + lifetime)),
        });
        let mut answer = json_tree(&request)
            .map_err(|_| ApiError::internal("the token request has no JSON form"))?;
        if !is_bound {
            // kube-apiserver writes it though there is none.
            answer["spec"]["boundObjectRef"] = Value::Null;
        }
        Ok(answer)
    }

    /// The object that a token is bound to, and the claim's name for its kind.
    fn bound_object(
        &self,
        account: &ObjectKey,
        reference: &BoundObjectReference,
    ) -> Result<(&'static str, Arc<Object>), ApiError> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (name, uid) = (text(&reference.name), text(&reference.uid));
        let (claim, kind, namespace) = match text(&reference.kind).as_str() {
            "Pod" => ("pod", ApiKind::Pod, account.namespace.clone()),
            "Secret" => ("secret", ApiKind::Secret, account.namespace.clone()),
            "Node" => ("node", ApiKind::Node, "".into()),
            other => {
                let api_version = text(&reference.api_version);
                let slash = if api_version.contains('/') { "" } else { "/" };
                return Err(ApiError::bad_request(format!(
                    "cannot bind token to object of type {slash}{api_version}, Kind={other}"
                )));
            }
        };
        let bound = self
            .store
            .require(kind, &ObjectKey::new(namespace, &*name))?;
        if kind == ApiKind::Pod && account_of(&bound.value()) != account.name.as_str() {
            return Err(ApiError::bad_request(format!(
                "cannot bind token for serviceaccount \"{}\" to pod running with different serviceaccount name.",
                account.name
            )));
        }
        if !uid.is_empty() && bound.uid != uid {
            let why = format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            );
            return Err(ApiError::kind_conflict(kind, &name, &why));
        }
        Ok((claim, bound))
    }
}

/// The service account that a pod runs as.
fn account_of(pod: &Value) -> &str {
    match text(pod, "/spec/serviceAccountName") {
        "" => "default",
        named => named,
    }
}
