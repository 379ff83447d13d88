//! The short form: `none`, `restart`, `restart:environment`, `signal:NAME`, `http:TARGET`, `exec:PATH`.

use larder_objects::{FieldPath, yaml::ShortOr};

use super::{
    HookOrigin,
    error::{COMMAND_OF_POD, HookError, at},
    long,
    place::ParseContext,
    written::{HookFields, NumberOrText},
};
use crate::hook::{Action, Hook, Restart};

/// Longest word that an error quotes: a longer one may be a credential in the wrong place.
const MAX_WORD: usize = 20;

/// Whether the text is in the short form, though it may name an unusable target. Any other text is YAML.
pub fn is_short(text: &str) -> bool {
    let text = text.trim();
    let has_target = |prefix| {
        let target = text.strip_prefix(prefix).unwrap_or_default();
        target.starts_with(|first: char| !first.is_whitespace()) && !target.contains('\n')
    };
    matches!(text, "none" | "restart" | "restart:environment")
        || ["signal:", "http:", "exec:"].into_iter().any(has_target)
}

/// Reads one hook, as the long form that it stands for; `None` for `none`.
pub(super) fn hook(text: &str, context: ParseContext<'_>) -> Result<Option<Hook>, HookError> {
    let has_commands = context.origin == HookOrigin::CommandLine;
    let mut fields = HookFields::default();
    match text.split_once(':') {
        None if text == "none" => return Ok(None),
        None if text == "restart" => fields.restart = Some(ShortOr::Short(true)),
        Some(("restart", "environment")) => {
            fields.restart = Some(ShortOr::Short(true));
            fields.volumes = Some(Vec::new());
        }
        Some(("signal", name)) => {
            fields.signal = Some(ShortOr::Short(NumberOrText::Text(name.to_owned())));
        }
        Some(("http", target)) => fields.http = Some(ShortOr::Short(target.to_owned())),
        Some(("exec", path)) if has_commands && !path.is_empty() => {
            fields.exec = Some(ShortOr::Short(vec![path.to_owned()]));
        }
        Some(("exec", _)) if !has_commands => {
            return Err(at(FieldPath::fields("exec"), COMMAND_OF_POD));
        }
        _ => return Err(unknown(text, has_commands)),
    }
    let mut hook =
        long::hook(fields, 0, context).map_err(|error| HookError::whole(error.problem))?;
    if text == "restart:environment" {
        hook.steps = vec![Action::Restart(Restart {
            environment_only: true,
            ..Restart::default()
        })];
    }
    Ok(Some(hook))
}

fn unknown(text: &str, has_commands: bool) -> HookError {
    let word = text.split(':').next().unwrap_or_default();
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
    let is_quoted = !word.is_empty() && word.len() <= MAX_WORD && word.bytes().all(is_word);
    let quoted = if is_quoted {
        format!("{word:?}: ")
    } else {
        String::new()
    };
    let exec = if has_commands { ", exec:PATH" } else { "" };
    HookError::whole(format!(
        "{quoted}expected none, restart, restart:environment, signal:NAME, http:PORT/PATH{exec} or a list"
    ))
}
