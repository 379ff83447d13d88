//! Hooks of flags and pod annotations. The first byte chooses the author of the text.

use larder_on_change::{
    Hook,
    parse::{AllowedActions, HookOrigin, MAX_HOOKS, hooks},
};

use super::{Reader::OfText, Target};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target =
    Target::new("hooks", OfText(run), Structure::Tree { prefix: 1 }, 4 << 10);

fn run(text: &str) -> Outcome {
    let (origin, text) = if let Some(text) = text.strip_prefix('c') {
        (HookOrigin::CommandLine, text)
    } else {
        let allowed = HookOrigin::Annotation(AllowedActions::default());
        (allowed, text.strip_prefix('a').unwrap_or(text))
    };
    match hooks(text, origin, None) {
        Ok(hooks) => {
            assert!(hooks.len() <= MAX_HOOKS);
            let runs_commands = hooks.iter().any(Hook::runs_commands);
            assert!(origin == HookOrigin::CommandLine || !runs_commands);
            let shown = hooks.iter().fold(Outcome::accepted(), |outcome, hook| {
                outcome.with(&format!("{hook:?}"))
            });
            shown.with_size(hooks.len())
        }
        // Quoted strings do not count: the rule does, and not the names in it.
        Err(error) => Outcome::rejected(&format!("{error:?}")),
    }
}
