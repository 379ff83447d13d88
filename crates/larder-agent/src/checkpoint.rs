//! The checkpoint: the pods of the node and the objects that they reference, sealed on disk, for a start while the API
//! server is unreachable.
//!
//! ```text
//!            start                        `after` without an answer                API source reports all pods
//!  Opening ─────────► every file opened ─────────────────────────► copies read, served ───────────────────────► recording
//!                            └──────────────── answer, 401 or 403: no copy read ───────────────────────────────►
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | `codec` | encodes and decodes the copies |
//! | `serve` | the copies to serve, and when |
//! | `record` | the copies to write, from the managers' known state |
//! | `inspect` | reads the checkpoint for `larder checkpoint`, whether or not the agent runs |
//! | `board` | status and metrics |
//!
//! Invariants:
//! 1. Nothing is written before the API server has reported all pods of the node. So a start without an API server
//!    loses no copy.
//! 2. A copy is served only if the manager does not know the object's state yet; see [`larder::ObjectState::Stale`].
//! 3. No failure of the checkpoint stops the agent. Status, log and metrics report it, and the agent retries.
//! 4. Reading and writing happen on blocking threads, and no delivery waits for them.
//! 5. No content stays in memory unless it is served. So on a node whose API server answers, only the index takes
//!    memory.

mod board;
mod codec;
mod inspect;
mod record;
mod serve;

use std::{panic::resume_unwind, sync::Arc, thread, time::Duration};

use futures::{FutureExt as _, future::OptionFuture};
use larder::Changes;
use larder_checkpoint::{
    CheckpointDir, Contents, Found, IndexWrite, KeySource, Keyring, Owner, RejectedFile, Store,
    digest,
};
use larder_inputs::cluster_state::ClusterState;
use larder_kubelet::backoff::RETRY;
use larder_objects::chain;
use larder_pods::Pods;
use larder_transport::blocking::blocking;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::inspect::{InspectError, inspect};
pub(crate) use self::{
    board::CheckpointBoard,
    serve::{ApiContact, StaleNode, contact},
};
use self::{
    codec::CopyContent,
    record::{Recorder, Snapshot},
};
use crate::{
    config::CheckpointConfig,
    delivery::inputs::NodeInputs,
    waits::{OwnWork, Waits},
};

/// Time from a change to its write, in which further changes join it. Less than a second together with the write, and
/// long enough that a second of changes costs at most two writes.
const COALESCE: Duration = Duration::from_millis(900);
/// Fraction of the shortest maximum age after which the times of the freshness checks are written although nothing has
/// changed.
const REFRESHES_PER_AGE: u32 = 8;
/// Shortest time between two such writes.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_mins(1);

/// Identifies a cluster: a checkpoint of one cluster does not open for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterId([u8; 32]);

impl ClusterId {
    /// The cluster whose API server is known by these certificates (PEM) and this name.
    pub fn new(authority: &[u8], server_name: &str) -> Self {
        let length = (authority.len() as u64).to_le_bytes();
        let bytes = [&length, authority, server_name.as_bytes()].concat();
        Self(digest(&bytes))
    }

    fn owner(self, node: &str) -> Owner {
        Owner {
            cluster: self.0,
            node: node.to_owned(),
        }
    }
}

/// The task of the checkpoint.
pub(crate) struct Checkpoint {
    pub(crate) config: CheckpointConfig,
    pub(crate) cluster: ClusterId,
    pub(crate) node: String,
    pub(crate) directory: CheckpointDir,
    pub(crate) inputs: Arc<NodeInputs>,
    pub(crate) waits: Waits,
    pub(crate) board: Arc<CheckpointBoard>,
    pub(crate) pods: Pods,
    /// Changes whenever the pods may have changed.
    pub(crate) pods_changed: watch::Receiver<()>,
    pub(crate) contact: watch::Receiver<ApiContact>,
    /// Receives the copies to serve. Dropped after the last write during the shutdown.
    pub(crate) stale: mpsc::Sender<StaleNode>,
}

/// The events that wake the recording.
struct Wakes {
    config_maps: Changes,
    secrets: Changes,
    cluster: watch::Receiver<ClusterState>,
    pods: watch::Receiver<()>,
}

impl Wakes {
    async fn next(&mut self) {
        // Every arm is cancel-safe.
        tokio::select! {
            biased;
            Some(_) = self.config_maps.next() => {}
            Some(_) = self.secrets.next() => {}
            Ok(()) = self.cluster.changed() => {}
            Ok(()) = self.pods.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// Forgets the pending events; the next write covers them.
    fn clear(&mut self) {
        while let Some(Some(_)) = self.config_maps.next().now_or_never() {}
        while let Some(Some(_)) = self.secrets.next().now_or_never() {}
        self.cluster.mark_unchanged();
        self.pods.mark_unchanged();
    }
}

impl Checkpoint {
    /// Serves and records until `shutdown`, and then writes the times of the freshness checks. Returns only when
    /// dropped.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut wakes = Wakes {
            config_maps: self.inputs.config_maps.subscribe(),
            secrets: self.inputs.secrets.subscribe(),
            cluster: self.inputs.cluster.clone(),
            pods: self.pods_changed.clone(),
        };
        let mut recorder = None;
        let work = async {
            let found = self.open_and_serve().await;
            let mut contact = self.contact.clone();
            let answered = contact.wait_for(|contact| *contact == ApiContact::Answered);
            if answered.await.is_err() {
                return;
            }
            self.board.stop_serving();
            recorder = Some(Recorder::new(found));
            self.record(&mut recorder, &mut wakes).await;
        };
        Box::pin(shutdown.run_until_cancelled(work)).await;
        // `None` while a write is under way, which covers the same.
        if recorder.is_some() {
            let _ = self.write(&mut recorder, IndexWrite::Always).await;
        }
        drop(self.stale);
        std::future::pending::<()>().await;
    }

    /// Opens the checkpoint, and serves it if the API server does not answer in time.
    async fn open_and_serve(&self) -> Store {
        let deadline = Instant::now() + self.config.after;
        let mut backoff = RETRY;
        let found = loop {
            match self.open().await {
                Ok(found) => break found,
                Err(error) => {
                    if self.board.failed(error.reason(), &chain(&error)) {
                        warn!(error = chain(&error), "checkpoint is off, will retry");
                    }
                    sleep(backoff.next_delay()).await;
                }
            }
        };
        let mut store = found.store;
        log_rejected(&found.rejected);
        self.board.opened(&store, &found.rejected);
        let mut contact = self.contact.clone();
        let answered = contact.wait_for(|contact| *contact >= ApiContact::Denied);
        if timeout_at(deadline, answered).await.is_err() {
            let read;
            let reading = apart(move || {
                let read = store.contents(CopyContent::decode);
                (store, read)
            });
            (store, read) = self.waits.shown(OwnWork::Checkpoint, reading).await;
            match read {
                Ok(_) if store.len() == 0 => {
                    info!("API server has not answered, and the checkpoint is empty");
                }
                Ok(contents) => self.serve(&store, contents).await,
                Err(error) => {
                    self.board.failed(error.label(), &chain(&error));
                    warn!(
                        error = chain(&error),
                        "failed to read the checkpoint, serving nothing from it"
                    );
                }
            }
        }
        store
    }

    async fn open(&self) -> Result<Found, InspectError> {
        let (directory, keys) = (self.directory.clone(), self.config.keys.clone());
        let owner = self.cluster.owner(&self.node);
        let opening = apart(move || {
            let credentials = credentials();
            let may_create = !directory.is_written()?
                || opens_with(&directory, keys.get(1..).unwrap_or_default(), &owner);
            let load = if may_create {
                Keyring::load
            } else {
                Keyring::load_existing
            };
            let keys = load(&keys, credentials.as_deref())?;
            Ok(Store::open(&directory, keys, owner, CopyContent::decode)?)
        });
        self.waits.shown(OwnWork::Checkpoint, opening).await
    }

    /// Hands the copies to the agent.
    async fn serve(&self, store: &Store, Contents { copies, rejected }: Contents<CopyContent>) {
        log_rejected(&rejected);
        let now = self.inputs.clock.now();
        let newest = store.newest_verification();
        let stale = StaleNode::new(copies, newest, &self.config);
        if now < newest {
            warn!(%now, checkpoint = %newest, "the clock is earlier than the checkpoint, so ages are unknown and count as zero");
        }
        info!(
            pods = stale.pods.len(), as_of = %newest,
            "API server has not answered, serving from the checkpoint"
        );
        // The receiver lives as long as the agent does.
        let _ = self.stale.send(stale).await;
    }

    /// Follows every change. Returns only when dropped.
    async fn record(&self, recorder: &mut Option<Recorder>, wakes: &mut Wakes) {
        let refresh = refresh_interval(&self.config);
        let mut backoff = RETRY;
        let mut wait = COALESCE;
        loop {
            sleep(wait).await;
            wakes.clear();
            if self.write(recorder, IndexWrite::IfDifferent).await.is_err() {
                wait = backoff.next_delay();
                continue;
            }
            (backoff, wait) = (RETRY, COALESCE);
            loop {
                let refresh_at = refresh.map(|refresh| Instant::now() + refresh);
                let refresh_due = OptionFuture::from(refresh_at.map(sleep_until));
                tokio::select! {
                    biased;
                    () = wakes.next() => break,
                    Some(()) = refresh_due => {
                        // Status and metrics show a failure; the next write is due soon enough.
                        let _ = self.write(recorder, IndexWrite::Always).await;
                    }
                }
            }
        }
    }

    /// Writes the managers' known state.
    async fn write(&self, recorder: &mut Option<Recorder>, index: IndexWrite) -> Result<(), ()> {
        let Some(mut writing) = recorder.take() else {
            return Ok(());
        };
        let snapshot = Snapshot::of(&self.inputs, &self.pods);
        let now = self.inputs.clock.now();
        let write = apart(move || {
            let written = writing.write(snapshot, now, index);
            (writing, written)
        });
        let (writing, written) = self.waits.shown(OwnWork::Checkpoint, write).await;
        let board = &self.board;
        let result = match written {
            Ok(written) => {
                if let Some(problem) = board.written(writing.store(), written) {
                    warn!(problem, "checkpoint is incomplete");
                }
                Ok(())
            }
            Err(error) => {
                if board.failed(error.label(), &chain(&error)) {
                    warn!(
                        error = chain(&error),
                        "failed to write the checkpoint, will retry"
                    );
                }
                Err(())
            }
        };
        *recorder = Some(writing);
        result
    }
}

/// Runs `work` on a thread of its own, whose arena of the allocator the next such thread uses again. On the threads of
/// deliveries, each of their arenas would grow to the memory of a write.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let ended = blocking(move || {
        let work = Mutex::new(Some(work));
        let run = || work.lock().take().map(|work| work());
        thread::scope(
            |scope| match thread::Builder::new().spawn_scoped(scope, run) {
                Ok(thread) => thread.join(),
                // There may be no more threads.
                Err(_) => Ok(run()),
            },
        )
    });
    ended
        .await
        .unwrap_or_else(|panic| resume_unwind(panic))
        .expect("it runs once")
}

/// Whether the checkpoint opens with `keys` alone, so that a new first key costs nothing of it. In place of a key that has
/// sealed what is there, a new one would cost all of it.
fn opens_with(directory: &CheckpointDir, keys: &[KeySource], owner: &Owner) -> bool {
    let credentials = credentials();
    if keys.is_empty() {
        return false;
    }
    let found = Keyring::load_existing(keys, credentials.as_deref())
        .map(|keys| Store::inspect(directory, &keys, owner, CopyContent::decode));
    matches!(found, Ok(Ok(Some(contents))) if contents.rejected.is_empty())
}

/// Time after which the times of the freshness checks are written although nothing has changed.
fn refresh_interval(config: &CheckpointConfig) -> Option<Duration> {
    let ages = [config.max_age_secrets, config.max_age_config_maps];
    let shortest = ages.into_iter().flatten().min()?;
    Some((shortest / REFRESHES_PER_AGE).max(MIN_REFRESH_INTERVAL))
}

fn log_rejected(files: &[RejectedFile]) {
    for file in files {
        warn!(%file, "file of the checkpoint rejected, not served");
    }
}

/// The directory where systemd puts the credentials of this unit.
fn credentials() -> Option<std::ffi::OsString> {
    std::env::var_os("CREDENTIALS_DIRECTORY")
}
