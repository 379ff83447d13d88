//! Kubernetes' z-pages: `/statusz` and `/flagz` as text, `/configz` as JSON, as in 1.36
//! (`k8s.io/apiserver/pkg/server/{statusz,flagz}`, `k8s.io/component-base/configz`).
//!
//! Invariant: no page has a credential: flags hold none, and [`Config::values`] masks them.
//!
//! [`Config::values`]: crate::config::Config::values

use axum::{Router, extract::State, response::Response, routing::get};
use jiff::Timestamp;
use serde_json::json;

use super::{program::Program, written};
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

async fn statusz(State((agent, _)): Pages) -> String {
    let (started, now) = agent.started_and_now();
    statusz_text(started, now)
}

async fn flagz(State((_, program)): Pages) -> String {
    let lines = program
        .flags
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"));
    heading("flagz") + &lines.collect::<String>()
}

async fn configz(State((_, program)): Pages) -> Response {
    super::json(written(
        &json!({"agentconfiguration": program.config().values()}),
    ))
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

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

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
