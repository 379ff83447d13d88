//! The view as JSON, for programs.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{self, Write},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::Serialize;

use super::View;
use crate::commands::refs::{References, write_json};

#[derive(Serialize)]
struct Report<'a> {
    pods: Vec<PodReport<'a>>,
}

#[derive(Serialize)]
struct PodReport<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    references: References,
    containers: BTreeMap<&'a str, ContainerReport<'a>>,
    volumes: BTreeMap<&'a str, VolumeReport<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum ContainerReport<'a> {
    Env(BTreeMap<&'a str, Cow<'a, str>>),
    Error(String),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum VolumeReport<'a> {
    Files(BTreeMap<&'a str, FileReport>),
    Error(String),
}

#[derive(Serialize)]
struct FileReport {
    /// Four octal digits.
    mode: String,
    /// Base64.
    data: String,
}

/// Writes one JSON object with all pods. A value that is not UTF-8 has U+FFFD for each byte that is not, as Go's encoder has it.
pub(super) fn write(out: &mut dyn Write, views: &[View<'_>]) -> io::Result<()> {
    let report = Report {
        pods: views.iter().map(pod).collect(),
    };
    write_json(out, &report)
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return text.into();
    }
    let chunks = bytes.utf8_chunks().map(|chunk| {
        let replaced = "\u{fffd}".repeat(chunk.invalid().len());
        chunk.valid().to_owned() + &replaced
    });
    chunks.collect::<String>().into()
}

fn pod<'a>(view: &'a View<'a>) -> PodReport<'a> {
    let containers = view.containers.iter().map(|(container, sight)| {
        let report = match sight {
            Ok(sight) => ContainerReport::Env(
                sight
                    .environment
                    .iter()
                    .map(|(name, variable)| (name, text(&variable.value)))
                    .collect(),
            ),
            Err(error) => ContainerReport::Error(error.to_string()),
        };
        (container.name, report)
    });
    let volumes = view.volumes.iter().map(|(volume, projection)| {
        let report = match projection {
            Ok(projection) => VolumeReport::Files(
                projection
                    .payload
                    .iter()
                    .map(|(path, file)| {
                        let report = FileReport {
                            mode: format!("{:04o}", file.mode),
                            data: BASE64.encode(&*file.data),
                        };
                        (path.as_str(), report)
                    })
                    .collect(),
            ),
            Err(error) => VolumeReport::Error(error.to_string()),
        };
        (volume.name.as_str(), report)
    });
    PodReport {
        namespace: view.namespace(),
        name: view.name(),
        uid: view.pod.metadata.uid.as_deref().unwrap_or(""),
        references: References::of(view.pod),
        containers: containers.collect(),
        volumes: volumes.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_is_not_text_is_replaced() {
        // The first two bytes of a character of three, and one that begins none.
        assert_eq!(text(b"a\xe2\x82b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}");
        assert_eq!(text("ü".as_bytes()), "ü");
    }
}
