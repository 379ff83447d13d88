//! From manifest to file: how long the built command takes, and how much memory.
//!
//! ```sh
//! cargo bench -p larder-cli --bench delivery                          # with examples/
//! LARDER_BENCH_MANIFESTS=dir cargo bench -p larder-cli --bench delivery
//! ```
//!
//! Two set-ups with the manifests of that directory: `run --manifests`, where an edit is a write to a manifest; and `apiserver` with
//! `run --kubeconfig`, where it is a PATCH over TLS. For each: time from the start of the process to the last volume in place; 20
//! edits of one file of a ConfigMap volume, each from the beginning of the write to the new content at the volume; memory; and,
//! where there is a network, connections and streams.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it found")]

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use larder::transport::{self, Source};
use larder_agent::status::{AgentStatus, Phase};
use larder_objects::manifest::{Loader, Manifest};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const NODE: &str = "bench";
const EDITS: u32 = 20;
/// Longest that anything may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// Between two looks; tokio's timers are no finer.
const LOOK: Duration = Duration::from_millis(1);
/// Between two edits: an editor's pace, not a burst.
const PAUSE: Duration = Duration::from_millis(150);

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let manifests =
        std::env::var_os("LARDER_BENCH_MANIFESTS").map_or(examples.into(), PathBuf::from);
    let bench = Bench::new(&manifests)?;
    bench.manifests().await?;
    bench.api().await
}

/// A process that is stopped when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        // Gone already, or going.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(arguments)
            .env("LARDER_LOG", "off")
            .stdout(Stdio::null())
            .spawn();
        Ok(Self(child.context("cannot start larder")?))
    }

    /// Resident memory, as `/proc` has it.
    fn memory(&self) -> anyhow::Result<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = |name| {
            status
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_default()
        };
        Ok(format!("{}, {}", line("VmRSS"), line("VmHWM")).replace(['\t', ' '], ""))
    }
}

/// A file of a volume, and the line of it that is edited.
struct Target {
    namespace: String,
    config_map: String,
    key: String,
    /// The file at the volume, below the root directory.
    file: String,
    manifest: PathBuf,
    /// Stands once in the manifest and once in the file.
    line: String,
    /// The whole content.
    value: String,
}

struct Bench {
    directory: TempDir,
}

impl Bench {
    /// Works on a copy of the manifests.
    fn new(manifests: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::create_dir(directory.path().join("manifests"))?;
        for entry in fs::read_dir(manifests).with_context(|| manifests.display().to_string())? {
            let path = entry?.path();
            if let (true, Some(name)) = (path.is_file(), path.file_name()) {
                fs::copy(&path, directory.path().join("manifests").join(name))?;
            }
        }
        Ok(Self { directory })
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    async fn manifests(&self) -> anyhow::Result<()> {
        println!("## run --manifests");
        let root = self.path("root-1");
        let start = Instant::now();
        let agent = Running::start(&[
            "run",
            "--manifests",
            &self.path("manifests"),
            "--root-dir",
            &root,
        ])?;
        let status = self.settled(&root).await?;
        report_start(&status, start.elapsed());
        println!("memory: {}", agent.memory()?);
        let target = self.target()?;
        let file = Path::new(&root).join(&target.file);
        let text = fs::read_to_string(&target.manifest)?;
        let mut times = Vec::new();
        for edit in 1..=EDITS {
            sleep(PAUSE).await;
            let line = format!("{} {edit}", target.line);
            let edited = text.replacen(&target.line, &line, 1);
            let start = Instant::now();
            fs::write(&target.manifest, edited)?;
            times.push(seen(&file, &line, start).await?);
        }
        fs::write(&target.manifest, text)?;
        report_edits(times, &target);
        println!("memory: {}", agent.memory()?);
        Ok(())
    }

    async fn api(&self) -> anyhow::Result<()> {
        println!("\n## apiserver and run --kubeconfig");
        let (root, kubeconfig, manifests) = (
            self.path("root-2"),
            self.path("kubeconfig"),
            self.path("manifests"),
        );
        let server = Running::start(&[
            "apiserver",
            "--listen",
            "127.0.0.1:0",
            "--kubeconfig-out",
            &kubeconfig,
            "--manifests",
            &manifests,
        ])?;
        let deadline = Instant::now() + PATIENCE;
        while !Path::new(&kubeconfig).exists() {
            ensure!(Instant::now() < deadline, "the API server does not start");
            sleep(LOOK).await;
        }
        let source = Source::Kubeconfig {
            path: kubeconfig.clone().into(),
            context: None,
        };
        let (client, _transport) = transport::connect(
            source,
            transport::Config::default(),
            transport::Metrics::default(),
        )
        .await?;
        bind(&client).await?;
        let start = Instant::now();
        let agent = Running::start(&[
            "run",
            "--kubeconfig",
            &kubeconfig,
            "--root-dir",
            &root,
            "--node-name",
            NODE,
        ])?;
        let status = self.settled(&root).await?;
        report_start(&status, start.elapsed());
        println!(
            "memory: agent {}; API server {}",
            agent.memory()?,
            server.memory()?
        );
        let target = self.target()?;
        let file = Path::new(&root).join(&target.file);
        let mut times = Vec::new();
        for edit in 1..=EDITS {
            sleep(PAUSE).await;
            let line = format!("{} {edit}", target.line);
            let patch =
                json!({"data": {&target.key: target.value.replacen(&target.line, &line, 1)}});
            let request = http::Request::patch(format!(
                "/api/v1/namespaces/{}/configmaps/{}",
                target.namespace, target.config_map
            ))
            .header("content-type", "application/merge-patch+json")
            .body(patch.to_string().into_bytes())?;
            let start = Instant::now();
            client.request_text(request).await?;
            times.push(seen(&file, &line, start).await?);
        }
        report_edits(times, &target);
        println!(
            "memory: agent {}; API server {}",
            agent.memory()?,
            server.memory()?
        );
        println!("agent: {}", streams(&root)?);
        Ok(())
    }

    /// Waits until the agent has done all that it can.
    async fn settled(&self, root: &str) -> anyhow::Result<AgentStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            ensure!(Instant::now() < deadline, "the agent does not settle");
            let output = Command::new(env!("CARGO_BIN_EXE_larder"))
                .args(["status", "-o", "json", "--root-dir", root])
                .stderr(Stdio::null())
                .output()?;
            if output.status.success() {
                let status: AgentStatus = serde_json::from_slice(&output.stdout)?;
                let waits = |phase| phase == Phase::Waiting;
                let settled = status.silent_sources.is_empty()
                    && !status.pods.iter().any(|pod| waits(pod.delivery.phase));
                if settled && !status.pods.is_empty() {
                    return Ok(status);
                }
            }
            sleep(LOOK).await;
        }
    }

    /// The longest file of a ConfigMap volume that has a line to edit.
    fn target(&self) -> anyhow::Result<Target> {
        let mut targets = Vec::new();
        for entry in fs::read_dir(self.directory.path().join("manifests"))? {
            let manifest = entry?.path();
            let mut loader = Loader::new("default");
            loader.file(&manifest);
            let manifests = loader.finish();
            let text = fs::read_to_string(&manifest)?;
            for pod in manifests.pods() {
                for volume in pod
                    .spec
                    .iter()
                    .flat_map(|spec| spec.volumes.iter().flatten())
                {
                    let Some(source) = volume
                        .config_map
                        .as_ref()
                        .filter(|source| source.items.is_none())
                    else {
                        continue;
                    };
                    let map =
                        manifests
                            .documents
                            .iter()
                            .find_map(|document| match &document.manifest {
                                Manifest::ConfigMap(map) if map.metadata.name == source.name => {
                                    Some(map)
                                }
                                _ => None,
                            });
                    for (key, value) in map.iter().flat_map(|map| &map.data) {
                        let once = |text: &str, line: &str| text.matches(line).count() == 1;
                        let mut lines = value.lines().map(str::trim).filter(|line| line.len() > 8);
                        if let Some(line) =
                            lines.find(|line| once(value, line) && once(&text, line))
                        {
                            let pod = &pod.metadata;
                            targets.push(Target {
                                namespace: pod.namespace.clone().unwrap_or_default(),
                                config_map: source.name.clone(),
                                key: key.clone(),
                                file: format!(
                                    "by-name/{}/{}/volumes/kubernetes.io~configmap/{}/{key}",
                                    pod.namespace.as_deref().unwrap_or_default(),
                                    pod.name.as_deref().unwrap_or_default(),
                                    volume.name
                                ),
                                manifest: manifest.clone(),
                                line: line.to_owned(),
                                value: value.clone(),
                            });
                        }
                    }
                }
            }
        }
        targets
            .into_iter()
            .max_by_key(|target| target.value.len())
            .context("no ConfigMap volume has a line that could be edited")
    }
}

/// Waits until `file` has `line`; returns the time since `start`.
async fn seen(file: &Path, line: &str, start: Instant) -> anyhow::Result<Duration> {
    while !fs::read_to_string(file).is_ok_and(|text| text.contains(line)) {
        if start.elapsed() > PATIENCE {
            bail!("{} does not get {line:?}", file.display());
        }
        sleep(LOOK).await;
    }
    Ok(start.elapsed())
}

fn report_start(status: &AgentStatus, time: Duration) {
    let volumes = || status.pods.iter().flat_map(|pod| &pod.volumes);
    let delivered = volumes()
        .filter(|volume| volume.delivery.phase == Phase::Delivered)
        .count();
    println!(
        "start: {delivered} of {} volumes of {} pods in place, {} objects, after {time:.0?}",
        volumes().count(),
        status.pods.len(),
        status.objects.len()
    );
}

fn report_edits(mut times: Vec<Duration>, target: &Target) {
    times.sort();
    println!(
        "{} edits of {} ({} bytes): median {:.1?}, max {:.1?}",
        times.len(),
        target.key,
        target.value.len(),
        times[times.len() / 2],
        times[times.len() - 1]
    );
}

/// Binds every pod that has no node, as a scheduler would.
async fn bind(client: &Client) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::all(client.clone());
    for mut pod in pods.list(&ListParams::default()).await? {
        let spec = pod.spec.get_or_insert_default();
        if spec.node_name.is_none() {
            spec.node_name = Some(NODE.to_owned());
            let (name, namespace) = (pod.name_any(), pod.namespace().unwrap_or_default());
            let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            pods.delete(&name, &DeleteParams::default().grace_period(0))
                .await?;
            pod.metadata.resource_version = None;
            pods.create(&PostParams::default(), &pod).await?;
        }
    }
    Ok(())
}

/// What the agent's metrics say of its connections.
fn streams(root: &str) -> anyhow::Result<String> {
    let mut stream = UnixStream::connect(Path::new(root).join("agent.sock"))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let wanted = |line: &&str| {
        ["larder_transport_connections", "larder_transport_streams"]
            .iter()
            .any(|name| line.starts_with(name))
    };
    Ok(answer.lines().filter(wanted).collect::<Vec<_>>().join(", "))
}
