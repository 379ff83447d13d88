//! A reload: the configuration file is read again, and the reloadable fields take effect. No watch ends.
//!
//! Invariant: an invalid configuration changes nothing.

use larder_agent::config::RELOADED_FIELDS;
use larder_objects::chain;
use larder_transport::blocking::blocking;
use tracing::{error, info, warn};

use super::{Run, http};
use crate::{agent::load_config, outcome::Failure};

/// Reads the configuration of `run` again and applies it.
pub(super) async fn reload(run: &Run<'_>) {
    let args = run.args.clone();
    let program = &run.program;
    let load = move || {
        let file = args.place.config.as_deref();
        let flags = super::flags(&args);
        let (mut new, warning) = load_config(file, &args.place, flags)?;
        super::beside::find_kubelet(&args, &mut new)?;
        Ok((new, warning))
    };
    let (new, warning) = match blocking::<Result<_, Failure>>(load).await {
        Ok(loaded) => loaded,
        Err(failure) => {
            let error = chain(failure.error.as_ref());
            error!(
                error,
                "failed to reload the configuration, keeping the one in use"
            );
            return;
        }
    };
    if let Some(warning) = warning {
        warn!("{warning}");
    }
    let mut used = (*program.config()).clone();
    let mut different = used.differences(&new);
    if used.listen != new.listen {
        match http::bind(new.listen).await {
            Ok(listener) => {
                // The API ends only with the agent.
                let _ = run.listeners.send(listener).await;
                used.listen = new.listen;
            }
            Err(error) => {
                let error = format!("{error:#}");
                error!(error, "failed to move the HTTP API, keeping its address");
                different.retain(|field| field != "listen");
            }
        }
    }
    let (reloaded, restart): (Vec<_>, Vec<_>) = different
        .into_iter()
        .partition(|field| RELOADED_FIELDS.contains(&field.as_str()));
    used.sync_frequency = new.sync_frequency;
    used.on_change = new.on_change;
    run.handle.reload(&used);
    program.set_config(used);
    if !restart.is_empty() {
        warn!(
            fields = restart.join(", "),
            "changed fields need a restart, keeping their values"
        );
    }
    info!(fields = reloaded.join(", "), "configuration reloaded");
}
