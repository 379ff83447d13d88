//! Results that Kubernetes itself computed, compared with those of the command as a user runs it.
//!
//! `testdata/vectors/README.md` describes the format. `LARDER_VECTORS` names another folder.

use std::{collections::BTreeMap, env, fs, io, io::Write as _, path::PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::Desk;

#[derive(Deserialize)]
struct Case {
    name: String,
    pod: Value,
    objects: Vec<Value>,
    expect: BTreeMap<String, Value>,
}

#[test]
fn random_pods_see_what_kubernetes_shows_them() {
    assert!(check("render.json").is_some_and(|total| total > 0));
}

#[test]
fn pods_of_public_manifests_see_what_kubernetes_shows_them() {
    // Third-party text, so the project has no copy.
    assert_ne!(check("real.json"), Some(0));
}

/// Runs all cases of a file and returns their number; `None` if the folder lacks it.
fn check(file: &str) -> Option<usize> {
    let project = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/vectors");
    let folder =
        env::var_os("LARDER_VECTORS").map_or_else(|| PathBuf::from(project), PathBuf::from);
    let text = match fs::read(folder.join(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        text => text.unwrap(),
    };
    let cases: Vec<Case> = serde_json::from_slice(&text).unwrap();
    let total = cases.len();
    let failures: Vec<_> = cases.into_iter().filter_map(failure).collect();
    // The pass rate goes straight to the stream, which no test runner captures.
    let rate = format!("{file}: {} of {total} cases pass\n", total - failures.len());
    io::stderr().write_all(rate.as_bytes()).unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Some(total)
}

/// The problem of the answer to one case.
fn failure(case: Case) -> Option<String> {
    let Case {
        name,
        pod,
        mut objects,
        expect,
    } = case;
    let identity =
        ["namespace", "name", "uid"].map(|key| (key.to_owned(), pod["metadata"][key].clone()));
    let mut expected: Value = expect.into_iter().chain(identity).collect();
    objects.push(pod);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});

    let run = Desk::with([]).run_with_input("render -f - -o json", &list.to_string());
    let Ok(mut report) = serde_json::from_str::<Value>(&run.stdout) else {
        return Some(format!("{name}: {run:?}"));
    };
    let mut actual = report["pods"][0].take();
    let mut fails = false;
    for part in ["containers", "volumes"] {
        for side in [&mut expected, &mut actual] {
            for item in side[part]
                .as_object_mut()
                .into_iter()
                .flat_map(|items| items.values_mut())
            {
                if let Some(error) = item.get_mut("error") {
                    // Only the failing is compared, not its words.
                    *error = Value::Null;
                    fails = true;
                }
            }
        }
    }
    mask_services(&mut expected, &actual);
    // Kubernetes shows an address that is not known yet as an empty text, and says no more.
    for part in ["containers", "volumes"] {
        let items = actual[part].as_object_mut().into_iter().flatten();
        for (_, item) in items {
            for ours in ["unknown", "warnings", "mounts"] {
                item.as_object_mut().map(|item| item.remove(ours));
            }
        }
    }
    mask_tokens(&expected, &mut actual);
    let code = i32::from(fails);
    if run.code != code {
        return Some(format!(
            "{name}: exit code {}, not {code}: {}",
            run.code, run.stderr
        ));
    }
    (expected != actual).then(|| format!("{name}: expected {expected}, not {actual}"))
}

/// The Services of a case are all that there are, which no manifest can say. What refers to another one is not known here.
fn mask_services(expected: &mut Value, actual: &Value) {
    let containers = expected["containers"].as_object_mut();
    for (name, container) in containers.into_iter().flatten() {
        let unknown = actual["containers"][name]["unknown"].as_object();
        for (variable, what) in unknown.into_iter().flatten() {
            if what.as_str().is_some_and(|what| what.contains("service ")) {
                container["env"][variable] = json!("");
            }
        }
    }
}

/// Data of `*` stands for any content.
fn mask_tokens(expected: &Value, actual: &mut Value) {
    for (volume, content) in expected["volumes"].as_object().into_iter().flatten() {
        for (path, file) in content["files"].as_object().into_iter().flatten() {
            let data = actual["volumes"][volume]["files"][path].get_mut("data");
            if let (Some(data), true) = (data, file["data"] == "*") {
                *data = json!("*");
            }
        }
    }
}
