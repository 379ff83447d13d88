//! Standard output and standard error are a pipe that is full, because its reader has stopped (`| tee`, stopped). Whatever
//! keeps running goes on.

use std::{
    fs,
    io::{PipeReader, PipeWriter, Read as _, Write as _, pipe},
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    process::{Pid, Signal, kill_process},
};

use crate::{
    Desk,
    run::{config_map, desk, key, pod, put, until},
};

/// A process whose output goes nowhere.
struct Silenced {
    child: Child,
    /// Never read.
    _reader: PipeReader,
}

impl Silenced {
    fn start(desk: &Desk, args: &[&str]) -> Self {
        let (reader, writer) = full_pipe();
        let child = Command::new(env!("CARGO_BIN_EXE_larder"))
            .args(args)
            .env("LARDER_LOG", "trace")
            .current_dir(desk.path())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .spawn()
            .unwrap();
        Self {
            child,
            _reader: reader,
        }
    }

    /// The exit code after SIGTERM.
    async fn end(mut self) -> Option<i32> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        let mut ended = None;
        until("it ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        })
        .await;
        ended.unwrap().code()
    }
}

impl Drop for Silenced {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe that takes no byte more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test]
async fn agent_delivers_and_ends_while_nothing_reads_its_log() {
    for format in ["text", "json"] {
        let desk = desk();
        put(
            &desk,
            "a.yaml",
            &(config_map("app", "k: one") + "---\n" + &pod("web", "app")),
        );
        let args = "run --manifests m --root-dir root --node-name n1 --log-format";
        let args: Vec<_> = args.split(' ').chain([format]).collect();
        let agent = Silenced::start(&desk, &args);
        until("the volume is there", || {
            key(&desk, "web", "k").as_deref() == Some("one")
        })
        .await;
        put(
            &desk,
            "a.yaml",
            &(config_map("app", "k: two") + "---\n" + &pod("web", "app")),
        );
        until("the edit is there", || {
            key(&desk, "web", "k").as_deref() == Some("two")
        })
        .await;
        assert_eq!(agent.end().await, Some(0), "{format}");
        desk.dir.unmount_all();
    }
}

#[tokio::test]
async fn command_gets_edits_and_signals_while_nothing_reads_the_messages() {
    let desk = Desk::with([("a.yaml", "")]);
    let manifests = |value: &str| {
        // The unknown field has a warning at each reading.
        let map = config_map("app", &format!("k: {value}")) + "unknown: 1\n";
        map + "---\n" + &pod("web", "app")
    };
    desk.replace("a.yaml", &manifests("one"));
    let mount = desk.path().join("seen");
    let seen = mount.display();
    let script = format!("while cp /cfg/k {seen}.next; do mv {seen}.next {seen}; sleep 0.02; done");
    let args = ["exec", "-f", "a.yaml", "--", "sh", "-c", &script];
    let exec = Silenced::start(&desk, &args);
    until("the command runs", || read(&mount) == "one").await;
    desk.replace("a.yaml", &manifests("two"));
    until("it sees the edit", || read(&mount) == "two").await;
    assert_eq!(exec.end().await, Some(143));
}

#[tokio::test]
async fn sidecar_notifies_and_ends_while_nothing_reads_its_log() {
    let desk = Desk::with([]);
    fs::create_dir(desk.path().join("v")).unwrap();
    let hook = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--webhook-url=http://{}/", hook.local_addr().unwrap());
    let sidecar = Silenced::start(
        &desk,
        &[
            "sidecar",
            "--volume-dir=v",
            &url,
            "--web.listen-address=127.0.0.1:0",
        ],
    );
    let (told, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in hook.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            if told.send(()).is_err() {
                return;
            }
        }
    });
    let volume = desk.path().join("v");
    let mut edits = 0;
    until("the webhook is called", || {
        // As a kubelet swaps a volume.
        edits += 1;
        let set = format!("..{edits}");
        fs::create_dir(volume.join(&set)).unwrap();
        fs::write(volume.join(&set).join("k"), &set).unwrap();
        symlink(&set, volume.join("..next")).unwrap();
        fs::rename(volume.join("..next"), volume.join("..data")).unwrap();
        requests.try_recv().is_ok()
    })
    .await;
    assert_eq!(sidecar.end().await, Some(0));
}

#[tokio::test]
async fn api_server_answers_and_ends_while_nothing_reads_its_log() {
    let desk = desk();
    put(&desk, "a.yaml", &config_map("app", "k: one"));
    fs::write(desk.path().join("pod.yaml"), pod("web", "app")).unwrap();
    let server = Silenced::start(
        &desk,
        &["apiserver", "--manifests=m", "--kubeconfig-out=kc"],
    );
    until("it answers", || desk.path().join("kc").exists()).await;
    let answers = |value: &str| {
        desk.run("render -f pod.yaml --kubeconfig kc -o json")
            .stdout
            .contains(value)
    };
    until("it has the object", || answers("b25l")).await;
    put(&desk, "a.yaml", &config_map("app", "k: two"));
    until("it has the edit", || answers("dHdv")).await;
    assert_eq!(server.end().await, Some(0));
}

#[tokio::test]
async fn page_is_served_and_a_wait_ends_while_nothing_reads_the_output() {
    let desk = desk();
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let listen = format!("--listen={address}");
    let page = Silenced::start(&desk, &["ui", "--root-dir=root", &listen]);
    until("it listens", || TcpStream::connect(address).is_ok()).await;
    assert_eq!(page.end().await, Some(0));
    let args = ["status", "--root-dir=root", "--wait", "--timeout=1s"];
    let mut wait = Silenced::start(&desk, &args);
    let mut ended = None;
    until("it ends", || {
        ended = wait.child.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert!(ended.is_some_and(|status| !status.success()));
}
