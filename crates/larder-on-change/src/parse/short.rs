//! The short form: `none`, `restart`, `restart:environment`, `signal:NAME`, `http:TARGET`, `exec:PATH`.

use serde_json::json;

use super::{
    HookOrigin,
    error::{COMMAND_OF_POD, HookError, at},
    fields::ParseContext,
    long,
};
use crate::hook::{Action, Hook, Restart};

/// Reads one hook, as the long form that it stands for; `None` for `none`.
pub(super) fn hook(text: &str, context: ParseContext<'_>) -> Result<Option<Hook>, HookError> {
    let has_commands = context.origin == HookOrigin::CommandLine;
    let fields = match text.split_once(':') {
        None if text == "none" => return Ok(None),
        None if text == "restart" => json!({"restart": true}),
        Some(("restart", "environment")) => json!({"restart": true, "volumes": []}),
        Some(("signal", name)) => json!({"signal": name}),
        Some(("http", target)) => json!({"http": target}),
        Some(("exec", path)) if has_commands && !path.is_empty() => json!({"exec": [path]}),
        Some(("exec", _)) if !has_commands => return Err(at("exec", COMMAND_OF_POD)),
        _ => {
            let start: String = text.chars().take(64).collect();
            let exec = if has_commands { ", exec:PATH" } else { "" };
            return Err(HookError::whole(format!(
                "{start:?}: expected none, restart, restart:environment, signal:NAME, http:PORT/PATH{exec} or a list"
            )));
        }
    };
    let hook = long::hook(&fields, 0, context);
    let mut hook = hook.map_err(|error| HookError::whole(error.problem))?;
    if text == "restart:environment" {
        hook.steps = vec![Action::Restart(Restart {
            environment_only: true,
            ..Restart::default()
        })];
    }
    Ok(Some(hook))
}
