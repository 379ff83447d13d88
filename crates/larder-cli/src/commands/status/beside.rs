//! The mode beside a kubelet, and what containers see of volumes, as lines of `larder status`.

use jiff::Timestamp;
use larder_agent::status::{AgentStatus, PodStatus, SubPathState, VolumeStatus};

use crate::output::{age, table::Row};

/// The facts about the mode, and why no pod is touched.
pub(super) fn notes(status: &AgentStatus) -> Vec<String> {
    let Some(beside) = &status.beside else {
        return Vec::new();
    };
    let fact = |label: &str, value: &str| (!value.is_empty()).then(|| format!("{label} {value}"));
    let disk = match beside.disk_visible {
        Some(true) => "visible",
        Some(false) => "not visible",
        None => "",
    };
    let facts = [
        fact("kubelet", &beside.kubelet_version),
        fact("kubelet root directory", &beside.kubelet_root_dir),
        fact("as", &beside.identity),
        Some(format!("TTL {} s", beside.ttl_secs)),
        fact("disk", disk),
        beside.dry_run.then(|| "dry run".to_owned()),
    ];
    let facts: Vec<_> = facts.into_iter().flatten().collect();
    let mut notes = vec![format!("mode Beside: {}", facts.join(", "))];
    let rights: Vec<_> = beside
        .rights
        .iter()
        .map(|right| match right.granted {
            Some(true) => format!("{} granted", right.right),
            Some(false) => format!("{} denied", right.right),
            None => format!("{} unknown", right.right),
        })
        .collect();
    if !rights.is_empty() {
        notes.push(format!("permissions: {}", rights.join(", ")));
    }
    notes
}

/// The reason of a volume; of a delivered one, how long its last change took.
pub(super) fn reason(volume: &VolumeStatus) -> Option<String> {
    let took = volume.verified_in_ms?;
    Some(format!("verified {took} ms after the change"))
}

/// Rows of the content that the containers of `pod` see only after a restart.
pub(super) fn outdated(pod: &PodStatus, now: Timestamp) -> impl Iterator<Item = Row<5>> {
    pod.containers.iter().flat_map(move |container| {
        let place = format!("{}/{}/{}", pod.namespace, pod.name, container.name);
        container.outdated.iter().map(move |entry| {
            [
                ("OUT OF DATE IN", place.clone()),
                ("KIND", entry.kind.clone()),
                ("NAME", entry.name.clone()),
                ("OBJECT", entry.object.clone()),
                ("SINCE", format!("{} ago", age(entry.since, now))),
            ]
        })
    })
}

/// Rows of what the containers of `pod` see through mounts with `subPath`.
pub(super) fn sub_paths(pod: &PodStatus, now: Timestamp) -> impl Iterator<Item = Row<5>> {
    pod.volumes
        .iter()
        .flat_map(|volume| &volume.sub_paths)
        .map(move |mount| {
            let state = match mount.state {
                SubPathState::Unknown => "unknown",
                SubPathState::Live => "live",
                SubPathState::Waiting => "waiting",
                SubPathState::Pinned => "pinned",
            };
            let replaced = mount.replaced_at.map(|at| format!("{} ago", age(at, now)));
            let took = mount
                .took_ms
                .map(|took| format!("{took} ms after the change"));
            let (when, how) = (replaced.into_iter(), took.into_iter());
            let waits = mount
                .waiting_since
                .map(|since| format!("to be looked at, since {}", age(since, now)));
            [
                ("SUBPATH IN", mount.container.clone()),
                ("PATH", mount.mount_path.clone()),
                ("SEES", state.to_owned()),
                ("REPLACED", when.chain(how).collect::<Vec<_>>().join(", ")),
                ("REASON", waits.unwrap_or_else(|| mount.reason.clone())),
            ]
        })
}
