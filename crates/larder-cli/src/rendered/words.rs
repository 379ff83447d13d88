//! Values, sizes and sources as text for people.

use indexmap::{IndexMap, IndexSet};
use k8s_openapi::api::core::v1::Volume;
use larder_objects::{Kind, volume_sources};
use larder_projection::{Absent, ContainerKind, ContainerView, Mount, Origin, Unknown, Variable};

use super::{
    pod::RenderedPod,
    token::{ShownMount, TOKEN_VOLUME, TokenMount},
};
use crate::output::escaped;

/// Longest value that is shown whole, in characters.
const MAX_VALUE: usize = 60;
/// Most bytes of a text that is shown in full.
const MAX_TEXT: usize = 64 << 10;
/// Most missing objects that get a hint, which looks at all objects or at all keys of one.
const MAX_HINTS: usize = 20;
/// Most missing keys that are named on one line, and that get a hint.
const MAX_KEYS: usize = 4;

/// A value in quotes, on one line, cut when it is long, with everything escaped that a terminal may act on.
pub(crate) fn value(bytes: &[u8]) -> String {
    // A prefix that certainly has enough characters, so that a huge value costs no more than a short one.
    let start = &bytes[..bytes.len().min(4 * (MAX_VALUE + 1))];
    let text = String::from_utf8_lossy(start);
    let cut: String = text.chars().take(MAX_VALUE).collect();
    let quoted = format!("{cut:?}");
    let quoted = escaped(&quoted);
    if start.len() == bytes.len() && cut.len() == text.len() {
        quoted.into_owned()
    } else {
        format!("{quoted}… ({})", size(bytes.len()))
    }
}

/// A value that is not known, in words. Its text may have parts of Secrets in it, if `shows_text`.
pub(crate) fn unknown(value: &Unknown, shows_text: bool) -> String {
    let sources: Vec<_> = value.sources().map(ToString::to_string).collect();
    let is_fact = value.sources().all(|source| source.object.is_none());
    let what = if shows_text {
        value.text()
    } else {
        sources.join(", ")
    };
    let words = if is_fact {
        "known when it runs"
    } else {
        "not known"
    };
    escaped(&format!("<{words}: {what}>")).into_owned()
}

/// The mode of a file, `owner` if it is to be named, and the `group` of its pod, which may read it: `0440, user 1000,
/// group 2000`.
pub(crate) fn permissions(mode: u32, owner: Option<u32>, group: Option<u32>) -> String {
    let mode = group.map_or(mode, |_| mode | 0o440);
    let owner = owner.map(|owner| format!(", user {owner}"));
    let group = group.map(|group| format!(", group {group}"));
    let parts = [Some(format!("{mode:04o}")), owner, group];
    parts.into_iter().flatten().collect()
}

/// The value of a variable; its length instead if it `is_hidden`.
pub(crate) fn variable_value(variable: &Variable<'_>, is_hidden: bool) -> String {
    match variable.value.unknown() {
        Some(unknown) => self::unknown(unknown, !is_hidden),
        None if is_hidden => format!("<hidden, {}>", size(variable.value.len())),
        None => value(&variable.value),
    }
}

/// Whether [`value`] shows less than the value, or it has several lines.
pub(crate) fn is_cut(bytes: &[u8]) -> bool {
    bytes.len() > MAX_VALUE || bytes.contains(&b'\n')
}

/// The bytes as text; `None` if they are something else.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    str::from_utf8(bytes)
        .ok()
        .filter(|text| !text.contains('\0'))
}

/// The lines of a text, up to [`MAX_TEXT`] bytes; `None` if it is empty or no text.
pub(crate) fn text_lines(bytes: &[u8]) -> Option<Vec<String>> {
    let text = text(bytes).filter(|text| !text.is_empty())?;
    let shown = &text[..text.floor_char_boundary(MAX_TEXT)];
    let mut lines: Vec<_> = shown.lines().map(str::to_owned).collect();
    if shown.len() < text.len() {
        lines.push(format!("… {} more", size(text.len() - shown.len())));
    }
    Some(lines)
}

/// `12 B`, `3.4 KiB`, `1.0 MiB`.
pub(crate) fn size(bytes: usize) -> String {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    // Tenths, rounded, in integers.
    let tenths = |unit: usize| (bytes * 10 + unit / 2) / unit;
    let show = |tenths: usize, unit: &str| format!("{}.{} {unit}", tenths / 10, tenths % 10);
    match bytes {
        0..KIB => format!("{bytes} B"),
        KIB..MIB => show(tenths(KIB), "KiB"),
        _ => show(tenths(MIB), "MiB"),
    }
}

/// The sources of a variable or file called `name`: its own, and the one that counts if that is not there.
pub(crate) fn sources(
    pod: &RenderedPod<'_>,
    own: &Origin<'_>,
    fallback: Option<&Origin<'_>>,
    name: &str,
) -> String {
    let own = origin(pod, own, name);
    match fallback {
        Some(fallback) => format!("{own}; else {}", origin(pod, fallback, name)),
        None => own,
    }
}

/// The source of a variable or file called `name`; a key of the same name is left out.
pub(crate) fn origin(pod: &RenderedPod<'_>, origin: &Origin<'_>, name: &str) -> String {
    let in_key = |key: Option<&str>| key.map(|key| format!(", key {key}")).unwrap_or_default();
    match origin {
        Origin::Value { .. } => "from the pod".to_owned(),
        Origin::Key {
            kind,
            name: object,
            key,
            resource_version,
        } => {
            let key = in_key(Some(*key).filter(|key| *key != name));
            if pod.offline.is_assumed(*kind, pod.namespace(), object) {
                return format!("{kind} {object}{key} (a placeholder: every namespace has it)");
            }
            let version = match resource_version.as_str() {
                "" => String::new(),
                version => format!(", version {version}"),
            };
            format!("{kind} {object}{key}{version}")
        }
        Origin::Missing { kind, name, key } => {
            let key = in_key(*key);
            format!("{kind} {name}{key}, which is not known")
        }
        Origin::Field(path) => format!("field {path}"),
        Origin::Resource {
            container,
            resource,
        } => format!("{resource} of container {container}"),
        Origin::EnvFile { volume, path, key } => {
            format!("key {key} of file {path} in volume {volume}")
        }
        Origin::Service { namespace, name } => format!("Service {namespace}/{name}"),
        Origin::Token { account, audience } => {
            let audience = audience.map(|audience| format!(" for {audience}"));
            let audience = audience.unwrap_or_default();
            format!("token of service account {account}{audience} (a placeholder)")
        }
        Origin::TrustBundle => "ClusterTrustBundles".to_owned(),
        Origin::PodCertificate { signer } => format!("pod certificate of {signer}"),
    }
}

/// `init container setup`
pub(crate) fn heading(container: &ContainerView<'_>) -> String {
    let kind = match container.kind {
        ContainerKind::Init => "init container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral container",
    };
    format!("{kind} {}", container.name)
}

/// What is mounted.
pub(crate) fn shown_mount(mount: ShownMount<'_>) -> String {
    match mount {
        ShownMount::Own(mount) => mount_source(mount),
        ShownMount::Token(token) => {
            let TokenMount {
                account,
                owner,
                group,
            } = token;
            let owner = owner
                .map(|owner| format!(", user {owner}"))
                .unwrap_or_default();
            let group = group
                .map(|group| format!(", group {group}"))
                .unwrap_or_default();
            format!(
                "volume {TOKEN_VOLUME}: token of service account {account}{owner}{group}, read-only"
            )
        }
    }
}

/// The volume, or the part of it, that is mounted: `a of volume cfg: ConfigMap app, read-only`.
pub(crate) fn mount_source(mount: &Mount<'_>) -> String {
    let volume = mount.volume;
    let mut what = format!("volume {}: {}", volume.name, volume_type(volume));
    match (&mount.unknown_sub_path, mount.shown_sub_path()) {
        (Some(path), _) => what = format!("{} of {what}", unknown(path, false)),
        (None, Some(path)) => what = format!("{path} of {what}"),
        (None, None) => {}
    }
    if mount.read_only {
        what += ", read-only";
    }
    what
}

/// What is missing, one line for each object: the object itself, or keys of it. Each of the first ones with the first
/// hint at one of them.
pub(crate) fn absent(
    all: &[Absent<'_>],
    hint: impl Fn(&Absent<'_>) -> String,
) -> Vec<(String, String)> {
    let mut objects: IndexMap<(Kind, &str), (IndexSet<&str>, String)> = IndexMap::new();
    for absent in all {
        let has_hint = objects.len() < MAX_HINTS;
        let (keys, first_hint) = objects.entry((absent.kind, absent.name)).or_default();
        keys.extend(absent.key);
        if has_hint && first_hint.is_empty() && keys.len() <= MAX_KEYS {
            *first_hint = hint(absent);
        }
    }
    let lines = objects.into_iter().map(|((kind, name), (keys, hint))| {
        let line = match keys.len() {
            0 => format!("{kind} {name}"),
            1 => format!("key {} of {kind} {name}", keys[0]),
            count => {
                let more = if count > MAX_KEYS { ", …" } else { "" };
                let first: Vec<_> = keys.iter().copied().take(MAX_KEYS).collect();
                format!("{count} keys of {kind} {name}: {}{more}", first.join(", "))
            }
        };
        (format!("optional, missing: {line}"), hint)
    });
    lines.collect()
}

/// The type of a volume, with the object it names: `ConfigMap app`, `emptyDir`.
pub(crate) fn volume_type(volume: &Volume) -> String {
    if let Some(map) = &volume.config_map {
        return format!("{} {}", Kind::ConfigMap, map.name);
    }
    if let Some(secret) = &volume.secret {
        let name = secret.secret_name.as_deref().unwrap_or("");
        return format!("{} {name}", Kind::Secret);
    }
    volume_sources(volume)
        .keys()
        .next()
        .cloned()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_tenths() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1587, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn missing_keys_are_grouped_by_object() {
        let one = |name, key| Absent {
            kind: Kind::ConfigMap,
            name,
            key,
        };
        let all = [
            one("a", Some("x")),
            one("b", None),
            one("c", Some("1")),
            one("c", Some("2")),
            one("c", Some("2")),
            one("d", Some("1")),
            one("d", Some("2")),
            one("d", Some("3")),
            one("d", Some("4")),
            one("d", Some("5")),
        ];
        let hint = |absent: &Absent<'_>| absent.key.map_or("none", |_| "").to_owned();
        let expected = [
            ("optional, missing: key x of ConfigMap a", ""),
            ("optional, missing: ConfigMap b", "none"),
            ("optional, missing: 2 keys of ConfigMap c: 1, 2", ""),
            (
                "optional, missing: 5 keys of ConfigMap d: 1, 2, 3, 4, …",
                "",
            ),
        ];
        let expected = expected.map(|(line, hint)| (line.to_owned(), hint.to_owned()));
        assert_eq!(absent(&all, hint), expected);
    }

    #[test]
    fn long_and_odd_values_stay_on_one_line() {
        assert_eq!(value(b"a\nb\"\x1b"), r#""a\nb\"\u{1b}""#);
        assert_eq!(value(&[0xff]), "\"\u{fffd}\"");
        let long = "x".repeat(2048);
        assert_eq!(
            value(long.as_bytes()),
            format!("\"{}\"… (2.0 KiB)", "x".repeat(60))
        );
    }
}
