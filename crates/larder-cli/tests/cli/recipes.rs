//! The recipes of `docs/on-change.md`: their files and commands as printed there, with a free port in place of 8080.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read, Write as _},
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::Duration,
};

use larder_e2e::reserved_port;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::{Desk, exec::may_mount};

/// Longest wait for a line, so that a test that hangs names the line.
const LONGEST_WAIT: Duration = Duration::from_mins(2);
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/on-change.md");

/// A recipe in a directory of its own.
pub(crate) struct Recipe {
    pub(crate) desk: Desk,
    /// The working directory of its commands.
    directory: PathBuf,
    commands: Vec<String>,
    pub(crate) port: u16,
}

/// The blocks of a recipe.
pub(crate) struct Blocks {
    pub(crate) commands: Vec<String>,
    /// With the names that end the line before them.
    pub(crate) files: Vec<(String, String)>,
    /// Of configuration that is neither of these.
    pub(crate) others: Vec<String>,
    pub(crate) port: u16,
}

impl Blocks {
    /// The blocks of the recipe with this heading, with a free port in place of 8080.
    pub(crate) fn of(heading: &str) -> Self {
        Self::in_page(DOCUMENT, heading)
    }

    /// The same in another page.
    pub(crate) fn in_page(page: &str, heading: &str) -> Self {
        let document = fs::read_to_string(page).unwrap();
        let (_, rest) = document.split_once(&format!("### {heading}\n")).unwrap();
        let section = rest.split("\n## ").next().unwrap();
        let section = section.split("\n### ").next().unwrap();
        let port = reserved_port().unwrap();
        let section = section.replace("8080", &port.to_string());
        let mut blocks = Self {
            commands: Vec::new(),
            files: Vec::new(),
            others: Vec::new(),
            port,
        };
        let parts: Vec<_> = section.split("```").collect();
        for (before, block) in parts.iter().step_by(2).zip(parts.iter().skip(1).step_by(2)) {
            let (language, text) = block.split_once('\n').unwrap();
            let before = before.trim_end().strip_suffix("`:");
            let name = before.and_then(|before| before.rsplit('`').next());
            match (language, name) {
                ("sh", _) => blocks.commands.push(text.to_owned()),
                ("yaml" | "nginx" | "ini", Some(name)) => {
                    blocks.files.push((name.to_owned(), text.to_owned()));
                }
                ("yaml" | "ini", _) => blocks.others.push(text.to_owned()),
                (language, _) => panic!("a block in {language}"),
            }
        }
        blocks
    }
}

impl Recipe {
    /// The recipe with this heading, and its files.
    pub(crate) fn named(heading: &str) -> Self {
        let blocks = Blocks::of(heading);
        let desk = Desk::with([]);
        for (name, text) in &blocks.files {
            let path = desk.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self {
            directory: desk.path().to_owned(),
            desk,
            commands: blocks.commands,
            port: blocks.port,
        }
    }

    /// The recipe for `larder exec` with the heading `exec`, for an agent: its manifest is in the directory `m`, and its
    /// pod has what the recipe with the heading `agent` adds to it.
    pub(crate) fn of_agent(exec: &str, agent: &str) -> Self {
        let recipe = Self::named(exec);
        let added = Blocks::of(agent).others.remove(0);
        let added = added.strip_prefix("metadata:\n").unwrap();
        let directory = recipe.path().join("m");
        fs::create_dir(&directory).unwrap();
        for entry in fs::read_dir(recipe.path()).unwrap() {
            let from = entry.unwrap().path();
            if from.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let text = fs::read_to_string(&from).unwrap();
            let (objects, pod) = text.split_once("kind: Pod\nmetadata: {").unwrap();
            let (name, rest) = pod.split_once("}\n").unwrap();
            let text = format!("{objects}kind: Pod\nmetadata:\n  {name}\n{added}{rest}");
            fs::write(directory.join(from.file_name().unwrap()), text).unwrap();
            fs::remove_file(from).unwrap();
        }
        Self {
            directory,
            ..recipe
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.desk.path()
    }

    /// Adds an executable file.
    pub(crate) fn program(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn shell(&self, script: &str) -> Command {
        let binaries = Path::new(env!("CARGO_BIN_EXE_larder")).parent().unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", binaries.display());
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .current_dir(&self.directory)
            .env_clear()
            .env("LARDER_LOG", "warn")
            .env("PATH", path);
        command
    }

    /// Runs the first command of the recipe.
    pub(crate) fn start(&self) -> RunningRecipe {
        self.start_command(0)
    }

    /// Starts the command at this place, which runs in the background.
    pub(crate) fn start_command(&self, place: usize) -> RunningRecipe {
        let mut child = self
            .shell(&format!("{} wait $!", self.commands[place].trim_end()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        RunningRecipe {
            stdout: lines_of(child.stdout.take().unwrap()),
            stderr: lines_of(child.stderr.take().unwrap()),
            child,
        }
    }

    /// Runs the command at this place.
    pub(crate) fn run(&self, place: usize) {
        assert!(
            self.shell(&self.commands[place])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Asks the server of the recipe; `None` if none listens.
    pub(crate) fn ask(&self) -> Option<String> {
        ask(self.port)
    }

    /// Asks until the answer stays `expected`: a worker of before a reload may answer some last requests.
    pub(crate) fn ask_until(&self, running: &mut RunningRecipe, expected: &str) {
        let mut in_a_row = 0;
        while in_a_row < 20 {
            running.assert_runs();
            let is_expected = self.ask().as_deref() == Some(expected);
            in_a_row = if is_expected { in_a_row + 1 } else { 0 };
        }
    }
}

/// Asks the server at this port; `None` if none listens.
pub(crate) fn ask(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    Some(body.trim_end().to_owned())
}

/// The lines of a stream, for which a test can wait with a limit.
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        lines.try_for_each(|line| sender.send(line))
    });
    lines
}

/// The next line; `None` at the end.
#[track_caller]
fn next_line(lines: &Receiver<String>) -> Option<String> {
    match lines.recv_timeout(LONGEST_WAIT) {
        Ok(line) => Some(line),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => panic!("no line within {LONGEST_WAIT:?}"),
    }
}

/// The processes of a recipe, ended with it.
pub(crate) struct RunningRecipe {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl RunningRecipe {
    /// Fails if the command has ended, with its errors.
    pub(crate) fn assert_runs(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let errors: Vec<_> = std::iter::from_fn(|| next_line(&self.stderr)).collect();
            panic!("{status}: {errors:#?}");
        }
    }

    pub(crate) fn line(&mut self) -> String {
        next_line(&self.stdout).unwrap_or_default()
    }

    /// The next line of errors that holds `text`.
    fn error_with(&mut self, text: &str) -> String {
        let mut lines = std::iter::from_fn(|| next_line(&self.stderr));
        let found = lines.find(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("no {text}"))
    }
}

impl Drop for RunningRecipe {
    fn drop(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Whether nginx is installed; CI must have it.
pub(crate) fn has_nginx() -> bool {
    let found = Path::new("/usr/sbin/nginx").exists();
    assert!(
        found || std::env::var_os("CI").is_none(),
        "CI must have nginx"
    );
    found && may_mount() && rustix::process::geteuid().is_root()
}

#[test]
fn nginx_reloads_what_it_has_tested() {
    if !has_nginx() {
        return;
    }
    let recipe = Recipe::named("nginx: test the configuration, then reload it");
    let mut running = recipe.start();
    recipe.ask_until(&mut running, "hello");
    recipe.run(1);
    recipe.ask_until(&mut running, "goodbye");
    // An error never reaches nginx.
    let path = recipe.path().join("nginx.yaml");
    let manifest = fs::read_to_string(&path).unwrap();
    fs::write(&path, manifest.replace("events {}", "evens {}")).unwrap();
    let line = running.error_with("unknown directive");
    assert!(line.contains("\"evens\""), "{line}");
    recipe.ask_until(&mut running, "goodbye");
    fs::write(&path, manifest.replace("goodbye", "again")).unwrap();
    recipe.ask_until(&mut running, "again");
}

/// The worker of two recipes.
pub(crate) const WORKER: &str = "#!/bin/sh
trap 'echo HUP $(cat /etc/worker/rules)' HUP; trap 'exit 0' TERM
echo started $LOG_LEVEL; while :; do sleep 100 & wait $!; done\n";

/// Serves the file, and reads it again when it is asked to.
const SERVER: &str = r#"#!/usr/bin/perl
use strict; use IO::Socket::INET;
sub load { local $/; open(my $file, '<', '/etc/server/answer') or die "cannot open: $!\n"; return scalar <$file> }
my $answer = load();
my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1:PORT', Listen => 9, ReuseAddr => 1) or die "cannot listen: $!\n";
while (my $client = $listener->accept) {
    my $request = <$client>;
    while (my $line = <$client>) { last if $line eq "\r\n" }
    $answer = load() if $request =~ m{^POST /-/reload };
    print $client "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n$answer\n";
    close $client;
}
"#;

#[test]
fn server_reloads_when_it_is_asked_to() {
    if !may_mount() {
        return;
    }
    let recipe = Recipe::named("A server with `/-/reload`");
    recipe.program("server", &SERVER.replace("PORT", &recipe.port.to_string()));
    let mut running = recipe.start();
    recipe.ask_until(&mut running, "hello");
    recipe.run(1);
    recipe.ask_until(&mut running, "goodbye");
}

#[test]
fn worker_restarts_when_a_variable_changes() {
    if !may_mount() {
        return;
    }
    let recipe = Recipe::named("Restart when a variable changes, signal when a file does");
    recipe.program("worker", WORKER);
    let mut running = recipe.start();
    assert_eq!(running.line(), "started info");
    recipe.run(1);
    assert_eq!(running.line(), "HUP deny");
    recipe.run(2);
    assert_eq!(running.line(), "started debug");
}

#[test]
fn pair_of_secret_and_config_map_is_seen_whole() {
    if !may_mount() {
        return;
    }
    let recipe = Recipe::named("A Secret and a ConfigMap that change together");
    let script =
        "#!/bin/sh\ntrap 'echo HUP $(cat /etc/pair/config/listen) $(cat /etc/pair/tls/tls.key)' HUP
        trap 'exit 0' TERM; echo started; while :; do sleep 100 & wait $!; done\n";
    recipe.program("server", script);
    let mut running = recipe.start();
    assert_eq!(running.line(), "started");
    recipe.run(1);
    recipe.run(2);
    let first = running.line();
    // Unless this machine has stood still for a second in between.
    if first != "HUP two two" {
        assert_eq!([first, running.line()], ["HUP two one", "HUP two two"]);
    }
}
