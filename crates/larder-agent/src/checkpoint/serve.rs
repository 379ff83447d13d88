//! Decides which copies are served, and when.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use larder::StaleObject;
use larder_checkpoint::SavedCopy;
use larder_objects::{ConfigMap, ObjectKey, Secret};
use larder_pods::{
    StoredPod,
    source::{ApiSourceError, SourceEvent},
};
use larder_projection::{NodeFacts, ServiceFacts};

use super::codec::{CopyContent, CopyKind};
use crate::{config::CheckpointConfig, delivery::max_ages::MaxAges};

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
    problems
        .iter()
        .map(|problem| match problem.error.downcast_ref() {
            Some(ApiSourceError::Follow { source, .. })
                if source.is_unauthorized() || source.is_forbidden() =>
            {
                ApiContact::Denied
            }
            Some(ApiSourceError::Pod { .. }) => ApiContact::Answered,
            _ => ApiContact::Away,
        })
        .max()
        .unwrap_or_default()
}

/// The content served while the API server is unreachable.
#[derive(Debug, Default)]
pub(crate) struct StaleNode {
    pub(crate) pods: Vec<StoredPod>,
    pub(crate) config_maps: HashMap<ObjectKey, StaleObject<ConfigMap>>,
    pub(crate) secrets: HashMap<ObjectKey, StaleObject<Secret>>,
    pub(crate) node: Option<Arc<NodeFacts>>,
    pub(crate) services: Option<Arc<[ServiceFacts]>>,
    /// How old a copy may be when it is used.
    pub(crate) max_ages: MaxAges,
    /// When the checkpoint was written.
    pub(crate) as_of: Timestamp,
}

impl StaleNode {
    /// The `copies`; no freshness check happened after `newest`. Whether one is too old is asked when it is used.
    pub(super) fn new(
        copies: Vec<SavedCopy<CopyContent>>,
        newest: Timestamp,
        config: &CheckpointConfig,
    ) -> Self {
        let mut stale = Self {
            as_of: newest,
            max_ages: MaxAges {
                newest,
                secrets: config.max_age_secrets,
                config_maps: config.max_age_config_maps,
            },
            ..Self::default()
        };
        for copy in copies {
            stale.add(copy);
        }
        stale
    }

    fn add(&mut self, copy: SavedCopy<CopyContent>) {
        let (id, as_of) = (copy.id, copy.verified_at);
        let Some(kind) = CopyKind::of(&id) else {
            return;
        };
        let key = ObjectKey::new(id.namespace, id.name);
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
