use std::error::Error as _;

use larder_objects::{ConfigMap, Object as _, Secret};

use super::*;

/// An answer of the API server with `code`.
pub(crate) fn status(code: u16) -> RequestError {
    RequestError::status(code, "", format!("status {code}"))
}

fn key() -> ObjectKey {
    ObjectKey::new("n", "a")
}

#[test]
fn texts_are_the_kubelets() {
    let failure = RequestFailure::new(RequestPhase::List, status(403));
    let cause = Error::of_failure(Secret::TYPE, key(), failure);
    let not_synced = Error::from(ErrorKind::NotSynced {
        kind: Secret::TYPE,
        key: key(),
        waited: Duration::from_secs(1),
        source: Some(cause),
    });
    assert_eq!(
        Error::from(ErrorKind::NotRegistered { key: key() }).to_string(),
        r#"object "n"/"a" not registered"#
    );
    assert_eq!(
        not_synced.to_string(),
        "failed to sync secret cache: timed out waiting for the condition"
    );
    let cause = not_synced.source().unwrap();
    assert_eq!(cause.to_string(), "not allowed to read secret n/a");
    assert_eq!(cause.source().unwrap().to_string(), "status 403");
    assert!(not_synced.is_forbidden() && not_synced.is_retryable());
    let not_found = failed(RequestPhase::Get, 404);
    assert_eq!(not_found.to_string(), r#"configmap "a" not found"#);
    assert!(not_found.is_not_found());
}

fn failed(phase: RequestPhase, code: u16) -> Error {
    let failure = RequestFailure::new(phase, status(code));
    Error::of_failure(ConfigMap::TYPE, key(), failure)
}

#[test]
fn each_phase_has_its_own_error() {
    let phases = [
        (
            RequestPhase::Review,
            "failed to review the access to configmap n/a",
        ),
        (RequestPhase::List, "failed to list configmap n/a"),
        (RequestPhase::Watch, "failed to watch configmap n/a"),
        (RequestPhase::Get, "failed to read configmap n/a"),
    ];
    for (phase, text) in phases {
        let error = failed(phase, 500);
        assert_eq!(error.to_string(), text);
        assert_eq!(error.request().unwrap().to_string(), "status 500");
        assert!(error.is_retryable());
    }
}

#[test]
fn rejected_credentials_are_not_a_missing_permission() {
    for phase in [RequestPhase::List, RequestPhase::Watch, RequestPhase::Get] {
        let unauthorized = failed(phase, 401);
        assert!(unauthorized.to_string().contains("failed to authenticate"));
        assert!(unauthorized.is_unauthorized() && !unauthorized.is_forbidden());
        let forbidden = failed(phase, 403);
        assert!(forbidden.to_string().contains("not allowed"));
        assert!(forbidden.is_forbidden() && !forbidden.is_unauthorized());
    }
}

#[test]
fn missing_collection_is_not_a_missing_object() {
    let error = failed(RequestPhase::List, 404);
    assert!(matches!(error.kind(), ErrorKind::Request { .. }) && !error.is_not_found());
    assert!(failed(RequestPhase::Get, 404).is_not_found());
}
