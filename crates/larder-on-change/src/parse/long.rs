//! The long form: a list of hooks with fields.

use std::time::Duration;

use serde_json::Value;
use smol_str::SmolStr;

use super::{
    HookOrigin, default_timing,
    error::{COMMAND_OF_POD, HookError, NO_ACTION, at, two_actions},
    fields::{Field, Fields, ParseContext, check_container},
    http::http,
    timing::timing,
};
use crate::{
    hook::{Action, Command, Hook, OnFailure, Paths, Restart, SignalTarget, Timing},
    signal::{NUMBER, Signal},
};

/// Longest name of a hook, in bytes.
const MAX_NAME: usize = 63;
/// Longest time for a step that an annotation may ask for: a step that waits keeps its place among the rounds of the
/// node.
const MAX_ANNOTATED_TIMEOUT: Duration = Duration::from_mins(5);
/// Longest grace period that an annotation may ask for, and longest time for hooks that do nothing but restart: they wait
/// without a place.
const MAX_ANNOTATED_GRACE: Duration = Duration::from_hours(1);
/// Shortest `min` and `max` of `retry` in an annotation: each attempt costs the node a search for processes.
const MIN_ANNOTATED_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Most bytes of patterns in a hook of an annotation: the time to match a path grows with them.
const MAX_ANNOTATED_PATTERNS: usize = 1 << 10;

/// Reads a list of hooks; one mapping counts as a list of one.
pub(super) fn list(value: &Value, context: ParseContext<'_>) -> Result<Vec<Hook>, HookError> {
    match value {
        Value::Array(hooks) => {
            let hooks = hooks.iter().enumerate();
            hooks
                .map(|(position, value)| hook(value, position, context))
                .collect()
        }
        Value::Object(_) => Ok(vec![hook(value, 0, context)?]),
        _ => Err(HookError::whole("expected a list of hooks")),
    }
}

/// Reads the hook at `position` of its list.
pub(super) fn hook(
    value: &Value,
    position: usize,
    context: ParseContext<'_>,
) -> Result<Hook, HookError> {
    let path = format!("[{position}]");
    let whole = Field {
        path,
        value,
        context,
    };
    let mut fields = whole.fields("a hook with fields")?;
    let name = fields.read("name", name_of_hook)?;
    let volumes = fields.read("volumes", volumes)?;
    let paths = fields.read("paths", paths)?;
    let environment = fields.read("environment", Field::flag)?;
    let container = fields.read("container", container)?;
    let one = action(&mut fields, container.as_ref(), context)?;
    let steps = match (one, fields.take("steps")) {
        (Some(one), None) => vec![one],
        (Some(one), Some(_)) => {
            return Err(whole.error(two_actions(one.word(), "steps")));
        }
        (None, Some(field)) => steps(&field, container.as_ref())?,
        (None, None) => {
            // A misspelled action is reported as an unknown field.
            read_rest(&mut fields);
            fields.finish()?;
            return Err(whole.error(NO_ACTION));
        }
    };
    let timing = timing(&mut fields, default_timing(context.origin, &steps))?;
    if context.is_annotation() {
        check_annotated_times(&whole.path, &steps, timing)?;
    }
    let on_failure = fields.read("onFailure", |field| match field.text()? {
        "Retry" => Ok(OnFailure::Retry),
        "Ignore" => Ok(OnFailure::Ignore),
        "Restart" => {
            let restart = Action::Restart(Restart::default());
            check_action(&field.path, &restart, container.as_ref(), context)?;
            Ok(OnFailure::Restart)
        }
        _ => Err(field.expected("Retry, Ignore or Restart")),
    })?;
    let initial = fields.read("initial", Field::flag)?;
    fields.finish()?;
    Ok(Hook {
        name: name.unwrap_or_else(|| format!("{position}-{}", steps[0].label())),
        volumes,
        paths: paths.unwrap_or_default(),
        environment: environment.unwrap_or_else(|| steps.iter().any(is_restart)),
        container,
        steps,
        timing,
        on_failure: on_failure.unwrap_or_default(),
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
    } else if held(steps, timing) > MAX_ANNOTATED_TIMEOUT {
        ("steps", "timeouts of at most 5m together in an annotation")
    } else {
        return Ok(());
    };
    Err(at(
        format!("{path}.{field}"),
        format!("expected {expected}"),
    ))
}

/// The longest time for which a round of these steps holds a place: one that ends a process holds none.
fn held(steps: &[Action], timing: Timing) -> Duration {
    let steps = steps.iter().filter(|step| !is_restart(step));
    steps
        .map(|step| timing.timeout_of(step, Duration::ZERO))
        .sum()
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

fn volumes(field: &Field<'_>) -> Result<Vec<SmolStr>, HookError> {
    let names = field.strings()?;
    names.iter().try_for_each(|name| field.check_volume(name))?;
    Ok(names.into_iter().map(SmolStr::from).collect())
}

/// A name is shown in every line about the hook, and is a variable of its commands.
fn name_of_hook(field: &Field<'_>) -> Result<String, HookError> {
    let name = field.string()?;
    let is_usable = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(char::is_control);
    if is_usable {
        Ok(name)
    } else {
        Err(field.expected("a name of 1 to 63 bytes without control characters"))
    }
}

fn paths(field: &Field<'_>) -> Result<Paths, HookError> {
    let patterns = field.strings()?;
    let length: usize = patterns.iter().map(String::len).sum();
    if field.context.is_annotation() && length > MAX_ANNOTATED_PATTERNS {
        return Err(field.expected("at most 1 KiB in an annotation"));
    }
    Paths::new(patterns).ok_or_else(|| field.expected("patterns such as *.conf or conf.d/**"))
}

fn container(field: &Field<'_>) -> Result<SmolStr, HookError> {
    let name = field.text()?;
    if let Some(outline) = field.context.outline {
        check_container(name, outline).map_err(|problem| field.error(problem))?;
    }
    Ok(name.into())
}

fn steps(field: &Field<'_>, container: Option<&SmolStr>) -> Result<Vec<Action>, HookError> {
    let mut steps = Vec::new();
    for item in field.items()? {
        let mut fields = item.fields("a step with one action")?;
        let step = action(&mut fields, container, field.context)?;
        fields.finish()?;
        steps.push(step.ok_or_else(|| item.error(NO_ACTION))?);
    }
    if steps.is_empty() {
        return Err(field.expected("at least one step"));
    }
    Ok(steps)
}

/// Takes the one action of a hook or step.
fn action(
    fields: &mut Fields<'_>,
    container: Option<&SmolStr>,
    context: ParseContext<'_>,
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
            return Err(at(path, two_actions(one, other)));
        }
    };
    let action = match *name {
        "signal" => Action::Signal(signal(field)?),
        "http" => Action::Http(http(field)?),
        "restart" => Action::Restart(restart(field)?),
        _ => Action::Exec(exec(field)?),
    };
    check_action(&field.path, &action, container, context)?;
    Ok(Some(action))
}

/// Checks that the hook's source may request the action, and that the action suits the pod.
fn check_action(
    field: &str,
    action: &Action,
    container: Option<&SmolStr>,
    context: ParseContext<'_>,
) -> Result<(), HookError> {
    if let HookOrigin::Annotation(allowed) = context.origin
        && !allowed.allows(action)
    {
        let problem = match action {
            Action::Exec(_) => COMMAND_OF_POD,
            Action::Signal(_) | Action::Http(_) | Action::Restart(_) => {
                "this node does not allow it (onChangeFromPods)"
            }
        };
        return Err(at(field, problem));
    }
    if let (Action::Restart(_), Some(outline)) = (action, context.outline) {
        let mut containers = outline.containers.iter();
        let named = containers.find(|found| Some(&found.name) == container);
        let comes_back =
            outline.restart_policy == "Always" || named.is_some_and(|found| found.is_sidecar);
        // `larder exec` starts its command again by itself.
        if !comes_back && context.origin != HookOrigin::CommandLine {
            let policy = &outline.restart_policy;
            let problem = format!("restartPolicy is {policy}: the container might not come back");
            return Err(at(field, problem));
        }
    }
    Ok(())
}

fn signal_name(field: &Field<'_>) -> Result<Signal, HookError> {
    let signal = if field.value.is_number() {
        Err(NUMBER)
    } else {
        field.text()?.parse()
    };
    signal.map_err(|error| field.error(error))
}

fn signal(field: &Field<'_>) -> Result<SignalTarget, HookError> {
    if !field.value.is_object() {
        let signal = signal_name(field)?;
        return Ok(SignalTarget {
            signal,
            process: None,
        });
    }
    let mut fields = field.fields("a signal")?;
    let signal = fields.read("name", signal_name)?;
    let signal = signal.ok_or_else(|| field.expected("the field name"))?;
    let process = fields.read("process", Field::string)?;
    fields.finish()?;
    Ok(SignalTarget { signal, process })
}

fn restart(field: &Field<'_>) -> Result<Restart, HookError> {
    if field.value == &Value::Bool(true) {
        return Ok(Restart::default());
    }
    let mut fields = field.fields("true, or the fields signal and grace")?;
    let signal = fields.read("signal", signal_name)?;
    let grace = fields.read("grace", |grace| match grace.duration()? {
        given if field.context.is_annotation() && given > MAX_ANNOTATED_GRACE => {
            Err(grace.expected("at most 1h in an annotation"))
        }
        given => Ok(given),
    })?;
    fields.finish()?;
    Ok(Restart {
        signal,
        grace,
        environment_only: false,
    })
}

fn exec(field: &Field<'_>) -> Result<Command, HookError> {
    if field.context.is_annotation() {
        return Err(field.error(COMMAND_OF_POD));
    }
    if field.value.is_array() {
        return Ok(Command::new(words(field)?));
    }
    let mut fields = field.fields("a list of words, or the field command")?;
    let command = fields.take("command");
    let command = command.ok_or_else(|| field.expected("the field command"))?;
    let user = fields.read("user", |user| match field.context.origin {
        // There a hook's command runs as the user of the main command.
        HookOrigin::CommandLine => Err(user.error("only for the agent's configuration")),
        _ => user.string(),
    })?;
    let directory = fields.read("workingDirectory", |directory| {
        match directory.string()? {
            path if path.starts_with('/') => Ok(path),
            _ => Err(directory.expected("an absolute path")),
        }
    })?;
    let env = fields.read("env", |env| env.pairs("variables with their values"))?;
    let log_output = fields.read("logOutput", Field::flag)?;
    fields.finish()?;
    let plain = Command::new(words(&command)?);
    Ok(Command {
        user,
        working_directory: directory.unwrap_or(plain.working_directory),
        env: env.unwrap_or_default(),
        log_output: log_output.unwrap_or(false),
        words: plain.words,
    })
}

fn words(field: &Field<'_>) -> Result<Vec<String>, HookError> {
    let words = field.strings()?;
    let usable = words.first().is_some_and(|program| !program.is_empty())
        && !words.iter().any(|word| word.contains('\0'));
    if usable {
        Ok(words)
    } else {
        Err(field.expected("a program and its arguments"))
    }
}
