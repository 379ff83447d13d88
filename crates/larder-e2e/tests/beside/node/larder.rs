//! The built command as the node's larder: a separate process beside the kubelet.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::write_json;
use larder_e2e::{
    NODE,
    figures::Usage,
    process::{self, Process},
};

/// Longest wait for an answer of the socket.
const ANSWER: Duration = Duration::from_secs(5);

/// A running agent; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Larder {
    process: Process,
    folder: TempDir,
}

/// The mounts of the host that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountView {
    /// All of them: a process of the host.
    Host,
    /// Also later ones: a container with `mountPropagation: HostToContainer`.
    HostToContainer,
    /// Those of its start: a container without it.
    None,
}

impl MountView {
    fn propagation(self) -> Option<&'static str> {
        match self {
            Self::Host => None,
            Self::HostToContainer => Some("slave"),
            Self::None => Some("private"),
        }
    }
}

impl Larder {
    /// Starts `command` beside the kubelet whose root directory is `kubelet_root`.
    ///
    /// # Errors
    ///
    /// The process did not start.
    pub(crate) fn start(
        command: &Path,
        kubeconfig: &Path,
        kubelet_root: &Path,
        view: MountView,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("larder-e2e-agent-")?;
        let config = folder.path().join("config.json");
        let settings = json!({
            "mode": "Beside",
            "beside": {"kubeletRootDir": kubelet_root, "lockDir": folder.path().join("lock")},
            "nodeName": NODE,
            "kubeconfig": kubeconfig,
            "rootDir": folder.path().join("root"),
        });
        fs::create_dir(folder.path().join("lock"))?;
        write_json(&config, &settings)?;
        let mut run = match view.propagation() {
            None => Command::new(command),
            Some(propagation) => {
                let mut unshare = Command::new("unshare");
                unshare
                    .args(["--mount", "--propagation", propagation])
                    .arg(command);
                unshare
            }
        };
        run.arg("run")
            .arg("--config")
            .arg(&config)
            .env("LARDER_LOG", "info");
        let process = Process::start("larder", &mut run, &folder.path().join("log"))?;
        Ok(Self { process, folder })
    }

    /// A directory that it may write to.
    pub(crate) fn lock_dir(&self) -> PathBuf {
        self.folder.path().join("lock")
    }

    /// All that it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Its status, as `larder status` gets it; `None` while its socket does not answer.
    ///
    /// # Errors
    ///
    /// It has ended, or does not answer with a status.
    pub(crate) fn status(&mut self) -> anyhow::Result<Option<Value>> {
        let Some(body) = self.get("/status")? else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_str(&body).context("a status")?))
    }

    /// The sum of the whole numbers of metric `name` whose labels contain `labels`.
    ///
    /// # Errors
    ///
    /// As [`Self::status`].
    pub(crate) fn metric(&mut self, name: &str, labels: &str) -> anyhow::Result<u64> {
        let text = self.get("/metrics")?.unwrap_or_default();
        let lines = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']) && rest.contains(labels))
        });
        let values = lines.filter_map(|line| line.rsplit(' ').next());
        Ok(values.map(str::parse::<u64>).sum::<Result<_, _>>()?)
    }

    /// The resource usage of the process.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        Usage::of(self.process.id())
    }

    /// Descriptors that it has open below `folder`.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub(crate) fn open_below(&self, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.process.id()))?;
        let targets = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        Ok(targets
            .filter(|target| target.starts_with(folder))
            .collect())
    }

    fn get(&mut self, path: &str) -> anyhow::Result<Option<String>> {
        self.process.check_alive()?;
        let socket = self.folder.path().join("root/agent.sock");
        let Ok(mut stream) = UnixStream::connect(socket) else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(ANSWER))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an HTTP answer")?;
        if !head.contains(" 200 ") {
            bail!("{path}: {head}");
        }
        Ok(Some(body.to_owned()))
    }
}

/// Builds the command of this workspace, as this binary was built. Returns its path.
///
/// # Errors
///
/// cargo failed.
pub(crate) fn build_larder() -> anyhow::Result<PathBuf> {
    if let Some(binary) = env::var_os("LARDER_BENCH_BINARY") {
        return Ok(PathBuf::from(binary));
    }
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "build",
            "--quiet",
            "--locked",
            "--package=larder-cli",
            "--bin=larder",
        ])
        .arg("--message-format=json");
    if !cfg!(debug_assertions) {
        cargo.args(["--profile", "dist"]);
    }
    let messages = process::run(&mut cargo)?;
    let executable = messages.lines().rev().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message["executable"].as_str()?))
    });
    executable.context("cargo names no executable")
}
