//! Reviews of the requesting user: its name, one permission, all permissions. They are answered, not stored.
//!
//! Source of the rules that every user has: kube-apiserver 1.36, the roles `system:basic-user`, `system:discovery` and
//! `system:public-info-viewer`.

use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{SelfSubjectAccessReview, SelfSubjectRulesReview},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    ApiError, ApiServer, User,
    authorize::{Attempt, Objects},
    json::{decode, set_default, text},
    request::Verb,
    status::Cause,
};

/// The group of reviews about access.
pub(super) const AUTHORIZATION: &str = "authorization.k8s.io";
/// The group of the review about oneself.
pub(super) const AUTHENTICATION: &str = "authentication.k8s.io";

/// The reviews: group, as in a path, kind, and what finds a field of the wrong type.
pub(super) const REVIEWS: [(&str, &str, Check); 3] = [
    (
        AUTHENTICATION,
        "SelfSubjectReview",
        check::<SelfSubjectReview>,
    ),
    (
        AUTHORIZATION,
        "SelfSubjectAccessReview",
        check::<SelfSubjectAccessReview>,
    ),
    (
        AUTHORIZATION,
        "SelfSubjectRulesReview",
        check::<SelfSubjectRulesReview>,
    ),
];

/// The name of a kind of reviews in paths.
pub(super) fn plural(kind: &str) -> String {
    kind.to_lowercase() + "s"
}

/// Whether a path leads to a review.
pub(super) fn is_review(group: &str, name: &str) -> bool {
    let mut reviews = REVIEWS.iter();
    reviews.any(|(of, kind, _)| *of == group && plural(kind) == name)
}

type Check = fn(&Value) -> Result<(), String>;

fn check<T: DeserializeOwned>(review: &Value) -> Result<(), String> {
    decode::<T>(review).map(drop)
}

impl ApiServer {
    /// Answers a review that `user` asks for.
    ///
    /// # Errors
    ///
    /// A field is of the wrong type, or it asks nothing.
    pub(super) fn review(
        &self,
        user: &User,
        name: &str,
        mut review: Value,
    ) -> Result<Value, ApiError> {
        let found = REVIEWS.iter().find(|(_, kind, _)| plural(kind) == name);
        let (group, kind, check) = found.ok_or_else(ApiError::no_such_path)?;
        review["kind"] = (*kind).into();
        review["apiVersion"] = format!("{group}/v1").into();
        check(&review)
            .map_err(|why| ApiError::bad_request(format!("the body is not a {kind}: {why}")))?;
        set_default(&mut review["metadata"], json!({}));
        review["status"] = match *kind {
            "SelfSubjectReview" => {
                review["metadata"]["creationTimestamp"] = self.clock().rfc3339().into();
                let mut groups = user.groups.clone();
                groups.push("system:authenticated".to_owned());
                json!({"userInfo": {"username": user.name, "groups": groups}})
            }
            "SelfSubjectAccessReview" => self.may(user, &review["spec"])?,
            _ => {
                if text(&review, "/spec/namespace").is_empty() {
                    return Err(ApiError::bad_request("no namespace on request"));
                }
                review["spec"] = json!({});
                self.rules(user)
            }
        };
        Ok(review)
    }

    /// Whether `user` may do what `spec` asks about.
    fn may(&self, user: &User, spec: &Value) -> Result<Value, ApiError> {
        let asked = &spec["resourceAttributes"];
        if asked.is_null() == spec["nonResourceAttributes"].is_null() {
            return Err(ApiError::invalid_unnamed(
                &format!(".{AUTHORIZATION}"),
                AUTHORIZATION,
                Cause::invalid(
                    "spec.resourceAttributes",
                    "null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
                ),
            ));
        }
        let text = |field: &str| asked[field].as_str().filter(|text| !text.is_empty());
        let requirements = asked["fieldSelector"]["requirements"].as_array();
        let selected = |key: &str| {
            let requirements = requirements.into_iter().flatten();
            let mut fitting =
                requirements.filter(|term| term["key"] == key && term["operator"] == "In");
            fitting.find_map(|term| match term["values"].as_array()?.as_slice() {
                [one] => one.as_str(),
                _ => None,
            })
        };
        let decision = match text("verb").and_then(Verb::parse) {
            _ if asked.is_null() => Ok(()),
            None => Err("no such verb".to_owned()),
            Some(verb) => self.options().authorization.authorize(
                Objects(self.store()),
                user,
                &Attempt {
                    verb,
                    group: text("group").unwrap_or_default(),
                    resource: text("resource").unwrap_or_default(),
                    subresource: text("subresource"),
                    namespace: text("namespace"),
                    name: text("name").or(selected("metadata.name")),
                    node_name: selected("spec.nodeName"),
                },
            ),
        };
        Ok(match decision {
            Ok(()) => json!({"allowed": true}),
            Err(reason) => json!({"allowed": false, "reason": reason}),
        })
    }

    /// What `user` may do.
    fn rules(&self, user: &User) -> Value {
        let unlisted = self.options().authorization.why_unlisted(user);
        let mut paths = vec![
            json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"]}),
            json!({"verbs": ["get"], "nonResourceURLs": ["/.well-known", "/.well-known/*"]}),
            json!({"verbs": ["get"], "nonResourceURLs": [
                "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz", "/version", "/version/",
            ]}),
        ];
        let reviews_of = |wanted: &str| -> Vec<_> {
            let reviews = REVIEWS.iter().filter(|(group, ..)| *group == wanted);
            reviews.map(|(_, kind, _)| plural(kind)).collect()
        };
        let mut resources: Vec<_> = [AUTHORIZATION, AUTHENTICATION]
            .map(|group| json!({"verbs": ["create"], "apiGroups": [group], "resources": reviews_of(group)}))
            .into();
        if unlisted.is_none() {
            paths.push(json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
            resources.push(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        }
        let mut status = json!({
            "resourceRules": resources,
            "nonResourceRules": paths,
            "incomplete": unlisted.is_some(),
        });
        if let Some(why) = unlisted {
            status["evaluationError"] = why.into();
        }
        status
    }
}
