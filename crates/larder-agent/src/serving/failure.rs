//! Why a part could not be delivered. It becomes text where it is recorded: in the status, the log and an event.

use larder_projection::{
    EnvironmentError, MountError, NestedMountError, PayloadError, disk::DiskError,
};

/// A part could not be delivered. Where the kubelet has a message, that is the text.
#[derive(Debug, thiserror::Error)]
pub(super) enum DeliveryFailure {
    /// The address is missing, and only a new status of the pod or the Node brings it: nothing failed.
    #[error("waiting for {path}: {}", giver.reason())]
    NoAddress {
        /// The field that a variable asks for.
        path: String,
        giver: AddressGiver,
    },
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error(transparent)]
    MountPoints(#[from] NestedMountError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Mounts(#[from] MountError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The volume is in place, but for this name.
    #[error("something else in the volume has the name {name:?}: it is not larder's")]
    Shadowed {
        name: String,
        /// Whether the rest differs from before.
        swapped: bool,
    },
}

impl DeliveryFailure {
    /// Whether the content differs from before nevertheless.
    pub(super) fn swapped(&self) -> bool {
        match self {
            Self::Disk(error) => error.is_after_commit(),
            Self::Shadowed { swapped, .. } => *swapped,
            Self::NoAddress { .. }
            | Self::Payload(_)
            | Self::MountPoints(_)
            | Self::Environment(_)
            | Self::Mounts(_) => false,
        }
    }
}

/// What an address comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum AddressGiver {
    Node,
    PodStatus,
    /// The API server is filled from manifests, and no kubelet writes the pod's status.
    Manifests,
}

impl AddressGiver {
    fn reason(self) -> &'static str {
        match self {
            Self::Node => "the Node has no address yet",
            Self::PodStatus => "the pod's status has no address yet",
            Self::Manifests => {
                "nothing here gives pods addresses; `--pod-address`, `podAddress` or the manifest's status does"
            }
        }
    }
}
