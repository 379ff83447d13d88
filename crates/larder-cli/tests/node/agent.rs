//! The agent under test: a process of its own, with a root directory of its own.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use larder_agent::{root_dir, status::AgentStatus};
use larder_e2e::{NODE, ScratchDir};
use rustix::process::{Pid, Signal, kill_process};

/// An agent, running or not; dropped, it is killed and all that it left goes.
pub(crate) struct Agent {
    folder: ScratchDir,
    kubeconfig: PathBuf,
    child: Option<Child>,
}

/// The command of an agent whose root directory is `root` in `folder`, and whose log is `log` there.
pub(crate) fn command(folder: &Path) -> Command {
    let log = File::options()
        .append(true)
        .create(true)
        .open(folder.join("log"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command
        .arg("run")
        .arg("--root-dir")
        .arg(folder.join("root"))
        .env("LARDER_LOG", "warn")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.unwrap());
    command
}

/// The resource usage of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// All pages that are in memory, those of the binary too.
    pub(crate) resident_kib: u64,
    /// Those that no file is behind.
    pub(crate) own_kib: u64,
    pub(crate) descriptors: u64,
}

impl Agent {
    /// An agent that has not been started yet.
    pub(crate) fn prepare(kubeconfig: PathBuf) -> Self {
        let folder = ScratchDir::with_prefix("larder-node-").unwrap();
        fs::create_dir(folder.path().join("static")).unwrap();
        let config = "staticPodPath: static\nregisterNode: true\n";
        fs::write(folder.path().join("config.yaml"), config).unwrap();
        Self {
            folder,
            kubeconfig,
            child: None,
        }
    }

    /// The root directory, absolute.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// The directory of static pods.
    pub(crate) fn static_pods(&self) -> PathBuf {
        self.folder.path().join("static")
    }

    /// Starts it, for the first time or again.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "the agent runs already");
        let child = command(self.folder.path())
            .args(["--node-name", NODE, "--kubeconfig"])
            .arg(&self.kubeconfig)
            .arg("--config")
            .arg(self.folder.path().join("config.yaml"))
            .spawn();
        self.child = Some(child.unwrap());
    }

    /// Kills it, as the kernel does when memory is short.
    pub(crate) fn kill(&mut self) {
        let mut child = self.running();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks it to end and waits until it has.
    pub(crate) fn stop(&mut self) {
        // Until its socket answers, it does not handle the signal.
        while self.status().is_none() {
            let child = self.child.as_mut().expect("the agent runs");
            assert!(child.try_wait().unwrap().is_none(), "{}", self.log());
        }
        let mut child = self.running();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success(), "{}", self.log());
    }

    /// The process, which is no longer its.
    fn running(&mut self) -> Child {
        let mut child = self.child.take().expect("the agent runs");
        let ended = child.try_wait().unwrap();
        assert!(
            ended.is_none(),
            "the agent has ended by itself: {}",
            self.log()
        );
        child
    }

    /// The end of what it has logged.
    pub(crate) fn log(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let mut last: Vec<_> = log.lines().rev().take(20).collect();
        last.reverse();
        last.join("\n")
    }

    /// The problems that it reports: of sources, and of objects.
    pub(crate) fn problems(&self) -> Vec<String> {
        let Some(status) = self.status() else {
            return vec!["it does not answer".to_owned()];
        };
        let objects = status.objects.into_iter();
        let failing = objects.filter(|object| !object.error.is_empty());
        let texts =
            failing.map(|object| format!("{} {}: {}", object.kind, object.name, object.error));
        status.problems.into_iter().chain(texts).collect()
    }

    fn status(&self) -> Option<AgentStatus> {
        let mut stream = UnixStream::connect(root_dir::socket(&self.root())).ok()?;
        stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// Memory and file descriptors of the process.
    pub(crate) fn usage(&self) -> Usage {
        let id = self.child.as_ref().expect("the agent runs").id();
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
            let number = number.unwrap_or_else(|| panic!("no memory: {}", self.log()));
            number.parse().unwrap()
        };
        let descriptors = fs::read_dir(format!("/proc/{id}/fd")).unwrap().count();
        Usage {
            resident_kib: kib("VmRSS:"),
            own_kib: kib("RssAnon:"),
            descriptors: u64::try_from(descriptors).unwrap(),
        }
    }

    /// Paths below the root directory on which something is mounted.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        self.folder.mounts()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
