//! The field `checkpoint` of the configuration.

use std::{path::Path, time::Duration};

use larder_checkpoint::KeySource;
use larder_objects::FieldPath;

use super::written::{CheckpointFields, OneOrMany, Text};

/// Most keys: one to seal, and those of earlier rotations.
const MAX_KEYS: usize = 8;

/// The settings of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointConfig {
    /// Sources of the keys, at least one: the first seals, all of them open. `checkpoint.key`.
    pub keys: Vec<KeySource>,
    /// How long a start waits for the API server before it serves copies. `checkpoint.after`; defaults to 1 s.
    pub after: Duration,
    /// Time since its last freshness check after which a copy of a Secret is no longer served.
    /// `checkpoint.maxAge.Secret`; defaults to 7 days; `None` (0s): never.
    pub max_age_secrets: Option<Duration>,
    /// Time since its last freshness check after which a copy of a ConfigMap is no longer served.
    /// `checkpoint.maxAge.ConfigMap`; defaults to never.
    pub max_age_config_maps: Option<Duration>,
}

impl CheckpointConfig {
    /// The defaults with these keys.
    pub fn new(keys: Vec<KeySource>) -> Self {
        Self {
            keys,
            after: Duration::from_secs(1),
            max_age_secrets: Some(Duration::from_hours(7 * 24)),
            max_age_config_maps: None,
        }
    }
}

impl CheckpointConfig {
    /// Checks the field; `None` if it names no key. Paths are relative to `directory`.
    pub(super) fn check(
        fields: CheckpointFields,
        directory: &Path,
    ) -> Result<Option<Self>, CheckpointProblem> {
        let keys = match fields.key {
            None => Vec::new(),
            Some(OneOrMany::One(key)) => vec![key],
            Some(OneOrMany::Many(keys)) => keys,
        };
        if keys.len() > MAX_KEYS {
            return Err(CheckpointProblem {
                field: FieldPath::fields("checkpoint.key"),
                problem: format!("expected {MAX_KEYS} keys at most"),
            });
        }
        let keys = keys.into_iter().map(|Text(key)| match key {
            KeySource::File(path) => KeySource::File(directory.join(path)),
            source @ KeySource::Credential(_) => source,
        });
        let mut config = Self::new(keys.collect());
        if let Some(Text(after)) = fields.after {
            config.after = after;
        }
        let forever = |Text(age): Text<Duration>| (!age.is_zero()).then_some(age);
        if let Some(ages) = fields.max_age {
            config.max_age_secrets = ages.secrets.map_or(config.max_age_secrets, forever);
            config.max_age_config_maps = ages.config_maps.and_then(forever);
        }
        Ok((!config.keys.is_empty()).then_some(config))
    }
}

/// A field of the checkpoint that cannot be used.
pub(super) struct CheckpointProblem {
    pub(super) field: FieldPath,
    pub(super) problem: String,
}
