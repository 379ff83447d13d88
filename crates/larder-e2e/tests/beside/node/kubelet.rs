//! A kubelet as a child process.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::write_json;
use larder_e2e::{NODE, figures::Usage, process::Process, reserved_port};

const START_DEADLINE: Duration = Duration::from_secs(90);

/// The kubelet's change detection strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Watches them.
    #[default]
    Watch,
    /// Fetches them and keeps them for a time.
    Cache,
    /// Fetches them each time.
    Get,
}

/// The settings of tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KubeletSettings {
    /// `configMapAndSecretChangeDetectionStrategy`.
    pub(crate) strategy: Strategy,
    /// `cgroupsPerQOS`: containers are below the cgroup of their pod.
    pub(crate) cgroups_per_qos: bool,
}

/// A kubelet, running or not; dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Kubelet {
    folder: PathBuf,
    binary: PathBuf,
    kubeconfig: PathBuf,
    socket: PathBuf,
    port: u16,
    /// Takes effect with the next start.
    pub(crate) settings: KubeletSettings,
    process: Option<Process>,
}

impl Kubelet {
    pub(super) fn prepare(
        folder: &Path,
        binary: PathBuf,
        kubeconfig: PathBuf,
        socket: &Path,
        settings: KubeletSettings,
    ) -> anyhow::Result<Self> {
        for name in ["manifests", "logs"] {
            fs::create_dir_all(folder.join(name))?;
        }
        Ok(Self {
            folder: folder.to_owned(),
            binary,
            kubeconfig,
            socket: socket.to_owned(),
            port: reserved_port()?,
            settings,
            process: None,
        })
    }

    /// Its root directory.
    pub(crate) fn root_dir(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The directory of its static pods.
    pub(crate) fn static_pods(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    /// Its whole log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// The process did not start.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        if self.process.is_some() {
            bail!("the kubelet runs already");
        }
        let config = self.folder.join("config.json");
        write_json(&config, &self.configuration())?;
        let mut command = Command::new(&self.binary);
        command
            .arg(format!("--config={}", config.display()))
            .arg(format!("--kubeconfig={}", self.kubeconfig.display()))
            .arg(format!("--root-dir={}", self.root_dir().display()))
            .arg(format!("--cert-dir={}", self.folder.join("pki").display()))
            .arg(format!("--hostname-override={NODE}"))
            .arg("--v=2");
        self.process = Some(Process::start(
            "kubelet",
            &mut command,
            &self.folder.join("log"),
        )?);
        Ok(())
    }

    /// Waits until its node is ready.
    ///
    /// # Errors
    ///
    /// The process ended, with the end of its log, or the node does not become ready.
    pub(crate) async fn ready(&mut self, admin: &Client) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(admin.clone());
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let process = self.process()?;
            process.check_alive()?;
            let node = nodes.get_opt(NODE).await?;
            if node.as_ref().is_some_and(is_ready) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let status = node
                    .and_then(|node| node.status)
                    .and_then(|status| status.conditions);
                bail!(
                    "the node did not become ready: {status:?}: {}",
                    process.last_lines()
                );
            }
            // A separate process writes the condition.
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Asks it to exit, and waits until it has. Containers keep running.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        self.process()?;
        self.process.take().map_or(Ok(()), Process::terminate)
    }

    /// Stops its threads.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub(crate) fn pause(&mut self) -> anyhow::Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// Continues its threads.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub(crate) fn resume(&mut self) -> anyhow::Result<()> {
        self.process()?.signal(Signal::CONT)
    }

    /// The resource usage of the process.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub(crate) fn usage(&mut self) -> anyhow::Result<Usage> {
        Usage::of(self.process()?.id())
    }

    fn process(&mut self) -> anyhow::Result<&mut Process> {
        self.process.as_mut().context("the kubelet does not run")
    }

    fn configuration(&self) -> Value {
        let strategy = format!("{:?}", self.settings.strategy);
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{}", self.socket.display()),
            "configMapAndSecretChangeDetectionStrategy": strategy,
            "staticPodPath": self.static_pods(),
            "fileCheckFrequency": "1s",
            "podLogsDir": self.folder.join("logs"),
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": self.settings.cgroups_per_qos,
            "enforceNodeAllocatable": if self.settings.cgroups_per_qos { json!(["pods"]) } else { json!([]) },
            // As the API server has it.
            "featureGates": {"ClusterTrustBundle": true, "ClusterTrustBundleProjection": true},
            "failCgroupV1": false,
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "resolvConf": "",
            "address": "127.0.0.1",
            "port": self.port,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            // A machine for tests may have little free disk space.
            "evictionHard": {"imagefs.available": "0%", "memory.available": "0%", "nodefs.available": "0%",
                "nodefs.inodesFree": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "localStorageCapacityIsolation": false,
        })
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| {
        let mut conditions = conditions.iter();
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    })
}
