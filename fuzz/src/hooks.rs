//! Hooks of flags and pod annotations. The first byte chooses the author of the text.

use larder_on_change::{
    Hook,
    parse::{AllowedActions, HookOrigin, MAX_HOOKS, hooks},
};

/// Reads an input. Returns whether it was accepted.
pub fn run(input: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(input) else {
        return false;
    };
    let (origin, text) = if let Some(text) = text.strip_prefix('c') {
        (HookOrigin::CommandLine, text)
    } else {
        let allowed = HookOrigin::Annotation(AllowedActions::default());
        (allowed, text.strip_prefix('a').unwrap_or(text))
    };
    let Ok(hooks) = hooks(text, origin, None) else {
        return false;
    };
    assert!(hooks.len() <= MAX_HOOKS);
    let runs_commands = hooks.iter().any(Hook::runs_commands);
    assert!(origin == HookOrigin::CommandLine || !runs_commands);
    true
}
