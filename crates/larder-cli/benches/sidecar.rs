//! The budgets of `larder-sidecar` (docs/spec/sidecar.md, section 13), as a table. `LARDER_BENCH_BINARY` names another
//! `larder`, beside which `larder-sidecar` is.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark: it prints, measures real time, and may panic"
)]

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use larder_e2e::figures::{Quantiles, Usage};
use serde_json::json;
use tempfile::TempDir;

/// Changes whose time to the file is measured.
const CHANGES: usize = 300;
const PORT: &str = "18081";

/// An executable of the package.
fn binary(name: &str) -> PathBuf {
    let larder = std::env::var_os("LARDER_BENCH_BINARY");
    let larder = larder.map_or_else(|| env!("CARGO_BIN_EXE_larder").into(), PathBuf::from);
    larder.with_file_name(name)
}

/// A process that is killed at the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An API server with labeled ConfigMaps.
struct World {
    dir: TempDir,
    _server: Killed,
}

impl World {
    fn with_objects(count: usize, bytes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manifests = dir.path().join("manifests");
        fs::create_dir(&manifests).unwrap();
        for number in 0..count {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("o{number}"), "namespace": "n", "labels": {"l": "1"}},
                "data": {format!("o{number}"): "x".repeat(bytes)},
            });
            fs::write(manifests.join(format!("{number}.json")), object.to_string()).unwrap();
        }
        let server = Command::new(binary("larder"))
            .args([
                "apiserver",
                "--listen",
                "127.0.0.1:0",
                "--manifests",
                "manifests",
            ])
            .args(["--kubeconfig-out", "kubeconfig"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait(|| dir.path().join("kubeconfig").exists());
        Self {
            dir,
            _server: Killed(server),
        }
    }

    /// A sidecar that is ready, and the time that this took.
    fn sidecar(&self) -> (Killed, Duration) {
        for left in ["folder", "state"] {
            // There is none before the first.
            let _ = fs::remove_dir_all(self.dir.path().join(left));
        }
        let began = Instant::now();
        let child = Command::new(binary("larder-sidecar"))
            .current_dir(self.dir.path())
            .env_clear()
            .envs([("LABEL", "l"), ("NAMESPACE", "n"), ("FOLDER", "folder")])
            .envs([("KUBECONFIG", "kubeconfig"), ("LARDER_STATE_DIR", "state")])
            .envs([
                ("HEALTH_PORT", PORT),
                ("HEALTH_HOST", "127.0.0.1"),
                ("LOG_LEVEL", "ERROR"),
            ])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let child = Killed(child);
        let address = format!("127.0.0.1:{PORT}").parse().unwrap();
        wait(|| larder_sidecar::check(address, "/readyz", Duration::from_secs(10)).is_ok());
        (child, began.elapsed())
    }
}

fn wait(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < Duration::from_mins(2),
            "it does not come true"
        );
        sleep(Duration::from_micros(200));
    }
}

fn mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes / 1024).unwrap()) / 1024.0
}

fn usage(process: &Killed) -> Usage {
    Usage::of(process.0.id()).unwrap()
}

/// All resident memory, and the part that belongs to no file.
fn resident(process: &Killed) -> String {
    let usage = usage(process);
    format!(
        "{:.1} MiB, {:.1} anonymous",
        mib(usage.resident),
        mib(usage.anonymous)
    )
}

/// The most resident memory so far.
fn peak(process: &Killed) -> f64 {
    let text = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib / 1024.0
}

fn main() {
    println!("| what | measured | target |\n| --- | --: | --: |");
    let row =
        |what: &str, measured: String, target: &str| println!("| {what} | {measured} | {target} |");
    let world = World::with_objects(50, 20 << 10);
    let (sidecar, _) = world.sidecar();
    let small = usage(&sidecar).resident;
    row(
        "resident, 50 objects of 20 KiB",
        resident(&sidecar),
        "10 MiB",
    );
    row(
        "write to file, p50 / p99 / max",
        Quantiles::of(changes(world.dir.path())).to_string(),
        "3 / 15 ms",
    );
    drop(sidecar);
    drop(world);
    let world = World::with_objects(2050, 100);
    let (sidecar, _) = world.sidecar();
    let more = mib(usage(&sidecar).resident.saturating_sub(small)) * 1024.0 / 2000.0;
    row("each further object", format!("{more:.2} KiB"), "1 KiB");
    drop(sidecar);
    drop(world);
    let world = World::with_objects(300, 50 << 10);
    let (sidecar, _) = world.sidecar();
    row(
        "peak, 300 objects of 50 KiB",
        format!("{:.1} MiB", peak(&sidecar)),
        "16 MiB",
    );
    drop(sidecar);
    drop(world);
    let world = World::with_objects(40, 1 << 10);
    let starts = (0..10).map(|_| world.sidecar().1).collect();
    row(
        "start to ready, 40 objects, p50 / p99 / max",
        Quantiles::of(starts).to_string(),
        "150 ms",
    );
    let reload = reload_form(world.dir.path());
    row("resident, reload form", resident(&reload), "6 MiB");
}

/// A reload form that watches, and has asked its webhook once.
fn reload_form(dir: &Path) -> Killed {
    let volume = dir.join("volume");
    let swap = |set: &str| {
        fs::create_dir_all(volume.join(set)).unwrap();
        fs::write(volume.join(set).join("k"), set).unwrap();
        symlink(set, volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    };
    swap("..1");
    let webhook = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", webhook.local_addr().unwrap());
    let listen = format!("127.0.0.1:{PORT}");
    let child = Command::new(binary("larder-sidecar"))
        .args(["--volume-dir", "volume", "--webhook-url", &url])
        .args(["--web.listen-address", &listen])
        .current_dir(dir)
        .env_clear()
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let child = Killed(child);
    let address = listen.parse().unwrap();
    wait(|| larder_sidecar::check(address, "/healthz", Duration::from_secs(10)).is_ok());
    swap("..2");
    drop(webhook.accept().unwrap());
    child
}

/// The time of each change, from the answer of the API server to the file.
fn changes(dir: &Path) -> Vec<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(dir.join("kubeconfig")).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let client = Client::try_from(config.unwrap()).unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client, "n");
        let mut delays = Vec::new();
        for number in 0..CHANGES {
            let text = format!("change {number}");
            let patch = Patch::Merge(json!({"data": {"o1": text}}));
            let began = Instant::now();
            maps.patch("o1", &PatchParams::default(), &patch)
                .await
                .unwrap();
            wait(|| fs::read_to_string(dir.join("folder/o1")).is_ok_and(|found| found == text));
            delays.push(began.elapsed());
        }
        delays
    })
}
