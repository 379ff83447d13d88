//! The recipe of `docs/on-change.md` for a systemd service: files, commands, nginx and agent as printed there, in
//! namespaces that have an `/etc` and a `/run` of their own.
//!
//! systemd is not process 1 there (it is in `reboot`). In place of `systemctl reload` a script runs what systemd would: `ExecReload` of the
//! units of Debian's nginx and of the package of larder.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    containers::{own_etc, permitted},
    recipes::{Blocks, ask, has_nginx},
};

const NGINX_UNIT: &str = "/lib/systemd/system/nginx.service";
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

const SYSTEMCTL: &str = r#"#!/bin/sh
set -e
case $1 in daemon-reload) exit;; reload | try-reload-or-restart) shift;; *) exit 1;; esac
for unit; do
    export MAINPID=$(cat /run/$unit.pid)
    eval "$(sed -n 's/^ExecReload=//p' /etc/systemd/system/$unit.service)"
done
"#;

/// A machine with nginx and the packaged configuration of larder, both running.
struct Machine {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    folder: TempDir,
}

impl Machine {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("etc")).unwrap();
        fs::write(path("systemctl"), SYSTEMCTL).unwrap();
        let etc = own_etc(&path("etc"));
        let (here, larder) = (folder.path().display(), env!("CARGO_BIN_EXE_larder"));
        let script = format!(
            "set -e
            mount -t tmpfs none /run; mount -t tmpfs none /var/log; mkdir /var/log/nginx
            mount -t tmpfs none /usr/local/sbin; install -m 755 '{here}/systemctl' /usr/local/sbin
            {etc}rm -f /etc/nginx/sites-enabled/*; mkdir -p /etc/larder/manifests /etc/systemd/system
            cp '{NGINX_UNIT}' /etc/systemd/system
            sed 's|/usr/bin/larder|{larder}|g' '{PACKAGING}/larder.service' > /etc/systemd/system/larder.service
            cp '{PACKAGING}/agent.yaml' /etc/larder
            eval \"$(sed -n 's/^ExecStart=//p' '{NGINX_UNIT}')\"
            '{larder}' run --config /etc/larder/agent.yaml > /dev/null 2> '{here}/log' & echo $! > /run/larder.pid
            echo started
            while read -r line; do eval \"$line\" >&2 && echo done || echo failed; done"
        );
        fs::write(path("script"), script).unwrap();
        let mut child = Command::new("unshare")
            .args(["-m", "-p", "-f", "--mount-proc", "--kill-child", "bash"])
            .arg(path("script"))
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut machine = Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
            folder,
        };
        assert_eq!(machine.line(), "started");
        // nginx forgets a signal that comes before it has workers.
        while !machine.succeeds("grep -qsx \"PPid:.$(cat /run/nginx.pid)\" /proc/[0-9]*/status") {}
        machine
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Runs a command; whether it succeeds.
    fn succeeds(&mut self, command: &str) -> bool {
        writeln!(self.stdin, "{}", command.trim_end()).unwrap();
        match self.line().as_str() {
            "done" => true,
            "failed" => false,
            line => panic!("{line:?} after {command:?}; log:\n{}", self.log()),
        }
    }

    fn run(&mut self, command: &str) {
        assert!(self.succeeds(command), "{command}; log:\n{}", self.log());
    }

    /// Adds the text to the file at this absolute path.
    fn add(&mut self, path: &str, text: &str) {
        let part = self.folder.path().join("part");
        fs::write(&part, text).unwrap();
        self.run(&format!(
            "mkdir -p \"$(dirname '{path}')\" && cat '{}' >> '{path}'",
            part.display()
        ));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Asks until the answer stays `expected`: a worker of before a reload may answer some last requests.
    fn ask_until(&mut self, port: u16, expected: &str) {
        let mut in_a_row = 0;
        while in_a_row < 20 {
            // Also a pause of some milliseconds.
            self.run("[ -e /proc/$(cat /run/larder.pid) ]; sleep 0.005");
            let is_expected = ask(port).as_deref() == Some(expected);
            in_a_row = if is_expected { in_a_row + 1 } else { 0 };
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // All its processes end with the first one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn agent_reloads_nginx_under_systemd() {
    if !has_nginx() || !permitted() || !Path::new(NGINX_UNIT).exists() {
        return;
    }
    // Straight to the stream, which no test runner captures.
    let note = b"not tested: systemctl, in whose place ExecReload of the units runs\n";
    let _ = std::io::stderr().write_all(note);
    let recipe = Blocks::of("A systemd service on a VM");
    let mut machine = Machine::start();
    for (path, text) in &recipe.files {
        machine.add(path, text);
    }
    let volume = "/run/larder/by-name/web/nginx/volumes/kubernetes.io~configmap/config";
    while !machine.succeeds(&format!("[ -e {volume}/site.conf ]")) {}
    machine.run(&recipe.commands[0]);
    machine.ask_until(recipe.port, "hello");
    machine.run(&recipe.commands[1]);
    machine.ask_until(recipe.port, "goodbye");
    // An error keeps the last good configuration, and the hook is retried.
    let manifest = "/etc/larder/manifests/nginx.yaml";
    machine.run(&format!("sed -i 's/return 200/retrun 200/' {manifest}"));
    while !machine.log().contains("exit status 1") {
        machine.ask_until(recipe.port, "goodbye");
    }
    machine.run(&format!(
        "sed -i 's/retrun 200 \"goodbye/return 200 \"again/' {manifest}"
    ));
    machine.ask_until(recipe.port, "again");
}

#[test]
fn agent_renews_the_certificate_of_nginx() {
    if !has_nginx() || !permitted() || !Path::new(NGINX_UNIT).exists() {
        return;
    }
    let recipe = Blocks::of("nginx over TLS under systemd");
    let mut machine = Machine::start();
    for (path, text) in &recipe.files {
        machine.add(path, text);
    }
    let volume = "/run/larder/by-name/web/nginx/volumes/kubernetes.io~secret/tls";
    let enter = format!("cd '{}'", machine.folder.path().display());
    machine.run(&enter);
    for start in [true, false] {
        for line in recipe.commands[0].lines() {
            machine.run(line);
        }
        if start {
            while !machine.succeeds(&format!("[ -e {volume}/tls.crt ]")) {}
            machine.run(&recipe.commands[1]);
        }
        let served = format!(
            "openssl s_client -connect 127.0.0.1:{} -CAfile tls.crt -verify_return_error < /dev/null | openssl x509 | cmp - tls.crt",
            recipe.port
        );
        while !machine.succeeds(&served) {
            machine.run("[ -e /proc/$(cat /run/larder.pid) ]; sleep 0.005");
        }
    }
}
