//! Decides which copies are served, and when.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use larder::StaleObject;
use larder_checkpoint::SavedCopy;
use larder_objects::{ConfigMap, Kind, ObjectKey, Secret};
use larder_pods::{
    StoredPod,
    source::{ApiSourceError, SourceEvent},
};
use larder_projection::{NodeFacts, ServiceFacts};

use super::codec::{CopyContent, CopyKind};
use crate::config::CheckpointConfig;

/// The API server's strongest answer about the pods of the node since the start. It never goes back: a denial stays one
/// even if the API server is unreachable afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ApiContact {
    /// Nothing yet.
    #[default]
    Silent,
    /// Requests fail for a reason that concerns every request alike.
    Away,
    /// 401 or 403: this node may no longer read its pods.
    Denied,
    /// It has reported pods.
    Answered,
}

/// The answer of the API server that a report of its pods implies.
pub(crate) fn contact(event: &SourceEvent) -> ApiContact {
    let problems = match event {
        SourceEvent::Pods(_) => return ApiContact::Answered,
        SourceEvent::Problems(problems) => problems,
    };
    let contacts = problems
        .iter()
        .map(|problem| match problem.error.downcast_ref() {
            Some(ApiSourceError::Follow { source, .. })
                if source.is_unauthorized() || source.is_forbidden() =>
            {
                ApiContact::Denied
            }
            Some(ApiSourceError::Pod { .. }) => ApiContact::Answered,
            _ => ApiContact::Away,
        });
    contacts.max().unwrap_or_default()
}

/// The content served while the API server is unreachable.
#[derive(Debug, Default)]
pub(crate) struct StaleNode {
    pub(crate) pods: Vec<StoredPod>,
    pub(crate) config_maps: HashMap<ObjectKey, StaleObject<ConfigMap>>,
    pub(crate) secrets: HashMap<ObjectKey, StaleObject<Secret>>,
    pub(crate) node: Option<Arc<NodeFacts>>,
    pub(crate) services: Option<Arc<[ServiceFacts]>>,
    /// Copies that are too old, with the time of their last freshness check.
    pub(crate) expired: HashMap<(Kind, ObjectKey), Timestamp>,
    /// When the checkpoint was written.
    pub(crate) as_of: Timestamp,
}

impl StaleNode {
    /// The `copies` that may be served at `now`; no freshness check happened after `newest`.
    pub(super) fn new(
        copies: Vec<SavedCopy<CopyContent>>,
        newest: Timestamp,
        now: Timestamp,
        config: &CheckpointConfig,
    ) -> Self {
        let mut stale = Self {
            as_of: newest,
            ..Self::default()
        };
        for copy in copies {
            stale.add(copy, now, config);
        }
        stale
    }

    fn add(&mut self, copy: SavedCopy<CopyContent>, now: Timestamp, config: &CheckpointConfig) {
        let (id, as_of) = (copy.id, copy.verified_at);
        let Some(kind) = CopyKind::of(&id) else {
            return;
        };
        let key = ObjectKey::new(id.namespace, id.name);
        let limits = match kind {
            CopyKind::ConfigMap => Some((Kind::ConfigMap, config.max_age_config_maps)),
            CopyKind::Secret => Some((Kind::Secret, config.max_age_secrets)),
            _ => None,
        };
        if let Some((kind, Some(max_age))) = limits {
            // If the clock is earlier than the freshness check, the age is unknown and counts as zero.
            let age = std::time::Duration::try_from(now.duration_since(as_of)).unwrap_or_default();
            if age > max_age {
                self.expired.insert((kind, key), as_of);
                return;
            }
        }
        match (kind, copy.content) {
            (_, Some(CopyContent::Pod(pod))) => self.pods.push(*pod),
            (_, Some(CopyContent::Node(node))) => self.node = Some(node),
            (_, Some(CopyContent::Services(services))) => self.services = Some(services),
            (CopyKind::ConfigMap, content) => {
                let object = match content {
                    Some(CopyContent::ConfigMap(object)) => Some(object),
                    _ => None,
                };
                self.config_maps.insert(key, StaleObject { object, as_of });
            }
            (CopyKind::Secret, content) => {
                let object = match content {
                    Some(CopyContent::Secret(object)) => Some(object),
                    _ => None,
                };
                self.secrets.insert(key, StaleObject { object, as_of });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::SignedDuration;

    use super::*;

    fn copy(kind: CopyKind, name: &str, verified_at: Timestamp) -> SavedCopy<CopyContent> {
        SavedCopy {
            id: kind.id("prod".into(), name.into()),
            content: None,
            verified_at,
            bytes: 0,
        }
    }

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_772_366_400).unwrap() + SignedDuration::from_hours(hours)
    }

    fn served(now: Timestamp) -> (usize, usize, usize) {
        let copies = vec![
            copy(CopyKind::Secret, "a", at(0)),
            copy(CopyKind::Secret, "b", at(100)),
            copy(CopyKind::ConfigMap, "a", at(0)),
        ];
        let stale = StaleNode::new(copies, at(100), now, &CheckpointConfig::new(Vec::new()));
        (
            stale.secrets.len(),
            stale.config_maps.len(),
            stale.expired.len(),
        )
    }

    #[test]
    fn secrets_expire_after_a_week_and_config_maps_never() {
        // offline 9
        assert_eq!(served(at(168)), (2, 1, 0));
        assert_eq!(served(at(168) + SignedDuration::from_secs(1)), (1, 1, 1));
        assert_eq!(served(at(10_000)), (0, 1, 2));
    }

    #[test]
    fn ages_count_as_zero_when_the_clock_is_earlier_than_the_checkpoint() {
        // offline 10
        assert_eq!(served(Timestamp::UNIX_EPOCH), (2, 1, 0));
    }

    #[test]
    fn the_operators_limit_applies_to_each_kind() {
        let mut config = CheckpointConfig::new(Vec::new());
        config.max_age_secrets = None;
        config.max_age_config_maps = Some(Duration::from_mins(1));
        let copies = vec![
            copy(CopyKind::Secret, "a", at(0)),
            copy(CopyKind::ConfigMap, "a", at(0)),
        ];
        let stale = StaleNode::new(copies, at(0), at(1), &config);
        assert_eq!(stale.secrets.len(), 1);
        let expired: Vec<_> = stale.expired.into_iter().collect();
        assert_eq!(
            expired,
            [((Kind::ConfigMap, ObjectKey::new("prod", "a")), at(0))]
        );
    }
}
