//! `larder refs`: the ConfigMaps and Secrets that each pod references.

use std::{collections::BTreeMap, process::ExitCode};

use serde::Serialize;

use crate::{
    agent::default_namespace,
    args::{RefsArgs, RefsOutput},
    input,
    offline::{ClusterObjects, Offline},
    outcome::{Failure, partial_if},
    output::{self, json::write_json, references::References, table::columns, yaml::write_yaml},
};

#[derive(Debug, Serialize)]
struct PodReferences<'a> {
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    workload: Option<String>,
    #[serde(skip)]
    label: &'a str,
    references: References,
}

pub(super) fn run(args: &RefsArgs) -> Result<ExitCode, Failure> {
    let namespace = default_namespace(args.manifests.reading.namespace.as_deref(), None, None)?;
    let manifests = input::read(&args.manifests, &namespace)?;
    let is_whole = manifests.errors.is_empty();
    let offline = Offline::new(manifests, ClusterObjects::FromManifests);
    let pods = offline.pods.iter().map(|pod| PodReferences {
        namespace: pod.pod.metadata.namespace.as_deref().unwrap_or(""),
        name: pod.pod.metadata.name.as_deref().unwrap_or(""),
        workload: pod.workload.in_words(),
        label: &pod.label,
        references: References::of(&pod.pod),
    });
    let pods: Vec<_> = pods.collect();
    output::results(|out| match args.output {
        RefsOutput::Json => write_json(out, &BTreeMap::from([("pods", &pods)])),
        RefsOutput::Yaml => write_yaml(out, &BTreeMap::from([("pods", &pods)])),
        RefsOutput::Table => out.write_all(table(&pods).as_bytes()),
    })?;
    Ok(partial_if(!is_whole))
}

/// A table in kubectl's manner; a pod without references has a line as well.
fn table(pods: &[PodReferences<'_>]) -> String {
    let mut rows = vec![["NAMESPACE", "POD", "KIND", "NAME"]];
    for pod in pods {
        let before = rows.len();
        let references = pod.references.iter();
        rows.extend(references.map(|(kind, name)| [pod.namespace, pod.label, kind.as_str(), name]));
        if rows.len() == before {
            rows.push([pod.namespace, pod.label, "<none>", ""]);
        }
    }
    columns(&rows)
}
