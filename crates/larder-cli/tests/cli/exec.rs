//! `larder exec`: a real command in namespaces of its own. Needs root, or user namespaces; CI must have them.

mod security;

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::{Desk, Run};

/// A pod with a volume on `/larder-test/config`, one key of it on `/etc/larder-test/key`, and a Secret below a link of
/// most systems.
pub(crate) fn manifest(key: &str, variable: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: app}}, data: {{key: {key}, other: x}}}}
---
{{apiVersion: v1, kind: Secret, metadata: {{name: tls}}, stringData: {{password: hunter2}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  {more}
  containers:
  - name: web
    image: example
    command: [echo, own, $(A)]
    env:
    - {{name: A, value: '{variable}'}}
    - name: PASSWORD
      valueFrom: {{secretKeyRef: {{name: tls, key: password}}}}
    volumeMounts:
    - {{name: config, mountPath: /larder-test/config}}
    - {{name: config, mountPath: /etc/larder-test/key, subPath: key}}
    - {{name: tls, mountPath: /var/run/larder-test/tls}}
    - {{name: scratch, mountPath: /larder-test/scratch}}
  volumes:
  - {{name: config, configMap: {{name: app}}}}
  - {{name: tls, secret: {{secretName: tls, defaultMode: 0400}}}}
  - {{name: scratch, emptyDir: {{}}}}
"
    )
}

/// A pod `web` with one container. `container` has the fields of the container besides its name and image.
pub(crate) fn web_pod(container: &str, volumes: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  containers:
  - {{name: web, image: example, {container}}}
  volumes: [{volumes}]
"
    )
}

pub(crate) fn desk(more: &str) -> Desk {
    Desk::with([("app.yaml", manifest("one", "1", more).as_str())])
}

/// Whether mounting is possible; without it an ordinary developer's run continues, and CI fails.
pub(crate) fn may_mount() -> bool {
    let probe = Command::new("unshare").args(["-rm", "true"]).output();
    let may = probe.is_ok_and(|output| output.status.success());
    assert!(
        may || std::env::var_os("CI").is_none(),
        "CI must be able to mount"
    );
    may
}

/// A command that runs.
pub(crate) struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: Option<BufReader<ChildStderr>>,
}

impl Running {
    pub(crate) fn start(desk: &Desk, args: &[&str], script: &str) -> Self {
        Self::with(desk, &[&["-f", "app.yaml"], args].concat(), script)
    }

    /// Runs `script` by `larder exec` with these arguments.
    pub(crate) fn with(desk: &Desk, args: &[&str], script: &str) -> Self {
        Self::spawn(desk, args, script, Stdio::inherit())
    }

    /// The same for the manifest, and its errors can be read.
    pub(crate) fn with_errors(desk: &Desk, args: &[&str], script: &str) -> Self {
        let args = [&["-f", "app.yaml"], args].concat();
        Self::spawn(desk, &args, script, Stdio::piped())
    }

    /// The same for the manifest, by this caller.
    pub(crate) fn by(caller: Caller, desk: &Desk, args: &[&str], script: &str) -> Self {
        let args = [&["-f", "app.yaml"], args].concat();
        Self::spawn_by(caller.larder(desk), desk, &args, script, Stdio::inherit())
    }

    /// The same by a program that these words start, and its errors can be read.
    pub(crate) fn under(words: &[&str], desk: &Desk, args: &[&str], script: &str) -> Self {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(env!("CARGO_BIN_EXE_larder"));
        Self::spawn_by(command, desk, args, script, Stdio::piped())
    }

    fn spawn(desk: &Desk, args: &[&str], script: &str, errors: Stdio) -> Self {
        let larder = Command::new(env!("CARGO_BIN_EXE_larder"));
        Self::spawn_by(larder, desk, args, script, errors)
    }

    fn spawn_by(
        mut larder: Command,
        desk: &Desk,
        args: &[&str],
        script: &str,
        errors: Stdio,
    ) -> Self {
        let mut child = larder
            .arg("exec")
            .args(args)
            .args(["--", "sh", "-c", script])
            .current_dir(desk.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            // Never used for requests.
            .env("HTTP_PROXY", "http://127.0.0.1:1")
            .env("http_proxy", "http://127.0.0.1:1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            stderr: child.stderr.take().map(BufReader::new),
            child,
        }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line on standard error.
    pub(crate) fn error_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// All lines on standard error, up to its end.
    pub(crate) fn errors(&mut self) -> String {
        let mut errors = String::new();
        let stderr = self.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut errors).unwrap();
        errors
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.stdin.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal that may have no name.
    fn signal_number(&self, number: &str) {
        let mut kill = Command::new("sh");
        let script = format!("kill -{number} {}", self.child.id());
        assert!(kill.args(["-c", &script]).status().unwrap().success());
    }

    /// Its remaining output, and its exit code.
    pub(crate) fn end(mut self) -> (String, Option<i32>) {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap().code())
    }
}

/// Replaces the manifest as editors do.
pub(crate) fn edit(desk: &Desk, key: &str, variable: &str) {
    desk.replace("app.yaml", &manifest(key, variable, ""));
}

#[test]
fn unknown_variables_are_named_and_can_be_set() {
    if !may_mount() {
        return;
    }
    let env = "env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}, \
        {name: URL, value: 'http://$(IP):80'}], command: [sh, -c, 'echo $URL$NEW']";
    let desk = Desk::with([("app.yaml", &web_pod(env, ""))]);
    let run = desk.run("exec -f app.yaml");
    assert_eq!((run.code, &*run.stdout), (0, "\n"), "{run:?}");
    let note = "not known here, so empty: IP (status.podIP), URL (status.podIP)";
    assert!(run.stderr.contains(note), "{run:?}");
    let run = desk.run("exec -f app.yaml --env IP=10.0.0.1 --env NEW=$(IP)");
    assert_eq!(run.stdout, "http://10.0.0.1:80$(IP)\n", "{run:?}");
    assert!(!run.stderr.contains("not known"), "{run:?}");
}

#[test]
fn what_is_made_up_is_named() {
    if !may_mount() {
        return;
    }
    let container = "env: [{name: ID, valueFrom: {fieldRef: {fieldPath: metadata.uid}}}], \
        volumeMounts: [{name: v, mountPath: /larder-test}], command: [sh, -c, 'echo ${#ID}; cat /larder-test/all']";
    let volumes = "{name: v, downwardAPI: {items: [{path: all, fieldRef: {fieldPath: metadata.annotations}}]}}";
    let pod =
        web_pod(container, volumes).replace("{name: web}", "{name: web, annotations: {a: b}}");
    let desk = Desk::with([("app.yaml", &pod)]);
    let run = desk.run("exec -f app.yaml");
    assert_eq!((run.code, &*run.stdout), (0, "36\na=\"b\""), "{run:?}");
    let note = "not known here, so other than in a cluster: ID (metadata.uid), all of volume v (metadata.annotations)";
    assert!(run.stderr.contains(note), "{run:?}");
    let known = pod.replace(
        "{name: web,",
        "{name: web, uid: 6f9d1c52-0000-4000-8000-000000000001,",
    );
    desk.replace("app.yaml", &known);
    let run = desk.run("exec -f app.yaml");
    assert!(!run.stderr.contains("not known"), "{run:?}");
}

#[test]
fn volume_of_another_container_that_cannot_be_filled_is_named() {
    if !may_mount() {
        return;
    }
    let init =
        "  initContainers: [{name: i, image: i, volumeMounts: [{name: v, mountPath: /v}]}]\n";
    let pod = web_pod(
        "command: [\"true\"]",
        "{name: v, secret: {secretName: nope}}",
    ) + init;
    let run = Desk::with([("app.yaml", &pod)]).run("exec -f app.yaml");
    assert_eq!(run.code, 0, "{run:?}");
    let note = "the pod would not start: volume v, which other containers mount: secret \"nope\" not found";
    assert!(run.stderr.contains(note), "{run:?}");
}

#[test]
fn command_sees_what_the_container_would() {
    // projection 64
    if !may_mount() {
        return;
    }
    let script = "echo $A $PASSWORD; cat /larder-test/config/key /etc/larder-test/key; echo
        cat /var/run/larder-test/tls/password; echo
        echo kept > /larder-test/scratch/file && cat /larder-test/scratch/file
        echo no > /larder-test/config/new || echo read-only
        ls /larder-test; [ -e /etc/passwd ] && echo host; exit 7";
    let (output, code) = Running::start(&desk(""), &[], script).end();
    assert_eq!(
        output,
        "1 hunter2\noneone\nhunter2\nkept\nread-only\nconfig\nscratch\nhost\n"
    );
    assert_eq!(code, Some(7));
    for path in ["/larder-test", "/etc/larder-test", "/var/run/larder-test"] {
        assert!(!Path::new(path).exists(), "{path} was created on the host");
    }
}

#[test]
fn volumes_are_updated_while_the_command_runs() {
    // projection 65: the kubelet leaves a key by subPath as it was
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = "echo ready; i=0
        while [ $i -lt 2400 ] && [ $(cat /larder-test/config/key) = one ]; do i=$((i+1)); sleep 0.05; done
        cat /larder-test/config/key /etc/larder-test/key";
    let mut running = Running::start(&desk, &["--subpath-updates=false"], script);
    assert_eq!(running.line(), "ready");
    fs::write(desk.path().join("app.yaml"), "kind: [broken").unwrap();
    edit(&desk, "two", "1");
    assert_eq!(running.end(), ("twoone".to_owned(), Some(0)));
}

#[test]
fn mount_point_may_lie_where_files_come_and_go() {
    if !may_mount() {
        return;
    }
    let (desk, busy) = (desk(""), tempfile::tempdir().unwrap());
    let volume = format!("{}/volume", busy.path().display());
    let text = manifest("one", "1", "").replace("/larder-test/config", &volume);
    fs::write(desk.path().join("app.yaml"), text).unwrap();
    let (is_over, script) = (AtomicBool::new(false), format!("cat {volume}/key"));
    thread::scope(|scope| {
        scope.spawn(|| {
            let paths: Vec<_> = (0..200)
                .map(|file| busy.path().join(file.to_string()))
                .collect();
            while !is_over.load(Ordering::Relaxed) {
                for path in &paths {
                    fs::write(path, "").unwrap();
                }
                for path in &paths {
                    fs::remove_file(path).unwrap();
                }
            }
        });
        for _ in 0..10 {
            let end = Running::start(&desk, &[], &script).end();
            is_over.store(end.0 != "one", Ordering::Relaxed);
            assert_eq!(end, ("one".to_owned(), Some(0)));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn volume_may_hide_the_followed_manifests() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([]);
    let directory = desk.path().to_str().unwrap();
    let write = |key: &str| {
        let manifest = manifest(key, "1", "").replace("/larder-test/config", directory);
        fs::write(desk.path().join("app.yaml"), manifest).unwrap();
    };
    write("one");
    let script = format!(
        "ls {directory}; i=0
        while [ $i -lt 2400 ] && [ $(cat {directory}/key) = one ]; do i=$((i+1)); sleep 0.05; done
        cat {directory}/key"
    );
    let mut running = Running::start(&desk, &[], &script);
    assert_eq!([running.line(), running.line()], ["key", "other"]);
    write("two");
    assert_eq!(running.end(), ("two".to_owned(), Some(0)));
}

#[test]
fn signal_on_change_reaches_the_command() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = "trap 'cat /larder-test/config/key; exit 5' HUP; echo ready; i=0
        while [ $i -lt 2400 ]; do i=$((i+1)); sleep 0.05; done";
    let mut running = Running::start(&desk, &["--on-change", "signal:SIGHUP"], script);
    assert_eq!(running.line(), "ready");
    edit(&desk, "two", "1");
    assert_eq!(running.end(), ("two".to_owned(), Some(5)));
}

#[test]
fn restart_on_change_updates_variables_and_sub_paths() {
    // projection 65
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = "echo $A $(cat /etc/larder-test/key); exec sleep 600";
    let mut running = Running::start(&desk, &["--on-change", "restart"], script);
    assert_eq!(running.line(), "1 one");
    edit(&desk, "two", "1");
    assert_eq!(running.line(), "1 two");
    edit(&desk, "two", "2");
    assert_eq!(running.line(), "2 two");
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (String::new(), Some(128 + 15)));
}

/// A process that has left the session, the process group and the parent of the command. What a command prints ends
/// only when this one has ended, too; should it survive, it says so.
const DAEMON: &str = "(setsid sh -c 'echo daemon; sleep 120; echo survived' & )";

#[test]
fn all_processes_end_when_the_supervisor_is_killed() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = format!("{DAEMON}; sleep 120; echo survived");
    let mut running = Running::start(&desk, &[], &script);
    assert_eq!(running.line(), "daemon");
    running.signal(Signal::KILL);
    assert_eq!(running.end().0, "");
}

#[test]
fn processes_of_a_command_end_with_it() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = format!("{DAEMON}; read line; exit 3");
    let mut running = Running::start(&desk, &[], &script);
    assert_eq!(running.line(), "daemon");
    running.stdin.write_all(b"line\n").unwrap();
    assert_eq!(running.end(), (String::new(), Some(3)));
}

#[test]
fn processes_of_a_command_end_before_its_restart() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    // The daemon of the first start would keep the lock from the second.
    let script = "(setsid flock -n /larder-test/scratch/lock sh -c 'echo locked; exec sleep 120' || echo busy) & exec sleep 600";
    let mut running = Running::start(&desk, &["--on-change", "restart"], script);
    assert_eq!(running.line(), "locked");
    edit(&desk, "two", "1");
    assert_eq!(running.line(), "locked");
    running.signal(Signal::TERM);
    assert_eq!(running.end(), (String::new(), Some(128 + 15)));
}

#[test]
fn command_sees_its_own_processes() {
    if !may_mount() {
        return;
    }
    // Processes whose parent has gone are collected: the loop ends when the daemon is not even a zombie any more.
    let script = "cat /proc/$$/comm
        tr '\\0' ' ' < /proc/1/cmdline | cut -d ' ' -f 2
        (setsid true & )
        while grep -q 'State:.Z' /proc/[0-9]*/status 2>/dev/null; do :; done; echo collected";
    let (output, code) = Running::start(&desk(""), &[], script).end();
    assert_eq!((&*output, code), ("sh\nexec-anchor\ncollected\n", Some(0)));
    let host = desk("hostPID: true");
    let supervisor = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'exec -f app.yaml' > /dev/null && echo all";
    assert_eq!(Running::start(&host, &[], supervisor).end().0, "all\n");
}

/// The caller of `larder exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Root,
    /// The root of a user namespace that has no other user.
    Unshared,
    /// A user other than root, with the right to mount in a user namespace only.
    Ordinary,
}

/// Opens the desk to everybody, and puts a `larder` on it that everybody may run.
pub(crate) fn larder_for_everybody(desk: &Desk) -> PathBuf {
    let larder = desk.path().join("larder");
    // Not `fs::copy`: a process that another test starts meanwhile would inherit the file open for writing, and then
    // the kernel refuses to execute it.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_larder"))
        .arg(&larder)
        .status();
    assert!(copied.unwrap().success());
    fs::set_permissions(desk.path(), fs::Permissions::from_mode(0o755)).unwrap();
    larder
}

impl Caller {
    /// `larder` as this caller runs it.
    fn larder(self, desk: &Desk) -> Command {
        let larder = larder_for_everybody(desk);
        let mut command = Command::new(&larder);
        if self == Self::Unshared {
            command = Command::new("unshare");
            command.arg("-rm").arg(&larder);
        }
        if self == Self::Ordinary && geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        command
    }
}

/// The output of `script` when this caller runs it.
fn printed(desk: &Desk, caller: Caller, script: &str) -> String {
    let output = caller
        .larder(desk)
        .args(["exec", "-f", "app.yaml", "--", "sh", "-c", script])
        .current_dir(desk.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    String::from_utf8(output.stdout).unwrap()
}

/// Everybody that this test run can be; CI can be all.
pub(crate) fn callers() -> &'static [Caller] {
    if geteuid().is_root() {
        return &[Caller::Root, Caller::Unshared, Caller::Ordinary];
    }
    assert!(std::env::var_os("CI").is_none(), "CI must be root");
    &[Caller::Unshared, Caller::Ordinary]
}

#[test]
fn empty_dir_belongs_to_the_group_of_the_pod() {
    if !may_mount() {
        return;
    }
    let script = "cd /larder-test/scratch; stat -c '%a' .; echo kept > file && stat -c '%g' file";
    for &caller in callers() {
        let desk = desk("securityContext: {runAsUser: 1000, runAsGroup: 3, fsGroup: 1001}");
        let expected = match caller {
            Caller::Root => "2777\n1001\n",
            // A user namespace has one group.
            Caller::Unshared | Caller::Ordinary => "777\n3\n",
        };
        assert_eq!(printed(&desk, caller, script), expected, "{caller:?}");
    }
}

#[test]
fn volume_has_its_mode_and_a_mount_its_options() {
    // projection 79, 80
    if !may_mount() {
        return;
    }
    let mounts = "volumeMounts: [{name: s, mountPath: /larder-test/s, bindMountOptions: [noexec, nosuid, nodev]}, {name: s, mountPath: /larder-test/t}]";
    let pod = web_pod(mounts, "{name: s, emptyDir: {mode: 01755}}");
    let script = "cd /larder-test/s; stat -c '%a' .; printf '#!/bin/sh\necho ran' > x; chmod +x x; \
        ./x 2>/dev/null || echo denied; ../t/x";
    for &caller in callers() {
        let desk = Desk::with([("app.yaml", pod.as_str())]);
        assert_eq!(
            printed(&desk, caller, script),
            "1755\ndenied\nran\n",
            "{caller:?}"
        );
    }
}

/// A pod that mounts the ConfigMap `app` below its volumes, which are `mounts` and `volumes`.
fn with_volumes_below(mounts: &str, below: &[&str], volumes: &str) -> String {
    let below = below.iter();
    let below = below.map(|path| format!(", {{name: config, mountPath: {path}}}"));
    let mounts = format!("volumeMounts: [{mounts}{}]", below.collect::<String>());
    let volumes = format!("{{name: config, configMap: {{name: app}}}}, {volumes}");
    let config = "{apiVersion: v1, kind: ConfigMap, metadata: {name: app}, data: {key: one}}";
    format!("{config}\n---\n{}", web_pod(&mounts, &volumes))
}

#[test]
fn volume_keeps_its_nature_when_another_is_mounted_below_it() {
    if !may_mount() {
        return;
    }
    let script = "cd /larder-test; cat a/conf.d/key b/conf.d/key h/conf.d/key r/conf.d/key
        for volume in a b h r; do { echo new > $volume/file; } 2>/dev/null && echo $volume; done";
    for &caller in callers() {
        let desk = Desk::with([]);
        let (host, read_only) = (desk.path().join("host"), desk.path().join("read-only"));
        fs::create_dir(&host).unwrap();
        fs::set_permissions(&host, fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir_all(read_only.join("conf.d")).unwrap();
        let pod = with_volumes_below(
            "{name: a, mountPath: /larder-test/a}, {name: b, mountPath: /larder-test/b, readOnly: true}, \
            {name: h, mountPath: /larder-test/h}, {name: r, mountPath: /larder-test/r, readOnly: true}",
            &["a", "b", "h", "r"]
                .map(|volume| format!("/larder-test/{volume}/conf.d"))
                .each_ref()
                .map(String::as_str),
            &format!(
                "{{name: a, emptyDir: {{}}}}, {{name: b, emptyDir: {{}}}}, \
                {{name: h, hostPath: {{path: {}}}}}, {{name: r, hostPath: {{path: {}}}}}",
                host.display(),
                read_only.display()
            ),
        );
        fs::write(desk.path().join("app.yaml"), pod).unwrap();
        let expected = "oneoneoneonea\nh\n";
        assert_eq!(printed(&desk, caller, script), expected, "{caller:?}");
        assert_eq!(fs::read_to_string(host.join("file")).unwrap(), "new\n");
        // A runtime makes the mount point there too.
        assert!(host.join("conf.d").is_dir());
    }
}

#[test]
fn missing_mount_point_in_a_read_only_volume_is_an_error() {
    if !may_mount() {
        return;
    }
    let desk = Desk::with([]);
    let host = desk.path().join("host");
    fs::create_dir(&host).unwrap();
    let pod = with_volumes_below(
        "{name: h, mountPath: /larder-test/h, readOnly: true}",
        &["/larder-test/h/conf.d"],
        &format!("{{name: h, hostPath: {{path: {}}}}}", host.display()),
    );
    fs::write(desk.path().join("app.yaml"), pod).unwrap();
    let run = desk.run("exec -f app.yaml -- true");
    assert_eq!(run.code, 125, "{}", run.stderr);
    let error = "cannot create /larder-test/h/conf.d in a private view: the volume has no such path, and a container \
        would not start either: Read-only file system";
    assert!(run.stderr.contains(error), "{}", run.stderr);
    assert_eq!(fs::read_dir(&host).unwrap().count(), 0);
}

#[test]
fn ordinary_user_needs_the_group_for_a_tight_secret() {
    // projection 41
    if !may_mount() {
        return;
    }
    let script = "id -u; id -g; cat /var/run/larder-test/tls/password 2>/dev/null || echo denied";
    for (context, expected) in [
        ("{runAsUser: 1000}", "1000\n0\ndenied\n"),
        ("{runAsUser: 1000, runAsGroup: 3}", "1000\n3\ndenied\n"),
        (
            "{runAsUser: 1000, runAsGroup: 3, fsGroup: 1001}",
            "1000\n3\nhunter2",
        ),
        ("{runAsUser: 0}", "0\n0\nhunter2"),
    ] {
        for &caller in callers() {
            let desk = desk(&format!("securityContext: {context}"));
            let printed = printed(&desk, caller, script);
            assert_eq!(printed, expected, "{context} {caller:?}");
        }
    }
}

#[test]
fn ordinary_user_has_the_same_view() {
    if !may_mount() {
        return;
    }
    let desk = desk("securityContext: {runAsUser: 4711, runAsGroup: 42, fsGroup: 7}");
    let script = "id -u; id -g; cat /etc/larder-test/key /var/run/larder-test/tls/password
        (setsid true & ) ; cat /proc/$$/comm";
    let printed = printed(&desk, Caller::Ordinary, script);
    assert_eq!(printed, "4711\n42\nonehunter2sh\n");
}

#[test]
fn exit_code_identifies_why_the_command_did_not_run() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    assert_eq!(desk.run("exec -f app.yaml -- /no/such/command").code, 127);
    assert_eq!(desk.run("exec -f app.yaml -- /etc/passwd").code, 126);
    assert_eq!(
        desk.run("exec -f app.yaml --on-change often -- true").code,
        125
    );
    assert_eq!(desk.run("exec -f app.yaml --pod other -- true").code, 125);
    assert_eq!(desk.run("exec -f missing.yaml -- true").code, 125);
    let killed = Running::start(&desk, &[], "kill -9 $$").end();
    assert_eq!(killed.1, Some(128 + 9));
}

#[test]
fn command_has_the_host_name_of_its_pod() {
    if !may_mount() {
        return;
    }
    let run = desk("").run("exec -f app.yaml -- printenv HOSTNAME");
    assert_eq!(run.stdout, "web\n", "{}", run.stderr);
    let run = desk("hostname: db-0").run("exec -f app.yaml -- printenv HOSTNAME");
    assert_eq!(run.stdout, "db-0\n", "{}", run.stderr);
    let run = desk("").run("exec -f app.yaml --env HOSTNAME=own -- printenv HOSTNAME");
    assert_eq!(run.stdout, "own\n", "{}", run.stderr);
}

#[test]
fn what_no_command_can_start_with_is_named() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let large = format!("LARGE={}", "x".repeat(128 << 10));
    fs::write(desk.path().join("large.yaml"), {
        let value = &large["LARGE=".len()..];
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: l}}\nspec: {{containers: [{{name: c, image: i, workingDir: '', env: [{{name: LARGE, value: {value}}}]}}]}}\n")
    })
    .unwrap();
    let run = desk.run("exec -f large.yaml -- true");
    assert_eq!(run.code, 125);
    assert!(
        run.stderr.contains("variable LARGE has 131072 bytes"),
        "{}",
        run.stderr
    );
    fs::write(
        desk.path().join("root.yaml"),
        "apiVersion: v1\nkind: Pod\nmetadata: {name: r}\nspec:\n  hostUsers: false\n  volumes: [{name: v, emptyDir: {}}]\n  containers: [{name: c, image: i, workingDir: '', volumeMounts: [{name: v, mountPath: /}]}]\n",
    )
    .unwrap();
    let run = desk.run("exec -f root.yaml -- true");
    assert_eq!(run.code, 125);
    assert!(
        run.stderr.contains("cannot mount volume v on /"),
        "{}",
        run.stderr
    );
    let other = fs::read_to_string(desk.path().join("root.yaml")).unwrap();
    fs::write(
        desk.path().join("root.yaml"),
        other.replace("mountPath: /", "mountPath: /larder-test/v"),
    )
    .unwrap();
    let run = desk.run("exec -f root.yaml -- pwd");
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(
        run.stderr
            .contains("hostUsers: false cannot be carried out here"),
        "{}",
        run.stderr
    );
}

#[test]
fn signals_of_jobs_reach_the_command() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = "trap 'echo winch' WINCH; trap 'echo alrm' ALRM; trap 'echo io' IO; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::start(&desk, &[], script);
    assert_eq!(running.line(), "ready");
    for (signal, name) in [
        (Signal::WINCH, "winch"),
        (Signal::ALARM, "alrm"),
        (Signal::IO, "io"),
    ] {
        running.signal(signal);
        assert_eq!(running.line(), name);
    }
    running.signal(Signal::TERM);
    assert_eq!(running.end().1, Some(128 + 15));
}

#[test]
fn real_time_signals_reach_the_command() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = "trap 'echo 35' 35; trap 'echo 63' 63; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::start(&desk, &[], script);
    assert_eq!(running.line(), "ready");
    for number in ["35", "63"] {
        running.signal_number(number);
        assert_eq!(running.line(), number);
    }
    // One without a handler ends the command, and larder tells which.
    running.signal_number("40");
    assert_eq!(running.end().1, Some(128 + 40));
}

#[test]
fn command_needs_namespaces_and_the_message_says_what_works_without() {
    if !may_mount() {
        return;
    }
    let desk = desk("");
    let script = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces
        exec setpriv --bounding-set=-all --inh-caps=-all {} exec -f app.yaml -- true",
        env!("CARGO_BIN_EXE_larder")
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["-r", "sh", "-c", &script]);
    let run: Run = unshare.current_dir(desk.path()).output().unwrap().into();
    assert_eq!(run.code, 125, "{run:?}");
    for step in ["`larder render --to DIR`", "`larder render -o env`"] {
        assert!(run.stderr.contains(step), "{run:?}");
    }
}

#[test]
fn container_with_a_missing_key_does_not_start() {
    if !may_mount() {
        return;
    }
    let missing =
        manifest("one", "1", "").replace("name: tls, key: password", "name: tls, key: gone");
    let run = Desk::with([("app.yaml", missing.as_str())]).run("exec -f app.yaml -- true");
    assert_eq!(run.code, 125);
    assert_eq!(
        run.stderr,
        "larder: couldn't find key gone in Secret default/tls\n"
    );
}

#[test]
fn endless_grace_period_does_not_break_a_restart() {
    if !may_mount() {
        return;
    }
    let desk = desk("terminationGracePeriodSeconds: 9223372036854775807");
    let script = "echo $(cat /larder-test/config/key); exec sleep 600";
    let mut running = Running::start(&desk, &["--on-change", "restart"], script);
    assert_eq!(running.line(), "one");
    edit(&desk, "two", "1");
    assert_eq!(running.line(), "two");
    running.signal(Signal::TERM);
    assert_eq!(running.end().1, Some(128 + 15));
}
