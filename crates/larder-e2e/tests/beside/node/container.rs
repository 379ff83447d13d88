//! A running container, seen from the host.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use rustix::process::{Pid, Signal, kill_process};

/// The first process of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Container {
    /// The runtime's name of it, without its kind.
    pub(crate) id: String,
    /// Number of the process.
    pub(crate) pid: u32,
}

impl Container {
    /// The container `name` of `pod`, whose status says that it runs.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub(crate) fn of(pod: &Pod, name: &str) -> anyhow::Result<Self> {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|status| status.container_statuses.as_ref());
        let status = statuses.and_then(|all| all.iter().find(|status| status.name == name));
        let id = status.and_then(|status| status.container_id.as_deref());
        let id = id
            .and_then(|id| Some(id.split_once("://")?.1))
            .context("no container ID")?;
        let processes = fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        // The first process of the container's PID namespace: processes that `exec` starts have later numbers there.
        let pid = processes
            .into_iter()
            .find(|pid: &u32| is_first_of(*pid, id));
        Ok(Self {
            id: id.to_owned(),
            pid: pid.with_context(|| format!("no process of container {id}"))?,
        })
    }

    /// Kills it; the kubelet starts another one.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub(crate) fn kill(&self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(Pid::from_raw)
            .context("a process")?;
        Ok(kill_process(pid, Signal::KILL)?)
    }

    /// A path of the container, as the host reaches it.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(inside.trim_start_matches('/'))
    }
}

fn is_first_of(pid: u32, container: &str) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let is_first = || {
        let status = read("status");
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.is_some_and(|numbers| numbers.split_whitespace().next_back() == Some("1"))
    };
    read("cgroup").contains(container) && is_first()
}
