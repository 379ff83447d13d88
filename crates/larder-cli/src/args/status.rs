//! The arguments of `larder status`.

use std::{str::FromStr, time::Duration};

use clap::ValueEnum;

use super::{
    agent::PlaceArgs,
    values::{PodName, duration, namespace, served_pod},
};

/// Show what a running agent delivers, to which pods, and what is still pending
///
/// Without names, it shows all pods, and those of their volumes and environments that are not delivered. A
/// NAMESPACE/POD shows that pod in full: paths, reasons and objects. Only agents of root and of the caller are trusted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  larder status
  larder status prod/web                          one pod in full
  larder status --watch
  larder status --wait --timeout 2m               exit code 1 if not everything is delivered by then
  larder status -n prod -o name                   names of pods, for scripts
  larder status -o jsonpath='{range .pods[?(@.phase!=\"Delivered\")]}{.name}: {.reason}{\"\\n\"}{end}'")]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own on the command line"
)]
pub(crate) struct StatusArgs {
    /// Pods to show in full [default: an overview of all pods]
    #[arg(value_name = "NAMESPACE/POD", value_parser = served_pod)]
    pub(crate) pods: Vec<PodName>,

    /// Show only the pods of this namespace; also the namespace of pods that are given without one [default: default]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    pub(crate) namespace: Option<String>,

    /// Show the pods of all namespaces, as is the default
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "pods"])]
    pub(crate) all_namespaces: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    /// Output format: table, wide, json, yaml, name, or jsonpath=TEMPLATE as in kubectl
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: StatusOutput,

    /// Keep showing changes: redrawn in place on a terminal, as changed lines in a pipe
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) watch: bool,

    /// Wait until all pods, or those given, are delivered and their hooks have succeeded, for half a second
    #[arg(long)]
    pub(crate) wait: bool,

    /// With --wait, content that is in place is enough, though it may be out of date: for a start during an outage
    #[arg(long, requires = "wait")]
    pub(crate) allow_stale: bool,

    /// Print the agent's answer to a health check instead; exit code 1 unless it is ok. For probes
    #[arg(long, value_enum, value_name = "CHECK", conflicts_with_all = ["watch", "wait", "pods", "output"])]
    pub(crate) check: Option<HealthCheck>,

    /// Longest wait, e.g. 500ms, 30s or 2m
    #[arg(long, value_name = "DURATION", default_value = "30s", requires = "wait", value_parser = duration)]
    pub(crate) timeout: Duration,
}

/// Health checks of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HealthCheck {
    /// Whether the agent works
    Healthz,
    /// Whether all sources have reported and every pod has been tried
    Readyz,
}

/// Output formats of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StatusOutput {
    /// Tables for people.
    Table,
    /// Tables with every volume, watch scope and object.
    Wide,
    /// One JSON object.
    Json,
    /// The same as YAML.
    Yaml,
    /// `NAMESPACE/POD` on a line of its own.
    Name,
    /// Text made from the JSON object by this template.
    JsonPath(String),
}

impl FromStr for StatusOutput {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "table" => Self::Table,
            "wide" => Self::Wide,
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            "name" => Self::Name,
            _ => {
                let template = text.strip_prefix("jsonpath=");
                let expected = "expected table, wide, json, yaml, name or jsonpath=TEMPLATE";
                Self::JsonPath(template.ok_or(expected)?.to_owned())
            }
        })
    }
}
