//! The agent's configuration, from file and flags.

use larder_agent::config::{Config, Flags, Host};
use larder_objects::chain;
use tracing::warn;

use super::root_dir;
use crate::{args::PlaceArgs, outcome::Failure, output};

/// The configuration of an agent that is about to run. Creates the default root directory of an ordinary user.
///
/// # Errors
///
/// The configuration is unreadable or invalid, or another user controls the default root directory.
pub(crate) fn config(place: &PlaceArgs, flags: Flags) -> Result<Config, Failure> {
    let (config, warning) = load(place, flags)?;
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    if root_dir::is_shared_default(&config.root_dir) {
        root_dir::create(&config.root_dir)?;
    }
    Ok(config)
}

/// The configuration of an agent that runs already.
///
/// # Errors
///
/// The configuration is unreadable or invalid.
pub(crate) fn client_config(place: &PlaceArgs) -> Result<Config, Failure> {
    let (config, warning) = load(place, Flags::default())?;
    if let Some(warning) = warning {
        output::note(format_args!("warning: {warning}"));
    }
    Ok(config)
}

fn load(place: &PlaceArgs, flags: Flags) -> Result<(Config, Option<String>), Failure> {
    let flags = Flags {
        root_dir: place.root_dir.clone(),
        ..flags
    };
    Config::load(place.config.as_deref(), flags, &Host::current())
        .map_err(|error| Failure::unreadable(chain(&error)))
}
