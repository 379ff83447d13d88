//! `larder refs`: which ConfigMaps and Secrets each pod refers to.

use std::io;

use k8s_openapi::api::core::v1::Pod;
use larder::references;
use serde::Serialize;

use super::{Failure, Outcome};
use crate::{
    args::{RefsArgs, RefsOutput},
    input, output,
};

/// References of one pod, sorted, each name once.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct References {
    config_maps: Vec<String>,
    secrets: Vec<String>,
}

impl References {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            config_maps: references::config_maps(pod)
                .into_iter()
                .map(String::from)
                .collect(),
            secrets: references::secrets(pod)
                .into_iter()
                .map(String::from)
                .collect(),
        }
    }

    /// Kind and name of each.
    fn iter(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let maps = self.config_maps.iter().map(|name| ("ConfigMap", name));
        maps.chain(self.secrets.iter().map(|name| ("Secret", name)))
    }
}

#[derive(Debug, Serialize)]
struct PodReferences<'a> {
    namespace: &'a str,
    name: &'a str,
    references: References,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    pods: Vec<PodReferences<'a>>,
}

pub(super) fn run(args: &RefsArgs) -> Result<Outcome, Failure> {
    let input = input::read(&args.manifests)?;
    let pods = input.manifests.pods().map(|pod| PodReferences {
        namespace: pod.metadata.namespace.as_deref().unwrap_or(""),
        name: pod.metadata.name.as_deref().unwrap_or(""),
        references: References::of(pod),
    });
    let report = Report {
        pods: pods.collect(),
    };
    output::results(|out| match args.output {
        RefsOutput::Json => write_json(out, &report),
        RefsOutput::Table => out.write_all(table(&report).as_bytes()),
    })?;
    Ok(Outcome::partial_if(input.had_errors))
}

/// Writes `value` indented, with a newline at the end.
pub(super) fn write_json(out: &mut dyn io::Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// A table in kubectl's manner; a pod without references has a line as well.
fn table(report: &Report<'_>) -> String {
    let mut rows = vec![["NAMESPACE", "POD", "KIND", "NAME"]];
    for pod in &report.pods {
        let before = rows.len();
        rows.extend(
            pod.references
                .iter()
                .map(|(kind, name)| [pod.namespace, pod.name, kind, name.as_str()]),
        );
        if rows.len() == before {
            rows.push([pod.namespace, pod.name, "<none>", ""]);
        }
    }
    columns(&rows)
}

/// Lines up `rows`, three spaces between columns.
pub(super) fn columns<const N: usize>(rows: &[[&str; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        text += cells.collect::<Vec<_>>().join("   ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_end_without_blanks() {
        assert_eq!(
            columns(&[["A", "B"], ["long", "x"], ["y", ""]]),
            "A      B\nlong   x\ny\n"
        );
    }
}
