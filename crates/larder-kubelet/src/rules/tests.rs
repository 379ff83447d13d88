//! The rules as tables: events in the world, and the touches and notices that follow. Times are milliseconds.

mod answers;
mod changes;
mod model;
mod obstacles;

use std::{fmt::Write as _, sync::LazyLock};

use expect_test::{Expect, expect};
use larder_objects::ResourceVersion;

use super::*;
use crate::fingerprint::{Fingerprint, FingerprintKey};

const NO_TTL: Duration = Duration::ZERO;
const DEFAULT_TTL: Duration = Duration::from_mins(1);

/// One pod, its computed content, its kubelet's files, and the rules.
struct World {
    rules: PodRules,
    start: Instant,
    now: Instant,
    /// By volume; `None` cannot be computed.
    computed: BTreeMap<&'static str, Option<u8>>,
    disk: BTreeMap<&'static str, u8>,
    view: PodView,
    invisible: bool,
    delay: Duration,
    log: String,
}

static KEY: LazyLock<FingerprintKey> = LazyLock::new(FingerprintKey::default);

fn payload(content: u8) -> Fingerprint {
    KEY.of([content])
}

fn volume(name: &str) -> PartName {
    PartName::Volume(name.into())
}

fn container(name: &str, id: &str, volumes: &[&str]) -> RunningContainer {
    RunningContainer {
        name: name.into(),
        id: id.into(),
        volumes: volumes.iter().map(SmolStr::new).collect(),
    }
}

/// A look at a part with this computed content, which has not changed.
fn look(observation: PartObservation, content: u8, changed_at: Instant) -> Look {
    Look {
        observation,
        payload: Some(payload(content)),
        volume: VolumeChange::None,
        changed_at,
        delay: Duration::ZERO,
    }
}

fn failed() -> TouchAnswer {
    let why = "the API server does not answer";
    TouchAnswer::Failed { why }
}

fn touched() -> TouchAnswer {
    let resource_version = ResourceVersion::new("2");
    TouchAnswer::Touched { resource_version }
}

impl World {
    /// A pod with a volume `a` that is up to date with content 1.
    fn new(ttl: Duration) -> Self {
        let start = Instant::now();
        let mut world = Self {
            rules: PodRules::new(Gate::Open, ttl),
            start,
            now: start,
            computed: BTreeMap::new(),
            disk: BTreeMap::new(),
            view: PodView {
                containers: vec![container("main", "id-1", &["a", "b"])],
                ..PodView::default()
            },
            invisible: false,
            delay: Duration::ZERO,
            log: String::new(),
        };
        world.set_view();
        world.disk.insert("a", 1);
        world.compute(0, "a", 1);
        world.log.clear();
        world
    }

    fn set_view(&mut self) {
        let parts = ["a", "b", "c", "d"].map(volume).into();
        self.rules.set_pod(self.view.clone(), &parts);
    }

    fn wall(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH + self.now.duration_since(self.start)
    }

    fn say(&mut self, text: &str) {
        let at = self.now.duration_since(self.start).as_millis();
        let _ = writeln!(self.log, "{at} {text}");
    }

    fn notices(&mut self, notices: Vec<Notice>) {
        for notice in notices {
            let text = match notice {
                Notice::Verified {
                    volume: name,
                    arrival,
                    delay,
                    touches,
                } => {
                    let delay = delay.map(|delay| delay.as_millis());
                    let arrival = arrival.as_str();
                    format!("{name} verified: {arrival}, {delay:?} ms, {touches} touches")
                }
                other => format!("{other:?}"),
            };
            self.say(&text);
        }
    }

    fn look(&mut self, name: &'static str, change: VolumeChange) {
        let computed = self.computed.get(name).copied().flatten();
        let observation = match (computed, self.disk.get(name)) {
            (None, _) => PartObservation::Uncomputable("configmap \"app\" not found".to_owned()),
            (Some(_), _) if self.invisible => PartObservation::Invisible("no mount".to_owned()),
            (Some(_), None) => PartObservation::NotMounted,
            (Some(computed), Some(disk)) if computed == *disk => PartObservation::Same,
            (Some(_), Some(_)) => PartObservation::Outdated("file".to_owned()),
        };
        let look = Look {
            observation,
            payload: computed.map(payload),
            volume: change,
            changed_at: self.now,
            delay: self.delay,
        };
        let (now, wall) = (self.now, self.wall());
        let notices = self.rules.look(&volume(name), look, now, wall);
        self.notices(notices);
        self.touch();
    }

    /// Sends the touch that is due now, if any.
    fn touch(&mut self) {
        let counted = self.rules.outstanding().count();
        assert_eq!(self.rules.outstanding_parts, counted);
        if let Some(reason) = self.rules.would_touch() {
            self.say(&format!("would touch: {reason}"));
        }
        if self.rules.wants_touch(self.now) {
            self.rules.sent(self.now, self.wall());
            self.say("touch");
        }
    }

    /// Lets time pass until `at`.
    fn until(&mut self, at: u64) -> &mut Self {
        let at = self.start + Duration::from_millis(at);
        while let Some(wake) = self.rules.next_wake().filter(|wake| *wake <= at) {
            self.now = self.now.max(wake);
            let notices = self.rules.overdue(self.now);
            self.notices(notices);
            self.touch();
        }
        self.now = at;
        self
    }

    /// Objects change; this content is computed now.
    fn compute(&mut self, at: u64, name: &'static str, content: u8) -> &mut Self {
        self.until(at);
        self.computed.insert(name, Some(content));
        self.look(name, VolumeChange::None);
        self
    }

    /// A required object is deleted.
    fn lose(&mut self, at: u64, name: &'static str) -> &mut Self {
        self.until(at);
        self.computed.insert(name, None);
        self.look(name, VolumeChange::None);
        self
    }

    /// The kubelet swaps the volume.
    fn swap(&mut self, at: u64, name: &'static str, content: u8) -> &mut Self {
        self.until(at);
        self.disk.insert(name, content);
        self.look(name, VolumeChange::Swapped);
        self
    }

    fn gate(&mut self, at: u64, gate: Gate) -> &mut Self {
        self.until(at);
        self.rules.set_gate(gate, self.now);
        self
    }

    fn answer(&mut self, at: u64, answer: TouchAnswer) -> &mut Self {
        self.until(at);
        self.rules.answered(answer, 0.0, self.now);
        self
    }

    fn phase(&mut self, name: &str) -> &mut Self {
        let (state, reason) = self.rules.state(&volume(name), self.wall()).unwrap();
        self.say(&format!("{name} is {state:?}: {reason}"));
        self
    }

    #[track_caller]
    fn check(&mut self, expected: Expect) {
        expected.assert_eq(&self.log);
    }
}
