//! The parts of a pod, each delivered separately.

use larder_projection::VolumeKind;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

/// Names a part of a pod. Ordered, so that content is ordered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PartKey {
    /// The volume of this name.
    Volume(SmolStr, VolumeKind),
    /// The variables of the container of this name.
    Environment(SmolStr),
}
