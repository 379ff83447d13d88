//! The short form: `none`, `restart`, `restart:environment`, `signal:NAME`, `http:TARGET`, `exec:PATH`.

use super::{
    HookOrigin,
    error::{COMMAND_OF_POD, HookError, at},
    fields::ParseContext,
    http::http_call,
    long::check_action,
};
use crate::hook::{Action, Command, Hook, Restart, SignalTarget};

/// Reads one hook; `None` for `none`.
pub(super) fn hook(text: &str, context: ParseContext<'_>) -> Result<Option<Hook>, HookError> {
    let origin = context.origin;
    let unknown = || {
        let start: String = text.chars().take(64).collect();
        let exec = if origin == HookOrigin::CommandLine {
            ", exec:PATH"
        } else {
            ""
        };
        HookError::whole(format!(
            "{start:?}: expected none, restart, restart:environment, signal:NAME, http:PORT/PATH{exec} or a list"
        ))
    };
    let action = match text.split_once(':') {
        None if text == "none" => return Ok(None),
        None if text == "restart" => Action::Restart(Restart::default()),
        Some(("restart", "environment")) => Action::Restart(Restart {
            environment_only: true,
            ..Restart::default()
        }),
        Some(("signal", name)) => {
            let signal = name
                .parse()
                .map_err(|error: &str| HookError::whole(error))?;
            Action::Signal(SignalTarget {
                signal,
                process: None,
            })
        }
        Some(("http", target)) => Action::Http(http_call("", target, context)?),
        Some(("exec", path)) if origin == HookOrigin::CommandLine && !path.is_empty() => {
            Action::Exec(Command::new(vec![path.to_owned()]))
        }
        Some(("exec", _)) if origin != HookOrigin::CommandLine => {
            return Err(at("exec", COMMAND_OF_POD));
        }
        _ => return Err(unknown()),
    };
    check_action("", &action, None, context)?;
    let environment_only = matches!(action, Action::Restart(restart) if restart.environment_only);
    let environment = matches!(action, Action::Restart(_));
    let steps = vec![action];
    let (name, timing) = (
        format!("0-{}", steps[0].label()),
        super::default_timing(origin, &steps),
    );
    Ok(Some(Hook {
        volumes: environment_only.then(Vec::new),
        environment,
        ..Hook::new(name, steps, timing)
    }))
}
