//! `larder status`: what a running agent delivers.
//!
//! | module | purpose |
//! | --- | --- |
//! | `beside` | the mode beside a kubelet, as lines |
//! | `progress` | what `--wait` waits for |
//! | `report` | formats a status as lines |
//! | `urgency` | the order of pods: those that need a look come first |

mod beside;
mod progress;
mod report;
#[cfg(test)]
mod situations;
mod urgency;

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use larder_agent::status::{AgentStatus, PodStatus};
use larder_console::Format;
use tokio::time::Instant;

pub(super) use self::report::short_path;
pub(super) use self::urgency::{Urgency, most_urgent_first};
use self::{
    progress::{WaitsFor, pending},
    report::{explanation, overview},
};
use crate::{
    agent::{AgentClient, NotListening, client_config},
    args::{HealthCheck, StatusArgs, StatusOutput},
    outcome::{Failure, partial_if},
    output::{
        self, Style, because,
        json::write_json,
        jsonpath::Template,
        progress::Progress,
        screen::{Screen, ScreenReport, Size},
        yaml::write_yaml,
    },
};

/// Time between two requests of `--watch` and `--wait`.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time for which everything must stay delivered, with `--wait`. The agent sees an edit some 100 ms later.
const SETTLED_FOR: Duration = Duration::from_millis(500);
/// Time for an answer at the deadline of `--wait`.
const LAST_LOOK: Duration = Duration::from_secs(1);

pub(super) fn run(args: &StatusArgs) -> Result<ExitCode, Failure> {
    if let StatusOutput::JsonPath(template) = &args.output {
        template
            .parse::<Template>()
            .map_err(|error| Failure::unreadable(format!("cannot read the jsonpath: {error}")))?;
    }
    let root_dir = client_config(&args.place)?.root_dir;
    let ask_within = |most: Duration| -> anyhow::Result<AgentStatus> {
        AgentClient::new(&root_dir)?
            .within(most)
            .ask("/status")?
            .context("the agent has no status (is it of another version of larder?)")
    };
    let ask = || ask_within(Duration::MAX);
    if let Some(check) = args.check {
        let path = match check {
            HealthCheck::Healthz => "/healthz",
            HealthCheck::Readyz => "/readyz",
        };
        let (is_ok, text) = AgentClient::new(&root_dir)?.text(path)?;
        output::lines(text.lines())?;
        return Ok(partial_if(!is_ok));
    }
    if args.watch {
        return watch(args, ask);
    }
    let (status, is_delivered) = if args.wait {
        wait(args, ask_within)?
    } else {
        (ask()?, true)
    };
    let missing = print(args, &status)?;
    if !is_delivered {
        let timeout = args.timeout.as_secs_f64();
        let why = because(&pending_pods(args, &status));
        let error = anyhow!("not everything was delivered within {timeout} s{why}");
        output::error(error.as_ref());
    }
    Ok(partial_if(!is_delivered || missing))
}

/// Repeats the request until everything has been delivered for [`SETTLED_FOR`], or time is up. Returns the last status,
/// and whether everything is delivered.
fn wait(
    args: &StatusArgs,
    ask_within: impl Fn(Duration) -> anyhow::Result<AgentStatus>,
) -> anyhow::Result<(AgentStatus, bool)> {
    // A reader that stops must not extend the timeout.
    larder_console::hold(Format::Text);
    larder_console::begin();
    let deadline = Instant::now() + args.timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut progress = Progress::start();
    let mut delivered_since = None;
    loop {
        let looked = Instant::now();
        let asked = ask_within(left().max(LAST_LOOK));
        let left = left();
        match asked {
            Ok(status) if is_delivered(args, &status) => {
                let since = *delivered_since.get_or_insert(looked);
                if looked - since >= SETTLED_FOR || left.is_zero() {
                    return Ok((status, true));
                }
            }
            Ok(status) if left.is_zero() => return Ok((status, false)),
            // It may be about to start.
            Err(error) if error.is::<NotListening>() && !left.is_zero() => {
                delivered_since = None;
                progress.tell(format!("waiting: {error}"));
            }
            Err(error) => return Err(error),
            Ok(status) => {
                delivered_since = None;
                progress.tell(format!("waiting for {}", pending_pods(args, &status)));
            }
        }
        pause(INTERVAL.min(left));
    }
}

/// What `--wait` waits for, with reasons.
fn pending_pods(args: &StatusArgs, status: &AgentStatus) -> String {
    let (selected, missing) = selected(args, status);
    pending(&selected, &missing, args.pods.is_empty(), waits_for(args))
}

/// Whether the named pods are delivered; without names, all pods of all sources, which can be read.
fn is_delivered(args: &StatusArgs, status: &AgentStatus) -> bool {
    let (status, missing) = selected(args, status);
    let waits_for = waits_for(args);
    let is_known = || {
        let mut silent = waits_for.silent_sources(&status);
        silent.next().is_none() && waits_for.problems(&status).next().is_none()
    };
    let has_all = !args.pods.is_empty() || is_known();
    let mut pods = status.pods.iter();
    has_all && missing.is_empty() && pods.all(|pod| waits_for.is_over(pod))
}

fn waits_for(args: &StatusArgs) -> WaitsFor {
    if args.allow_stale {
        WaitsFor::InPlace
    } else {
        WaitsFor::Delivered
    }
}

/// The status of the named pods and their objects, or of all; and the names of pods that the agent does not serve,
/// escaped. `--wait` needs a pod in the namespace of `-n`.
fn selected(args: &StatusArgs, status: &AgentStatus) -> (AgentStatus, Vec<String>) {
    let mut selected = status.clone();
    if args.pods.is_empty() {
        if let Some(namespace) = &args.namespace {
            selected.pods.retain(|pod| pod.namespace == *namespace);
            let objects = &mut selected.objects;
            objects.retain(|object| object.namespace == *namespace);
        }
        let namespace = args.namespace.as_ref();
        let is_missing = args.wait && selected.pods.is_empty();
        let missing = namespace
            .filter(|_| is_missing)
            .map(|namespace| format!("{namespace}/*"));
        return (selected, missing.into_iter().collect());
    }
    let default = args.namespace.as_deref().unwrap_or("default");
    let names: Vec<_> = args
        .pods
        .iter()
        .map(|pod| format!("{}/{}", pod.namespace(default), pod.name))
        .collect();
    let name = |pod: &PodStatus| format!("{}/{}", pod.namespace, pod.name);
    selected.pods.retain(|pod| names.contains(&name(pod)));
    selected
        .objects
        .retain(|object| object.pods.iter().any(|pod| names.contains(pod)));
    let is_missing = |wanted: &String| !selected.pods.iter().any(|pod| name(pod) == *wanted);
    let missing = names
        .iter()
        .filter(|name| is_missing(name))
        .map(|name| output::escaped(name).into_owned())
        .collect();
    (selected, missing)
}

/// Prints a status; returns whether a named pod is missing, which is reported.
fn print(args: &StatusArgs, status: &AgentStatus) -> Result<bool, Failure> {
    let (status, missing) = selected(args, status);
    let document = document(args, &status)?;
    let text = document.unwrap_or_else(|| text(args, &status, output::now()));
    output::results(|out| out.write_all(text.as_bytes()))?;
    for name in &missing {
        let error = anyhow!("the agent serves no pod {name}; `larder status` lists its pods");
        output::error(error.as_ref());
    }
    Ok(!missing.is_empty())
}

/// A status of the selected pods, for people, with ages at `now`.
fn text(args: &StatusArgs, status: &AgentStatus, now: Timestamp) -> String {
    if args.pods.is_empty() {
        return overview(status, args.output == StatusOutput::Wide, now);
    }
    let pods = status.pods.iter();
    let texts: Vec<_> = pods.map(|pod| explanation(status, pod, now)).collect();
    texts.join("\n")
}

/// Shows the status again whenever it changes, until the reader or the user ends it.
fn watch(
    args: &StatusArgs,
    ask: impl Fn() -> anyhow::Result<AgentStatus>,
) -> Result<ExitCode, Failure> {
    let (mut screen, mut last) = (Screen::default(), None);
    let mut reported = String::new();
    let style = Style::of_stdout();
    let is_terminal = io::stdout().is_terminal();
    loop {
        let shown = match ask() {
            Ok(status) => {
                reported.clear();
                let (status, missing) = selected(args, &status);
                let missing: String = missing
                    .iter()
                    .flat_map(|name| ["no pod ", name, "\n"])
                    .collect();
                let report = ScreenReport {
                    text: &(text(args, &status, output::now()) + &missing),
                    // A time before all others, so that each age is the same text.
                    ageless: &(text(args, &status, Timestamp::MIN) + &missing),
                };
                let is_same = last.as_ref() == Some(&status);
                let shown = match document(args, &status)? {
                    // Ages change all the time.
                    None if is_terminal => screen.redraw(report, Size::of(io::stdout()), style),
                    _ if is_same => String::new(),
                    None => screen.changes(report),
                    Some(document) => document,
                };
                last = Some(status);
                shown
            }
            // A restarting agent is back soon.
            Err(error) if error.is::<NotListening>() && last.is_some() => {
                let text = error.to_string();
                if text != reported {
                    output::error(error.as_ref());
                    reported = text;
                    screen = Screen::default();
                }
                String::new()
            }
            Err(error) => return Err(error.into()),
        };
        let mut stdout = io::stdout().lock();
        let printed = stdout
            .write_all(shown.as_bytes())
            .and_then(|()| stdout.flush());
        drop(stdout);
        match printed {
            Ok(()) => pause(INTERVAL),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The status for programs; `None` if it is for people.
fn document(args: &StatusArgs, status: &AgentStatus) -> io::Result<Option<String>> {
    let mut text = Vec::new();
    match &args.output {
        StatusOutput::Table | StatusOutput::Wide => return Ok(None),
        StatusOutput::Json => write_json(&mut text, status)?,
        StatusOutput::Yaml => write_yaml(&mut text, status)?,
        StatusOutput::Name => {
            for pod in &status.pods {
                let name = format!("{}/{}", pod.namespace, pod.name);
                writeln!(text, "{}", output::escaped(&name))?;
            }
        }
        StatusOutput::JsonPath(template) => {
            let template = template.parse::<Template>().map_err(io::Error::other)?;
            return Ok(Some(template.render(&serde_json::to_value(status)?)));
        }
    }
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

fn pause(time: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "this command has one thread and nothing else to do"
    )]
    std::thread::sleep(time);
}
