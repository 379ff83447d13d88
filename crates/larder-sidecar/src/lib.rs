#![doc = include_str!("../README.md")]

mod clock;
mod files;
mod health;
mod hooks;
mod index;
mod intake;
mod label;
mod metrics;
mod own;
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
    health::{Answer, Health, MAX_SILENCE},
    label::run as run_label,
    own::{OwnSettings, run as run_own},
    place::Places,
    reload::{ReloadSettings, run as run_reload},
    selection::{ObjectName, Selection, selections},
    server::{RunError, check},
    settings::{
        Credentials, Encoding, HttpSettings, LabelSettings, RequestSettings, Retries,
        UrlCredentials, UrlSettings,
    },
    steps::check_hook,
    volumes::{OwnVolume, join_volumes},
};
