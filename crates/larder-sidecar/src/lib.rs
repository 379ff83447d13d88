#![doc = include_str!("../README.md")]

mod clock;
mod files;
mod follow;
mod health;
mod hooks;
mod index;
mod label;
mod metrics;
mod object;
mod own;
mod own_settings;
mod parts;
mod place;
mod reload;
mod request;
mod selection;
mod server;
mod settings;
mod steps;
mod urls;
mod volumes;
mod webhook;

pub use self::{
    health::{Answer, Health},
    label::LabelSidecar,
    own::{OwnSettings, OwnSidecar},
    own_settings::{SidecarConfiguration, join_volumes, parse_volume},
    parts::{RunError, check_hook, unverified_kubeconfig},
    reload::{ReloadSettings, run as run_reload},
    selection::{Namespaces, ObjectName, ObjectRef, Selection, Selector},
    server::check,
    settings::{
        CredentialFlags, Credentials, Encoding, FileSettings, HttpSettings, LabelSettings,
        LogSettings, MARKS, MAX_SILENCE, Method, Payload, RequestSettings, Retries, SettingsError,
        UrlSettings, WatchTiming, default_state_dir, own_namespace,
    },
    volumes::{OwnVolume, VolumeSource},
};
