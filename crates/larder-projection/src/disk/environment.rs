//! `containers/<container>/env.json`: the environment of a container, for the program that starts it.
//!
//! One JSON object, names sorted, mode 0600. A value is a string; one that is not UTF-8, which only a Secret can hold,
//! is an object `{"base64":"…"}`. It contains values of Secrets, so the directory is a tmpfs if Secret volumes are.

use std::{collections::BTreeMap, os::fd::AsFd};

use base64::Engine as _;
use base64::{display::Base64Display, engine::general_purpose::STANDARD as BASE64};
use larder_files::{regular_file::read_open, replace::replace_file, sys};
use larder_objects::SecretBytes;
use rustix::io::Result;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use zeroize::Zeroizing;

use super::{
    DiskError, VolumeHost,
    directory::Directory,
    host::mount_memory,
    layout::{self, element},
    ownership::{self, Group},
};

/// The new file, before it is renamed over the old one.
const TMP: &str = "..env.json_tmp";
const MODE: u32 = 0o600;

impl VolumeHost {
    /// Writes the environment of a container, in one step, unless it is there already; returns whether it was not.
    ///
    /// # Errors
    ///
    /// The first step that failed; the old file stays.
    pub fn write_environment(
        &self,
        pod_uid: &str,
        container: &str,
        variables: &BTreeMap<&str, &[u8]>,
    ) -> std::result::Result<bool, DiskError> {
        let container = element(container)?;
        let pod = self.ensure_pod(pod_uid)?;
        let (mut containers, _) = pod.make(layout::CONTAINERS)?;
        if self.mounts() {
            (containers, _) = mount_memory(&pod, containers, layout::CONTAINERS, None)?;
        }
        ownership::settle(&containers, None, Group::default(), layout::PRIVATE)
            .map_err(pod.failed("set mode of", layout::CONTAINERS))?;
        let directory = containers.ensure(container, layout::PRIVATE)?;
        let text = encode(variables);
        if holds(&directory, &text) {
            return Ok(false);
        }
        replace_file(directory.as_fd(), layout::ENVIRONMENT, TMP, MODE, &text)
            .map_err(directory.failed("write file", layout::ENVIRONMENT))?;
        Ok(true)
    }
}

/// The variables in the text of an `env.json`, by name.
///
/// # Errors
///
/// The text is not what [`VolumeHost::write_environment`] writes. The error has nothing of it.
pub fn read_environment(
    text: &[u8],
) -> std::result::Result<BTreeMap<String, SecretBytes>, EnvironmentTextError> {
    let variables: BTreeMap<String, ReadValue> =
        serde_json::from_slice(text).map_err(|_| EnvironmentTextError)?;
    variables
        .into_iter()
        .map(|(name, value)| {
            let bytes = match value {
                ReadValue::Text(text) => text.into_bytes(),
                ReadValue::Raw { base64 } => {
                    let base64 = Zeroizing::new(base64);
                    BASE64
                        .decode(base64.as_bytes())
                        .map_err(|_| EnvironmentTextError)?
                }
            };
            Ok((name, SecretBytes::new(bytes)))
        })
        .collect()
}

/// A text is no environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an environment as larder writes it")]
pub struct EnvironmentTextError;

#[derive(Deserialize)]
#[serde(untagged)]
enum ReadValue {
    Text(String),
    Raw { base64: String },
}

/// Whether the file has this content and mode. One that cannot be read is written again.
fn holds(directory: &Directory, text: &[u8]) -> bool {
    let found = || -> Result<bool> {
        let (file, stat) = sys::open_regular(directory.as_fd(), layout::ENVIRONMENT)?;
        let is_private = stat.st_mode & 0o7777 == MODE;
        Ok(is_private && **read_open(&file, &stat, text.len())? == *text)
    };
    found().unwrap_or(false)
}

fn encode(variables: &BTreeMap<&str, &[u8]>) -> Zeroizing<Vec<u8>> {
    let bytes = variables
        .iter()
        .map(|(name, value)| name.len() + value.len() + 20);
    // Never grown, which would leave a copy behind: JSON writes at most six bytes for one.
    let mut text = Zeroizing::new(Vec::with_capacity(6 * bytes.sum::<usize>() + 3));
    let values = variables
        .iter()
        .map(|(name, value)| (name, ValueJson(value)));
    let mut json = serde_json::Serializer::new(&mut *text);
    json.collect_map(values).expect("a map of text is JSON");
    text.push(b'\n');
    text
}

struct ValueJson<'a>(&'a [u8]);

impl Serialize for ValueJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let mut object = serializer.serialize_map(Some(1))?;
        object.serialize_entry(
            "base64",
            &format_args!("{}", Base64Display::new(self.0, &BASE64)),
        )?;
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use expect_test::expect;
    use tempfile::TempDir;

    use super::*;
    use crate::disk::testing::show;

    #[test]
    fn the_environment_is_a_private_json_file() {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let variables: BTreeMap<&str, &[u8]> = [
            ("B", &b"quote \" and\nline"[..]),
            ("A", "ü".as_bytes()),
            ("RAW", &[0xff, 0xfe]),
        ]
        .into();
        assert!(host.write_environment("u1", "web", &variables).unwrap());
        assert!(!host.write_environment("u1", "web", &variables).unwrap());
        expect![[r#"
            containers/ 0750
            containers/web/ 0750
            containers/web/env.json 0600 "{\"A\":\"ü\",\"B\":\"quote \\\" and\\nline\",\"RAW\":{\"base64\":\"//4=\"}}\n"
        "#]]
        .assert_eq(&show(&root.path().join("pods/u1")));
        let file = root.path().join("pods/u1/containers/web/env.json");
        let read = read_environment(&fs::read(&file).unwrap()).unwrap();
        let read: BTreeMap<_, _> = read
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        assert_eq!(read, variables);
        assert_eq!(read_environment(b"{\"A\": 1}"), Err(EnvironmentTextError));

        assert!(
            host.write_environment("u1", "web", &BTreeMap::new())
                .unwrap()
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "{}\n");
        host.remove_pod("u1").unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn leftovers_of_a_crash_are_overwritten() {
        let root = TempDir::new().unwrap();
        let host = VolumeHost::open_without_mounts(root.path()).unwrap();
        let directory = root.path().join("pods/u1/containers/web");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(TMP), "{\"SECR").unwrap();
        fs::write(directory.join(layout::ENVIRONMENT), "{}\n").unwrap();
        let variables: BTreeMap<&str, &[u8]> = [("A", &b"1"[..])].into();
        host.write_environment("u1", "web", &variables).unwrap();
        expect![[r#"
            env.json 0600 "{\"A\":\"1\"}\n"
        "#]]
        .assert_eq(&show(&directory));
    }

    #[test]
    fn a_failure_keeps_the_old_file() {
        use larder_files::faults::{Fault, during};
        use rustix::io::Errno;
        let old: BTreeMap<&str, &[u8]> = [("A", &b"1"[..])].into();
        let new: BTreeMap<&str, &[u8]> = [("A", &b"2"[..])].into();
        for at in 0.. {
            let root = TempDir::new().unwrap();
            let host = VolumeHost::open_without_mounts(root.path()).unwrap();
            host.write_environment("u1", "web", &old).unwrap();
            let before = show(root.path());
            let fault = Fault::Once(Errno::NOSPC);
            let (result, reached) = during(at, fault, || host.write_environment("u1", "web", &new));
            if !reached {
                break;
            }
            if result.is_err() {
                assert_eq!(show(root.path()), before, "call {at}");
            }
        }
    }
}
