//! The long form: a list of hooks with fields.

use std::time::Duration;

use serde_json::Value;
use smol_str::SmolStr;

use super::{
    HookOrigin, default_timing,
    error::{HookError, Problem, at},
    fields::{Field, Fields},
    http::http,
    timing::timing,
};
use crate::{
    facts::{ContainerFacts, PodFacts},
    hook::{Action, Command, Hook, OnFailure, Paths, Restart, SignalTarget, Timing},
    signal::Signal,
};

/// Longest name of a hook, in bytes.
const MAX_NAME: usize = 63;
/// Longest time for a step that an annotation may ask for: a step that waits keeps its place among the rounds of the
/// node.
const MAX_ANNOTATED_TIMEOUT: Duration = Duration::from_mins(5);
/// Longest grace period that an annotation may ask for, and longest time for hooks that do nothing but restart: they wait
/// without a place.
const MAX_ANNOTATED_GRACE: Duration = Duration::from_hours(1);
/// Shortest [`Retry::min`] and [`Retry::max`] of an annotation: each attempt costs the node a search for processes.
const MIN_ANNOTATED_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Most bytes of patterns in a hook of an annotation: the time to match a path grows with them.
const MAX_ANNOTATED_PATTERNS: usize = 1 << 10;

/// Reads a list of hooks; one mapping counts as a list of one.
pub(super) fn list(
    value: &Value,
    origin: HookOrigin,
    facts: Option<&PodFacts>,
) -> Result<Vec<Hook>, HookError> {
    match value {
        Value::Array(hooks) => {
            let hooks = hooks.iter().enumerate();
            hooks
                .map(|(position, value)| hook(value, position, origin, facts))
                .collect()
        }
        Value::Object(_) => Ok(vec![hook(value, 0, origin, facts)?]),
        _ => Err(HookError::whole(Problem::Expected("a list of hooks"))),
    }
}

/// Reads the hook at `position` of its list.
pub(super) fn hook(
    value: &Value,
    position: usize,
    origin: HookOrigin,
    facts: Option<&PodFacts>,
) -> Result<Hook, HookError> {
    let path = format!("[{position}]");
    let mut fields = Fields::of(path.clone(), value, "a hook with fields")?;
    let name = fields
        .take("name")
        .map(|field| name_of_hook(&field))
        .transpose()?;
    let volumes = fields
        .take("volumes")
        .map(|field| volumes(&field, facts))
        .transpose()?;
    let paths = fields
        .take("paths")
        .map(|field| paths(&field, origin))
        .transpose()?;
    let environment = fields
        .take("environment")
        .map(|field| field.flag())
        .transpose()?;
    let container = fields
        .take("container")
        .map(|field| container(&field, facts))
        .transpose()?;
    let one = action(&mut fields, origin, container.as_ref(), facts)?;
    let steps = match (one, fields.take("steps")) {
        (Some(one), None) => vec![one],
        (Some(one), Some(_)) => {
            let (one, other) = (one.word(), "steps");
            return Err(at(path, Problem::TwoActions { one, other }));
        }
        (None, Some(field)) => steps(&field, origin, container.as_ref(), facts)?,
        (None, None) => {
            // A misspelled action is reported as an unknown field.
            read_rest(&mut fields);
            fields.finish()?;
            return Err(at(path, Problem::NoAction));
        }
    };
    let timing = timing(&mut fields, default_timing(origin, &steps))?;
    if let HookOrigin::Annotation(_) = origin {
        check_annotated_times(&path, &steps, timing)?;
    }
    let on_failure = match fields.take("onFailure") {
        None => OnFailure::default(),
        Some(field) => match field.text()? {
            "Retry" => OnFailure::Retry,
            "Ignore" => OnFailure::Ignore,
            "Restart" => OnFailure::Restart,
            _ => return Err(field.error(Problem::Expected("Retry, Ignore or Restart"))),
        },
    };
    if on_failure == OnFailure::Restart {
        let field = format!("{path}.onFailure");
        check_action(
            &field,
            &Action::Restart(Restart::default()),
            origin,
            container.as_ref(),
            facts,
        )?;
    }
    let initial = fields
        .take("initial")
        .map(|field| field.flag())
        .transpose()?;
    fields.finish()?;
    Ok(Hook {
        name: name.unwrap_or_else(|| format!("{position}-{}", steps[0].word())),
        volumes,
        paths: paths.unwrap_or_default(),
        environment: environment.unwrap_or_else(|| steps.iter().any(is_restart)),
        container,
        steps,
        timing,
        on_failure,
        initial: initial.unwrap_or(false),
    })
}

fn is_restart(step: &Action) -> bool {
    matches!(step, Action::Restart(_))
}

/// Checks the times of an annotated hook: it must not hold up those of other pods, nor keep the node busy (rule S8).
fn check_annotated_times(path: &str, steps: &[Action], timing: Timing) -> Result<(), HookError> {
    let only_restarts = steps.iter().all(is_restart);
    let (max_timeout, at_most) = if only_restarts {
        (MAX_ANNOTATED_GRACE, "at most 1h in an annotation")
    } else {
        (MAX_ANNOTATED_TIMEOUT, "at most 5m in an annotation")
    };
    let retry = timing.retry;
    let (field, expected) = if timing.timeout.is_some_and(|timeout| timeout > max_timeout) {
        ("timeout", at_most)
    } else if retry.min < MIN_ANNOTATED_RETRY.0 {
        ("retry.min", "at least 1s in an annotation")
    } else if retry.max < MIN_ANNOTATED_RETRY.1 {
        ("retry.max", "at least 1m in an annotation")
    } else {
        return Ok(());
    };
    Err(at(format!("{path}.{field}"), Problem::Expected(expected)))
}

/// Marks the fields that follow the action as known.
fn read_rest(fields: &mut Fields<'_>) {
    for name in [
        "debounce",
        "splay",
        "timeout",
        "retry",
        "onFailure",
        "initial",
    ] {
        fields.take(name);
    }
}

fn volumes(field: &Field<'_>, facts: Option<&PodFacts>) -> Result<Vec<SmolStr>, HookError> {
    let names = field.texts()?;
    if let Some(facts) = facts {
        for name in &names {
            field.check_volume(name, facts)?;
        }
    }
    Ok(names.into_iter().map(SmolStr::from).collect())
}

/// A name is shown in every line about the hook, and is a variable of its commands.
fn name_of_hook(field: &Field<'_>) -> Result<String, HookError> {
    let name = field.text()?;
    let is_usable = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(char::is_control);
    if is_usable {
        Ok(name.to_owned())
    } else {
        Err(field.error(Problem::Expected(
            "a name of 1 to 63 bytes without control characters",
        )))
    }
}

fn paths(field: &Field<'_>, origin: HookOrigin) -> Result<Paths, HookError> {
    let patterns = field.texts()?;
    let length: usize = patterns.iter().map(|pattern| pattern.len()).sum();
    if matches!(origin, HookOrigin::Annotation(_)) && length > MAX_ANNOTATED_PATTERNS {
        return Err(field.error(Problem::Expected("at most 1 KiB in an annotation")));
    }
    let patterns = patterns.into_iter().map(str::to_owned).collect();
    Paths::new(patterns)
        .map_err(|_| field.error(Problem::Expected("patterns such as *.conf or conf.d/**")))
}

fn container(field: &Field<'_>, facts: Option<&PodFacts>) -> Result<SmolStr, HookError> {
    let name = field.text()?;
    if let Some(facts) = facts {
        let shown = || name.chars().take(64).collect();
        match facts
            .containers
            .iter()
            .find(|container| container.name == name)
        {
            Some(ContainerFacts { is_init: true, .. }) => {
                return Err(field.error(Problem::InitContainer { name: shown() }));
            }
            Some(_) => {}
            None => return Err(field.error(Problem::UnknownContainer { name: shown() })),
        }
    }
    Ok(name.into())
}

fn steps(
    field: &Field<'_>,
    origin: HookOrigin,
    container: Option<&SmolStr>,
    facts: Option<&PodFacts>,
) -> Result<Vec<Action>, HookError> {
    let mut steps = Vec::new();
    for item in field.items()? {
        let mut fields = Fields::of(item.path.clone(), item.value, "a step with one action")?;
        let step = action(&mut fields, origin, container, facts)?;
        fields.finish()?;
        steps.push(step.ok_or_else(|| item.error(Problem::NoAction))?);
    }
    if steps.is_empty() {
        return Err(field.error(Problem::Expected("at least one step")));
    }
    Ok(steps)
}

/// Takes the one action of a hook or step.
fn action(
    fields: &mut Fields<'_>,
    origin: HookOrigin,
    container: Option<&SmolStr>,
    facts: Option<&PodFacts>,
) -> Result<Option<Action>, HookError> {
    let found: Vec<_> = ["signal", "http", "restart", "exec"]
        .into_iter()
        .filter_map(|name| Some((name, fields.take(name)?)))
        .filter(|(name, field)| *name != "restart" || field.value != &Value::Bool(false))
        .collect();
    let (name, field) = match found.as_slice() {
        [] => return Ok(None),
        [one] => one,
        [(one, field), (other, _), ..] => {
            let path = field.path.trim_end_matches(one).trim_end_matches('.');
            return Err(at(path, Problem::TwoActions { one, other }));
        }
    };
    let action = match *name {
        "signal" => Action::Signal(signal(field)?),
        "http" => Action::Http(http(field, origin, facts)?),
        "restart" => Action::Restart(restart(field, origin)?),
        _ => Action::Exec(exec(field, origin)?),
    };
    check_action(&field.path, &action, origin, container, facts)?;
    Ok(Some(action))
}

/// Checks that the hook's source may request the action, and that the action suits the pod.
pub(super) fn check_action(
    field: &str,
    action: &Action,
    origin: HookOrigin,
    container: Option<&SmolStr>,
    facts: Option<&PodFacts>,
) -> Result<(), HookError> {
    if let HookOrigin::Annotation(allowed) = origin
        && !allowed.allows(action)
    {
        let problem = match action {
            Action::Exec(_) => Problem::CommandOfPod,
            Action::Signal(_) | Action::Http(_) | Action::Restart(_) => Problem::NotAllowed,
        };
        return Err(at(field, problem));
    }
    if let (Action::Restart(_), Some(facts)) = (action, facts) {
        let named = facts
            .containers
            .iter()
            .find(|facts| Some(&facts.name) == container);
        let comes_back =
            facts.restart_policy == "Always" || named.is_some_and(|facts| facts.is_sidecar);
        // `larder exec` starts its command again by itself.
        if !comes_back && origin != HookOrigin::CommandLine {
            let policy = facts.restart_policy.to_string();
            return Err(at(field, Problem::NotRestarted { policy }));
        }
    }
    Ok(())
}

fn signal_name(field: &Field<'_>) -> Result<Signal, HookError> {
    if field.value.is_number() {
        return Err(field.error(Problem::Signal(crate::signal::SignalError::Number)));
    }
    field
        .text()?
        .parse()
        .map_err(|error| field.error(Problem::Signal(error)))
}

fn signal(field: &Field<'_>) -> Result<SignalTarget, HookError> {
    if !field.value.is_object() {
        let signal = signal_name(field)?;
        return Ok(SignalTarget {
            signal,
            process: None,
        });
    }
    let mut fields = Fields::of(field.path.clone(), field.value, "a signal")?;
    let name = fields
        .take("name")
        .ok_or_else(|| field.error(Problem::Expected("the field name")))?;
    let signal = signal_name(&name)?;
    let process = fields
        .take("process")
        .map(|field| field.text().map(str::to_owned))
        .transpose()?;
    fields.finish()?;
    Ok(SignalTarget { signal, process })
}

fn restart(field: &Field<'_>, origin: HookOrigin) -> Result<Restart, HookError> {
    if field.value == &Value::Bool(true) {
        return Ok(Restart::default());
    }
    let mut fields = Fields::of(
        field.path.clone(),
        field.value,
        "true, or the fields signal and grace",
    )?;
    let signal = fields
        .take("signal")
        .map(|field| signal_name(&field))
        .transpose()?;
    let mut grace = None;
    if let Some(field) = fields.take("grace") {
        let given = field.duration()?;
        if matches!(origin, HookOrigin::Annotation(_)) && given > MAX_ANNOTATED_GRACE {
            return Err(field.error(Problem::Expected("at most 1h in an annotation")));
        }
        grace = Some(given);
    }
    fields.finish()?;
    Ok(Restart {
        signal: signal.unwrap_or(Signal::Term),
        grace,
        environment_only: false,
    })
}

fn exec(field: &Field<'_>, origin: HookOrigin) -> Result<Command, HookError> {
    if let HookOrigin::Annotation(_) = origin {
        return Err(field.error(Problem::CommandOfPod));
    }
    let mut command = Command {
        words: Vec::new(),
        user: None,
        working_directory: "/".to_owned(),
        env: Vec::new(),
        log_output: false,
    };
    let words = if field.value.is_array() {
        words(field)?
    } else {
        let mut fields = Fields::of(
            field.path.clone(),
            field.value,
            "a list of words, or the field command",
        )?;
        let words_field = fields
            .take("command")
            .ok_or_else(|| field.error(Problem::Expected("the field command")))?;
        if let Some(user) = fields.take("user") {
            if origin == HookOrigin::CommandLine {
                // There a hook's command runs as the user of the main command.
                return Err(user.error(Problem::OnlyFor("the agent's configuration")));
            }
            command.user = Some(user.text()?.to_owned());
        }
        if let Some(directory) = fields.take("workingDirectory") {
            directory.text()?.clone_into(&mut command.working_directory);
            if !command.working_directory.starts_with('/') {
                return Err(directory.error(Problem::Expected("an absolute path")));
            }
        }
        if let Some(env) = fields.take("env") {
            command.env = env.pairs("variables with their values")?;
        }
        if let Some(log_output) = fields.take("logOutput") {
            command.log_output = log_output.flag()?;
        }
        fields.finish()?;
        words(&words_field)?
    };
    Ok(Command { words, ..command })
}

fn words(field: &Field<'_>) -> Result<Vec<String>, HookError> {
    let words: Vec<_> = field.texts()?.into_iter().map(str::to_owned).collect();
    let usable = words.first().is_some_and(|program| !program.is_empty())
        && !words.iter().any(|word| word.contains('\0'));
    if usable {
        Ok(words)
    } else {
        Err(field.error(Problem::Expected("a program and its arguments")))
    }
}
