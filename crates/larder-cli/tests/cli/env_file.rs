//! `larder render -o env`: docker reads the file as the variables of the container.
//!
//! The oracle is a parser after docker's documented rules, and docker itself where it is installed: its command reads the
//! file, and sends the variables to a daemon, here one of a few lines.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::net::UnixListener,
    process::Command,
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::{Desk, Run};

/// The variables that docker 28 reads (`pkg/kvfile`), or why it rejects the file.
fn docker_reads(file: &[u8]) -> Result<Vec<(String, String)>, &'static str> {
    let mut variables = Vec::new();
    for (number, line) in file.split(|byte| *byte == b'\n').enumerate() {
        if line.len() >= 64 << 10 {
            return Err("token too long");
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = str::from_utf8(line).map_err(|_| "invalid UTF-8")?;
        let line = match number {
            0 => line.strip_prefix('\u{feff}').unwrap_or(line),
            _ => line,
        };
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or("no value")?;
        if name.is_empty() || name.contains([' ', '\t']) {
            return Err("bad name");
        }
        variables.push((name.to_owned(), value.to_owned()));
    }
    Ok(variables)
}

/// The variables with which docker creates a container from the file; `None` without docker.
fn docker_creates(file: &[u8]) -> Option<Vec<(String, String)>> {
    Command::new("docker").arg("--version").output().ok()?;
    let desk = Desk::with([]);
    fs::write(desk.path().join("env"), file).unwrap();
    let socket = desk.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = thread::spawn(move || daemon(&listener));
    let created = Command::new("docker")
        .args(["create", "--env-file", "env", "image"])
        .current_dir(desk.path())
        .env("DOCKER_HOST", format!("unix://{}", socket.display()))
        .env("DOCKER_CONFIG", desk.path())
        .output()
        .unwrap();
    assert!(created.status.success(), "{created:?}");
    let body = daemon.join().unwrap();
    let variables = body["Env"].as_array().cloned().unwrap_or_default();
    let pair = |one: Value| {
        let (name, value) = one.as_str()?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    Some(
        variables
            .into_iter()
            .map(|one| pair(one).unwrap())
            .collect(),
    )
}

/// Answers docker until it creates a container; returns what docker wants of it.
fn daemon(listener: &UnixListener) -> Value {
    loop {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream);
        loop {
            let (mut request, mut length) = (String::new(), 0);
            if reader.read_line(&mut request).unwrap() == 0 {
                break;
            }
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                let header = header.trim_end().to_ascii_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if header.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let is_create = request.contains("/containers/create");
            let (status, answer) = if is_create {
                ("201 Created", r#"{"Id":"c","Warnings":[]}"#)
            } else {
                ("200 OK", "OK")
            };
            let content = if request.starts_with("HEAD") {
                ""
            } else {
                answer
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nApi-Version: 1.47\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{content}",
                content.len()
            );
            reader.get_mut().write_all(head.as_bytes()).unwrap();
            if is_create {
                return serde_json::from_slice(&body).unwrap();
            }
        }
    }
}

/// The env file of a container that has these variables, each of a Secret.
fn render(variables: &[(String, Vec<u8>)]) -> Run {
    let key = |index| format!("k{index}");
    // Each has one key, as a Secret has a limit.
    let secrets = variables.iter().enumerate().map(|(index, (_, value))| {
        let data = json!({"k": BASE64.encode(value)});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": key(index)}, "data": data});
        secret.to_string() + "\n"
    });
    let secrets: String = secrets.collect();
    let env = variables.iter().enumerate().map(|(index, (name, _))| {
        json!({"name": name, "valueFrom": {"secretKeyRef": {"name": key(index), "key": "k"}}})
    });
    let container = json!({"name": "c", "image": "i", "env": env.collect::<Vec<_>>()});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [container], "enableServiceLinks": false}});
    let text = format!("{secrets}{pod}");
    Desk::with([("app.json", &text)]).run("render -f app.json -o env --pod default/p")
}

/// Checks the file against the oracle: docker reads each variable that a line can hold, in order, and the others are named.
fn check(variables: &[(String, Vec<u8>)]) -> Run {
    let run = render(variables);
    let line = |(name, value): &(String, Vec<u8>)| [name.as_bytes(), b"=", value, b"\n"].concat();
    let own = |one: &(String, Vec<u8>)| {
        let text = String::from_utf8(one.1.clone()).ok()?;
        Some((one.0.clone(), text))
    };
    // The first line of a file may begin with a mark, so another one is before it.
    let is_held = |one: &&(String, Vec<u8>)| {
        let read = docker_reads(&[b"\n", &*line(one)].concat());
        read.is_ok_and(|read| own(one).is_some_and(|own| read == [own]))
    };
    let (held, others): (Vec<_>, Vec<_>) = variables.iter().partition(is_held);
    let expected: Vec<_> = held.into_iter().filter_map(own).collect();
    assert_eq!(docker_reads(run.stdout.as_bytes()), Ok(expected), "{run:?}");
    for (name, _) in &others {
        let comment = format!("# {name} is left out: ");
        assert!(run.stdout.contains(&comment), "{comment}: {run:?}");
        assert!(
            run.stderr.contains(&format!("{name} is left out: ")),
            "{run:?}"
        );
    }
    assert_eq!(run.code, i32::from(!others.is_empty()), "{run:?}");
    run
}

fn variables() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let name = "[A-Za-z0-9 #;._'\"\\\\-]{0,3}[A-Z]{3}";
    let piece = select(vec![
        "", "a", " ", "\t", "\n", "\r", "\"", "'", "\\", "#", "=", "$(A)", "$A", "ü", "\u{feff}",
        "\u{a0}", ";",
    ]);
    let bytes = prop_oneof![
        9 => vec(piece, 0..5).prop_map(|pieces| pieces.concat().into_bytes()),
        1 => Just(b"\xff".to_vec()),
        1 => (65_520_usize..65_540).prop_map(|length| vec![b'x'; length]),
    ];
    let all = proptest::collection::btree_map(name, bytes, 0..40);
    all.prop_map(|all| all.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn docker_reads_what_the_container_has_and_the_rest_is_named(variables in variables()) {
        check(&variables);
    }
}

#[test]
fn docker_itself_reads_what_the_container_has() {
    let variables = [
        ("PLAIN", "1"),
        ("EMPTY", ""),
        ("QUOTED", "\"a b\""),
        ("SPACES", "  a b\t "),
        ("HASH", "a # b"),
        ("SLASH", "C:\\dir\\"),
        ("DOLLAR", "$HOME $(X) `y`"),
        ("EQUALS", "a=b=c"),
        ("a.b-c", "ü\u{feff}\r\t."),
        ("MANY", "a\nb"),
        ("RETURN", "a\r"),
        ("LONG", &"x".repeat(65_530)),
        ("TOO_LONG", &"x".repeat(65_530)),
        ("#COMMENT", "a"),
        (" SPACE", "a"),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
    let run = check(&variables);
    if let Some(created) = docker_creates(run.stdout.as_bytes()) {
        assert_eq!(Ok(created), docker_reads(run.stdout.as_bytes()));
    }
    assert_eq!(docker_reads(run.stdout.as_bytes()).unwrap().len(), 10);
    let otherwise = "systemd reads these otherwise than docker: QUOTED, SPACES, SLASH, a.b-c";
    assert!(run.stderr.contains(otherwise), "{}", run.stderr);
}

const APP: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: prod}
spec:
  initContainers: [{name: init, image: i, env: [{name: I, value: i}]}]
  containers:
  - name: web
    image: i
    env:
    - {name: A, value: '1'}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: URL, value: 'http://$(IP)/'}
    - {name: B, valueFrom: {secretKeyRef: {name: tls, key: k}}}
    - {name: C, valueFrom: {configMapKeyRef: {name: app, key: c}}}
    volumeMounts: [{name: v, mountPath: /v}]
  - {name: side, image: i, env: [{name: S, value: s}]}
  volumes: [{name: v, secret: {secretName: nope}}]
";

#[test]
fn what_is_not_known_or_missing_is_a_comment_and_a_message() {
    let desk = Desk::with([("app.yaml", APP)]);
    let env = "render -f app.yaml -o env --pod prod/web";
    let run = desk.run(&format!("{env} -c web"));
    let comments = [
        "# secret \"tls\" not found",
        "# configmap \"app\" not found",
        "# IP is not known: status.podIP",
        "# URL is not known: status.podIP",
    ];
    let lines: Vec<_> = run.stdout.lines().collect();
    assert_eq!(
        lines,
        [&comments[..2], &["A=1"][..], &comments[2..]].concat()
    );
    assert_eq!(run.code, 1, "{run:?}");
    for comment in comments {
        assert!(
            run.stderr.contains(comment.trim_start_matches("# ")),
            "{run:?}"
        );
    }
    // The other containers, and volumes, are not asked for.
    for (container, expected) in [("side", "S=s\n"), ("init", "I=i\n")] {
        let run = desk.run(&format!("{env} -c {container}"));
        assert_eq!((run.code, &*run.stdout, &*run.stderr), (0, expected, ""));
    }
    let run = desk.run(&format!("{env} -c web --assume-missing"));
    assert_eq!(run.code, 0, "what is not known is no error: {run:?}");
    assert!(
        run.stdout.contains("# B is not known: secret tls key k\n"),
        "{run:?}"
    );
}

#[test]
fn container_must_be_named_if_there_are_several() {
    let desk = Desk::with([("app.yaml", APP)]);
    let env = "render -f app.yaml -o env";
    for (args, code, message) in [
        ("--pod prod/web", 2, "choose one with -c: init, web, side"),
        ("--pod prod/web -c sid", 1, "did you mean \"side\"?"),
        ("--pod prod/wep -c side", 1, "did you mean \"web\"?"),
        ("", 2, "--pod <NAMESPACE/NAME>"),
    ] {
        let run = desk.run(&format!("{env} {args}"));
        assert_eq!((run.code, &*run.stdout), (code, ""), "{run:?}");
        assert!(run.stderr.contains(message), "{run:?}");
    }
    let run = desk.run("render -f app.yaml --pod prod/web -c web -o json");
    assert_eq!((run.code, &*run.stdout), (2, ""), "{run:?}");
    let only = APP.replace(
        "  - {name: side, image: i, env: [{name: S, value: s}]}\n",
        "",
    );
    let run = Desk::with([("app.yaml", &only)]).run(&format!("{env} --pod prod/web"));
    assert!(run.stdout.contains("A=1\n"), "{run:?}");
}

#[test]
fn no_byte_of_a_secret_is_in_a_message() {
    let run = check(&[("MOTD".to_owned(), b"c4n4ry\nc4n4ry".to_vec())]);
    assert!(
        !run.stdout.contains("c4n4ry") && !run.stderr.contains("c4n4ry"),
        "{run:?}"
    );
}
