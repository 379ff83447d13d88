//! The embedding program's part of the API: flags, the configuration in use, and the log filter.

use std::{collections::BTreeMap, fmt, sync::Arc};

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::documents::budget;
use crate::config::Config;

/// The program around an agent. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) flags: Arc<BTreeMap<String, String>>,
    config: Arc<ArcSwap<Config>>,
    pub(super) log: Option<LogControl>,
    pub(super) projector: Option<Projector>,
    pub(super) shutdown: CancellationToken,
    /// Of the documents of all listeners but the socket, from which no other client takes room.
    pub(super) unread: Arc<Semaphore>,
}

/// Computes what the pods of some manifests (YAML or JSON) see, as JSON; or returns what is wrong with them.
pub type Projector = fn(&[u8]) -> Result<Vec<u8>, String>;

impl Program {
    /// A program that runs an agent with `config`, without flags.
    pub fn new(config: Config) -> Self {
        Self {
            flags: Arc::default(),
            config: Arc::new(ArcSwap::from_pointee(config)),
            log: None,
            projector: None,
            shutdown: CancellationToken::new(),
            unread: budget(),
        }
    }

    /// Sets the flags that `/flagz` shows, by name without dashes. No value may be a credential.
    #[must_use]
    pub fn flags(mut self, flags: impl IntoIterator<Item = (String, String)>) -> Self {
        self.flags = Arc::new(flags.into_iter().collect());
        self
    }

    /// Lets the socket show and set the log filter.
    #[must_use]
    pub fn log(mut self, log: LogControl) -> Self {
        self.log = Some(log);
        self
    }

    /// Ends streams of changes with `shutdown`, which would otherwise last as long as their clients.
    #[must_use]
    pub fn shutdown(mut self, shutdown: CancellationToken) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Lets the socket compute projections.
    #[must_use]
    pub fn projector(mut self, projector: Projector) -> Self {
        self.projector = Some(projector);
        self
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// Replaces the configuration in use, after a reload.
    pub fn set_config(&self, config: Config) {
        self.config.store(Arc::new(config));
    }
}

type Show = dyn Fn() -> String + Send + Sync;
type Set = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// Shows and sets the log filter of the program. Cloning shares it.
#[derive(Clone)]
pub struct LogControl {
    pub(super) show: Arc<Show>,
    pub(super) set: Arc<Set>,
}

impl LogControl {
    /// A control with a function that returns the filter in use, and one that sets another or returns what is wrong
    /// with it.
    pub fn new(
        show: impl Fn() -> String + Send + Sync + 'static,
        set: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            show: Arc::new(show),
            set: Arc::new(set),
        }
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogControl").finish_non_exhaustive()
    }
}
