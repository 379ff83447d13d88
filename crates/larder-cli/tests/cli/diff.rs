//! `larder diff`.

mod memory;
mod property;
mod recipes;
mod sides;
mod sub_paths;
mod trees;
mod unknown;

use std::{
    ffi::OsStr,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{Desk, Run, apiserver::Server};

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  containers:
  - name: web
    image: i
    env: [{name: LEVEL, valueFrom: {configMapKeyRef: {name: app, key: level, optional: true}}}]
    volumeMounts: [{name: cfg, mountPath: /etc/app}]
  - name: side
    image: i
    volumeMounts: [{name: cfg, mountPath: /one, subPath: b}, {name: tls, mountPath: /tls}]
  volumes:
  - {name: cfg, configMap: {name: app}}
  - {name: tls, secret: {secretName: tls, optional: true}}
"#;

fn map(data: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: app, namespace: prod}}\ndata: {data}\n"
    )
}

fn secret(data: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: tls, namespace: prod}}\nstringData: {data}\n"
    )
}

#[test]
fn key_of_a_secret_that_selects_a_file_is_hidden() {
    let pod = r#"
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  containers:
  - name: web
    image: i
    env: [{name: K, valueFrom: {secretKeyRef: {name: tls, key: key}}}]
    volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(K)}]
  volumes: [{name: v, configMap: {name: app}}]
"#;
    let with = |key: &str| {
        [
            pod,
            &map("{hunter2: one, hunter4: two}"),
            &secret(&format!("{{key: {key}}}")),
        ]
        .concat()
    };
    let (from, to) = (with("hunter2"), with("hunter4"));
    let desk = Desk::with([("from.yaml", &*from), ("to.yaml", &*to)]);
    for command in [
        "diff --from-file from.yaml --to-file to.yaml -o tree",
        "diff --from-file from.yaml --to-file to.yaml -o markdown",
        "diff --from-file from.yaml --to-file to.yaml -o html",
        "render -f from.yaml -o tree",
        "render -f from.yaml -o html",
    ] {
        let run = desk.run(command);
        assert!(run.stdout.contains("hidden"), "{command}: {run:?}");
        assert!(!run.stdout.contains("hunter"), "{command}: {run:?}");
        let run = desk.run(&format!("{command} --show-secrets"));
        assert!(run.stdout.contains("hunter2"), "{command}: {run:?}");
    }
}

/// A repository with [`FROM`] in `k8s/app.yaml` of its first commit, and [`to`] in the working tree.
struct Checkout {
    desk: Desk,
}

impl Checkout {
    fn new() -> Self {
        let checkout = Self {
            desk: Desk::with([]),
        };
        checkout.git("init -q -b main");
        fs::create_dir(checkout.path().join("k8s")).unwrap();
        checkout.write("k8s/app.yaml", FROM);
        checkout.commit("first");
        checkout.write("k8s/app.yaml", &to());
        checkout
    }

    fn path(&self) -> &Path {
        self.desk.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    fn commit(&self, tag: &str) {
        self.git("add -A");
        self.git("-c user.name=n -c user.email=e -c commit.gpgsign=false commit -q -m text");
        self.git(&format!("tag {tag}"));
    }

    fn git(&self, args: &str) {
        let mut git = Command::new("git");
        let git = git.args(args.split_whitespace()).current_dir(self.path());
        let git = git
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env_remove("GIT_DIR");
        assert!(git.status().unwrap().success(), "git {args}");
    }

    /// Runs `larder diff`, as a hook of git would.
    fn diff(&self, directory: &str, args: &[&str]) -> Run {
        let path = std::env::var_os("PATH").unwrap();
        self.diff_with(path, directory, args)
    }

    /// The same with another `PATH`.
    fn diff_with(&self, path: impl AsRef<OsStr>, directory: &str, args: &[&str]) -> Run {
        let output = Command::new(env!("CARGO_BIN_EXE_larder"))
            .arg("diff")
            .args(args)
            .current_dir(self.path().join(directory))
            .env_clear()
            .env("PATH", path)
            .env("GIT_DIR", ".git")
            .env("GIT_INDEX_FILE", ".git/index")
            .stdin(Stdio::null())
            .output();
        output.unwrap().into()
    }
}

#[test]
fn revisions_of_git_are_compared() {
    let checkout = Checkout::new();
    let expected = diff(FROM, &to());
    let check = |directory: &str, args: &[&str], expected: &Value| {
        let run = checkout.diff(directory, &[args, &["-o", "json"]].concat());
        let found: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
        assert_eq!(&found, expected, "{args:?}: {run:?}");
    };
    check(".", &["-f", "k8s", "--from", "HEAD"], &expected);
    check(".", &["-f", "k8s/app.yaml", "--from", "first"], &expected);
    check("k8s", &["-f", ".", "--from", "main"], &expected);
    check("k8s", &["-f", "app.yaml", "--from", "main"], &expected);
    check(".", &["-R", "-f", ".", "--from", "main"], &expected);
    // The first revision has no other file, and a second one has all.
    checkout.write("k8s/more.yaml", &POD.replace("name: web", "name: more"));
    fs::remove_file(checkout.path().join("k8s/app.yaml")).unwrap();
    checkout.commit("second");
    let more = POD.replace("name: web", "name: more");
    let expected = diff(FROM, &more);
    check(
        ".",
        &["-f", "k8s", "--from", "first", "--to", "second"],
        &expected,
    );
    let expected = diff(&more, FROM);
    check(
        ".",
        &["-f", "k8s", "--from", "second", "--to", "first"],
        &expected,
    );
    // A directory that is new, and one without a difference.
    fs::create_dir(checkout.path().join("new")).unwrap();
    checkout.write("new/app.yaml", FROM);
    check(".", &["-f", "new", "--from", "main"], &diff("", FROM));
    check(".", &["-f", "k8s", "--from", "main"], &diff(&more, &more));
}

#[test]
fn hostile_names_are_only_names() {
    let checkout = Checkout::new();
    fs::create_dir(checkout.path().join("k8s/.hidden")).unwrap();
    for name in [
        "--output=x.yaml",
        "a b\n:(top)*.yaml",
        ".hidden/a.yaml",
        "x\u{1b}.yaml",
    ] {
        let text = format!("# {name:?}\n");
        checkout.write(&format!("k8s/{name}"), &text);
    }
    checkout.commit("hostile");
    let run = checkout.diff(".", &["-f", "k8s", "--from", "hostile"]);
    assert_eq!(run.code, 0, "{run:?}");
    assert!(run.stdout.contains("No container sees a difference."));
    for revision in [
        "--output=pwned",
        "--upload-pack=touch pwned",
        "-h",
        "",
        "main:k8s",
        "main^{tree}",
        "..",
        "main..first",
        ":/first",
        "no-such",
        "main\n",
    ] {
        let run = checkout.diff(".", &["-f", "k8s", &format!("--from={revision}")]);
        // git finds a commit by its message.
        if revision != ":/first" {
            assert_eq!((run.code, &*run.stdout), (2, ""), "{revision:?}: {run:?}");
        }
    }
    assert!(!checkout.path().join("pwned").exists());
}

#[test]
fn api_server_is_asked_for_named_objects_only() {
    let desk = Desk::with([("new.yaml", &to())]);
    fs::create_dir(desk.path().join("m")).unwrap();
    let other = POD
        .replace("name: web", "name: other")
        .replace("name: app", "name: app-2");
    let unused = map("{a: '1'}").replace("name: app", "name: unused");
    fs::write(
        desk.path().join("m/app.yaml"),
        [FROM, "---", &other, &unused].concat(),
    )
    .unwrap();
    let (_server, _) = Server::start(
        &desk,
        "--manifests m --kubeconfig-out kubeconfig --audit-log audit.jsonl",
    );
    let ask = |args: &str| desk.run(&format!("diff --kubeconfig kubeconfig {args} -o json"));
    let run = ask("-f new.yaml");
    let mut expected = diff(FROM, &to());
    // It is in the manifests, but no container of them sees it.
    assert_eq!(expected["unreferenced"].take()[0]["name"], "loose");
    expected["unreferenced"] = json!([]);
    let found: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    assert_eq!((run.code, &found), (1, &expected));
    assert_eq!(
        run.stderr,
        "larder: 1 object of the manifests is not compared: no container in them sees it\n"
    );
    // What the manifests lack stays.
    let (deployment, _) = FROM.split_once("---").unwrap();
    fs::write(desk.path().join("pod.yaml"), deployment).unwrap();
    let run = ask("-f pod.yaml");
    assert_eq!((run.code, &*run.stderr), (0, ""), "{run:?}");
    // A pod that the API server lacks.
    fs::write(
        desk.path().join("pod.yaml"),
        deployment.replace("name: web, n", "name: new, n"),
    )
    .unwrap();
    let run = ask("-f pod.yaml");
    assert_eq!(run.code, 1);
    assert!(run.stdout.contains(r#""change": "added""#), "{run:?}");

    let audit = fs::read_to_string(desk.path().join("audit.jsonl")).unwrap();
    let requests: std::collections::BTreeSet<_> = audit
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|request| {
            !request["user_agent"]
                .as_str()
                .unwrap()
                .contains("manifests")
        })
        .map(|request| {
            let path = request["path"].as_str().unwrap();
            format!("{} {path}", request["verb"].as_str().unwrap())
        })
        .collect();
    let requests: Vec<_> = requests.into_iter().collect();
    expect![[r#"
        get /api/v1/namespaces/prod/configmaps/app
        get /api/v1/namespaces/prod/configmaps/files
        get /api/v1/namespaces/prod/pods/new
        get /api/v1/namespaces/prod/pods/web
        get /api/v1/namespaces/prod/secrets/token
        get /apis/apps/v1/namespaces/prod/deployments/new
        get /apis/apps/v1/namespaces/prod/deployments/web"#]]
    .assert_eq(&requests.join("\n"));
}

#[test]
fn api_server_that_is_not_there_is_an_error() {
    let desk = Desk::with([("new.yaml", FROM)]);
    let (server, _) = Server::start(&desk, "--kubeconfig-out kubeconfig");
    fs::copy(desk.path().join("kubeconfig"), desk.path().join("kept")).unwrap();
    drop(server);
    let run = desk.run("diff -f new.yaml --kubeconfig kept");
    assert_eq!((run.code, &*run.stdout), (2, ""), "{run:?}");
}
