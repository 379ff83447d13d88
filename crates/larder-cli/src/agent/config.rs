//! The agent's configuration, as far as file and flags give it.

use larder_agent::config::{Config, Flags, Host};
use larder_objects::chain;
use tracing::warn;

use crate::{args::PlaceArgs, outcome::Failure};

/// The configuration of file and flags.
pub(crate) fn config(place: &PlaceArgs, flags: Flags) -> Result<Config, Failure> {
    let flags = Flags {
        root_dir: place.root_dir.clone(),
        ..flags
    };
    let (config, warning) = Config::load(place.config.as_deref(), flags, &Host::current())
        .map_err(|error| Failure::unreadable(chain(&error)))?;
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    Ok(config)
}
