//! Detects that the kubelet has given a volume another set of files, by the rename of `..data` (beside-kubelet R25).
//!
//! One inotify instance serves all pods of the node. There is no task: the waiters take turns. One waits for the
//! instance to become readable, and passes the events to all. A watch keeps no file open and blocks no unmount. A volume
//! without a watch (no inotify, no watches left, the directory is being recreated) is polled.
//!
//! Invariants:
//! 1. A signal means that reading the volume is worthwhile. It carries no content.
//! 2. No swap is missed: an overflow of the kernel's queue, and the end of a watch, are signals for every affected
//!    volume. A volume is polled from the end of its watch until it is followed again.
//! 3. A watch ends with the last [`PodSwaps`] that follows its directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};

use larder_projection::VolumeKind;
use parking_lot::Mutex;
use rustix::{
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, Semaphore},
    time::{Instant, sleep_until},
};
use tracing::warn;

use crate::kubelet_dir::{KubeletDir, VolumeId};

/// Polling intervals by the time since the touch (R25). After the last one, [`SLOW_POLL`] applies.
const POLLS: [(Duration, Duration); 2] = [
    (Duration::from_millis(500), Duration::from_millis(20)),
    (Duration::from_millis(1500), Duration::from_millis(100)),
];

/// Polling interval of a volume without a recent touch.
const SLOW_POLL: Duration = Duration::from_secs(1);

/// What a watch of a volume's directory reports.
const EVENTS: WatchFlags = WatchFlags::MOVED_TO
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Events that end a watch, or show that its directory is no longer the volume's.
const ENDS: ReadFlags = ReadFlags::UNMOUNT
    .union(ReadFlags::DELETE_SELF)
    .union(ReadFlags::MOVE_SELF)
    .union(ReadFlags::IGNORED);

/// Room for some hundred events of the short names that the kubelet uses.
const EVENT_BYTES: usize = 16 << 10;

/// How swaps are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapDetection {
    /// By inotify where the kernel supports it, and by polling otherwise.
    Inotify,
    /// By polling only: tests with paused time.
    Polling,
}

/// What happened to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwapSignal {
    /// It is polled, or events were lost: it may have been swapped.
    Look,
    /// It was swapped.
    Swapped,
    /// Its directory was unmounted, removed or moved away. It is polled until it is followed again.
    Gone,
}

/// Notices the swaps of all volumes of a node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Swaps {
    directory: Arc<KubeletDir>,
    /// `None`: everything is polled.
    inotify: Option<Arc<Inotify>>,
}

#[derive(Debug)]
struct Inotify {
    instance: AsyncFd<OwnedFd>,
    /// Held by the one waiter that waits for the instance: an event wakes that one and the followers of its watch, however
    /// many pods wait.
    turn: Semaphore,
    /// Followers by the kernel's number of the watch.
    watches: Mutex<BTreeMap<i32, Vec<SwapFollower>>>,
}

/// One volume of one pod that waits for the events of a watch.
#[derive(Debug)]
struct SwapFollower {
    inbox: Arc<SwapInbox>,
    key: usize,
}

/// Signals of one pod that were not received yet.
#[derive(Debug, Default)]
struct SwapInbox {
    /// The strongest signal of each volume.
    signals: Mutex<BTreeMap<usize, SwapSignal>>,
    arrived: Notify,
}

impl SwapInbox {
    fn put(&self, key: usize, signal: SwapSignal) {
        let mut signals = self.signals.lock();
        let strongest = signals.entry(key).or_insert(signal);
        *strongest = signal.max(*strongest);
        drop(signals);
        self.arrived.notify_one();
    }
}

/// Follows some volumes of one pod. Dropping it ends its watches.
#[derive(Debug)]
#[must_use = "dropping it ends the watches"]
pub struct PodSwaps {
    swaps: Swaps,
    inbox: Arc<SwapInbox>,
    /// Watches by volume.
    watched: BTreeMap<usize, i32>,
    /// Volumes without a watch.
    polled: BTreeSet<usize>,
    /// Polling is frequent after it.
    since: Instant,
    next_poll: Instant,
}

impl Swaps {
    /// Notices swaps below `directory`. Where inotify cannot be had, which is logged, everything is polled.
    ///
    /// # Panics
    ///
    /// With inotify, outside of a tokio runtime.
    pub fn new(directory: Arc<KubeletDir>, detection: SwapDetection) -> Self {
        let inotify = match detection {
            SwapDetection::Polling => None,
            SwapDetection::Inotify => Inotify::open()
                .inspect_err(|error| warn!(%error, "failed to set up inotify, polling volumes"))
                .ok()
                .map(Arc::new),
        };
        Self { directory, inotify }
    }

    /// Follows volumes of one pod: none at first.
    pub fn of_pod(&self) -> PodSwaps {
        let now = Instant::now();
        PodSwaps {
            swaps: self.clone(),
            inbox: Arc::default(),
            watched: BTreeMap::new(),
            polled: BTreeSet::new(),
            since: now,
            next_poll: now + POLLS[0].1,
        }
    }
}

impl PodSwaps {
    /// Follows volumes of the pod, each under its key. A volume that cannot be watched is polled. Waits for the disk.
    ///
    /// Look at the volumes afterwards: a swap before this call is not signaled.
    #[must_use = "dropping it ends the watches of the pod"]
    pub fn follow_all(mut self, pod_uid: &str, volumes: Vec<(usize, VolumeKind, String)>) -> Self {
        for (key, kind, name) in volumes {
            let name = &name;
            let id = VolumeId {
                pod_uid,
                kind,
                name,
            };
            self.follow(key, &id);
        }
        self
    }

    /// Follows the volume `id` under `key`, instead of what was followed under that key before. Waits for the disk.
    fn follow(&mut self, key: usize, id: &VolumeId<'_>) {
        self.unfollow(key);
        let watch = self.swaps.inotify.as_ref().and_then(|inotify| {
            let directory = self.swaps.directory.volume_handle(id).ok()?;
            let inbox = Arc::clone(&self.inbox);
            // It fails at the limit of watches, mostly: polling does as well.
            inotify.watch(&directory, SwapFollower { inbox, key }).ok()
        });
        match watch {
            Some(watch) => {
                self.watched.insert(key, watch);
            }
            None => {
                self.polled.insert(key);
            }
        }
    }

    /// Ends what `follow` began.
    pub fn unfollow(&mut self, key: usize) {
        self.polled.remove(&key);
        if let (Some(watch), Some(inotify)) = (self.watched.remove(&key), &self.swaps.inotify) {
            inotify.end(watch, &self.inbox, key);
        }
        self.inbox.signals.lock().remove(&key);
    }

    /// Polls frequently from now on: the pod was touched.
    pub fn restart(&mut self) {
        self.since = Instant::now();
        self.next_poll = self.since + POLLS[0].1;
    }

    /// Waits for the next signal. Several signals of one volume become one.
    ///
    /// # Cancel safety
    ///
    /// Safe: a signal is taken only when it is returned.
    pub async fn next(&mut self) -> (usize, SwapSignal) {
        loop {
            if let Some(signal) = self.pending() {
                return signal;
            }
            let is_polling = !self.polled.is_empty();
            tokio::select! {
                biased;
                () = self.inbox.arrived.notified() => {}
                () = self.dispatch(), if !self.watched.is_empty() => {}
                () = sleep_until(self.next_poll), if is_polling => self.poll(),
            }
        }
    }

    /// A signal that has arrived; `None` if there is none.
    pub fn pending(&mut self) -> Option<(usize, SwapSignal)> {
        let (key, signal) = self.inbox.signals.lock().pop_first()?;
        if signal == SwapSignal::Gone {
            self.watched.remove(&key);
            self.polled.insert(key);
        }
        Some((key, signal))
    }

    /// Hands out the kernel's events when there are some. Forever pending without inotify.
    async fn dispatch(&self) {
        match &self.swaps.inotify {
            Some(inotify) => inotify.dispatch().await,
            None => std::future::pending().await,
        }
    }

    fn poll(&mut self) {
        let now = Instant::now();
        for &key in &self.polled {
            self.inbox.put(key, SwapSignal::Look);
        }
        let age = now.duration_since(self.since);
        let interval = POLLS.iter().find(|(until, _)| age < *until);
        self.next_poll = now + interval.map_or(SLOW_POLL, |(_, interval)| *interval);
    }
}

impl Drop for PodSwaps {
    fn drop(&mut self) {
        if let Some(inotify) = &self.swaps.inotify {
            for (&key, &watch) in &self.watched {
                inotify.end(watch, &self.inbox, key);
            }
        }
    }
}

impl Inotify {
    fn open() -> io::Result<Self> {
        let instance = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe to call, and an `OwnedFd` is what both ask for"
        )]
        let instance = AsyncFd::new(instance)?;
        Ok(Self {
            instance,
            turn: Semaphore::new(1),
            watches: Mutex::default(),
        })
    }

    /// Watches `directory` for `follower`; returns the number of the watch.
    fn watch(&self, directory: &OwnedFd, follower: SwapFollower) -> Result<i32, Errno> {
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        // Under the lock: the watch may have followers, and an event may arrive at once.
        let mut watches = self.watches.lock();
        let watch = inotify::add_watch(self.instance.get_ref(), path, EVENTS)?;
        watches.entry(watch).or_default().push(follower);
        Ok(watch)
    }

    /// Ends one volume's share in a watch. With the last share, ends the watch.
    fn end(&self, watch: i32, inbox: &Arc<SwapInbox>, key: usize) {
        let mut watches = self.watches.lock();
        let Some(followers) = watches.get_mut(&watch) else {
            return;
        };
        followers.retain(|follower| follower.key != key || !Arc::ptr_eq(&follower.inbox, inbox));
        if followers.is_empty() {
            watches.remove(&watch);
            // The directory may have been removed, and the watch with it.
            let _ = inotify::remove_watch(self.instance.get_ref(), watch);
        }
    }

    /// Waits until there are events, and hands them to their followers.
    async fn dispatch(&self) {
        let turn = self.turn.acquire().await;
        let (Ok(_turn), Ok(mut ready)) = (turn, self.instance.readable().await) else {
            // The runtime shuts down.
            return std::future::pending().await;
        };
        // One reader at a time, so that events reach the followers in order.
        let mut watches = self.watches.lock();
        let drained = ready.try_io(|instance| Ok(drain(instance.get_ref(), &mut watches)?));
        if let Ok(Err(error)) = drained {
            warn!(%error, "failed to read from inotify, reading all volumes again");
            signal(watches.values().flatten(), SwapSignal::Look);
        }
    }
}

/// Reads all events and hands them out; [`Errno::WOULDBLOCK`] when there are no more.
fn drain(instance: &OwnedFd, watches: &mut BTreeMap<i32, Vec<SwapFollower>>) -> Result<(), Errno> {
    let mut buffer = vec![MaybeUninit::uninit(); EVENT_BYTES];
    let mut events = inotify::Reader::new(instance, &mut buffer);
    loop {
        let event = match events.next() {
            Ok(event) => event,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let flags = event.events();
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            // Events were lost: any volume may have been swapped.
            signal(watches.values().flatten(), SwapSignal::Look);
        } else if flags.intersects(ENDS) {
            // Events of a watch that was removed on purpose find no followers.
            signal(
                watches.remove(&event.wd()).iter().flatten(),
                SwapSignal::Gone,
            );
            if !flags.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT | ReadFlags::DELETE_SELF) {
                // The directory was moved away: the watch continues.
                let _ = inotify::remove_watch(instance, event.wd());
            }
        } else if event.file_name() == Some(c"..data") {
            signal(
                watches.get(&event.wd()).into_iter().flatten(),
                SwapSignal::Swapped,
            );
        }
    }
}

fn signal<'a>(followers: impl Iterator<Item = &'a SwapFollower>, signal: SwapSignal) {
    for follower in followers {
        follower.inbox.put(follower.key, signal);
    }
}

#[cfg(test)]
mod tests;
