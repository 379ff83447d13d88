//! The examples of the repository hold what their comments promise.

use serde_json::{Value, json};

use crate::Desk;

#[test]
fn examples_render_as_their_comments_say() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let run = Desk::with([]).run(&format!("render -f {examples} -o json"));
    // One pod waits for its Secret.
    assert_eq!((run.code, &*run.stderr), (1, ""));
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let pods = report["pods"].as_array().unwrap();
    let pod = |name: &str| pods.iter().find(|pod| pod["name"] == name).unwrap();

    let web = &pod("web")["containers"]["web"]["env"];
    assert_eq!(web["GREETING"], "hello ada, the log level is info");
    assert_eq!(
        pod("web")["volumes"]["login"]["files"]["user"]["mode"],
        "0400"
    );
    let worker = pod("worker");
    let container = &worker["containers"]["worker"];
    assert_eq!(container["env"], json!({"POD": "", "MEMORY_MIB": "64"}));
    // The pods of a Deployment get their names in the cluster.
    assert_eq!(container["unknown"], json!({"POD": "metadata.name"}));
    let files: Vec<_> = worker["volumes"]["all"]["files"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(
        files,
        [
            "features/beta.json",
            "features/search",
            "labels",
            "password"
        ]
    );
    assert_eq!(
        pod("waiting")["containers"]["app"],
        json!({"error": "secret \"api\" not found"})
    );
}

#[test]
fn waiting_example_starts_with_the_secret_in_its_comments() {
    let text = include_str!("../../../../examples/03-waiting.yaml");
    let (pod, secret) = text.split_once("# ---\n").unwrap();
    let secret = secret.replace("\n# ", "\n").replacen("# ", "", 1);
    let run =
        Desk::with([("a.yaml", &format!("{pod}---\n{secret}"))]).run("render -f a.yaml -o json");
    assert_eq!((run.code, &*run.stderr), (0, ""), "{}", run.stdout);
}
