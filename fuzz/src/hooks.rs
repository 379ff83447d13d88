//! Hooks of flags and pod annotations. The first byte chooses the author of the text.

use larder_on_change::{
    Hook,
    parse::{AllowedActions, HookOrigin, MAX_HOOKS, hooks},
};

/// Reads an input; `None` if it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    let text = str::from_utf8(input).ok()?;
    let (origin, text) = if let Some(text) = text.strip_prefix('c') {
        (HookOrigin::CommandLine, text)
    } else {
        let allowed = HookOrigin::Annotation(AllowedActions::default());
        (allowed, text.strip_prefix('a').unwrap_or(text))
    };
    let hooks = hooks(text, origin, None).ok()?;
    assert!(hooks.len() <= MAX_HOOKS);
    let runs_commands = hooks.iter().any(Hook::runs_commands);
    assert!(origin == HookOrigin::CommandLine || !runs_commands);
    Some(())
}
