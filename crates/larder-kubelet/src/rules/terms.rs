//! The terms of the rules: what they are given of a pod and of each look at a part, and what they return.

use std::{collections::BTreeSet, fmt, time::Duration};

use jiff::Timestamp;
use smol_str::SmolStr;
use tokio::time::Instant;

use crate::fingerprint::Fingerprint;

/// A part of a pod that may be a reason to touch it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartName {
    /// A volume, by its name in the pod.
    Volume(SmolStr),
    /// A container that waits for an object of its environment (R6).
    Environment(SmolStr),
}

/// The state of one part according to a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PartObservation {
    /// One of its inputs has not been read yet; completes "waiting for".
    Unread(String),
    /// It cannot be computed: the kubelet's message.
    Uncomputable(String),
    /// The kubelet has not set it up.
    #[default]
    NotMounted,
    /// Its files cannot be read (R23): why.
    Invisible(String),
    /// The kubelet serves this immutable object, which was deleted (R26).
    Pinned(String),
    /// Its files are as computed.
    Same,
    /// Only content differs that is no reason to touch (R3, R7). Names it.
    LeftToKubelet(String),
    /// Its files differ from the computed ones. Names the differences.
    Outdated(String),
}

/// The state of one part, as it is shown and counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PartState {
    /// The computed content is in place.
    Delivered,
    /// It is on its way, or nothing is done about it at present.
    #[default]
    Waiting,
    /// It cannot be computed.
    Failing,
    /// The kubelet serves an immutable object that was deleted (R26).
    Pinned,
    /// The volume was torn down under running containers (R22).
    Detached,
    /// The files of the kubelet cannot be read (R23).
    Unverified,
}

impl PartState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Delivered,
        Self::Waiting,
        Self::Failing,
        Self::Pinned,
        Self::Detached,
        Self::Unverified,
    ];

    /// The state as the label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "Delivered",
            Self::Waiting => "Waiting",
            Self::Failing => "Failing",
            Self::Pinned => "Pinned",
            Self::Detached => "Detached",
            Self::Unverified => "Unverified",
        }
    }
}

impl PartObservation {
    /// State and reason of a part that is not under the rules.
    pub fn state(&self) -> (PartState, String) {
        match self {
            Self::Unread(what) => (PartState::Waiting, format!("waiting for {what}")),
            Self::Uncomputable(why) => (PartState::Failing, why.clone()),
            Self::NotMounted => (
                PartState::Waiting,
                "the kubelet has not set it up yet".to_owned(),
            ),
            Self::Invisible(why) => (PartState::Unverified, format!("Unverified: {why}")),
            Self::Pinned(object) => (
                PartState::Pinned,
                format!("Pinned: the kubelet serves the immutable {object} that was deleted"),
            ),
            Self::Same => (PartState::Delivered, String::new()),
            Self::LeftToKubelet(what) | Self::Outdated(what) => {
                (PartState::Waiting, format!("left to the kubelet: {what}"))
            }
        }
    }
}

/// One look at one part.
#[derive(Clone, Debug)]
pub struct Look {
    /// What it found.
    pub observation: PartObservation,
    /// Fingerprint of the computed content; `None` if it could not be computed.
    pub payload: Option<Fingerprint>,
    /// What has become of a volume since the last look.
    pub volume: VolumeChange,
    /// Arrival of the change that led to this look.
    pub changed_at: Instant,
    /// How long a first touch waits (R20).
    pub delay: Duration,
}

impl Look {
    /// A look without anything to be delivered.
    pub fn new(observation: PartObservation, changed_at: Instant) -> Self {
        Self {
            observation,
            payload: None,
            volume: VolumeChange::None,
            changed_at,
            delay: Duration::ZERO,
        }
    }
}

/// What has become of a volume since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeChange {
    /// Nothing, or it could not be seen, or the part is no volume.
    None,
    /// It is seen for the first time.
    First,
    /// It has another set.
    Swapped,
    /// Its directory was recreated (R22).
    Recreated,
}

impl VolumeChange {
    /// Whether containers that run may see other content.
    pub fn is_swap(self) -> bool {
        matches!(self, Self::Swapped | Self::Recreated)
    }
}

/// What the rules read of a pod.
#[derive(Clone, Debug, Default)]
pub struct PodView {
    /// Those that run.
    pub containers: Vec<RunningContainer>,
    /// Whether it has a CSI volume of a driver that requires republishing (R15).
    pub republishes: bool,
    /// Whether it is terminating or has terminated, so its content is frozen (R2).
    pub ending: bool,
}

/// A container that has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// Its name.
    pub name: SmolStr,
    /// Its ID, which a restart changes.
    pub id: SmolStr,
    /// The volumes that it mounts.
    pub volumes: BTreeSet<SmolStr>,
}

/// Whether any pod of the node may be touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// It may.
    #[default]
    Open,
    /// The Node has not been read yet.
    Unknown,
    /// The kubelet does not run (R13): since when, if known.
    KubeletNotReady(Option<Timestamp>),
    /// This identity may not touch pods (R18). Names the missing permission.
    Forbidden(String),
    /// Another larder touches the pods of this node (R28).
    Locked,
    /// Nothing is touched at all: `--dry-run`.
    DryRun,
}

impl Gate {
    /// Whether this larder is the one that acts on the pods of the node, so that hooks run.
    pub const fn acts(&self) -> bool {
        match self {
            Self::Open | Self::KubeletNotReady(_) | Self::Forbidden(_) => true,
            Self::Unknown | Self::Locked | Self::DryRun => false,
        }
    }
}

/// Why no pod is touched; empty for an open gate.
impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => Ok(()),
            Self::Unknown => f.write_str("waiting for the Node"),
            Self::KubeletNotReady(Some(since)) => write!(f, "kubelet not ready since {since:.0}"),
            Self::KubeletNotReady(None) => f.write_str("kubelet not ready"),
            Self::Forbidden(permission) => write!(f, "permission is missing: {permission}"),
            Self::Locked => f.write_str("another larder on this node touches the pods"),
            Self::DryRun => f.write_str("dry run: no pod is touched"),
        }
    }
}

/// Says until when the API server has asked the node to send no touch.
pub(crate) fn throttled(until: Timestamp) -> String {
    format!("the API server has too many requests (429), no pod is touched until {until:.0}")
}

/// Something to count, log or post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The computed content of a volume is in place.
    Verified {
        /// The volume.
        volume: SmolStr,
        /// How it arrived.
        arrival: Arrival,
        /// Time since the change; `None` for a change before larder's start.
        delay: Option<Duration>,
        /// Touches sent for it.
        touches: u32,
    },
    /// The volume was torn down under these running containers.
    Detached {
        /// The volume.
        volume: SmolStr,
        /// The containers.
        containers: Vec<SmolStr>,
    },
    /// The content of the volume cannot be verified (R23).
    Unverified,
    /// R12 is used up, and the change is three minutes old.
    NotRefreshed {
        /// The volume.
        volume: SmolStr,
    },
}

/// How the content of a volume arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Without a touch.
    Same,
    /// While it was awaited for a touch.
    Swapped,
    /// After that.
    Late,
}

impl Arrival {
    /// The label of a metric.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Swapped => "swapped",
            Self::Late => "late",
        }
    }
}
