//! What only a cluster knows, in `larder render`, `larder diff` and `larder exec`: addresses of Services.

use serde_json::{Value, json};

use crate::Desk;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: i
    env: [{name: URL, value: "http://$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)"}, {name: PORT, value: "$(DB_SERVICE_PORT)"}]
"#;

const SERVICE: &str =
    "---\n{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {ports: [{port: 5432}]}}\n";

#[track_caller]
fn json_of(desk: &Desk, args: &str, code: i32) -> Value {
    let run = desk.run(args);
    assert_eq!(run.code, code, "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// The container of the only pod of `text`.
#[track_caller]
fn rendered(text: &str) -> Value {
    let desk = Desk::with([("app.yaml", text)]);
    json_of(&desk, "render -f app.yaml -o json", 0)["pods"][0]["containers"]["web"].take()
}

#[test]
fn address_of_a_service_is_known_when_it_runs() {
    let with = |spec: &str| [POD, &SERVICE.replace("ports", &format!("{spec}, ports"))].concat();
    let addressed = rendered(&with("clusterIP: 10.0.0.9"));
    for spec in ["type: ClusterIP", "type: LoadBalancer", "clusterIP: ''"] {
        let found = rendered(&with(spec));
        assert_eq!(found.get("warnings"), None, "{found}");
        assert_eq!(found["env"]["PORT"], "5432");
        let names = |found: &Value| -> Vec<String> {
            let names = found["env"].as_object().unwrap().keys();
            names.cloned().collect()
        };
        assert_eq!(names(&found), names(&addressed));
        let unknown = json!({
            "URL": "http://$(clusterIP of service db):5432",
            "DB_SERVICE_HOST": "clusterIP of service db",
            "DB_PORT": "tcp://$(clusterIP of service db):5432",
            "DB_PORT_5432_TCP": "tcp://$(clusterIP of service db):5432",
            "DB_PORT_5432_TCP_ADDR": "clusterIP of service db",
        });
        assert_eq!(found["unknown"], unknown);
    }
    for spec in [
        "clusterIP: None",
        "type: ExternalName, externalName: db.example",
    ] {
        let found = rendered(&with(spec));
        assert_eq!(found.get("unknown"), None, "{found}");
    }
    let desk = Desk::with([("app.yaml", &with("type: NodePort"))]);
    for format in ["tree", "html"] {
        let run = desk.run(&format!("render -f app.yaml -o {format}"));
        let text = run.stdout.replace("&lt;", "<").replace("&gt;", ">");
        assert!(text.contains("<known when it runs: clusterIP>"), "{text}");
    }
    let run = desk.run("exec -f app.yaml -- env");
    for line in ["DB_SERVICE_PORT=5432\n", "DB_SERVICE_HOST=\n"] {
        assert!(run.stdout.contains(line), "{run:?}");
    }
    assert!(
        run.stderr
            .contains("DB_SERVICE_HOST (clusterIP of service db)"),
        "{run:?}"
    );
}

#[test]
fn other_port_of_a_service_needs_a_restart() {
    let with = [POD, SERVICE].concat();
    let other = with.replace("5432", "5433");
    for (from, to, code) in [(&*with, &*other, 1), (POD, &with, 1), (&with, &with, 0)] {
        let desk = Desk::with([("from.yaml", from), ("to.yaml", to)]);
        let report = json_of(
            &desk,
            "diff --from-file from.yaml --to-file to.yaml -o json",
            code,
        );
        let verdict = &report["pods"][0]["containers"]["web"]["verdict"];
        let expected = if code == 0 {
            Value::Null
        } else {
            "restart".into()
        };
        assert_eq!(*verdict, expected, "{report:#}");
        assert_eq!(report["unknown"][0]["what"], "clusterIP of service db");
    }
}
