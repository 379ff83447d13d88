//! Flags that define hooks, and the timing of those in the short form.

use std::{path::Path, time::Duration};

use larder_files::regular_file::read_regular_text;
use larder_objects::chain;
use larder_on_change::{
    Debounce, Hook, PodOutline, Retry,
    parse::{self, HookError, HookOrigin, MAX_TEXT},
};

use super::values::duration;

/// The action after a change.
#[derive(Debug, clap::Args)]
pub(crate) struct OnChangeArgs {
    /// Action on a change: none, signal:NAME, restart, restart:environment, http:PORT/PATH, exec:PROGRAM, or a list of
    /// hooks; several times
    #[arg(long, value_name = "ACTION|@FILE|LIST", value_parser = hook_text, allow_hyphen_values = true)]
    pub(crate) on_change: Vec<HookText>,

    /// Act when nothing has changed for MIN, or MAX after the first change, e.g. 1s:10s
    #[arg(long = "on-change-debounce", value_name = "MIN[:MAX]", requires = "on_change", value_parser = debounce)]
    pub(crate) debounce: Option<Debounce>,

    /// Longest random pause before an action
    #[arg(long = "on-change-splay", value_name = "DURATION", requires = "on_change", value_parser = duration)]
    pub(crate) splay: Option<Duration>,

    /// Longest time for an action [default: signal and http 10s, exec 30s]
    #[arg(long = "on-change-timeout", value_name = "DURATION", requires = "on_change", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,

    /// Pauses after failures, doubling, and the number of attempts, e.g. 1s:1m:5 [default: 1s:5m, no limit]
    #[arg(long = "on-change-retry", value_name = "MIN:MAX[:ATTEMPTS]", requires = "on_change", value_parser = retry)]
    pub(crate) retry: Option<Retry>,
}

/// The text of one `--on-change`, which has been read once.
#[derive(Clone, Debug)]
pub(crate) struct HookText {
    /// The file, if the text comes from one.
    file: Option<String>,
    text: String,
}

impl OnChangeArgs {
    /// The hooks, checked against the pod. An error has its place.
    pub(crate) fn hooks(&self, outline: &PodOutline) -> Result<Vec<Hook>, String> {
        let mut all = Vec::new();
        for text in &self.on_change {
            let mut hooks = text
                .hooks(all.len(), Some(outline))
                .map_err(|error| format!("--on-change {}", text.place(&error)))?;
            if parse::is_short(&text.text) {
                for hook in &mut hooks {
                    self.set_timing(hook);
                }
            }
            all.extend(hooks);
        }
        parse::check_together(&all).map_err(|error| format!("--on-change {error}"))?;
        Ok(all)
    }

    /// Whether there is anything to do after a change.
    pub(crate) fn is_active(&self) -> bool {
        self.on_change
            .iter()
            .any(|text| text.hooks(0, None).is_ok_and(|hooks| !hooks.is_empty()))
    }

    fn set_timing(&self, hook: &mut Hook) {
        let timing = &mut hook.timing;
        timing.debounce = self.debounce.unwrap_or(timing.debounce);
        timing.splay = self.splay.unwrap_or(timing.splay);
        timing.timeout = self.timeout.or(timing.timeout);
        timing.retry = self.retry.unwrap_or(timing.retry);
    }
}

impl HookText {
    /// The hooks, of which `before` come before. A name by position counts the hooks of all flags.
    fn hooks(&self, before: usize, outline: Option<&PodOutline>) -> Result<Vec<Hook>, HookError> {
        parse::hooks_after(before, &self.text, HookOrigin::CommandLine, outline)
    }

    /// The error with its place: in a file also the line.
    fn place(&self, error: &HookError) -> String {
        match &self.file {
            Some(file) => error.in_file(file),
            None => error.to_string(),
        }
    }
}

/// Parses `--on-change`: reads a file, and checks the form.
fn hook_text(text: &str) -> Result<HookText, String> {
    let file = text.strip_prefix('@').map(str::to_owned);
    let read = file.as_deref().map(read).transpose()?;
    let text = read.unwrap_or_else(|| text.to_owned());
    let text = HookText { file, text };
    text.hooks(0, None).map_err(|error| text.place(&error))?;
    Ok(text)
}

fn read(path: &str) -> Result<String, String> {
    let text = read_regular_text(Path::new(path), MAX_TEXT as u64 + 1)
        .map_err(|error| format!("cannot read {path}: {}", chain(&error)))?;
    Ok(text.to_string())
}

/// Parses `MIN[:MAX]`.
pub(super) fn debounce(text: &str) -> Result<Debounce, &'static str> {
    let (min, max) = text.split_once(':').unwrap_or((text, ""));
    let min = duration(min)?;
    let max = match max {
        "" => min.saturating_mul(4),
        max => duration(max)?,
    };
    if min > max {
        return Err("min is more than max");
    }
    Ok(Debounce { min, max })
}

/// Parses `MIN:MAX[:ATTEMPTS]`.
fn retry(text: &str) -> Result<Retry, &'static str> {
    let parts: Vec<_> = text.split(':').collect();
    let (min, max, attempts) = match parts.as_slice() {
        [min, max] => (min, max, 0),
        [min, max, attempts] => {
            let wrong = "expected a number of attempts, 0 for no limit";
            (min, max, attempts.parse().map_err(|_| wrong)?)
        }
        _ => return Err("expected MIN:MAX or MIN:MAX:ATTEMPTS, such as 1s:5m:10"),
    };
    let (min, max) = (duration(min)?, duration(max)?);
    if min > max {
        return Err("min is more than max");
    }
    Ok(Retry { min, max, attempts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timing_flags_have_a_form_of_their_own() {
        let secs = Duration::from_secs;
        let debounced = debounce("1s").unwrap();
        assert_eq!((debounced.min, debounced.max), (secs(1), secs(4)));
        let debounced = debounce("1s:10s").unwrap();
        assert_eq!((debounced.min, debounced.max), (secs(1), secs(10)));
        assert_eq!(debounce("10s:5s"), Err("min is more than max"));
        let retried = retry("1s:1m:5").unwrap();
        assert_eq!((retried.min, retried.max), (secs(1), secs(60)));
        assert_eq!(retried.attempts, 5);
        assert_eq!(retry("1s:1m").unwrap().attempts, 0);
        for bad in ["", "1s", "1s:1m:x", "2m:1m", "1s:1m:1:1"] {
            assert!(retry(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn short_hooks_get_the_timing_flags_and_names_by_position() {
        let text = |text: &str| hook_text(text).unwrap();
        let args = OnChangeArgs {
            on_change: vec![
                text("none"),
                text("signal:HUP"),
                text("[{restart: true, volumes: []}, {name: 1-http, http: 80/x}]"),
            ],
            debounce: Some(debounce("1s").unwrap()),
            splay: None,
            timeout: Some(Duration::from_secs(3)),
            retry: None,
        };
        let hooks = args.hooks(&PodOutline::default()).unwrap();
        let names: Vec<_> = hooks.iter().map(|hook| hook.name.as_str()).collect();
        // The last one is a name that the user has chosen, though it looks like one by position.
        assert_eq!(names, ["0-signal", "1-restart", "1-http"]);
        assert_eq!(hooks[0].timing.timeout, Some(Duration::from_secs(3)));
        assert_eq!(hooks[0].timing.debounce.min, Duration::from_secs(1));
        assert_eq!(hooks[1].timing.timeout, None);
        assert!(args.is_active());
    }

    // on-change 56
    #[test]
    fn signal_and_restart_for_the_same_volumes_contradict() {
        let args = |texts: &[&str]| OnChangeArgs {
            on_change: texts.iter().map(|text| hook_text(text).unwrap()).collect(),
            debounce: None,
            splay: None,
            timeout: None,
            retry: None,
        };
        let outline = PodOutline::default();
        let error = args(&["signal:SIGHUP", "restart"])
            .hooks(&outline)
            .unwrap_err();
        assert_eq!(
            error,
            "--on-change [1].restart: [0] sends a signal for the same volumes: give volumes, or restart:environment"
        );
        let both = args(&["signal:SIGHUP", "restart:environment"]);
        assert_eq!(both.hooks(&outline).unwrap().len(), 2);
        assert!(!args(&["none"]).is_active());
    }
}
