//! The API for other programs: the answers of a real agent against their description, and the example provider.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, net::UnixListener, process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
    thread,
};

use rustix::{fs::Uid, thread::set_thread_uid};
use serde_json::{Value, json};

use crate::{
    Desk,
    fake_agent::is_root,
    run::{Agent, ask, config_map, desk, pod, put, send},
};

/// The published description.
fn description() -> Value {
    serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap()
}

fn get(desk: &Desk, path: &str) -> Value {
    let (status, body) = ask(desk, &format!("GET {path} HTTP/1.0\r\n\r\n"));
    assert_eq!(status, "200", "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

fn post(desk: &Desk, body: &str) -> (String, String) {
    let length = body.len();
    ask(
        desk,
        &format!("POST /v1/project HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}"),
    )
}

/// Checks `value` against the schema of that name; knows the part of JSON Schema that the description uses.
#[track_caller]
fn check(value: &Value, schema: &str) {
    let document = description();
    let schema = json!({"$ref": format!("#/components/schemas/{schema}")});
    if let Err(problem) = matches(&document, value, &schema) {
        panic!("{problem}");
    }
}

fn matches(document: &Value, value: &Value, schema: &Value) -> Result<(), String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = document.pointer(reference.trim_start_matches('#')).unwrap();
        return matches(document, value, target).map_err(|error| format!("{reference}: {error}"));
    }
    if let Some(variants) = schema["oneOf"].as_array() {
        let results = variants
            .iter()
            .map(|variant| matches(document, value, variant));
        let fitting = results.flatten().count();
        return if fitting == 1 {
            Ok(())
        } else {
            Err(format!("{fitting} variants fit {value}"))
        };
    }
    let is_right = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some(other) => panic!("unknown type {other}"),
        None => true,
    };
    let is_listed = schema["enum"]
        .as_array()
        .is_none_or(|all| all.contains(value));
    let is_constant = schema.get("const").is_none_or(|only| only == value);
    if !(is_right && is_listed && is_constant) {
        return Err(format!("{value} does not fit {schema}"));
    }
    for item in value.as_array().into_iter().flatten() {
        matches(document, item, &schema["items"])?;
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap();
        value
            .get(name)
            .ok_or_else(|| format!("{name} is missing in {value}"))?;
    }
    for (name, item) in value.as_object().into_iter().flatten() {
        match (&schema["properties"][name], &schema["additionalProperties"]) {
            (Value::Null, Value::Null) => {}
            (Value::Null, Value::Bool(false)) => return Err(format!("{name} is not described")),
            (Value::Null, others) => matches(document, item, others)?,
            (known, _) => matches(document, item, known)?,
        }
    }
    Ok(())
}

#[test]
fn answers_fit_their_description() {
    let desk = desk();
    put(&desk, "late.yaml", &pod("late", "missing"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    let pods = get(&desk, "/v1/pods");
    check(&pods, "PodList");
    assert_eq!(pods["pods"].as_array().unwrap().len(), 2);
    let served = get(&desk, "/v1/pods/default/web");
    check(&served, "ServedPod");
    let path = served["status"]["volumes"][0]["path"].as_str().unwrap();
    assert_eq!(fs::read_to_string(Path::new(path).join("a")).unwrap(), "1");
    assert_eq!(get(&desk, "/v1/openapi.json"), description());
    for (path, expected) in [
        ("/v1/pods/default/none", "404"),
        ("/v1/pods/default/%ff", "400"),
        ("/v1/changes?since=x", "400"),
        ("/v1/changes?since=0", "410"),
    ] {
        let (status, body) = ask(&desk, &format!("GET {path} HTTP/1.0\r\n\r\n"));
        assert_eq!(status, expected, "{path}: {body}");
        check(&serde_json::from_str(&body).unwrap(), "Problem");
    }
}

#[test]
fn changes_are_streamed_and_resumed_by_number() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let since = get(&desk, "/v1/pods")["sequence"].as_u64().unwrap();
    let follow = |since: u64| {
        let stream = send(
            &desk,
            &format!("GET /v1/changes?since={since} HTTP/1.0\r\n\r\n"),
        );
        let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.is_empty()));
        lines.map(|line| {
            let change: Value = serde_json::from_str(&line).unwrap();
            check(&change, "Change");
            change
        })
    };
    let mut changes = follow(since);
    put(&desk, "two.yaml", &pod("two", "app"));
    let added =
        changes.find(|change| change["pod"]["phase"] == "Delivered" && change["name"] == "two");
    let added = added.unwrap();
    fs::remove_file(desk.path().join("m/two.yaml")).unwrap();
    let removed = changes.find(|change| change["type"] == "Removed").unwrap();
    assert_eq!(removed["uid"], added["uid"]);
    // A client that comes back sees the last change of each pod.
    let after = follow(since)
        .find(|change| change["name"] == "two")
        .unwrap();
    assert_eq!(after, removed);
    // A number of another agent.
    for number in ["0", "18446744073709551615"] {
        let (status, _) = ask(
            &desk,
            &format!("GET /v1/changes?since={number} HTTP/1.0\r\n\r\n"),
        );
        assert_eq!(status, "410", "{number}");
    }
}

#[test]
fn stream_of_changes_ends_after_the_time_of_the_client() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let since = get(&desk, "/v1/pods")["sequence"].as_u64().unwrap();
    put(&desk, "two.yaml", &pod("two", "app"));
    let request = |seconds: u32| {
        let query = format!("since={since}&timeoutSeconds={seconds}");
        let (status, lines) = ask(&desk, &format!("GET /v1/changes?{query} HTTP/1.0\r\n\r\n"));
        assert_eq!(status, "200");
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    // Whatever there is by then.
    while request(0).is_empty() {}
    let changes = request(1);
    for change in &changes {
        check(change, "Change");
    }
    assert!(
        changes.iter().any(|change| change["name"] == "two"),
        "{changes:?}"
    );
    let (status, _) = ask(&desk, "GET /v1/changes?timeoutSeconds=x HTTP/1.0\r\n\r\n");
    assert_eq!(status, "400");
}

#[test]
fn stream_of_changes_ends_with_the_agent() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let mut stream = send(&desk, "GET /v1/changes HTTP/1.0\r\n\r\n");
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    assert_eq!(agent.signal(rustix::process::Signal::TERM), Some(0));
    stream.read_to_end(&mut Vec::new()).unwrap();
}

/// What a process of `user` gets from the socket of the agent: the first line of the answer, or the error.
fn first_line_as(desk: &Desk, user: u32) -> String {
    let script = "import socket, sys
client = socket.socket(socket.AF_UNIX)
client.settimeout(30)
try:
    client.connect(sys.argv[1])
    client.sendall(b'GET /readyz HTTP/1.0\\r\\n\\r\\n')
    answer = client.makefile('rb').readline().decode().strip()
    print(answer or 'closed')
except (BrokenPipeError, ConnectionResetError):
    print('closed')
except PermissionError:
    print('permission denied')
";
    let output = Command::new("python3")
        .args(["-c", script])
        .arg(desk.path().join("root/agent.sock"))
        .uid(user)
        .gid(user)
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn peer_of_another_user_is_refused_although_the_mode_lets_it_in() {
    const AGENT: u32 = 65534;
    const OTHER: u32 = 65533;
    if !is_root() {
        return;
    }
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for agent_user in [0, AGENT] {
        let desk = desk();
        set_mode(desk.path(), 0o755);
        let root = desk.path().join("root");
        fs::create_dir(&root).unwrap();
        std::os::unix::fs::chown(&root, Some(agent_user), Some(agent_user)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.env_clear().uid(agent_user).gid(agent_user);
        let mut agent = Agent::spawn(&desk, command, "--manifests m --node-name n1");
        agent.first_line();
        // The mode that the agent has set keeps others out as well.
        assert_eq!(first_line_as(&desk, OTHER), "permission denied");
        set_mode(&root, 0o755);
        set_mode(&root.join("agent.sock"), 0o666);
        assert_eq!(
            first_line_as(&desk, OTHER),
            "closed",
            "agent of {agent_user}"
        );
        for user in [0, agent_user] {
            assert_eq!(first_line_as(&desk, user), "HTTP/1.0 200 OK", "{user}");
        }
    }
}

#[test]
fn projection_needs_nothing_of_the_agent() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let manifests = format!(
        "{}---\n{}",
        pod("other", "mine"),
        config_map("mine", "k: v")
    );
    let (status, body) = post(&desk, &manifests);
    assert_eq!(status, "200", "{body}");
    let projection: Value = serde_json::from_str(&body).unwrap();
    check(&projection, "Projection");
    let files = &projection["pods"][0]["volumes"]["cfg"]["files"];
    assert_eq!(files["k"], json!({"mode": "0644", "data": "dg=="}));
    // What only a node knows, and what deserves a look.
    let address = "{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}";
    let unknown =
        pod("other", "mine").replace("image: i,", &format!("image: i, env: [{address}],"));
    let (status, body) = post(
        &desk,
        &format!("{unknown}---\n{}", config_map("mine", "k: v")),
    );
    assert_eq!(status, "200", "{body}");
    let projection: Value = serde_json::from_str(&body).unwrap();
    check(&projection, "Projection");
    let unknown = &projection["pods"][0]["containers"]["main"]["unknown"];
    assert!(unknown["IP"].is_string(), "{projection}");
    // The agent's own ConfigMap is not found.
    let (_, body) = post(&desk, &pod("other", "app"));
    assert!(body.contains("configmap \\\"app\\\" not found"), "{body}");
    for body in ["", "kind: [", "\u{0}"] {
        let (status, text) = post(&desk, body);
        assert_eq!(status, "422", "{body:?}: {text}");
        check(&serde_json::from_str(&text).unwrap(), "Problem");
    }
}

#[test]
fn example_provider_executes_nothing_for_an_agent_of_another_user() {
    if !is_root() {
        return;
    }
    let desk = Desk::with([]);
    let socket = desk.path().join("agent.sock");
    let path = socket.clone();
    // The kernel keeps the credentials of the thread that listens.
    fs::set_permissions(desk.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let listener = thread::spawn(move || {
        set_thread_uid(Uid::from_raw(65534)).unwrap();
        UnixListener::bind(path).unwrap()
    });
    let _listener = listener.join().unwrap();
    let output = provider(desk.path()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = format!(
        "cannot trust the agent on {}: it runs as user 65534\n",
        socket.display()
    );
    assert_eq!((output.status.code(), &*error), (Some(1), &*expected));
}

/// The example provider, asking the agent of `root_dir`.
fn provider(root_dir: &Path) -> Command {
    let provider =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python-provider/provider.py");
    let mut command = Command::new("python3");
    command.arg(provider).arg(root_dir);
    command
}

/// The block of Python in `docs/api.md` below the heading.
fn documented_python(heading: &str) -> String {
    let page = include_str!("../../../../docs/api.md");
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, code) = section.split_once("```python\n").unwrap();
    code.split_once("```").unwrap().0.to_owned()
}

/// What the documented example prints to standard output and standard error, about the agent of `desk`.
fn run_documented(desk: &Desk, heading: &str, modules: &Path) -> (String, String) {
    let example = desk.path().join("example.py");
    fs::write(&example, documented_python(heading)).unwrap();
    let output = Command::new("python3")
        .arg(example)
        .arg(desk.path().join("root"))
        .env("PYTHONPATH", modules)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn documented_example_in_python_runs() {
    let desk = desk();
    let mut agent = Agent::start(&desk);
    agent.summary();
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python-provider");
    let (output, errors) = run_documented(&desk, "From Python", &modules);
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines[..2], ["default web Delivered", "1"], "{errors}");
    assert_eq!(errors, "/v1/pods/default/none: no such pod\n");
}

/// Where `openapi-python-client` is installed, with its httpx in the same environment.
#[test]
fn documented_example_of_a_generated_client_runs() {
    let desk = desk();
    let description = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let generated = Command::new("openapi-python-client")
        .args(["generate", "--path"])
        .arg(description)
        .current_dir(desk.path())
        .output();
    let Ok(generated) = generated else {
        // Straight to the stream, which no test runner holds back.
        let _ = io::stderr().write_all(b"SKIPPED: openapi-python-client is not installed\n");
        return;
    };
    assert!(generated.status.success(), "{generated:?}");
    let mut agent = Agent::start(&desk);
    agent.summary();
    let modules = desk.path().join("larder-agent-client");
    let (output, errors) = run_documented(&desk, "Generated clients", &modules);
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines[..2], ["no such pod", "['hello']"], "{errors}");
}

#[test]
fn example_provider_runs_and_restarts_what_larder_delivers() {
    let desk = desk();
    let script = "echo got $A $(cat $VOLUME_cfg/a); exec sleep 600";
    let running = format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: running}}
spec:
  volumes: [{{name: cfg, configMap: {{name: app}}}}]
  containers:
  - name: main
    image: i
    command: [sh, -c, {}]
    env: [{{name: A, valueFrom: {{configMapKeyRef: {{name: variables, key: a}}}}}}]
    volumeMounts: [{{name: cfg, mountPath: /cfg}}]
",
        json!(script)
    );
    fs::remove_file(desk.path().join("m/web.yaml")).unwrap();
    put(&desk, "running.yaml", &running);
    put(&desk, "variables.yaml", &config_map("variables", "a: one"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    let mut child = provider(&desk.path().join("root"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let mut until = |expected: &str| {
        let found = lines.any(|line| line == expected);
        assert!(found, "no line {expected}");
    };
    until("start default running main");
    until("got one 1");
    // A changed file, a changed variable.
    put(&desk, "app.yaml", &config_map("app", "a: '2'"));
    until("got one 2");
    put(&desk, "variables.yaml", &config_map("variables", "a: two"));
    until("got two 2");
    fs::remove_file(desk.path().join("m/running.yaml")).unwrap();
    until("stop default running main");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert!(child.wait().unwrap().success());
}
