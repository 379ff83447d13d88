//! Kubernetes' z-pages: `/statusz`, `/flagz` and `/configz`, in the forms of 1.36
//! (`k8s.io/apiserver/pkg/server/{statusz,flagz}`, `k8s.io/component-base/configz`).
//!
//! `/statusz` and `/flagz` are text for people, or a `config.k8s.io` object for a client that asks for exactly that:
//! `Accept: application/json;g=config.k8s.io;v=v1beta1;as=Statusz`. Anything else is 406.
//!
//! Invariant: no page has a credential: flags hold none, and [`Config::values`] masks them.
//!
//! [`Config::values`]: crate::config::Config::values

use std::fmt::Write as _;

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::program::Program;
use crate::agent::AgentHandle;

/// Name of the component.
const COMPONENT: &str = "larder";
/// The version of Kubernetes whose behavior is reproduced.
const EMULATED: &str = "1.36";
/// What `/statusz` lists, sorted.
const PATHS: [&str; 6] = [
    "/configz", "/flagz", "/healthz", "/metrics", "/readyz", "/statusz",
];

pub(super) fn router(agent: AgentHandle, program: Program) -> Router {
    Router::new()
        .route("/statusz", get(statusz))
        .route("/flagz", get(flagz))
        .route("/configz", get(configz))
        .with_state((agent, program))
}

type Pages = State<(AgentHandle, Program)>;

async fn statusz(State((agent, _)): Pages, headers: HeaderMap) -> Response {
    let (started, now) = agent.started_and_now();
    respond(&headers, "Statusz", |form| match form {
        Form::Text => statusz_text(started, now).into_response(),
        Form::Object(version) => {
            let up = now.duration_since(started).as_secs().max(0);
            Json(json!({
                "kind": "Statusz",
                "apiVersion": version,
                "metadata": {"name": COMPONENT},
                "startTime": format!("{:.0}", started),
                "uptimeSeconds": up,
                "binaryVersion": env!("CARGO_PKG_VERSION"),
                "emulationVersion": EMULATED,
                "paths": PATHS,
            }))
            .into_response()
        }
    })
}

async fn flagz(State((_, program)): Pages, headers: HeaderMap) -> Response {
    respond(&headers, "Flagz", |form| match form {
        Form::Text => {
            let mut text = heading("flagz");
            for (name, value) in &*program.flags {
                // Writing to a String does not fail.
                let _ = writeln!(text, "{name}={value}");
            }
            text.into_response()
        }
        Form::Object(version) => Json(json!({
            "kind": "Flagz",
            "apiVersion": version,
            "metadata": {"name": COMPONENT},
            "flags": *program.flags,
        }))
        .into_response(),
    })
}

async fn configz(State((_, program)): Pages) -> Json<Value> {
    Json(json!({"agentconfiguration": program.config().values()}))
}

fn heading(page: &str) -> String {
    format!(
        "\n{COMPONENT} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
         compatibility guarantees and is for debugging purposes only.\n\n"
    )
}

fn statusz_text(started: Timestamp, now: Timestamp) -> String {
    let up = now.duration_since(started).as_secs().max(0);
    format!(
        "{}Started: {}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\nEmulation version: {EMULATED}\n\nPaths: {}\n",
        heading("statusz"),
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        up / 3600,
        up / 60 % 60,
        up % 60,
        env!("CARGO_PKG_VERSION"),
        PATHS.join(" "),
    )
}

/// The form of a page that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// An object of this API version.
    Object(&'static str),
}

fn respond(headers: &HeaderMap, kind: &str, page: impl FnOnce(Form) -> Response) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let accepted: Vec<_> = accepted.filter_map(|value| value.to_str().ok()).collect();
    if let Some(form) = form(&accepted.join(","), kind) {
        return page(form);
    }
    let text = format!(
        "only the following media types are accepted: text/plain, \
         application/json;g=config.k8s.io;v=v1beta1;as={kind}\n"
    );
    (StatusCode::NOT_ACCEPTABLE, text).into_response()
}

/// The first form that `accepted`, the value of an `Accept` header, names; text if it is empty.
fn form(accepted: &str, kind: &str) -> Option<Form> {
    if accepted.trim().is_empty() {
        return Some(Form::Text);
    }
    accepted.split(',').find_map(|range| {
        let mut words = range.split(';').map(str::trim);
        let media = words.next().unwrap_or_default();
        match media {
            "text/plain" | "text/*" | "*/*" => Some(Form::Text),
            "application/json" => {
                let parameters: Vec<_> = words.filter_map(|word| word.split_once('=')).collect();
                let has = |name, value| parameters.contains(&(name, value));
                let is_asked = has("g", "config.k8s.io") && has("as", kind);
                match () {
                    () if is_asked && has("v", "v1beta1") => {
                        Some(Form::Object("config.k8s.io/v1beta1"))
                    }
                    () if is_asked && has("v", "v1alpha1") => {
                        Some(Form::Object("config.k8s.io/v1alpha1"))
                    }
                    () => None,
                }
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn pages_are_text_unless_the_object_is_asked_for_exactly() {
        let object = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
        for (accepted, expected) in [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/html, text/plain;q=0.9", Some(Form::Text)),
            (object, Some(Form::Object("config.k8s.io/v1beta1"))),
            (
                "application/json; v=v1alpha1; g=config.k8s.io; as=Statusz",
                Some(Form::Object("config.k8s.io/v1alpha1")),
            ),
            ("application/json", None),
            ("application/json;v=v1;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("text/html", None),
        ] {
            assert_eq!(form(accepted, "Statusz"), expected, "{accepted}");
        }
    }

    #[test]
    fn text_has_the_lines_of_kubernetes() {
        let time = |text: &str| text.parse().unwrap();
        let text = statusz_text(time("2026-03-01T12:00:00Z"), time("2026-03-01T13:02:03Z"));
        let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        expect![[r#"

            larder statusz
            Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.

            Started: Sun Mar  1 12:00:00 UTC 2026
            Up: 1 hr 02 min 03 sec
            Binary version: VERSION
            Emulation version: 1.36

            Paths: /configz /flagz /healthz /metrics /readyz /statusz
        "#]]
        .assert_eq(&text);
    }
}
