//! How many lines of one cause the log takes. Pods, objects and clients cause most lines, and would fill a disk.
//!
//! A cause is a place in the code. Its subject is the pod, object or path that the line names, else the span that it is
//! in.
//!
//! Invariants:
//! 1. A cause has lines for each subject, for each namespace and in all ([`SCOPES`]). Further ones are counted, and
//!    the counts logged within [`INTERVAL`].
//! 2. At most [`MAX_BUCKETS`] are remembered, and further subjects share one. At most [`MAX_COUNTS`] subjects have a
//!    count of their own.
//! 3. What only `LARDER_LOG` shows is not limited: debug and trace.

use std::{
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::BuildHasher as _,
    mem,
    sync::Arc,
    time::Duration,
};

use larder_transport::TokenBucket;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    info, warn,
};
use tracing_subscriber::{
    layer::{Context, Layer},
    registry::LookupSpan,
};

/// Lines at once and the time until a further one: of a subject, of a namespace, in all.
const SCOPES: [(u32, Duration); 3] = [
    (20, Duration::from_secs(20)),
    (300, Duration::from_secs(3)),
    (1000, Duration::from_secs(1)),
];
/// Time without a line in which every bucket fills up.
const REST: Duration = Duration::from_secs(1000);
/// Longest time until a count is logged.
const INTERVAL: Duration = Duration::from_mins(1);
const MAX_BUCKETS: usize = 4096;
const MAX_COUNTS: usize = 64;
/// Fields that name a subject, the most telling first.
const SUBJECTS: [&str; 6] = ["pod", "pod.uid", "object", "target", "path", "problem"];

/// The layer of a subscriber that limits its lines. Cloning gives another handle to the same limit.
#[derive(Clone, Default)]
pub(crate) struct LineLimit {
    lines: Arc<Mutex<LimitedLines>>,
    /// Notified when a line was withheld.
    withheld: Arc<Notify>,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LineLimit {
    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::INFO || metadata.target() == module_path!() {
            return true;
        }
        let mut line = Line::default();
        event.record(&mut line);
        if line.subject.is_empty() {
            let span = context.event_span(event);
            line.subject = span.map_or_else(String::new, |span| format!("{:?}", span.id()));
        }
        self.takes(line, metadata.name(), *metadata.level())
    }
}

impl LineLimit {
    /// Whether a line of `subject` may be printed that is not of the log.
    pub(crate) fn admits(&self, message: &'static str, subject: &dyn fmt::Display) -> bool {
        let line = Line {
            rank: 0,
            subject: subject.to_string(),
            message: message.to_owned(),
        };
        self.takes(line, "printed", Level::INFO)
    }

    /// Does `work`, and logs how many lines were withheld, meanwhile and at its end.
    pub(crate) async fn reporting<T>(&self, work: impl Future<Output = T>) -> T {
        let reports = async {
            loop {
                self.withheld.notified().await;
                sleep(INTERVAL).await;
                self.report();
            }
        };
        let done = tokio::select! {
            done = work => done,
            never = reports => never,
        };
        self.report();
        done
    }

    fn takes(&self, line: Line, cause: &'static str, level: Level) -> bool {
        let mut lines = self.lines.lock();
        let is_admitted = lines.admits(cause, &line.subject, Instant::now());
        if !is_admitted {
            lines.count(cause, line, level);
            self.withheld.notify_one();
        }
        is_admitted
    }

    /// Logs how many lines were withheld since the last time.
    fn report(&self) {
        // A line takes the lock.
        let counts = mem::take(&mut self.lines.lock().counts);
        for ((_, subject), (lines, message, level)) in counts {
            let subject = Some(subject).filter(|subject| !subject.is_empty());
            macro_rules! withheld {
                ($log:ident) => {
                    $log!(lines, of = message, subject, "further lines withheld")
                };
            }
            if level == Level::INFO {
                withheld!(info);
            } else {
                withheld!(warn);
            }
        }
    }
}

/// What of a line counts.
#[derive(Default)]
struct Line {
    rank: usize,
    subject: String,
    message: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
        let rank = SUBJECTS.iter().position(|name| *name == field.name());
        if let Some(rank) = rank
            && (self.subject.is_empty() || rank < self.rank)
        {
            (self.rank, self.subject) = (rank, format!("{value:?}"));
        }
    }
}

/// The lines that were taken and withheld lately.
#[derive(Default)]
struct LimitedLines {
    hasher: RandomState,
    /// By cause, scope and the hash of what is in it; and the time of the last line.
    buckets: HashMap<(&'static str, usize, u64), (TokenBucket, Instant)>,
    /// When those at rest were dropped last.
    tidied_at: Option<Instant>,
    /// Withheld lines by cause and subject, with the message of one and its level.
    counts: HashMap<(&'static str, String), (u64, String, Level)>,
}

impl LimitedLines {
    /// Whether a line may be printed; takes its place then.
    fn admits(&mut self, cause: &'static str, subject: &str, now: Instant) -> bool {
        let is_full = self.buckets.len() >= MAX_BUCKETS;
        if is_full && self.tidied_at.is_none_or(|at| now - at >= INTERVAL) {
            self.buckets.retain(|_, (_, last)| now - *last < REST);
            self.tidied_at = Some(now);
        }
        let namespace = subject
            .split_once('/')
            .map_or("", |(namespace, _)| namespace);
        let mut keys = [subject, namespace, ""].map(|of| self.hasher.hash_one(of));
        let others = keys[2];
        let mut has_place = true;
        for (scope, of) in keys.iter_mut().enumerate() {
            let (burst, interval) = SCOPES[scope];
            if self.buckets.len() >= MAX_BUCKETS && !self.buckets.contains_key(&(cause, scope, *of))
            {
                *of = others;
            }
            let new = || (TokenBucket::new(interval, burst, now), now);
            let bucket = self.buckets.entry((cause, scope, *of)).or_insert_with(new);
            has_place &= bucket.0.wait(now).is_zero();
        }
        for (scope, of) in keys.into_iter().enumerate().filter(|_| has_place) {
            if let Some((bucket, last)) = self.buckets.get_mut(&(cause, scope, of)) {
                bucket.take(now);
                *last = now;
            }
        }
        has_place
    }

    fn count(&mut self, cause: &'static str, line: Line, level: Level) {
        let mut key = (cause, line.subject);
        if self.counts.len() >= MAX_COUNTS && !self.counts.contains_key(&key) {
            key.1.clear();
        }
        let count = self.counts.entry(key).or_insert((0, line.message, level));
        count.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::mpsc};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn line(subject: &str) -> Line {
        Line {
            subject: subject.to_owned(),
            message: "failed".to_owned(),
            ..Line::default()
        }
    }

    /// How many of `lines` are admitted, one for each subject in turn, `pause` after the other.
    fn admitted(subjects: &[String], lines: u32, pause: Duration) -> usize {
        let (mut limited, start) = (LimitedLines::default(), Instant::now());
        let each = (0..lines).zip(subjects.iter().cycle());
        each.filter(|(number, subject)| limited.admits("a", subject, start + pause * *number))
            .count()
    }

    #[test]
    fn pod_whose_failures_always_differ_has_a_few_lines_a_minute() {
        let pod = ["team/web".to_owned()];
        assert_eq!(admitted(&pod, 20, Duration::ZERO), 20);
        // An hour of a line in each tenth of a second.
        assert_eq!(admitted(&pod, 36_000, Duration::from_millis(100)), 20 + 179);
    }

    #[test]
    fn many_pods_of_a_namespace_share_its_lines_and_all_namespaces_the_log() {
        let pods = |namespaces: usize| -> Vec<_> {
            let pods = 0..3000;
            pods.map(|pod| format!("team{}/web{pod}", pod % namespaces))
                .collect()
        };
        assert_eq!(admitted(&pods(1), 3000, Duration::ZERO), 300);
        assert_eq!(admitted(&pods(3), 3000, Duration::ZERO), 900);
        assert_eq!(admitted(&pods(10), 3000, Duration::ZERO), 1000);
    }

    #[test]
    fn flood_of_one_pod_hides_neither_other_pods_nor_other_causes() {
        let (mut limited, now) = (LimitedLines::default(), Instant::now());
        for _ in 0..1000 {
            limited.admits("a", "team/loud", now);
        }
        assert!(!limited.admits("a", "team/loud", now));
        assert!(limited.admits("a", "team/quiet", now));
        assert!(limited.admits("a", "other/quiet", now));
        assert!(limited.admits("b", "team/loud", now));
    }

    #[test]
    fn memory_is_bounded_and_given_back_after_a_rest() {
        let (mut limited, now) = (LimitedLines::default(), Instant::now());
        for pod in 0..50_000 {
            let subject = format!("team{pod}/web");
            if !limited.admits("a", &subject, now) {
                limited.count("a", line(&subject), Level::WARN);
            }
        }
        assert!(limited.buckets.len() <= MAX_BUCKETS + SCOPES.len());
        assert!(limited.counts.len() <= MAX_COUNTS + 1);
        let counted: u64 = limited.counts.values().map(|(lines, ..)| lines).sum();
        assert_eq!(counted, 49_000);
        assert!(limited.admits("a", "new/web", now + REST));
        assert!(limited.buckets.len() <= SCOPES.len());
    }

    /// Takes what is logged.
    struct Lines(mpsc::Sender<String>);

    impl io::Write for Lines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn withheld_lines_are_counted_in_one_line_for_each_pod() {
        let (written, writes) = mpsc::channel::<String>();
        let log = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(move || Lines(written.clone()));
        let limit = LineLimit::default();
        let subscriber = tracing_subscriber::registry().with(log).with(limit.clone());
        tracing::subscriber::with_default(subscriber, || {
            for answer in 0..100 {
                warn!(pod = %"team/web", error = format!("answer {answer}"), "hook failed");
            }
            for _ in 0..100 {
                let span = tracing::info_span!("certificate");
                span.in_scope(|| warn!("certificate rejected"));
                tracing::debug!(pod = "team/web", "not limited");
            }
            limit.report();
        });
        let lines: Vec<_> = writes.try_iter().collect();
        let with = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        assert_eq!(
            with("hook failed error=") + with("hook failed pod="),
            20,
            "{lines:?}"
        );
        assert_eq!(with("certificate rejected"), 100, "{lines:?}");
        let counts = "WARN larder_cli::logging::limit: further lines withheld lines=80 of=\"hook failed\" subject=\"team/web\"";
        assert_eq!(with(counts), 1, "{lines:?}");
    }
}
