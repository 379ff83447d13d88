//! Reviews of the requesting user: its name, one permission, all permissions. They are answered, not stored.
//!
//! Source of the rules that every user has: kube-apiserver 1.36, the roles `system:basic-user`, `system:discovery` and
//! `system:public-info-viewer`.

use k8s_openapi::{
    Resource,
    api::{
        authentication::v1::{SelfSubjectReview, SelfSubjectReviewStatus, UserInfo},
        authorization::v1::{
            NonResourceRule, ResourceAttributes, ResourceRule, SelfSubjectAccessReview,
            SelfSubjectAccessReviewSpec, SelfSubjectRulesReview, SubjectAccessReviewStatus,
            SubjectRulesReviewStatus,
        },
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use larder_objects::json_tree;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    ApiError, ApiServer, User,
    authorize::{Attempt, Objects},
    json::decode,
    request::Verb,
    status::Cause,
};

/// The group of reviews about access.
pub(super) const AUTHORIZATION: &str = "authorization.k8s.io";
/// The group of the review about oneself.
pub(super) const AUTHENTICATION: &str = "authentication.k8s.io";

/// A kind of reviews.
pub(super) struct Review {
    /// As in a path.
    pub(super) group: &'static str,
    pub(super) kind: &'static str,
    /// Answers the review in a body, for which a user asks. Fails if a field is of the wrong type, or if it asks nothing.
    pub(super) answer: fn(&ApiServer, &User, Value) -> Result<Value, ApiError>,
}

pub(super) const REVIEWS: [Review; 3] = [
    Review {
        group: AUTHENTICATION,
        kind: SelfSubjectReview::KIND,
        answer: ApiServer::review_user,
    },
    Review {
        group: AUTHORIZATION,
        kind: SelfSubjectAccessReview::KIND,
        answer: ApiServer::review_access,
    },
    Review {
        group: AUTHORIZATION,
        kind: SelfSubjectRulesReview::KIND,
        answer: ApiServer::review_rules,
    },
];

impl Review {
    /// The reviews that a path leads to.
    pub(super) fn find(group: &str, name: &str) -> Option<Self> {
        let mut reviews = REVIEWS.into_iter();
        reviews.find(|review| review.group == group && review.plural() == name)
    }

    /// The name of the kind in paths.
    pub(super) fn plural(&self) -> String {
        self.kind.to_lowercase() + "s"
    }
}

impl ApiServer {
    fn review_user(&self, user: &User, body: Value) -> Result<Value, ApiError> {
        let mut review: SelfSubjectReview = read(body)?;
        review.metadata.creation_timestamp = Some(Time(self.clock().now()));
        let mut groups = user.groups.clone();
        groups.push("system:authenticated".to_owned());
        review.status = Some(SelfSubjectReviewStatus {
            user_info: Some(UserInfo {
                username: Some(user.name.clone()),
                groups: Some(groups),
                ..UserInfo::default()
            }),
        });
        written(&review)
    }

    fn review_access(&self, user: &User, body: Value) -> Result<Value, ApiError> {
        let mut review: SelfSubjectAccessReview = read(body)?;
        let decision = self.may(user, &review.spec)?;
        review.status = Some(SubjectAccessReviewStatus {
            allowed: decision.is_ok(),
            reason: decision.err(),
            ..SubjectAccessReviewStatus::default()
        });
        written(&review)
    }

    fn review_rules(&self, user: &User, body: Value) -> Result<Value, ApiError> {
        let mut review: SelfSubjectRulesReview = read(body)?;
        if review
            .spec
            .namespace
            .take()
            .is_none_or(|namespace| namespace.is_empty())
        {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        review.status = Some(self.rules(user));
        written(&review)
    }

    /// Whether `user` may do what `spec` asks about, or why not.
    fn may(
        &self,
        user: &User,
        spec: &SelfSubjectAccessReviewSpec,
    ) -> Result<Result<(), String>, ApiError> {
        let asked = match (&spec.resource_attributes, &spec.non_resource_attributes) {
            (Some(asked), None) => asked,
            (None, Some(_)) => return Ok(Ok(())),
            _ => {
                return Err(ApiError::invalid_unnamed(
                    &format!(".{AUTHORIZATION}"),
                    AUTHORIZATION,
                    Cause::invalid(
                        "spec.resourceAttributes",
                        "null: exactly one of nonResourceAttributes or resourceAttributes must be specified",
                    ),
                ));
            }
        };
        let Some(verb) = given(asked.verb.as_deref()).and_then(Verb::parse) else {
            return Ok(Err("no such verb".to_owned()));
        };
        let attempt = Attempt {
            verb,
            group: given(asked.group.as_deref()).unwrap_or_default(),
            resource: given(asked.resource.as_deref()).unwrap_or_default(),
            subresource: given(asked.subresource.as_deref()),
            namespace: given(asked.namespace.as_deref()),
            name: given(asked.name.as_deref()).or(selected(asked, "metadata.name")),
            node_name: selected(asked, "spec.nodeName"),
        };
        let authorization = &self.options().authorization;
        Ok(authorization.authorize(Objects(self.store()), user, &attempt))
    }

    /// What `user` may do.
    fn rules(&self, user: &User) -> SubjectRulesReviewStatus {
        let unlisted = self.options().authorization.why_unlisted(user);
        let mut paths = vec![
            reading(&["/healthz", "/livez", "/readyz", "/version", "/version/"]),
            reading(&["/.well-known", "/.well-known/*"]),
            reading(&[
                "/api",
                "/api/*",
                "/apis",
                "/apis/*",
                "/healthz",
                "/livez",
                "/openapi",
                "/openapi/*",
                "/readyz",
                "/version",
                "/version/",
            ]),
        ];
        let mut resources: Vec<_> = [AUTHORIZATION, AUTHENTICATION]
            .map(|group| {
                let reviews = REVIEWS.iter().filter(|review| review.group == group);
                ResourceRule {
                    verbs: words(&["create"]),
                    api_groups: Some(words(&[group])),
                    resources: Some(reviews.map(Review::plural).collect()),
                    resource_names: None,
                }
            })
            .into();
        if unlisted.is_none() {
            paths.push(NonResourceRule {
                verbs: words(&["*"]),
                non_resource_urls: Some(words(&["*"])),
            });
            resources.push(ResourceRule {
                verbs: words(&["*"]),
                api_groups: Some(words(&["*"])),
                resources: Some(words(&["*"])),
                resource_names: None,
            });
        }
        SubjectRulesReviewStatus {
            resource_rules: resources,
            non_resource_rules: paths,
            incomplete: unlisted.is_some(),
            evaluation_error: unlisted.map(str::to_owned),
        }
    }
}

/// The review in a body, of whatever version it says to be.
fn read<T: Resource + DeserializeOwned>(mut body: Value) -> Result<T, ApiError> {
    body["kind"] = T::KIND.into();
    body["apiVersion"] = T::API_VERSION.into();
    decode(&body).map_err(|why| {
        let kind = T::KIND;
        ApiError::bad_request(format!("the body is not a {kind}: {why}"))
    })
}

fn written(review: &impl Serialize) -> Result<Value, ApiError> {
    json_tree(review).map_err(|_| ApiError::internal("the review has no JSON form"))
}

/// A text, if it is not empty.
fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

/// The one value that the field selector leaves to `key`.
fn selected<'a>(asked: &'a ResourceAttributes, key: &str) -> Option<&'a str> {
    let selector = asked.field_selector.as_ref()?;
    let mut fitting = selector
        .requirements
        .iter()
        .flatten()
        .filter(|term| term.key == key && term.operator == "In");
    fitting.find_map(|term| match term.values.as_deref()? {
        [one] => Some(one.as_str()),
        _ => None,
    })
}

/// The rule that lets a user read `paths`.
fn reading(paths: &[&str]) -> NonResourceRule {
    NonResourceRule {
        verbs: words(&["get"]),
        non_resource_urls: Some(words(paths)),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
