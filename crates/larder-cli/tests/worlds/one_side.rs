//! What `larder render` and `exec` say of one side.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use larder_objects::manifest::Manifests;
use serde_json::Value;

use super::{
    completion::Completion,
    copy,
    view::{FilledPod, NeededVolumes, RunningPod, Seen, Template},
    world::{Side, World},
};

/// What of an encrypted value no container may see.
const CIPHERTEXT: [&str; 2] = ["ENC[", "AgB"];
/// Of what only a cluster has: why no command starts here.
const OF_CLUSTER: [&str; 3] = [
    "is made in a cluster",
    "sops -d",
    "issued by a cluster only",
];

/// Checks the answers about the second side.
pub(super) fn judge(
    world: &World,
    manifests: &Manifests,
    template: &Template<'_>,
    completions: &[Completion<'_>],
) -> Result<(), String> {
    for assume_missing in [false, true] {
        let completed = completions.iter().cloned().map(|completion| {
            if assume_missing {
                completion.with_outside()
            } else {
                completion.without_outside()
            }
        });
        let completed: Vec<_> = completed.collect();
        judge_completed(&world.to, manifests, template, &completed, assume_missing)?;
    }
    Ok(())
}

fn judge_completed(
    side: &Side,
    manifests: &Manifests,
    template: &Template<'_>,
    completed: &[Completion<'_>],
    assume_missing: bool,
) -> Result<(), String> {
    // The other side says nothing.
    let running = completed.iter();
    let running = running.map(|completion| RunningPod::new(side, side, template, completion));
    let running: Vec<_> = running.collect();
    let pods: Vec<_> = running.iter().map(FilledPod::new).collect();
    let (report, trees) = larder_cli::render_report(copy(manifests), assume_missing);
    let fault = |text: String| {
        let assumed = if assume_missing { "with" } else { "without" };
        Err(format!("{assumed} --assume-missing: {text}\n{trees}"))
    };
    let views = |container: &str| -> Vec<_> {
        let pods = pods.iter();
        pods.map(|pod| pod.see(container, NeededVolumes::OfPod))
            .collect()
    };
    let all = World::containers().map(views);
    let starts = |place: usize| all.iter().all(|views| views[place].is_some());
    let starting = (0..pods.len()).filter(|place| starts(*place)).count();
    let is_all = starting == pods.len();
    let holds = if trees.contains("does not start") {
        starting == 0
    } else if trees.contains("starts if these are there") {
        starting > 0 && !is_all
    } else {
        is_all
    };
    if !holds {
        let place = (0..pods.len()).find(|place| starts(*place) != is_all);
        let shown = place.map(|place| completed[place].to_string());
        return fault(format!(
            "pod starts in {starting} of {} completions: {shown:?}",
            pods.len()
        ));
    }
    let mut commands = larder_cli::exec_starts(copy(manifests), assume_missing);
    for (container, views) in World::containers().iter().zip(&all) {
        for (view, completion) in views.iter().zip(completed) {
            let Some(seen) = view else { continue };
            if let Some(text) = unlike(&report["pods"][0], container, seen) {
                return fault(format!("container {container}: {text} in {completion}"));
            }
        }
        let starts = |pod: &FilledPod<'_>| pod.see(container, NeededVolumes::Own).is_some();
        let ever = views.iter().any(Option::is_some) || pods.iter().any(starts);
        match commands.remove(*container).expect("it is one of the pod") {
            Ok(()) if ever => {}
            Ok(()) => return fault(format!("exec starts {container}")),
            Err(error) => {
                let text = format!("{error:#}");
                let is_of_cluster = OF_CLUSTER.iter().any(|words| text.contains(words));
                if ever && !is_of_cluster {
                    return fault(format!("exec does not start {container}: {text}"));
                }
            }
        }
    }
    Ok(())
}

/// What a report says otherwise than a container sees it.
fn unlike(pod: &Value, container: &str, seen: &Seen<'_>) -> Option<String> {
    let view = &pod["containers"][container];
    let none = serde_json::Map::new();
    let (env, unknown) = (
        view["env"].as_object()?,
        view["unknown"].as_object().unwrap_or(&none),
    );
    for (name, value) in env {
        let value = value.as_str()?;
        if CIPHERTEXT.iter().any(|text| value.contains(text)) {
            return Some(format!("{name} has ciphertext"));
        }
        let is_open = unknown.contains_key(name) || seen.is_of_service(name);
        let own = seen.value(name).map(String::from_utf8_lossy);
        if !is_open && own.as_deref() != Some(value) {
            return Some(format!("{name} is {value:?}, but {own:?}"));
        }
    }
    let is_covered = |name: &str| {
        let mut all = unknown.keys();
        env.contains_key(name)
            || all.any(|one| {
                one.strip_suffix('*')
                    .is_some_and(|prefix| name.starts_with(prefix))
            })
    };
    let mut own = seen.names();
    if let Some(name) = own.find(|name| !seen.is_of_service(name) && !is_covered(name)) {
        return Some(format!("{name} is not named"));
    }
    for (path, (volume, part)) in &seen.mounts {
        let Some(volume) = volume.filter(|_| part.is_empty()) else {
            continue;
        };
        let volume = &pod["volumes"][&*volume.name];
        let Some(files) = volume["files"].as_object() else {
            continue;
        };
        let unknown = volume["unknown"].as_object().unwrap_or(&none);
        let prefix = format!("{path}/");
        let in_container = seen.files.iter();
        let in_container =
            in_container.filter_map(|(path, file)| Some((path.strip_prefix(&prefix)?, file)));
        for (name, file) in in_container {
            let is_open = unknown.contains_key(name) || unknown.contains_key("*");
            let is_same = files
                .get(name)
                .is_some_and(|stated| stated["data"] == BASE64.encode(file.data));
            if !is_open && !is_same && name != "token" {
                return Some(format!("{path}: {name} is {:?}", files.get(name)));
            }
        }
        let missing = files.keys().find(|name| {
            !unknown.contains_key(*name) && !seen.files.contains_key(&format!("{prefix}{name}"))
        });
        if let Some(name) = missing {
            return Some(format!("{path}: there is no {name}"));
        }
    }
    None
}
