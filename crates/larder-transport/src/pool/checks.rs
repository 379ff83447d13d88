//! When the pool checks the credentials, and how long requests wait for a check.
//!
//! Invariants:
//! 1. At most one check runs at a time, and none while no request arrives.
//! 2. Between the starts of two checks lies the interval, or at least a second: after a 401, after a failed handshake,
//!    and before credentials of a plugin expire.
//! 3. Requests wait for a check no longer than [`Credentials::patience`] allows, whatever a disk or a plugin does.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};

use crate::credentials::{Check, CheckCause, Credentials, FirstLoad};

/// Shortest time between two checks.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// The checks of one transport's credentials.
pub(super) struct CredentialChecks {
    credentials: Arc<Credentials>,
    interval: Duration,
    /// At most one: the check under way.
    running: JoinSet<Check>,
    /// Until when requests wait for it.
    wait_until: Instant,
    checked_at: Instant,
    /// When the next check is due, if a request arrives.
    next: Instant,
    /// A request has arrived since a check was last considered.
    arrived: bool,
    /// Of the next check.
    cause: CheckCause,
}

impl CredentialChecks {
    /// `first_load` is the check under way, if the start did not wait for its end.
    pub(super) fn new(
        credentials: Arc<Credentials>,
        interval: Duration,
        first_load: Option<FirstLoad>,
    ) -> Self {
        let now = Instant::now();
        let mut running = JoinSet::new();
        if let Some(load) = first_load {
            running.spawn(load);
        }
        let mut checks = Self {
            wait_until: now + credentials.patience(CheckCause::Due, now),
            credentials,
            interval,
            running,
            checked_at: now,
            next: now + interval,
            arrived: false,
            cause: CheckCause::Due,
        };
        checks.renew_in_time();
        checks
    }

    /// A request has arrived.
    pub(super) fn requested(&mut self) {
        self.arrived = true;
    }

    /// The server has answered 401.
    pub(super) fn unauthorized(&mut self) {
        self.cause = CheckCause::Unauthorized;
        self.hurry();
    }

    /// Server and client do not accept each other, so the files may hold something new.
    pub(super) fn hurry(&mut self) {
        self.next = self.next.min(self.checked_at + MIN_PAUSE);
    }

    /// Starts a check, if none runs, a request has arrived, and the last check is old.
    pub(super) fn start_if_due(&mut self, now: Instant) {
        if !self.running.is_empty() || !std::mem::take(&mut self.arrived) || now < self.next {
            return;
        }
        self.checked_at = now;
        self.next = now + self.interval;
        let cause = std::mem::take(&mut self.cause);
        if self.credentials.can_change() {
            self.wait_until = now + self.credentials.patience(cause, now);
            let credentials = Arc::clone(&self.credentials);
            self.running
                .spawn(async move { credentials.check(cause).await });
        }
    }

    /// Until when requests wait for the check under way, if they do.
    pub(super) fn wait(&self, now: Instant) -> Option<Instant> {
        (!self.running.is_empty() && now < self.wait_until).then_some(self.wait_until)
    }

    /// The end of the check under way; `None` if none runs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn ended(&mut self) -> Option<Result<Check, JoinError>> {
        let ended = self.running.join_next().await;
        self.renew_in_time();
        ended
    }

    /// Brings the next check forward to the time at which a plugin runs again. A renewal that is overdue waits for the
    /// interval.
    fn renew_in_time(&mut self) {
        if let Some(renew_at) = self.credentials.renew_at()
            && renew_at > self.checked_at
        {
            let earliest = self.checked_at + MIN_PAUSE;
            self.next = self.next.min(renew_at.max(earliest));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::ClusterSource;

    const HOUR: Duration = Duration::from_hours(1);

    /// Checks of the credentials of a plugin, which expire after 200 s.
    async fn checks_of_plugin() -> CredentialChecks {
        let directory = tempfile::TempDir::new().unwrap();
        let script = "at=$(date -u -d @$(($(date +%s) + 200)) +%Y-%m-%dT%H:%M:%SZ);
            echo \"{apiVersion: v1, status: {token: t, expirationTimestamp: '$at'}}\"";
        fs::write(directory.path().join("script"), script).unwrap();
        let kubeconfig = format!(
            "{{clusters: [{{name: c, cluster: {{server: 'https://h:1', insecure-skip-tls-verify: true}}}}],
               users: [{{name: u, user: {{exec: {{apiVersion: v1, command: sh, args: ['{}']}}}}}}],
               contexts: [{{name: x, context: {{cluster: c, user: u}}}}], current-context: x}}",
            directory.path().join("script").display()
        );
        let path = directory.path().join("config");
        fs::write(&path, kubeconfig).unwrap();
        let context = None;
        let loaded = Credentials::load(ClusterSource::Kubeconfig { path, context }).await;
        let (_, started) = loaded.unwrap();
        CredentialChecks::new(started.credentials, HOUR, None)
    }

    #[tokio::test]
    async fn requests_wait_for_a_plugin_only_without_valid_credentials() {
        for (age, unauthorized, expected) in [
            // Due, and still valid.
            (180, false, None),
            (210, false, Some(25)),
            (10, true, Some(25)),
        ] {
            let mut checks = checks_of_plugin().await;
            let now = checks.checked_at + Duration::from_secs(age);
            checks.requested();
            if unauthorized {
                checks.unauthorized();
            }
            checks.start_if_due(now);
            assert_eq!(checks.running.len(), 1, "{age}");
            let expected = expected.map(|seconds| now + Duration::from_secs(seconds));
            assert_eq!(checks.wait(now), expected, "{age}");
        }
    }

    #[tokio::test]
    async fn short_lived_credentials_are_renewed_after_four_fifths_of_their_life() {
        let mut checks = checks_of_plugin().await;
        let loaded_at = checks.checked_at;
        for (age, runs) in [(10, 0), (150, 0), (165, 1)] {
            checks.requested();
            checks.start_if_due(loaded_at + Duration::from_secs(age));
            assert_eq!(checks.running.len(), runs, "{age}");
        }
    }
}
