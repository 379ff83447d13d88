//! The reflector's next request after each event.

use std::fmt::Write as _;

use expect_test::{Expect, expect};

use super::*;
use crate::error::{KnownCause, RequestError};

/// A reflector with an API server that a test plays.
struct Scene {
    reflector: Reflector,
    server: ServerState,
    now: Instant,
    /// The request that was made last.
    request: Option<Request>,
    backing_off: Option<(Phase, Duration)>,
    log: String,
}

fn version(number: u64) -> ResourceVersion {
    ResourceVersion::new(number.to_string())
}

fn status(code: u16, message: &str) -> RequestError {
    let mut error = RequestError::status(code, "", message);
    if let RequestError::Status { facts, .. } = &mut error {
        let is_too_large = message.contains("Too large");
        facts.cause = is_too_large.then_some(KnownCause::VersionTooLarge);
    }
    error
}

fn unreachable_server() -> RequestError {
    RequestError::Timeout(Duration::from_secs(30))
}

impl Scene {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            reflector: Reflector::new(fastrand::Rng::with_seed(7), Outages::default(), None, now),
            server: ServerState::default(),
            now,
            request: None,
            backing_off: None,
            log: String::new(),
        }
    }

    fn note(&mut self, line: &str) {
        writeln!(self.log, "{line}").unwrap();
    }

    /// Makes the request of a phase and notes it. `min` is a version that is fresh enough.
    fn send(&mut self, phase: Phase, min: Option<&MinVersion>) {
        let request = self.reflector.request(phase, self.now, &self.server, min);
        let from = |version: &Option<ResourceVersion>| match version {
            Some(version) => format!(" from {version}"),
            None => String::new(),
        };
        let line = match &request {
            Request::StreamingList { freshness, watch } => {
                format!("streaming list, {freshness:?}{}", from(&watch.version))
            }
            Request::List { freshness, version } => format!("list, {freshness:?}{}", from(version)),
            Request::Watch(watch) => format!("watch{}", from(&watch.version)),
        };
        self.note(&line);
        self.request = Some(request);
    }

    fn decision(&mut self, decision: Decision) {
        if let Some(restart) = decision.restart {
            self.note(&format!("restart: {}", restart.label()));
        }
        if decision.failure.is_some() {
            self.note("failed");
        }
        match decision.next {
            Next::Send(phase) => self.send(phase, None),
            Next::BackOff(phase, delay) => {
                // Each delay is stretched by up to 100 %.
                let bases = [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600];
                let base = bases.iter().rfind(|base| delay.as_millis() >= **base);
                let base = base.copied().unwrap_or_default();
                self.note(&format!("back off for {base} ms, then {phase:?}"));
                self.backing_off = Some((phase, delay));
            }
        }
    }

    fn start(&mut self, min: MinFreshness) -> &mut Self {
        self.reflector.start(min);
        self.send(Phase::State, None);
        self
    }

    fn after(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    /// The back-off is over.
    fn backed_off(&mut self) -> &mut Self {
        let (phase, delay) = self.backing_off.take().unwrap();
        self.now += delay;
        self.send(phase, None);
        self
    }

    /// The state has come, whatever way it was requested.
    fn state(&mut self, at: u64) -> &mut Self {
        let freshness = self.request.as_ref().unwrap().freshness().unwrap();
        let streaming = matches!(self.request, Some(Request::StreamingList { .. }));
        let (reflector, server) = (&mut self.reflector, &mut self.server);
        let result = if streaming {
            reflector.opened();
            reflector.initial_events_ended(freshness, version(at), self.now, server)
        } else {
            reflector.listed(freshness, version(at), self.now)
        };
        match result {
            Ok(synced) => {
                let confirmed = if synced.confirmed { ", confirmed" } else { "" };
                let reset = if synced.reset { ", reset" } else { "" };
                self.note(&format!("synced at {}{confirmed}{reset}", synced.version));
                if !streaming {
                    self.send(Phase::Watch, None);
                }
            }
            Err(decision) => self.decision(decision),
        }
        self
    }

    fn fails(&mut self, error: RequestError) -> &mut Self {
        let (now, server) = (self.now, &mut self.server);
        let decision = match self.request.as_ref().unwrap() {
            Request::Watch(_) => self.reflector.watch_failed(error, now, server),
            Request::StreamingList { freshness, .. } => {
                let freshness = *freshness;
                self.reflector
                    .state_failed(error, freshness, ListForm::Streaming, now, server)
            }
            Request::List { freshness, .. } => {
                let freshness = *freshness;
                self.reflector
                    .state_failed(error, freshness, ListForm::Plain, now, server)
            }
        };
        self.decision(decision);
        self
    }

    /// The open watch ends after some time.
    fn watch_ends(&mut self, after: Duration, brought: WatchYield) -> &mut Self {
        let since = self.now;
        self.now += after;
        let decision = self
            .reflector
            .watch_ended(since, brought, WatchEnd::Broken, self.now);
        self.decision(decision);
        self
    }

    fn event(&mut self, at: u64) -> &mut Self {
        let news = self.reflector.event(&version(at));
        self.note(&format!(
            "event at {at}: {}",
            if news { "news" } else { "old" }
        ));
        self
    }
}

const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(200);

/// Plays a scene and compares what was requested.
#[track_caller]
fn check(play: impl FnOnce(&mut Scene), expected: Expect) {
    let mut scene = Scene::new();
    play(&mut scene);
    expected.assert_eq(&scene.log);
}

// managers 39
#[tokio::test(start_paused = true)]
async fn a_new_reflector_asks_for_the_most_recent_state() {
    check(
        |scene| {
            scene.start(MinFreshness::Newest).state(5).event(7);
            scene.watch_ends(LONG, WatchYield::Events);
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            event at 7: news
            restart: broken
            watch from 7
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_restart_without_new_registrations_asks_for_no_older_state() {
    check(
        |scene| {
            scene.start(MinFreshness::Newest).state(5);
            scene.start(MinFreshness::Seen).state(6);
            scene.start(MinFreshness::Newest);
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            streaming list, AtLeastSeen from 5
            synced at 6
            streaming list, MostRecent
        "#]],
    );
}

// managers 40
#[tokio::test(start_paused = true)]
async fn a_rejected_streaming_list_is_replaced_and_remembered() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .fails(status(422, ""))
                .state(7);
            scene.start(MinFreshness::Seen);
            scene
                .after(Duration::from_mins(10))
                .start(MinFreshness::Seen);
        },
        expect![[r#"
            streaming list, MostRecent
            list, MostRecent
            synced at 7, confirmed
            watch from 7
            list, AtLeastSeen from 7
            streaming list, AtLeastSeen from 7
        "#]],
    );
}

// managers 41
#[tokio::test(start_paused = true)]
async fn very_short_quiet_watches_back_off() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .state(5)
                .watch_ends(SHORT, WatchYield::Nothing);
            scene.backed_off();
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            restart: broken
            back off for 800 ms, then State
            streaming list, AtLeastSeen from 5
        "#]],
    );
}

// managers 42
#[tokio::test(start_paused = true)]
async fn an_expired_version_is_asked_for_again_and_then_dropped() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .state(5)
                .watch_ends(LONG, WatchYield::Nothing);
            scene.fails(status(410, "")).backed_off();
            scene.fails(status(410, "")).state(20);
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            restart: broken
            watch from 5
            restart: expired
            back off for 800 ms, then State
            streaming list, AtLeastSeen from 5
            restart: expired
            streaming list, MostRecent
            synced at 20, confirmed
        "#]],
    );
}

// managers 44
#[tokio::test(start_paused = true)]
async fn after_an_outage_the_most_recent_state_is_asked_for() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .state(5)
                .watch_ends(LONG, WatchYield::Nothing);
            scene.fails(unreachable_server()).backed_off();
            scene.fails(unreachable_server()).backed_off().state(9);
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            restart: broken
            watch from 5
            restart: refused
            failed
            back off for 800 ms, then Watch
            streaming list, MostRecent
            restart: refused
            failed
            back off for 1600 ms, then State
            streaming list, MostRecent
            synced at 9, confirmed
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_throttled_watch_is_resumed() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .state(5)
                .watch_ends(LONG, WatchYield::Nothing);
            scene.fails(status(429, "")).backed_off();
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            restart: broken
            watch from 5
            restart: refused
            failed
            back off for 800 ms, then Watch
            watch from 5
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_state_is_retried_soon() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .fails(status(403, ""))
                .backed_off();
            scene.fails(status(403, "")).backed_off().state(5);
        },
        expect![[r#"
            streaming list, MostRecent
            restart: refused
            failed
            back off for 100 ms, then State
            streaming list, MostRecent
            restart: refused
            failed
            back off for 200 ms, then State
            streaming list, MostRecent
            synced at 5, confirmed
        "#]],
    );
}

// B14
#[tokio::test(start_paused = true)]
async fn an_older_state_is_believed_the_second_time() {
    check(
        |scene| {
            scene.start(MinFreshness::Newest).state(5).event(9);
            scene
                .start(MinFreshness::Newest)
                .state(3)
                .backed_off()
                .state(3)
                .event(4);
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            event at 9: news
            streaming list, MostRecent
            back off for 800 ms, then State
            streaming list, MostRecent
            synced at 3, confirmed, reset
            event at 4: news
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_server_has_not_seen_is_dropped() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .state(5)
                .watch_ends(LONG, WatchYield::Nothing);
            scene.fails(status(504, "Too large resource version"));
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            restart: broken
            watch from 5
            restart: expired
            streaming list, MostRecent
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_server_rejects_is_dropped() {
    check(
        |scene| {
            scene
                .start(MinFreshness::Newest)
                .state(5)
                .watch_ends(LONG, WatchYield::Nothing);
            scene.fails(status(400, "Invalid")).backed_off();
            scene.fails(status(400, "Invalid"));
            scene.fails(status(400, "Invalid")).state(7);
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            restart: broken
            watch from 5
            restart: refused
            failed
            back off for 800 ms, then State
            streaming list, AtLeastSeen from 5
            list, AtLeastSeen from 5
            restart: expired
            list, MostRecent
            synced at 7, confirmed
            watch from 7
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_check_ahead_of_the_watch_makes_events_old() {
    check(
        |scene| {
            scene.start(MinFreshness::Newest).state(5);
            scene.reflector.saw(&version(9));
            scene.event(8).event(10);
        },
        expect![[r#"
            streaming list, MostRecent
            synced at 5, confirmed
            event at 8: old
            event at 10: news
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waited_takes_a_fresh_enough_version() {
    check(
        |scene| {
            let seq = crate::sequence::SeqCounter::default().advance();
            scene.server.confirmed(seq, &version(8));
            scene.reflector.start(MinFreshness::Newest);
            let min = scene.server.min_version(seq);
            scene.send(Phase::State, min.as_ref());
            scene.fails(status(504, "Too large resource version"));
        },
        expect![[r#"
            streaming list, AtLeastMin from 8
            restart: expired
            streaming list, MostRecent
        "#]],
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_outage_shortens_no_retry_after() {
    let mut scene = Scene::new();
    let (now, minute) = (scene.now, Duration::from_mins(1));
    scene
        .start(MinFreshness::Newest)
        .fails(unreachable_server());
    assert_eq!(scene.reflector.retry_early(now + minute, now), Some(now));
    // Once for each failure.
    assert_eq!(scene.reflector.retry_early(now + minute, now), None);
    let mut throttled = status(429, "");
    if let RequestError::Status { retry_after, .. } = &mut throttled {
        *retry_after = Some(Duration::from_secs(20));
    }
    scene.fails(throttled);
    let early = scene.reflector.retry_early(now + minute, now).unwrap();
    let asked = Duration::from_secs(20)..=Duration::from_secs(30);
    assert!(asked.contains(&(early - now)), "{:?}", early - now);
}
