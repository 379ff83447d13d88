#![doc = include_str!("../README.md")]

mod clock;
mod files;
mod follow;
mod health;
mod hooks;
mod index;
mod intake;
mod label;
mod metrics;
mod own;
mod own_settings;
mod place;
mod reload;
mod request;
mod run;
mod selection;
mod server;
mod settings;
mod steps;
mod urls;
mod volumes;

pub use self::{
    health::{Answer, Health},
    label::run as run_label,
    own::{OwnSettings, run as run_own},
    own_settings::{SidecarConfiguration, join_volumes, parse_volume},
    reload::{ReloadSettings, run as run_reload},
    run::RunError,
    selection::{ObjectRef, Selection},
    server::check,
    settings::{
        Credentials, Encoding, FileSettings, HttpSettings, LabelSettings, LogSettings, MARKS,
        MAX_SILENCE, Method, RequestSettings, Retries, SettingsError, UrlSettings, WatchTiming,
        default_state_dir, own_namespace,
    },
    steps::check_hook,
    volumes::OwnVolume,
};
