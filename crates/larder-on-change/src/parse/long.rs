//! The long form: a list of hooks with fields.

use std::time::Duration;

use larder_objects::{FieldPath, yaml::ShortOr};
use smol_str::SmolStr;

use super::{
    HookOrigin, default_timing,
    error::{COMMAND_OF_POD, HookError, NO_ACTION, two_actions},
    http::http,
    place::{FieldPlace, ParseContext, check_container},
    timing::timing,
    written::{
        ExecField, ExecFields, HookFields, NumberOrText, OnFailureWord, Pause, RestartField,
        SignalField, StepFields,
    },
};
use crate::{
    hook::{Action, Command, Hook, OnFailure, Paths, Restart, SignalTarget, Timing},
    outline::ContainerRole,
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

/// Checks a list of hooks.
pub(super) fn list(
    hooks: Vec<HookFields>,
    context: ParseContext<'_>,
) -> Result<Vec<Hook>, HookError> {
    hooks
        .into_iter()
        .enumerate()
        .map(|(position, fields)| hook(fields, position, context))
        .collect()
}

/// Checks the hook at `position` of its list.
pub(super) fn hook(
    mut fields: HookFields,
    position: usize,
    context: ParseContext<'_>,
) -> Result<Hook, HookError> {
    let place = FieldPlace {
        path: FieldPath::root().index(position),
        context,
    };
    check_selected_content(&fields, &place)?;
    let steps = steps_of(&mut fields, &place)?;
    let timing = timing(&fields, default_timing(context.origin, &steps), &place)?;
    if place.is_annotation() {
        check_annotated_times(&place, &steps, timing)?;
    }
    let container = fields.container;
    let on_failure = match fields.on_failure {
        None | Some(OnFailureWord::Retry) => OnFailure::Retry,
        Some(OnFailureWord::Ignore) => OnFailure::Ignore,
        Some(OnFailureWord::Restart) => {
            let restart = Action::Restart(Restart::default());
            check_action(&place.child("onFailure"), &restart, container.as_ref())?;
            OnFailure::Restart
        }
    };
    let paths = fields.paths.unwrap_or_default();
    Ok(Hook {
        name: fields
            .name
            .unwrap_or_else(|| format!("{}-{}", context.before + position, steps[0].label())),
        volumes: fields.volumes,
        paths: paths_of(paths, &place.child("paths"))?,
        environment: fields
            .environment
            .unwrap_or_else(|| steps.iter().any(is_restart)),
        container,
        steps,
        timing,
        on_failure,
        initial: fields.initial.unwrap_or(false),
    })
}

/// Checks what identifies the hook and the content that it selects.
fn check_selected_content(hook: &HookFields, place: &FieldPlace<'_>) -> Result<(), HookError> {
    for (name, is_given) in [
        ("pods", hook.pods.is_some()),
        ("selector", hook.selector.is_some()),
    ] {
        if is_given {
            return Err(place.error(format!("unknown field {name:?}")));
        }
    }
    if let Some(name) = &hook.name {
        check_name(name, &place.child("name"))?;
    }
    for name in hook.volumes.iter().flatten() {
        place.child("volumes").check_volume(name)?;
    }
    if let (Some(name), Some(outline)) = (&hook.container, place.context.outline) {
        check_container(name, outline)
            .map_err(|problem| place.child("container").error(problem))?;
    }
    Ok(())
}

/// A name is shown in every line about the hook, and is a variable of its commands.
fn check_name(name: &str, place: &FieldPlace<'_>) -> Result<(), HookError> {
    let is_usable = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(char::is_control);
    if is_usable {
        Ok(())
    } else {
        Err(place.expected("a name of 1 to 63 bytes without control characters"))
    }
}

fn paths_of(patterns: Vec<String>, place: &FieldPlace<'_>) -> Result<Paths, HookError> {
    let length: usize = patterns.iter().map(String::len).sum();
    if place.is_annotation() && length > MAX_ANNOTATED_PATTERNS {
        return Err(place.expected("at most 1 KiB in an annotation"));
    }
    Paths::new(patterns).ok_or_else(|| place.expected("patterns such as *.conf or conf.d/**"))
}

/// The steps of the hook: its one action, or those of `steps`.
fn steps_of(hook: &mut HookFields, place: &FieldPlace<'_>) -> Result<Vec<Action>, HookError> {
    let own = StepFields {
        signal: hook.signal.take(),
        http: hook.http.take(),
        restart: hook.restart.take(),
        exec: hook.exec.take(),
    };
    let container = hook.container.as_ref();
    let Some(steps) = hook.steps.take() else {
        let action = action(own, container, place)?;
        return Ok(vec![action.ok_or_else(|| place.error(NO_ACTION))?]);
    };
    if let Some(one) = own.first_word() {
        return Err(place.error(two_actions(one, "steps")));
    }
    let place = place.child("steps");
    if steps.is_empty() {
        return Err(place.expected("at least one step"));
    }
    let actions = steps.into_iter().enumerate().map(|(index, step)| {
        let place = place.index(index);
        action(step, container, &place)?.ok_or_else(|| place.error(NO_ACTION))
    });
    actions.collect()
}

fn is_restart(step: &Action) -> bool {
    matches!(step, Action::Restart(_))
}

/// Checks the times of an annotated hook: it must not hold up those of other pods, nor keep the node busy (rule S8).
fn check_annotated_times(
    place: &FieldPlace<'_>,
    steps: &[Action],
    timing: Timing,
) -> Result<(), HookError> {
    let only_restarts = steps.iter().all(is_restart);
    let (max_timeout, at_most) = if only_restarts {
        (MAX_ANNOTATED_GRACE, "at most 1h in an annotation")
    } else {
        (MAX_ANNOTATED_TIMEOUT, "at most 5m in an annotation")
    };
    let retry = timing.retry;
    let retry_place = place.child("retry");
    let (place, expected) = if timing.timeout.is_some_and(|timeout| timeout > max_timeout) {
        (place.child("timeout"), at_most)
    } else if retry.min < MIN_ANNOTATED_RETRY.0 {
        (retry_place.child("min"), "at least 1s in an annotation")
    } else if retry.max < MIN_ANNOTATED_RETRY.1 {
        (retry_place.child("max"), "at least 1m in an annotation")
    } else if held(steps, timing) > MAX_ANNOTATED_TIMEOUT {
        let together = "timeouts of at most 5m together in an annotation";
        (place.child("steps"), together)
    } else {
        return Ok(());
    };
    Err(place.expected(expected))
}

/// The longest time for which a round of these steps holds a place: one that ends a process holds none.
fn held(steps: &[Action], timing: Timing) -> Duration {
    steps
        .iter()
        .filter(|step| !is_restart(step))
        .map(|step| timing.timeout_of(step, Duration::ZERO))
        .sum()
}

impl StepFields {
    /// The words of the actions, in the order in which errors name them.
    fn words(&self) -> impl Iterator<Item = &'static str> {
        let has_restart = !matches!(self.restart, None | Some(ShortOr::Short(false)));
        [
            ("signal", self.signal.is_some()),
            ("http", self.http.is_some()),
            ("restart", has_restart),
            ("exec", self.exec.is_some()),
        ]
        .into_iter()
        .filter(|(_, is_given)| *is_given)
        .map(|(word, _)| word)
    }

    fn first_word(&self) -> Option<&'static str> {
        self.words().next()
    }
}

/// The one action of the hook or step at `place`.
fn action(
    fields: StepFields,
    container: Option<&SmolStr>,
    place: &FieldPlace<'_>,
) -> Result<Option<Action>, HookError> {
    let mut words = fields.words();
    let Some(word) = words.next() else {
        return Ok(None);
    };
    if let Some(other) = words.next() {
        return Err(place.error(two_actions(word, other)));
    }
    drop(words);
    let place = place.child(word);
    let action = match fields {
        StepFields {
            signal: Some(field),
            ..
        } => Action::Signal(signal(field, &place)?),
        StepFields {
            http: Some(field), ..
        } => Action::Http(http(field, &place)?),
        StepFields {
            exec: Some(field), ..
        } => Action::Exec(exec(field, &place)?),
        StepFields { restart, .. } => Action::Restart(restart_of(restart, &place)?),
    };
    check_action(&place, &action, container)?;
    Ok(Some(action))
}

/// Checks that the hook's source may request the action, and that the action suits the pod.
fn check_action(
    place: &FieldPlace<'_>,
    action: &Action,
    container: Option<&SmolStr>,
) -> Result<(), HookError> {
    let context = place.context;
    if let HookOrigin::Annotation(allowed) = context.origin
        && !allowed.allows(action)
    {
        let problem = match action {
            Action::Exec(_) => COMMAND_OF_POD,
            Action::Signal(_) | Action::Http(_) | Action::Restart(_) => {
                "this node does not allow it (onChangeFromPods)"
            }
        };
        return Err(place.error(problem));
    }
    if let (Action::Restart(_), Some(outline)) = (action, context.outline) {
        let mut containers = outline.containers.iter();
        let named = containers.find(|found| Some(&found.name) == container);
        let comes_back = outline.restart_policy == "Always"
            || named.is_some_and(|found| found.role == ContainerRole::Sidecar);
        // `larder exec` starts its command again by itself.
        if !comes_back && context.origin != HookOrigin::CommandLine {
            let policy = &outline.restart_policy;
            let problem = format!("restartPolicy is {policy}: the container might not come back");
            return Err(place.error(problem));
        }
    }
    Ok(())
}

fn signal_name(name: &NumberOrText, place: &FieldPlace<'_>) -> Result<Signal, HookError> {
    let signal = match name {
        NumberOrText::Number(_) => Err(NUMBER),
        NumberOrText::Text(name) => name.parse(),
    };
    signal.map_err(|error| place.error(error))
}

fn signal(field: SignalField, place: &FieldPlace<'_>) -> Result<SignalTarget, HookError> {
    Ok(match field {
        ShortOr::Short(name) => SignalTarget {
            signal: signal_name(&name, place)?,
            process: None,
        },
        ShortOr::Fields(fields) => SignalTarget {
            signal: signal_name(&fields.name, &place.child("name"))?,
            process: fields.process,
        },
    })
}

fn restart_of(field: Option<RestartField>, place: &FieldPlace<'_>) -> Result<Restart, HookError> {
    let Some(ShortOr::Fields(fields)) = field else {
        return Ok(Restart::default());
    };
    let signal = fields
        .signal
        .as_ref()
        .map(|name| signal_name(name, &place.child("signal")));
    let grace = fields.grace.map(|Pause(grace)| grace);
    if place.is_annotation() && grace.is_some_and(|grace| grace > MAX_ANNOTATED_GRACE) {
        return Err(place.child("grace").expected("at most 1h in an annotation"));
    }
    Ok(Restart {
        signal: signal.transpose()?,
        grace,
        environment_only: false,
    })
}

fn exec(field: ExecField, place: &FieldPlace<'_>) -> Result<Command, HookError> {
    if place.is_annotation() {
        return Err(place.error(COMMAND_OF_POD));
    }
    match field {
        ShortOr::Short(words) => Ok(Command::new(checked_words(words, place)?)),
        ShortOr::Fields(fields) => exec_fields(fields, place),
    }
}

fn exec_fields(fields: ExecFields, place: &FieldPlace<'_>) -> Result<Command, HookError> {
    // There a hook's command runs as the user of the main command.
    if fields.user.is_some() && place.context.origin == HookOrigin::CommandLine {
        return Err(place
            .child("user")
            .error("only for the agent's configuration"));
    }
    let directory = fields.working_directory;
    if directory
        .as_ref()
        .is_some_and(|path| !path.starts_with('/'))
    {
        return Err(place.child("workingDirectory").expected("an absolute path"));
    }
    let env = fields.env.unwrap_or_default();
    let plain = Command::new(checked_words(fields.command, &place.child("command"))?);
    Ok(Command {
        user: fields.user,
        working_directory: directory.unwrap_or(plain.working_directory),
        env: place.child("env").one_line_pairs(env)?,
        log_output: fields.log_output.unwrap_or(false),
        words: plain.words,
    })
}

fn checked_words(words: Vec<String>, place: &FieldPlace<'_>) -> Result<Vec<String>, HookError> {
    let usable = words.first().is_some_and(|program| !program.is_empty())
        && !words.iter().any(|word| word.contains('\0'));
    if usable {
        Ok(words)
    } else {
        Err(place.expected("a program and its arguments"))
    }
}
