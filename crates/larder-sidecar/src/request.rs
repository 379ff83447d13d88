//! The round of the label form: the script, then the request with its fast retries (section 6).

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use larder_actions::{StepInputs, StepOutcome};
use larder_files::regular_file::read_regular_text;
use larder_on_change::{
    Action, Command, Hook, HttpCall, HttpTarget, HttpTls, OnFailure, Paths, Retry, Timing,
};
use rustix::fs::{Access, access};
use tokio::{sync::watch, time::timeout};
use tracing::{error, warn};

use crate::{
    settings::{Credentials, Encoding, HttpSettings, LabelSettings, RequestSettings, Retries},
    steps::{SidecarEnvironment, steps},
};

/// The name of the hook.
pub(crate) const HOOK: &str = "request";
/// Pause between two attempts when the fast retries are used up.
const SLOW: Duration = Duration::from_mins(5);
/// The longest user or password.
const MAX_CREDENTIAL: u64 = 64 << 10;

/// Script and request.
#[derive(Debug)]
pub(crate) struct LabelRound {
    script: Option<(PathBuf, Duration)>,
    request: Option<RequestSettings>,
    /// Not in the first round.
    skip_request: parking_lot::Mutex<bool>,
}

impl LabelRound {
    /// The hook of the label form; `None` without script and request.
    pub(crate) fn hook(settings: &LabelSettings) -> Option<(Hook, Self)> {
        let (script, request) = (settings.script.clone(), settings.request.clone());
        if script.is_none() && request.is_none() {
            return None;
        }
        let retries = request.as_ref().map(|request| request.client.retries);
        let retry = Retry {
            min: SLOW,
            max: SLOW,
            attempts: u32::from(retries.is_none_or(|retries| retries.total == 0)),
        };
        let steps = script.iter().map(|(path, _)| Action::Exec(command(path)));
        let hook = Hook {
            name: HOOK.to_owned(),
            volumes: None,
            paths: Paths::default(),
            environment: false,
            container: None,
            steps: steps.collect(),
            timing: Timing {
                debounce: settings.debounce,
                splay: Duration::ZERO,
                timeout: None,
                retry,
            },
            on_failure: OnFailure::Retry,
            initial: false,
        };
        let round = Self {
            script,
            request,
            skip_request: parking_lot::Mutex::new(false),
        };
        Some((hook, round))
    }

    /// The first round sends no request.
    pub(crate) fn skip_first_request(&self) {
        *self.skip_request.lock() = true;
    }

    /// Whether there is a script.
    pub(crate) fn has_script(&self) -> bool {
        self.script.is_some()
    }

    /// Runs the script and sends the request. A script that fails is logged, and the request is sent all the same.
    pub(crate) async fn run(
        &self,
        hook: &Hook,
        inputs: StepInputs,
        environment: &SidecarEnvironment<'_>,
        changes: watch::Receiver<u64>,
    ) -> StepOutcome {
        // A retry repeats the request alone, as theirs does.
        if let (Some((path, longest)), 1) = (&self.script, inputs.attempt) {
            let step = [Action::Exec(command(path))];
            let hook = with_timeout(hook, *longest);
            let outcome = steps(&step, &hook, inputs.clone(), environment).await;
            if !outcome.is_success() {
                error!(script = %path.display(), error = outcome.reason(), "script failed");
            }
        }
        let Some(request) = &self.request else {
            return StepOutcome::Succeeded;
        };
        if std::mem::take(&mut *self.skip_request.lock()) {
            return StepOutcome::Succeeded;
        }
        self.send(request, hook, inputs, environment, changes).await
    }

    async fn send(
        &self,
        request: &RequestSettings,
        hook: &Hook,
        inputs: StepInputs,
        environment: &SidecarEnvironment<'_>,
        mut changes: watch::Receiver<u64>,
    ) -> StepOutcome {
        let hook = with_timeout(hook, request.client.timeout);
        // The slow retries are single attempts.
        let mut budget = Budget::new(request.client.retries, inputs.attempt == 1);
        changes.mark_unchanged();
        loop {
            let call = match call(request) {
                Ok(call) => call,
                Err(reason) => return StepOutcome::Failed(reason),
            };
            let step = [Action::Http(call)];
            let outcome = steps(&step, &hook, inputs.clone(), environment).await;
            let Some(pause) = budget.next(&outcome) else {
                return outcome;
            };
            warn!(
                error = outcome.reason(),
                ?pause,
                "request failed, will retry"
            );
            // A newer change starts anew.
            if timeout(pause, changes.changed()).await.is_ok() {
                return outcome;
            }
        }
    }
}

/// The retries that are left, by kind.
#[derive(Debug)]
struct Budget {
    retries: Retries,
    used: u32,
}

impl Budget {
    fn new(retries: Retries, is_fast: bool) -> Self {
        let total = if is_fast { retries.total } else { 0 };
        Self {
            retries: Retries { total, ..retries },
            used: 0,
        }
    }

    /// The pause before the next attempt; `None` if there is none.
    fn next(&mut self, outcome: &StepOutcome) -> Option<Duration> {
        let reason = match outcome {
            StepOutcome::Succeeded | StepOutcome::Skipped(_) => return None,
            StepOutcome::Failed(reason) | StepOutcome::TimedOut(reason) => reason,
        };
        let kind = if reason.contains(": answered ") {
            &mut self.retries.total
        } else if reason.contains(": cannot ") {
            &mut self.retries.connect
        } else {
            &mut self.retries.read
        };
        // The smaller of each and the total holds.
        *kind = kind.checked_sub(1)?;
        if !reason.contains(": answered ") {
            self.retries.total = self.retries.total.checked_sub(1)?;
        }
        self.used += 1;
        Some(self.retries.pause(self.used))
    }
}

fn with_timeout(hook: &Hook, longest: Duration) -> Hook {
    let mut hook = hook.clone();
    hook.timing.timeout = Some(longest);
    hook
}

/// The script itself, or `sh` with it if it is not executable.
fn command(path: &Path) -> Command {
    let word = path.display().to_string();
    let words = if access(path, Access::EXEC_OK).is_ok() {
        vec![word]
    } else {
        vec!["sh".to_owned(), word]
    };
    Command {
        words,
        user: None,
        working_directory: "/".to_owned(),
        env: Vec::new(),
        log_output: false,
    }
}

/// Why the script cannot be run in this image, if that is known.
pub(crate) fn missing_interpreter(script: &Path) -> Option<String> {
    let name = if access(script, Access::EXEC_OK).is_ok() {
        let head = fs::read(script).ok()?;
        let line = head
            .strip_prefix(b"#!")?
            .split(|byte| *byte == b'\n')
            .next()?;
        let line = String::from_utf8_lossy(line);
        let path = PathBuf::from(line.split_whitespace().next()?);
        return (!path.exists()).then(|| path.display().to_string());
    } else {
        "sh"
    };
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&paths).map(|path| path.join(name));
    (!found.any(|path| path.exists())).then(|| name.to_owned())
}

/// The request with the credentials of this moment.
fn call(request: &RequestSettings) -> Result<HttpCall, String> {
    let mut headers = Vec::new();
    if let Some(authorization) = authorization(&request.client.credentials)? {
        headers.push(("authorization".to_owned(), authorization));
    }
    // As theirs, a GET has no body.
    let payload = request.payload.as_ref().filter(|_| request.method != "GET");
    if payload.is_some() {
        let json = "application/json".to_owned();
        headers.push(("content-type".to_owned(), json));
    }
    Ok(HttpCall {
        target: HttpTarget::Url(request.url.clone()),
        method: request.method,
        headers,
        body: payload.map(|payload| payload.0.clone()).unwrap_or_default(),
        expect: vec![(200, 299)],
        auth: None,
        tls: tls(&request.client),
    })
}

/// How certificates are verified.
pub(crate) fn tls(client: &HttpSettings) -> HttpTls {
    HttpTls {
        ca: client.authorities.clone(),
        server_name: None,
        insecure_skip_verify: client.skip_tls_verify,
    }
}

/// The header of basic authentication, if there are user and password.
pub(crate) fn authorization(credentials: &Credentials) -> Result<Option<String>, String> {
    let one = |value: &Option<String>, file: &Option<PathBuf>| {
        let Some(path) = file else {
            return value.clone();
        };
        match read_regular_text(path, MAX_CREDENTIAL) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) => {
                warn!(path = %path.display(), %error, "cannot read credentials, using the variable");
                value.clone()
            }
        }
    };
    let username = one(&credentials.username, &credentials.username_file);
    let password = one(&credentials.password, &credentials.password_file);
    let (Some(username), Some(password)) = (username, password) else {
        return Ok(None);
    };
    if username.is_empty() || password.is_empty() {
        return Ok(None);
    }
    let both = format!("{username}:{password}");
    let limit = match credentials.encoding {
        Encoding::Latin1 => '\u{ff}',
        Encoding::Utf8 => char::MAX,
        Encoding::Ascii => '\u{7f}',
    };
    if both.chars().any(|c| c > limit) {
        let text = "user or password has characters that REQ_BASIC_AUTH_ENCODING has not";
        return Err(text.to_owned());
    }
    let bytes = match credentials.encoding {
        Encoding::Utf8 => both.into_bytes(),
        // Their numbers are those of the characters.
        Encoding::Latin1 | Encoding::Ascii => both.chars().map(|c| c as u8).collect(),
    };
    Ok(Some(format!("Basic {}", STANDARD.encode(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(total: u32, connect: u32, read: u32) -> Budget {
        let retries = Retries {
            total,
            connect,
            read,
            factor: 1.0,
        };
        Budget::new(retries, true)
    }

    fn attempts(mut budget: Budget, reason: &str) -> usize {
        let outcome = StepOutcome::Failed(format!("http://h/: {reason}"));
        let mut count = 1;
        while budget.next(&outcome).is_some() {
            count += 1;
        }
        count
    }

    #[test]
    fn smaller_of_the_kind_and_the_total_holds() {
        assert_eq!(attempts(budget(5, 10, 5), "cannot connect: refused"), 6);
        assert_eq!(attempts(budget(5, 2, 5), "cannot connect: refused"), 3);
        assert_eq!(attempts(budget(5, 2, 1), "no answer: closed"), 2);
        assert_eq!(attempts(budget(5, 2, 1), "answered 503"), 6);
        assert_eq!(attempts(budget(0, 2, 1), "answered 503"), 1);
        let mut budget = budget(5, 5, 5);
        assert_eq!(budget.next(&StepOutcome::Succeeded), None);
    }

    // sidecar 38
    #[test]
    fn credentials_are_read_from_files_for_each_request() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("password");
        let credentials = Credentials {
            username: Some("ü".to_owned()),
            password: Some("variable".to_owned()),
            password_file: Some(file.clone()),
            ..Credentials::default()
        };
        let decoded = || {
            let header = authorization(&credentials).unwrap().unwrap();
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
            password: None,
            password_file: None,
            ..credentials
        };
        assert_eq!(authorization(&none), Ok(None));
    }
}
