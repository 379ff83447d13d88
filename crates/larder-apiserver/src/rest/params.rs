//! Parameters of lists and watches.
//!
//! Rejected combinations and their messages: kube-apiserver 1.36,
//! `apimachinery/pkg/apis/meta/internalversion/validation`.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use larder_objects::ObjectKey;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::{
    query::Query,
    request::ResourcePath,
    selector::{FieldSelector, Filter, LabelSelector},
    status::{ApiError, Cause},
};

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VersionMatch {
    Exact,
    NotOlderThan,
}

const MATCH: &str = "resourceVersionMatch";

/// Longest watch. What a client asks for beyond it would not fit into a time.
const MAX_TIMEOUT: Duration = Duration::from_hours(365 * 24);

/// Parameters that lists and watches share.
#[derive(Debug)]
struct Common {
    filter: Filter,
    version: Option<u64>,
    version_match: Option<VersionMatch>,
    send_initial_events: Option<bool>,
    timeout: Option<Duration>,
}

impl Common {
    fn parse(
        query: &Query<'_>,
        target: &ResourcePath,
        causes: &mut Vec<Cause>,
        on_bad_version: fn(String) -> ApiError,
    ) -> Result<Self, ApiError> {
        let resource = target.kind.resource();
        let filter = Filter {
            namespace: target.namespace.clone(),
            fields: FieldSelector::parse(query.get("fieldSelector").unwrap_or(""), resource)?,
            labels: LabelSelector::parse(query.get("labelSelector").unwrap_or(""))?,
        };
        let version_match = match query.get(MATCH) {
            None => None,
            Some("Exact") => Some(VersionMatch::Exact),
            Some("NotOlderThan") => Some(VersionMatch::NotOlderThan),
            Some(other) => {
                let supported = ["Exact", "NotOlderThan", ""];
                causes.push(Cause::unsupported(MATCH, other, &supported));
                None
            }
        };
        Ok(Self {
            filter,
            version: version(query).map_err(on_bad_version)?,
            version_match,
            send_initial_events: query.optional_flag("sendInitialEvents"),
            timeout: query
                .number("timeoutSeconds")?
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(|seconds| Duration::from_secs(seconds).min(MAX_TIMEOUT))
                .filter(|timeout| !timeout.is_zero()),
        })
    }
}

/// `resourceVersion`: `None` when absent.
///
/// # Errors
///
/// It is none; why, in kube-apiserver's words.
pub(crate) fn version(query: &Query<'_>) -> Result<Option<u64>, String> {
    let parse = |text: &str| {
        // Rust takes a sign where Go does not.
        let digits = Some(text).filter(|text| !text.starts_with('+'));
        digits.and_then(|text| text.parse().ok()).ok_or_else(|| {
            format!(
                "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
            )
        })
    };
    query.get("resourceVersion").map(parse).transpose()
}

/// The start of a page of a list. Its token is its JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Continue {
    /// The version of the first page; `None` for the present one, when the first page's is gone.
    #[serde(rename = "rv")]
    pub(crate) version: Option<u64>,
    /// Namespace and name of the last object of the page before.
    pub(crate) namespace: SmolStr,
    pub(crate) name: SmolStr,
}

impl Continue {
    pub(crate) fn after(&self) -> ObjectKey {
        ObjectKey::new(self.namespace.clone(), self.name.clone())
    }

    pub(crate) fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("strings and a number"))
    }

    fn decode(text: &str) -> Result<Self, ApiError> {
        let reject = || {
            ApiError::bad_request(
                "invalid continue token: continue key is not valid: it is not one of this server's tokens",
            )
        };
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| reject())?;
        serde_json::from_slice(&bytes).map_err(|_| reject())
    }
}

/// The state that a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The present one, which must have reached the version.
    NotOlderThan(u64),
    /// The one of the version.
    Exactly(u64),
    /// The one that the pages before showed.
    Continue(Continue),
}

/// Parameters of a list.
#[derive(Debug)]
pub(crate) struct ListParams {
    pub(crate) filter: Filter,
    pub(crate) limit: Option<usize>,
    pub(crate) at: At,
}

impl ListParams {
    pub(crate) fn parse(query: &Query<'_>, target: &ResourcePath) -> Result<Self, ApiError> {
        let mut causes = Vec::new();
        // Only a list takes it for the client's fault.
        let common = Common::parse(query, target, &mut causes, |why| {
            ApiError::bad_request(format!("invalid resource version: {why}"))
        })?;
        let limit = query
            .number("limit")?
            .filter(|limit| *limit > 0)
            .and_then(|limit| usize::try_from(limit).ok());
        let token = query.get("continue");
        let (matched, is_matched) = (common.version_match, common.version_match.is_some());
        let exact = matched == Some(VersionMatch::Exact);
        let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        let unversioned = is_matched && common.version.is_none();
        causes.extend(forbidden_match(unversioned, why));
        let continued = is_matched && token.is_some();
        causes.extend(forbidden_match(continued, WITH_CONTINUE));
        let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
        causes.extend(forbidden_match(exact && common.version == Some(0), why));
        if common.send_initial_events.is_some() {
            let why = "sendInitialEvents is forbidden for list";
            causes.push(Cause::forbidden("sendInitialEvents", why));
        }
        reject_if_any(causes)?;
        let at = match (token, common.version) {
            (Some(_), Some(1..)) => {
                return Err(ApiError::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            (Some(token), _) => At::Continue(Continue::decode(token)?),
            (None, Some(version)) if exact => At::Exactly(version),
            // The rule from before resourceVersionMatch: a page of a named version is exact.
            (None, Some(version @ 1..)) if matched.is_none() && limit.is_some() => {
                At::Exactly(version)
            }
            (None, version) => At::NotOlderThan(version.unwrap_or(0)),
        };
        Ok(Self {
            filter: common.filter,
            limit,
            at,
        })
    }
}

/// Parameters of a watch.
#[derive(Debug)]
pub(crate) struct WatchParams {
    pub(crate) filter: Filter,
    /// 0 when absent.
    pub(crate) version: u64,
    /// Whether the stream begins with the present state, and then says that this was it; `None`: as older clients
    /// expect.
    pub(crate) initial_events: Option<bool>,
    pub(crate) bookmarks: bool,
    pub(crate) timeout: Option<Duration>,
}

impl WatchParams {
    pub(crate) fn parse(query: &Query<'_>, target: &ResourcePath) -> Result<Self, ApiError> {
        let mut causes = Vec::new();
        let common = Common::parse(query, target, &mut causes, ApiError::unexpected)?;
        let matched = common.version_match;
        let initial = common.send_initial_events.is_some();
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        let unmatched = initial && matched != Some(VersionMatch::NotOlderThan);
        causes.extend(forbidden_match(unmatched, why));
        if initial && matched == Some(VersionMatch::Exact) {
            causes.push(Cause::unsupported(MATCH, "Exact", &["NotOlderThan"]));
        }
        let why =
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        causes.extend(forbidden_match(matched.is_some() && !initial, why));
        let continued = matched.is_some() && query.get("continue").is_some();
        causes.extend(forbidden_match(continued, WITH_CONTINUE));
        reject_if_any(causes)?;
        Ok(Self {
            filter: common.filter,
            version: common.version.unwrap_or(0),
            initial_events: common.send_initial_events,
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout: common.timeout,
        })
    }
}

const WITH_CONTINUE: &str = "resourceVersionMatch is forbidden when continue is provided";

fn forbidden_match(is_broken: bool, why: &str) -> Option<Cause> {
    is_broken.then(|| Cause::forbidden(MATCH, why))
}

fn reject_if_any(causes: Vec<Cause>) -> Result<(), ApiError> {
    if causes.is_empty() {
        Ok(())
    } else {
        Err(ApiError::invalid("ListOptions", "", causes))
    }
}
