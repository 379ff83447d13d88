//! The field `checkpoint` of the configuration.

use std::{path::Path, time::Duration};

use larder_checkpoint::KeySource;
use larder_objects::go_duration;
use serde::Deserialize;

use super::file::{Fields, FileError, typed};

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
    /// The same for ConfigMaps. `checkpoint.maxAge.ConfigMap`; defaults to never.
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

/// The field as typed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CheckpointField {
    key: Option<OneOrMany>,
    after: Option<String>,
    max_age: Option<MaxAge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MaxAge {
    #[serde(rename = "Secret")]
    secrets: Option<String>,
    #[serde(rename = "ConfigMap")]
    config_maps: Option<String>,
}

/// Takes the field; `None` if it names no key. Paths are relative to `directory`.
pub(super) fn take(
    fields: &mut Fields,
    directory: &Path,
) -> Result<Option<CheckpointConfig>, FileError> {
    let expected = "key, after and maxAge (with Secret and ConfigMap)";
    let taken = fields.take_with("checkpoint", |value| {
        typed::<CheckpointField>(value, expected)?.check(directory)
    })?;
    Ok(taken.flatten())
}

impl CheckpointField {
    fn check(self, directory: &Path) -> Result<Option<CheckpointConfig>, String> {
        let keys = match self.key {
            None => Vec::new(),
            Some(OneOrMany::One(key)) => vec![key],
            Some(OneOrMany::Many(keys)) => keys,
        };
        if keys.len() > MAX_KEYS {
            return Err(format!("key: expected {MAX_KEYS} keys at most"));
        }
        let key = |text: &String| {
            let source = text.parse().map_err(|error| format!("key: {error}"))?;
            Ok(match source {
                KeySource::File(path) => KeySource::File(directory.join(path)),
                source @ KeySource::Credential(_) => source,
            })
        };
        let keys: Vec<_> = keys.iter().map(key).collect::<Result<_, String>>()?;
        let mut config = CheckpointConfig::new(keys);
        if let Some(after) = duration("after", self.after.as_deref())? {
            config.after = after;
        }
        if let Some(ages) = self.max_age {
            let forever = |age: Duration| (!age.is_zero()).then_some(age);
            if let Some(age) = duration("maxAge.Secret", ages.secrets.as_deref())? {
                config.max_age_secrets = forever(age);
            }
            if let Some(age) = duration("maxAge.ConfigMap", ages.config_maps.as_deref())? {
                config.max_age_config_maps = forever(age);
            }
        }
        Ok((!config.keys.is_empty()).then_some(config))
    }
}

fn duration(field: &str, text: Option<&str>) -> Result<Option<Duration>, String> {
    let parse = |text| go_duration::parse(text).map_err(|error| format!("{field}: {error}"));
    text.map(parse).transpose()
}
