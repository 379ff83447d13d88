//! The loop: mutate an input of the pool, run the target on it, keep it if its outcome is new.

use std::{
    collections::HashSet,
    fmt, fs,
    hash::BuildHasher as _,
    io::ErrorKind,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use fastrand::Rng;
use foldhash::fast::FixedState;

use crate::{
    limits::{Used, Watchdog, cpu_time},
    mutation::Mutator,
    targets::Target,
};

/// Number of failures after which a campaign ends.
const MAX_FAILURES: usize = 10;
/// Number of inputs between two looks at the CPU time.
const BATCH: u64 = 64;

/// What all campaigns have in common.
pub(crate) struct Settings {
    /// Where corpus, dictionaries and artifacts are.
    pub(crate) directory: PathBuf,
    /// CPU time, so that a busy machine shortens no campaign.
    pub(crate) time: Duration,
    /// Number of inputs, instead of the time.
    pub(crate) inputs: Option<u64>,
    pub(crate) seed: u64,
    /// Whether inputs with a new outcome are added to the corpus.
    pub(crate) keep: bool,
}

/// The run of one target.
pub(crate) struct Campaign<'a> {
    target: &'static Target,
    settings: &'a Settings,
    mutator: Mutator,
    watchdog: Watchdog,
    pool: Vec<Vec<u8>>,
    /// The inputs of the pool that were accepted. Half of the mutations begin with one of them.
    accepted: Vec<usize>,
    traces: HashSet<u64>,
    report: Report,
}

/// What a campaign found.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) failures: usize,
    corpus: usize,
    inputs: u64,
    accepted: u64,
    outcomes_of_corpus: usize,
    outcomes: usize,
    time: Duration,
    most: Used,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.accepted * 100 / self.inputs.max(1);
        write!(
            f,
            "{} failures; {} inputs in {:.0?}, {share} % accepted; {} outcomes, {} of them of the {} inputs of the \
             corpus; at most {:.1?} and {} KiB",
            self.failures,
            self.inputs,
            self.time,
            self.outcomes,
            self.outcomes_of_corpus,
            self.corpus,
            self.most.cpu,
            self.most.bytes >> 10,
        )
    }
}

impl<'a> Campaign<'a> {
    pub(crate) fn new(target: &'static Target, settings: &'a Settings) -> anyhow::Result<Self> {
        let dictionaries = settings.directory.join("dictionaries");
        let mut dictionary = fs::read_to_string(dictionaries.join("common.dict"))?;
        // Not every target has words of its own.
        let own = dictionaries.join(format!("{}.dict", target.name));
        dictionary += &fs::read_to_string(own).unwrap_or_default();
        let artifacts = settings.directory.join("artifacts");
        fs::create_dir_all(&artifacts)
            .with_context(|| format!("cannot create {}", artifacts.display()))?;
        let mut pool = corpus(&settings.directory, target)?;
        pool.extend((target.more_seeds)());
        Ok(Self {
            target,
            settings,
            mutator: Mutator::new(&dictionary, target.structure, target.max_length),
            watchdog: Watchdog::new(artifacts.join(format!("{}-limit", target.name))),
            report: Report {
                corpus: pool.len(),
                ..Report::default()
            },
            pool,
            accepted: Vec::new(),
            traces: HashSet::new(),
        })
    }

    pub(crate) fn run(mut self) -> anyhow::Result<Report> {
        let start = cpu_time();
        for (index, input) in self.pool.clone().into_iter().enumerate() {
            let accepted = self.report.accepted;
            self.is_new(&input)?;
            if self.report.accepted > accepted {
                self.accepted.push(index);
            }
        }
        self.report.outcomes_of_corpus = self.traces.len();
        let mut rng = Rng::with_seed(self.settings.seed);
        while self.report.failures < MAX_FAILURES && !self.is_over(start) {
            for _ in 0..BATCH {
                let from = if self.accepted.is_empty() || rng.bool() {
                    rng.usize(..self.pool.len())
                } else {
                    self.accepted[rng.usize(..self.accepted.len())]
                };
                let mut input = self.pool[from].clone();
                let other = &self.pool[rng.usize(..self.pool.len())];
                self.mutator.mutate(&mut input, other, &mut rng);
                let accepted = self.report.accepted;
                if self.is_new(&input)? {
                    if self.report.accepted > accepted {
                        self.accepted.push(self.pool.len());
                    }
                    if self.settings.keep {
                        let corpus = corpus_directory(&self.settings.directory, self.target);
                        write_input(&corpus, "", &input)?;
                    }
                    self.pool.push(input);
                }
            }
        }
        self.report.outcomes = self.traces.len();
        self.report.time = cpu_time().saturating_sub(start);
        Ok(self.report)
    }

    fn is_over(&self, start: Duration) -> bool {
        match self.settings.inputs {
            Some(inputs) => self.report.inputs >= inputs,
            None => cpu_time().saturating_sub(start) >= self.settings.time,
        }
    }

    /// Runs the target on `input`, and returns whether its outcome is new.
    fn is_new(&mut self, input: &[u8]) -> anyhow::Result<bool> {
        let run = || catch_unwind(AssertUnwindSafe(|| self.target.run(input)));
        let (outcome, used) = self.watchdog.watch(input, run);
        self.report.inputs += 1;
        self.report.most.cpu = self.report.most.cpu.max(used.cpu);
        self.report.most.bytes = self.report.most.bytes.max(used.bytes);
        let Ok(outcome) = outcome else {
            self.report.failures += 1;
            let artifacts = self.settings.directory.join("artifacts");
            let path = write_input(&artifacts, &format!("{}-", self.target.name), input)?;
            println!("{}: fails on {}", self.target.name, path.display());
            return Ok(false);
        };
        self.report.accepted += u64::from(outcome.is_accepted);
        Ok(self.traces.insert(outcome.trace))
    }
}

fn corpus_directory(directory: &Path, target: &Target) -> PathBuf {
    directory.join("corpus").join(target.name)
}

/// The inputs of a target's corpus, in the order of their names.
pub(crate) fn corpus(directory: &Path, target: &Target) -> anyhow::Result<Vec<Vec<u8>>> {
    let directory = corpus_directory(directory, target);
    let entries = match fs::read_dir(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot list {}", directory.display()))?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry?.path());
    }
    paths.sort();
    let read =
        |path: PathBuf| fs::read(&path).with_context(|| format!("cannot read {}", path.display()));
    paths.into_iter().map(read).collect()
}

/// Writes `input` to a file named after its content.
fn write_input(directory: &Path, prefix: &str, input: &[u8]) -> anyhow::Result<PathBuf> {
    let hash = FixedState::default().hash_one(input);
    let path = directory.join(format!("{prefix}{hash:016x}"));
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&path, input))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
