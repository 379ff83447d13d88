//! The round of a script and a request with fast retries: of the label form (section 6), and of a webhook.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::FutureExt as _;
use larder_actions::{
    StepEnvironment as _, StepOutcome,
    http::{RequestProgress, send},
    run_step,
};
use larder_files::regular_file::read_regular_text;
use larder_net::url::basic;
use larder_on_change::{Action, AttemptEnd, Command, Debounce, Hook, PodChange, Retry, Timing};
use parking_lot::Mutex;
use rustix::fs::{Access, access};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::{
    metrics::WebhookMetrics,
    settings::{Credentials, Encoding, MAX_TIME, RequestSettings, Retries},
    steps::StepContext,
};

/// The longest user or password.
const MAX_CREDENTIAL: u64 = 64 << 10;
/// Pause between two attempts when the fast retries are used up, or the login was refused.
pub(crate) const SLOW: Duration = Duration::from_mins(5);
/// Pause between two looks at the files of credentials that were refused.
const LOOK: Duration = Duration::from_secs(1);

/// A script with its longest time, and a request.
#[derive(Debug, Default)]
pub(crate) struct RequestRound {
    pub(crate) script: Option<(PathBuf, Duration)>,
    pub(crate) request: Option<RequestSettings>,
    /// The next round sends no request.
    pub(crate) skips_request: AtomicBool,
    /// Ends pauses: a request that is not under way is not waited for.
    pub(crate) ending: CancellationToken,
    /// Whether the round goes on after a refused login, for as long as a file may bring other credentials.
    pub(crate) waits_for_credentials: bool,
    /// Why the last login was refused, unless another answer has come since.
    pub(crate) refusal: Mutex<Option<String>>,
    /// Why the script of this round failed.
    pub(crate) script_failure: Mutex<Option<String>>,
    /// Those of a webhook.
    pub(crate) metrics: Option<WebhookMetrics>,
}

/// The hook of such a round, without steps; `retry` holds after the fast retries.
pub(crate) fn hook(name: String, debounce: Debounce, retry: Retry) -> Hook {
    let timing = Timing {
        retry,
        ..Timing::new(debounce)
    };
    Hook::new(name, Vec::new(), timing)
}

impl RequestRound {
    /// Runs the script and sends the request, also after a script that fails. A retry repeats the request alone, as
    /// theirs does; once it has succeeded, the round has still failed if its script has (rule N4).
    pub(crate) async fn run(
        &self,
        change: &PodChange,
        context: &StepContext,
        newer: watch::Receiver<u64>,
    ) -> AttemptEnd {
        let is_first = change.attempt == 1;
        if let (Some((path, longest)), true) = (&self.script, is_first) {
            let script = Action::Exec(Command::new(words(path)));
            let outcome = run_step(&script, None, MAX_TIME.min(*longest), change, context).await;
            if let Some(error) = outcome.failure() {
                error!(script = %path.display(), error, "script failed");
            }
            *self.script_failure.lock() = outcome.failure().map(str::to_owned);
        }
        let sent = self.request(change, context, newer).await;
        match self.script_failure.lock().as_ref() {
            Some(error) if sent.failure().is_none() => AttemptEnd::Failed {
                reason: format!("script failed: {error}"),
                output: String::new(),
                is_final: true,
            },
            _ => AttemptEnd::of(sent.failure(), String::new()),
        }
    }

    /// Sends the request, if there is one, with its fast retries.
    async fn request(
        &self,
        change: &PodChange,
        context: &StepContext,
        mut newer: watch::Receiver<u64>,
    ) -> StepOutcome {
        let skips = self.skips_request.swap(false, Ordering::Relaxed);
        let Some(request) = self.request.as_ref().filter(|_| !skips) else {
            return StepOutcome::Succeeded;
        };
        let credentials = &request.client.credentials;
        let mut left = request.client.retries;
        if change.attempt > 1 {
            // The slow retries are single attempts.
            left.total = 0;
        }
        let total = left.total;
        newer.mark_unchanged();
        loop {
            // With the credentials of this moment.
            let login = match authorization(credentials) {
                Ok(login) => login,
                Err(reason) => return StepOutcome::Failed(reason.to_owned()),
            };
            let (outcome, progress) = self.attempt(request, login.clone(), change, context).await;
            if outcome.is_success() {
                return outcome;
            }
            let pause = next_pause(&mut left, total, progress);
            let error = outcome.reason();
            let ready = if let Some(pause) = pause {
                let seconds = pause.as_secs_f64();
                warn!(error, pause = %format_args!("{seconds}s"), "request failed, will retry");
                sleep(pause).left_future()
            } else {
                if let Some(metrics) = &self.metrics {
                    metrics.failed(&request.call.target.to_string(), "retries_exhausted");
                }
                let may_change = self.waits_for_credentials && credentials.has_files();
                if !may_change || !is_refused(progress) {
                    return outcome;
                }
                warn!(error, "login refused, waiting for other credentials");
                changed(credentials, login.as_ref()).right_future()
            };
            tokio::select! {
                biased;
                () = self.ending.cancelled() => return outcome,
                // It starts anew.
                _ = newer.changed() => return outcome,
                () = ready => {}
            }
        }
    }

    /// Sends the request once.
    async fn attempt(
        &self,
        request: &RequestSettings,
        login: Option<(String, String)>,
        change: &PodChange,
        context: &StepContext,
    ) -> (StepOutcome, RequestProgress) {
        let mut call = request.call.clone();
        call.tls.clone_from(&request.client.tls);
        call.headers.extend(login);
        let began = Instant::now();
        let limit = request.client.timeout;
        let (outcome, progress) = send(&call, limit, change, context.request()).await;
        let took = began.elapsed();
        if let Some(metrics) = &self.metrics {
            metrics.asked(&call.target.to_string(), &outcome, progress, took);
        }
        context.step_ended(&Action::Http(call), &outcome, took);
        let refusal = outcome.failure().filter(|_| is_refused(progress));
        *self.refusal.lock() = refusal.map(str::to_owned);
        (outcome, progress)
    }
}

/// Whether the application has refused the login: it may lock an account after some of these (rule N3).
pub(crate) fn is_refused(progress: RequestProgress) -> bool {
    matches!(progress, RequestProgress::Answered(401 | 403))
}

/// Waits until the credentials are others than these, or for the slow attempt.
async fn changed(credentials: &Credentials, sent: Option<&(String, String)>) {
    let until = Instant::now() + SLOW;
    let is_same = || authorization(credentials).is_ok_and(|now| now.as_ref() == sent);
    while Instant::now() < until && is_same() {
        sleep(LOOK).await;
    }
}

/// The pause before the next attempt after a failure, which is taken off those of `total` that are left; `None` if there
/// is none.
fn next_pause(left: &mut Retries, total: u32, progress: RequestProgress) -> Option<Duration> {
    if is_refused(progress) {
        left.total = 0;
    }
    // The smaller of each and the total holds.
    left.total = left.total.checked_sub(1)?;
    match progress {
        RequestProgress::Unsent => left.connect = left.connect.checked_sub(1)?,
        RequestProgress::Unanswered => left.read = left.read.checked_sub(1)?,
        RequestProgress::Answered(_) => {}
    }
    Some(left.pause(total - left.total))
}

/// The script itself, or `sh` with it if it is not executable.
fn words(script: &Path) -> Vec<String> {
    let word = script.display().to_string();
    if access(script, Access::EXEC_OK).is_ok() {
        vec![word]
    } else {
        vec!["sh".to_owned(), word]
    }
}

/// Why the script cannot be run in this image, if that is known.
pub(crate) fn missing_interpreter(script: &Path) -> Option<String> {
    if let [shell, _] = words(script).as_slice() {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let mut found = std::env::split_paths(&paths).map(|path| path.join(shell));
        return (!found.any(|path| path.exists())).then(|| shell.clone());
    }
    let bytes = fs::read(script).ok()?;
    let text = String::from_utf8_lossy(bytes.strip_prefix(b"#!")?);
    let program = text.lines().next()?.split_whitespace().next()?;
    (!Path::new(program).exists()).then(|| program.to_owned())
}

/// The header of basic authentication, if there are user and password.
pub(crate) fn authorization(
    credentials: &Credentials,
) -> Result<Option<(String, String)>, &'static str> {
    let one = |value: &str, file: &Option<PathBuf>| match file {
        None => value.to_owned(),
        Some(path) => match read_regular_text(path, MAX_CREDENTIAL) {
            Ok(text) => text.trim().to_owned(),
            Err(error) => {
                warn!(path = %path.display(), %error, "cannot read credentials, using the variable");
                value.to_owned()
            }
        },
    };
    let username = one(&credentials.username, &credentials.username_file);
    let password = one(&credentials.password, &credentials.password_file);
    if username.is_empty() || password.is_empty() {
        return Ok(None);
    }
    let both = format!("{username}:{password}");
    let bytes: Option<Vec<u8>> = match credentials.encoding {
        Encoding::Utf8 => Some(both.into_bytes()),
        Encoding::Ascii => both.is_ascii().then(|| both.into_bytes()),
        Encoding::Latin1 => both.chars().map(|c| u8::try_from(c).ok()).collect(),
    };
    let bytes =
        bytes.ok_or("user or password has characters that REQ_BASIC_AUTH_ENCODING has not")?;
    Ok(Some((
        "authorization".to_owned(),
        basic(&bytes).as_str().to_owned(),
    )))
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};

    use super::*;

    fn retries(total: u32, connect: u32, read: u32) -> Retries {
        Retries {
            total,
            connect,
            read,
            factor: 1.0,
        }
    }

    fn attempts(mut left: Retries, progress: RequestProgress) -> usize {
        let (total, mut count) = (left.total, 1);
        while next_pause(&mut left, total, progress).is_some() {
            count += 1;
        }
        count
    }

    #[test]
    fn smaller_of_the_kind_and_the_total_holds() {
        use RequestProgress::{Answered, Unanswered, Unsent};
        assert_eq!(attempts(retries(5, 10, 5), Unsent), 6);
        assert_eq!(attempts(retries(5, 2, 5), Unsent), 3);
        assert_eq!(attempts(retries(5, 2, 1), Unanswered), 2);
        assert_eq!(attempts(retries(5, 2, 1), Answered(503)), 6);
        assert_eq!(attempts(retries(0, 2, 1), Answered(503)), 1);
        assert_eq!(attempts(retries(5, 5, 5), Answered(401)), 1);
    }

    // sidecar 38
    #[test]
    fn credentials_are_read_from_files_for_each_request() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("password");
        let credentials = Credentials {
            username: "ü".to_owned(),
            password: "variable".to_owned(),
            password_file: Some(file.clone()),
            ..Credentials::default()
        };
        let decoded = || {
            let (_, header) = authorization(&credentials).unwrap().unwrap();
            STANDARD
                .decode(header.strip_prefix("Basic ").unwrap())
                .unwrap()
        };
        assert_eq!(decoded(), b"\xfc:variable");
        for password in ["one", "two"] {
            fs::write(&file, format!("{password}\n")).unwrap();
            assert_eq!(decoded(), [b"\xfc:", password.as_bytes()].concat());
        }
        let ascii = Credentials {
            encoding: Encoding::Ascii,
            ..credentials.clone()
        };
        assert!(authorization(&ascii).is_err());
        let none = Credentials {
            password: String::new(),
            password_file: None,
            ..credentials
        };
        assert_eq!(authorization(&none), Ok(None));
    }
}
