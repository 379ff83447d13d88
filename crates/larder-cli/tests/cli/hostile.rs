//! Hostile input and hostile surroundings: no command panics, hangs or lets a terminal be controlled.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::symlink},
    process::{Command, Stdio},
};

use rustix::process::geteuid;

use crate::{Desk, exec::may_mount};

const POD: &str =
    "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, image: i}]}}";

/// Runs `larder` with its output going nowhere: to a pipe that is closed, or to a full device.
fn code_with(desk: &Desk, args: &str, stdout: Stdio, stderr: Stdio) -> Option<i32> {
    let status = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(args.split(' '))
        .current_dir(desk.path())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .status();
    status.unwrap().code()
}

/// The writing end of a pipe that nothing reads.
fn broken_pipe() -> Stdio {
    let (_, writer) = std::io::pipe().unwrap();
    writer.into()
}

fn full_device() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

#[test]
fn closed_and_full_outputs_end_a_command_without_a_panic() {
    let desk = Desk::with([("app.yaml", POD)]);
    for args in [
        "render -f app.yaml",
        "render -f app.yaml -o json",
        "refs -f app.yaml",
        "--help",
        "completion bash",
        "man",
    ] {
        let code = code_with(&desk, args, broken_pipe(), Stdio::null());
        assert_eq!(code, Some(0), "{args} | true");
        let code = code_with(&desk, args, full_device(), Stdio::null());
        assert_eq!(code, Some(1), "{args} > /dev/full");
    }
    for args in ["render -f missing.yaml", "nonsense", "render -f"] {
        for stderr in [broken_pipe(), full_device()] {
            let code = code_with(&desk, args, Stdio::null(), stderr);
            assert_eq!(code, Some(2), "{args}");
        }
    }
}

#[test]
fn agent_survives_a_broken_standard_error() {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("m")).unwrap();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_larder"))
        .args(["run", "--manifests", "m", "--root-dir", "root"])
        .current_dir(desk.path())
        .env_clear()
        .env("LARDER_LOG", "trace")
        .stdout(Stdio::piped())
        .stderr(broken_pipe())
        .spawn()
        .unwrap();
    // The summary, printed once the agent serves.
    let read = agent.stdout.take().unwrap().read(&mut [0; 1]).unwrap();
    let status = desk.run("status --root-dir root");
    agent.kill().unwrap();
    agent.wait().unwrap();
    assert_eq!((read, status.code), (1, 0), "{status:?}");
}

#[test]
fn control_characters_in_names_and_errors_are_printed_as_escapes() {
    let evil = "\\e]0;owned\\a\\u009b2J\\u202e";
    let text = format!(
        "apiVersion: v1\nkind: \"Po{evil}d\"\nmetadata: {{name: a}}\n---\n{}\n---\n{}",
        POD.replace(
            "image: i",
            &format!("image: i, \"x{evil}\": 1, env: [{{name: \"A{evil}\", value: \"{evil}\"}}]")
        ),
        format_args!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: \"x{evil}\"}}, spec: {{containers: [{{name: c, image: i}}]}}}}"
        ),
    );
    let desk = Desk::with([("app.yaml", &*text), ("e\x1b[2Jvil.yaml", "a: [")]);
    for args in [
        "render -f .",
        "render -f . -o json",
        "render -f . --show-secrets",
        "refs -f .",
        "refs -f . -o json",
        "render -f app.yaml --pod \x1b[2J",
        "render -f app.yaml -n \x1b[2J",
        "exec -f . --pod \x1b[2J -- true",
    ] {
        let run = desk.run(args);
        for text in [&run.stdout, &run.stderr] {
            let acts = |character: char| {
                character != '\n' && (character.is_control() || character == '\u{202e}')
            };
            let json = args.ends_with("json") && std::ptr::eq(text, &raw const run.stdout);
            assert!(
                !text.contains(acts) || (json && !text.contains(char::is_control)),
                "{args}: {text:?}"
            );
        }
    }
}

#[test]
fn arguments_that_are_not_unicode_never_panic() {
    let desk = Desk::with([("app.yaml", POD)]);
    let bad = std::ffi::OsStr::from_bytes(b"a\xff\x1b[2J");
    for args in [
        &["render", "-f", "app.yaml", "--pod"][..],
        &["render", "-f", "app.yaml", "-n"],
        &["render", "-f"],
        &["status", "--config"],
        &["run", "--node-name"],
        &["exec", "-f", "app.yaml", "--on-change"],
        &[],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(args)
            .arg(bad)
            .current_dir(desk.path())
            .env_clear()
            .output()
            .unwrap();
        let own = if args.first() == Some(&"exec") {
            125
        } else {
            2
        };
        assert_eq!(output.status.code(), Some(own), "{args:?}: {output:?}");
        assert!(!output.stderr.contains(&0x1b), "{args:?}: {output:?}");
    }
}

#[test]
fn huge_values_and_many_parts_take_linear_time() {
    let count = 3000;
    let list = |item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let env = list(&|index| {
        format!("{{name: A{index}, valueFrom: {{secretKeyRef: {{name: s{index}, key: k}}}}}}")
    });
    let mounts = list(&|index| format!("{{name: v{index}, mountPath: /v{index}}}"));
    let volumes =
        list(&|index| format!("{{name: v{index}, configMap: {{name: m{index}, optional: true}}}}"));
    let pod = format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {{containers: [{{name: c, image: i, env: [{env}], volumeMounts: [{mounts}]}}], volumes: [{volumes}]}}}}"
    );
    let value = "x".repeat(900 << 10);
    let map = format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: m0}}, data: {{k: {value}}}}}"
    );
    let desk = Desk::with([("app.yaml", &*format!("{pod}\n---\n{map}"))]);
    let run = desk.run("render -f app.yaml");
    assert_eq!(run.code, 1);
    assert!(run.stdout.len() < 4 << 20, "{}", run.stdout.len());
}

/// Runs a command that must end by itself within a second or two; if it hangs, the test fails after a minute.
#[track_caller]
fn code_in_time(desk: &Desk, args: &str) -> (Option<i32>, String) {
    let output = Command::new("timeout")
        .arg("60")
        .arg(env!("CARGO_BIN_EXE_larder"))
        .args(args.split(' '))
        .current_dir(desk.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), error)
}

#[test]
fn devices_pipes_and_huge_files_are_not_read_as_manifests() {
    let desk = Desk::with([("app.yaml", POD)]);
    for directory in ["pipe", "device", "huge"] {
        fs::create_dir(desk.path().join(directory)).unwrap();
    }
    let made = Command::new("mkfifo")
        .arg(desk.path().join("pipe/p.yaml"))
        .status();
    assert!(made.unwrap().success());
    symlink("/dev/zero", desk.path().join("device/d.yaml")).unwrap();
    let huge = File::create(desk.path().join("huge/h.yaml")).unwrap();
    huge.set_len(1 << 40).unwrap();
    for path in [
        "pipe",
        "pipe/p.yaml",
        "device",
        "device/d.yaml",
        "huge",
        "huge/h.yaml",
        "/dev/zero",
        "/dev/full",
    ] {
        for command in ["render", "refs", "exec"] {
            let (code, error) = code_in_time(&desk, &format!("{command} -f {path}"));
            let own = if command == "exec" { 125 } else { 2 };
            assert_eq!(code, Some(own), "{command} -f {path}: {error}");
        }
        // Other files are read nevertheless.
        let (code, error) = code_in_time(&desk, &format!("refs -f {path} -f app.yaml"));
        assert_eq!(code, Some(1), "{path}: {error}");
    }
}

#[test]
fn read_only_root_directory_is_reported_at_the_start() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([("app.yaml", POD)]);
    fs::create_dir(desk.path().join("root")).unwrap();
    let namespaces: &[_] = if geteuid().is_root() {
        &["--mount"]
    } else {
        &["--map-root-user", "--mount"]
    };
    let script = r#"mount -t tmpfs -o ro,mode=755 none root && exec timeout 60 "$0" "$@""#;
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["bash", "-c", script, env!("CARGO_BIN_EXE_larder")])
        .args(["run", "--manifests", ".", "--root-dir", "root"])
        .args(["--node-name", "n"])
        .current_dir(desk.path())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    let (path, why) = ("root/agent.lock", "Read-only file system");
    assert!(error.contains(path) && error.contains(why), "{error}");
}

#[test]
fn configurations_and_credentials_are_read_from_regular_files_only() {
    let desk = Desk::with([("app.yaml", POD)]);
    let made = Command::new("mkfifo")
        .arg(desk.path().join("pipe"))
        .status();
    assert!(made.unwrap().success());
    let huge = File::create(desk.path().join("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    for path in ["pipe", "huge", "/dev/zero"] {
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: s, user: u}}}}]\nclusters: [{{name: s, cluster: {{server: 'https://127.0.0.1:1', certificate-authority: {path}}}}}]\nusers: [{{name: u, user: {{tokenFile: {path}}}}}]\n"
        );
        fs::write(desk.path().join("kubeconfig"), config).unwrap();
        for args in [
            format!("run --root-dir root --manifests . --config {path}"),
            format!("status --root-dir root --config {path}"),
            format!("run --root-dir root --node-name n --kubeconfig {path}"),
            "run --root-dir root --node-name n --kubeconfig kubeconfig".to_owned(),
        ] {
            let (code, error) = code_in_time(&desk, &args);
            assert!(matches!(code, Some(1 | 2)), "{args}: {code:?} {error}");
        }
    }
    // The reader of an audit log may come late; a server without it does not start.
    let (code, error) = code_in_time(&desk, "apiserver --audit-log pipe");
    assert_eq!(code, Some(1), "{error}");
}

#[test]
fn manifests_come_through_a_pipe_of_the_shell() {
    let desk = Desk::with([("app.yaml", POD)]);
    let script = format!(
        "'{}' refs -f <(sleep 0.2; cat app.yaml)",
        env!("CARGO_BIN_EXE_larder")
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(desk.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("web"), "{text}");
}
