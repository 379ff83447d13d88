//! `--exclude` and `--strict` of the commands that read manifests.

use std::fs;

use serde_json::Value;

use crate::Desk;

const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i}]
";

fn tree() -> Desk {
    let desk = Desk::with([("app.yaml", POD), ("gen.yaml", "kind: [")]);
    fs::create_dir(desk.path().join("flux-system")).unwrap();
    fs::write(desk.path().join("flux-system/a.yaml"), "kind: [").unwrap();
    desk
}

#[test]
fn excluded_files_are_not_read_and_named() {
    let desk = tree();
    for command in ["render", "refs"] {
        let run = desk.run(&format!("{command} -R -f ."));
        assert_eq!(run.code, 1, "{run:?}");
        let exclude = "--exclude flux-system --exclude gen.*";
        let run = desk.run(&format!("{command} -R -f . {exclude}"));
        assert_eq!(run.code, 0, "{run:?}");
        let named = "--exclude left out 2 paths: ./flux-system, ./gen.yaml";
        assert!(run.stderr.contains(named), "{run:?}");
        // A file that is named itself is read.
        let run = desk.run(&format!("{command} -f app.yaml gen.yaml {exclude}"));
        assert_eq!(run.code, 1, "{run:?}");
        let run = desk.run(&format!("{command} -f . --exclude *.yaml"));
        assert_eq!(run.code, 2, "{run:?}");
        let run = desk.run(&format!("{command} -f . --exclude a["));
        assert_eq!(run.code, 2, "{run:?}");
        assert!(run.stderr.contains("unclosed character class"), "{run:?}");
    }
    let run = desk.run("render -R -f . -o json --exclude flux-system --exclude gen.yaml");
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(json.get("notRead").is_none(), "{json}");
    let warnings = json["warnings"].to_string();
    assert!(
        warnings.contains("--exclude left out 2 paths"),
        "{warnings}"
    );
}

#[test]
fn strict_fails_for_what_deserves_a_look_and_for_nothing_else() {
    let accounts = "\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: a}}";
    let role = "\n---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: r}, rules: []}";
    let unknown_field = POD.replace("image: i", "image: i, imagePulPolicy: Always");
    let of_pod = POD.replace("spec:", "spec:\n  serviceAccountName: b");
    let of_container = POD.replace("image: i", "image: i, args: [$(PORT)]");
    let driver = "volumes: [{name: v, csi: {driver: d, nodePublishSecretRef: {name: s}}}]";
    let of_volume = POD.replace(
        "image: i",
        "image: i, volumeMounts: [{name: v, mountPath: /v}]",
    );
    let of_volume = format!("{of_volume}  {driver}\n");
    for (what, text, code) in [
        ("nothing", &*format!("{POD}{accounts}{role}"), 0),
        ("unknown field", &unknown_field, 1),
        ("warning of a pod", &of_pod, 1),
        ("warning of a container", &of_container, 1),
        ("Secret of a driver", &of_volume, 1),
    ] {
        let desk = Desk::with([("app.yaml", text)]);
        for output in ["tree", "json", "yaml", "html"] {
            let render = format!("render -f app.yaml -o {output}");
            assert_eq!(desk.run(&render).code, 0, "{what} {output}");
            let run = desk.run(&format!("{render} --strict"));
            assert_eq!(run.code, code, "{what} {output}: {run:?}");
        }
    }
    let desk = Desk::with([("app.yaml", POD), ("kustomization.yaml", "resources: []")]);
    assert_eq!(desk.run("render -f . --exclude kustomization.yaml").code, 0);
    let run = desk.run("render -f . --exclude kustomization.yaml --strict");
    assert_eq!(
        run.code, 1,
        "what kustomize makes of it is not looked at: {run:?}"
    );
}
