//! containerd with a root, a state and a socket of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{image::IMAGE, write_json};
use larder_e2e::process::{Process, run};

const START_DEADLINE: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(super) struct Containerd {
    process: Process,
    socket: PathBuf,
}

impl Containerd {
    /// Starts it and waits until it answers.
    pub(super) async fn start(folder: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(folder.join("cni"))?;
        // The kubelet counts a node without a network as not ready. No container uses this one: all are in the host's.
        let network = json!({
            "cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "loopback"}],
        });
        write_json(&folder.join("cni/none.conflist"), &network)?;
        let config = folder.join("config.toml");
        fs::write(&config, configuration(folder))?;
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&config);
        let mut containerd = Self {
            process: Process::start("containerd", &mut command, &folder.join("log"))?,
            socket: folder.join("containerd.sock"),
        };
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            containerd.process.check_alive()?;
            let answer = containerd.control().arg("version").output()?;
            if answer.status.success() {
                return Ok(containerd);
            }
            if Instant::now() > deadline {
                bail!(
                    "containerd did not become ready: {}",
                    containerd.process.last_lines()
                );
            }
            // Polled, because a separate process sends no notification.
            sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Imports the images of an archive.
    pub(super) fn import(&self, archive: &Path) -> anyhow::Result<()> {
        let mut import = self.control();
        import.args(["images", "import", "--no-unpack"]);
        run(import.arg(archive)).map(|_| ())
    }

    /// The process that the runtime names as the first one of a container.
    pub(super) fn first_process(&self, container: &str) -> anyhow::Result<u32> {
        let text = run(self.control().args(["tasks", "list"]))?;
        let mut tasks = text.lines().map(str::split_whitespace);
        let pid = tasks.find_map(|mut fields| {
            let is_task = fields.next() == Some(container);
            fields.next().filter(|_| is_task)?.parse().ok()
        });
        pid.with_context(|| format!("no task {container}: {text}"))
    }

    fn control(&self) -> Command {
        let mut command = Command::new("ctr");
        command
            .arg("--address")
            .arg(&self.socket)
            .args(["--namespace", "k8s.io"]);
        command
    }
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{IMAGE}"
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{folder}/cni"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
discard_unpacked_layers = false
"#
    )
}
