//! The flags of `larder sidecar` and `larder-sidecar`, and the variables that are read, too.

pub(crate) mod variables;
pub(crate) mod volume_flags;

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches, ValueEnum, ValueHint};
use larder_agent::config::listen_address;
use larder_objects::Kind;

use super::{
    on_change::OnChangeArgs,
    values::{LogFormat, duration, namespace},
};

/// Keep files in a pod fresh from ConfigMaps and Secrets
///
/// Runs beside the application, with the service account of the pod. It has three forms: objects as the kubelet's volumes
/// (--config-map, --secret), the variables of k8s-sidecar (LABEL and FOLDER in the environment), and the flags
/// of configmap-reload (--volume-dir). Flags win over variables.
///
/// A label is no restriction of rights: with `list` on secrets, the service account reads every Secret of the namespace.
/// --config-map and --secret need rights on the named objects only.
///
/// `larder-sidecar` is `larder sidecar` without the other commands. It takes less memory: run it in pods.
#[derive(Debug, clap::Parser)]
#[command(
    name = "larder-sidecar",
    version,
    max_term_width = 100,
    after_help = "Examples:
  larder-sidecar --config-map app:/etc/app --listen :10291 --on-change http:8080/-/reload
  larder-sidecar --secret tls:/etc/tls,mode=0440 --once       in an init container
  LABEL=grafana_dashboard FOLDER=/tmp/dashboards larder-sidecar
  larder-sidecar --volume-dir /etc/config --webhook-url http://127.0.0.1:9090/-/reload
  larder-sidecar --check ready 127.0.0.1:10291                an exec probe; prints the reason, exit code 1 unless ready"
)]
pub(crate) struct SidecarArgs {
    #[command(flatten)]
    pub(crate) objects: ObjectFlags,

    /// Write everything once and exit, as in an init container
    #[arg(long)]
    pub(crate) once: bool,

    /// Longest wait for required objects, with --once
    #[arg(long, value_name = "DURATION", default_value = "5m", requires = "once", value_parser = duration)]
    pub(crate) once_timeout: Duration,

    /// Serve health and metrics over HTTP; HOST:PORT, or :PORT for all addresses
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    pub(crate) listen: Option<SocketAddr>,

    /// Reopen a watch after this time without a sign of life
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = duration)]
    pub(crate) max_silence: Duration,

    /// Directory of the records of hooks [default: $TMPDIR/larder-sidecar]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) reload: ReloadArgs,

    #[command(flatten)]
    pub(crate) on_change: OnChangeArgs,

    /// Namespace of objects without one [default: that of this pod]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    pub(crate) namespace: Option<String>,

    /// Kubeconfig [default: the service account of this pod]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,

    /// Log format on standard error; LARDER_LOG sets the filter
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,

    /// File with the user of REQ_URL, read for each request
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) req_username_file: Option<String>,

    /// File with the password of REQ_URL, read for each request
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) req_password_file: Option<String>,

    /// Ask a running sidecar instead, at ADDR, whether it is live or ready
    #[arg(long, value_enum, value_name = "STATE")]
    pub(crate) check: Option<ProbedState>,

    /// Address that --check asks [default: 127.0.0.1 and the port of HEALTH_PORT, or 8080]
    #[arg(value_name = "ADDR", requires = "check", value_parser = listen_address)]
    pub(crate) address: Option<SocketAddr>,
}

/// Objects as volumes. Those of one directory are one volume of several sources, in the order of the flags.
#[derive(Debug)]
pub(crate) struct ObjectFlags(pub(crate) Vec<(Kind, String)>);

impl clap::Args for ObjectFlags {
    fn augment_args(command: Command) -> Command {
        let flag = |name, help| {
            Arg::new(name)
                .long(name)
                .help(help)
                .value_name("[NAMESPACE/]NAME:DIR[,OPTION…]")
                .action(ArgAction::Append)
        };
        command.args([
            flag(
                "config-map",
                "A ConfigMap as a volume; options are `optional`, `mode=0440` and `item=KEY:PATH[:MODE]`; several times",
            ),
            flag("secret", "A Secret as a volume, likewise"),
        ])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ObjectFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let of = |kind, flag| {
            let places = matches.indices_of(flag).into_iter().flatten();
            let values = matches.get_many::<String>(flag).into_iter().flatten();
            places
                .zip(values)
                .map(move |(place, value)| (place, (kind, value.clone())))
        };
        let flags = of(Kind::ConfigMap, "config-map").chain(of(Kind::Secret, "secret"));
        let in_order: BTreeMap<_, _> = flags.collect();
        Ok(Self(in_order.into_values().collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flags of configmap-reload, by whose name both executables may be called.
#[derive(Debug, clap::Parser)]
#[command(name = "configmap-reload", version)]
pub(crate) struct ReloadArgs {
    /// Directory with `..data` whose changes are reported; several times
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) volume_dir: Vec<PathBuf>,

    /// URL to request after a change; several times
    #[arg(long, value_name = "URL")]
    pub(crate) webhook_url: Vec<String>,

    /// Method of the request
    #[arg(long, value_name = "METHOD", default_value = "POST")]
    pub(crate) webhook_method: String,

    /// Status that counts as success
    #[arg(long, value_name = "CODE", default_value_t = 200)]
    pub(crate) webhook_status_code: u16,

    /// Attempts in quick succession; slower ones follow
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    pub(crate) webhook_retries: i32,

    /// Address of health and metrics, with --volume-dir
    #[arg(long = "web.listen-address", value_name = "ADDR", default_value = ":9533", value_parser = listen_address)]
    pub(crate) listen_address: SocketAddr,

    /// Path of the metrics, with --volume-dir
    #[arg(
        long = "web.telemetry-path",
        value_name = "PATH",
        default_value = "/metrics"
    )]
    pub(crate) telemetry_path: String,
}

/// What a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProbedState {
    /// Whether a restart would not help
    Live,
    /// Whether the first sync is complete
    Ready,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn flags_of_both_kinds_keep_their_order() {
        let words = "larder-sidecar --secret a:/x --config-map b:/x --secret c:/x";
        let args = SidecarArgs::try_parse_from(words.split(' ')).map_err(|error| error.to_string());
        let expected = [
            (Kind::Secret, "a:/x"),
            (Kind::ConfigMap, "b:/x"),
            (Kind::Secret, "c:/x"),
        ];
        let expected = expected.map(|(kind, value)| (kind, value.to_owned()));
        assert_eq!(args.map(|args| args.objects.0), Ok(expected.into()));
    }
}
