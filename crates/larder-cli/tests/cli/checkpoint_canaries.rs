//! A Secret and the key of the checkpoint are nowhere but where they belong: not in a file, the log, an answer or a
//! metric. Once nothing refers to the Secret any more, it is not in the memory of the agent, which is what a core dump
//! would hold.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::{fs::FileExt as _, net::UnixStream},
    path::Path,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use larder_agent::root_dir;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, getpid};

use crate::{
    checkpoint::{Cluster, files, start_agent},
    run::{Agent, until},
    service::get,
};

/// All that the agent answers to.
const PATHS: [&str; 9] = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/status",
    "/statusz",
    "/flagz",
    "/configz",
    "/v1/pods",
    "/v1/pods/default/web",
];

/// Texts that must not be visible, by their name in messages.
struct Needles(BTreeMap<String, Vec<u8>>);

impl Needles {
    /// A value in every form in which the agent meets it.
    fn of_value(value: &str) -> Self {
        let mut encoded = BASE64.encode(value);
        // The last letters depend on the length.
        encoded.truncate(value.len());
        Self(BTreeMap::from([
            ("the Secret".to_owned(), value.as_bytes().to_vec()),
            ("the Secret in Base64".to_owned(), encoded.into_bytes()),
        ]))
    }

    fn with_key(mut self, key: &[u8]) -> Self {
        let mut hex = String::new();
        for byte in key {
            write!(hex, "{byte:02x}").unwrap();
        }
        self.0.insert("the key".to_owned(), key.to_vec());
        self.0.insert(
            "the key in Base64".to_owned(),
            BASE64.encode(key).into_bytes(),
        );
        self.0.insert("the key in hex".to_owned(), hex.into_bytes());
        self
    }

    /// How often each of them is in `bytes`; those that are not are left out.
    fn count_in(&self, bytes: &[u8], found: &mut BTreeMap<String, usize>) {
        let mut is_first = [false; 256];
        for needle in self.0.values() {
            is_first[usize::from(needle[0])] = true;
        }
        for (at, byte) in bytes.iter().enumerate() {
            if !is_first[usize::from(*byte)] {
                continue;
            }
            for (name, needle) in &self.0 {
                if bytes[at..].starts_with(needle) {
                    *found.entry(name.clone()).or_default() += 1;
                }
            }
        }
    }

    #[track_caller]
    fn check(&self, place: &str, bytes: &[u8]) {
        let mut found = BTreeMap::new();
        self.count_in(bytes, &mut found);
        assert!(found.is_empty(), "{place} has {found:?}");
    }

    /// What is found in the memory of a process: its heap, its stacks and its variables, but not what is mapped from
    /// files.
    fn count_in_memory(&self, process: Pid) -> BTreeMap<String, usize> {
        assert_ne!(process, getpid(), "this process has the needles");
        let maps = fs::read_to_string(format!("/proc/{}/maps", process.as_raw_nonzero())).unwrap();
        let memory = File::open(format!("/proc/{}/mem", process.as_raw_nonzero())).unwrap();
        let mut found = BTreeMap::new();
        let mut scanned = 0;
        for line in maps.lines() {
            let fields: Vec<_> = line.split_whitespace().collect();
            if !fields[1].starts_with("rw") {
                continue;
            }
            let (start, end) = fields[0].split_once('-').unwrap();
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            let (start, end) = (address(start), address(end));
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            // A mapping may end meanwhile.
            let read = memory.read_at(&mut bytes, start).unwrap_or_default();
            scanned += read;
            self.count_in(&bytes[..read], &mut found);
        }
        assert!(scanned > 1 << 20, "{scanned} bytes are not a process");
        found
    }
}

/// Looks at everything that the agent shows: its answers, the commands, its log, and its files but those of the pods.
fn check_what_is_shown(cluster: &Cluster, needles: &Needles, address: &str, log: &Mutex<String>) {
    let root = cluster.desk.path().join("root");
    for path in PATHS {
        let mut stream = UnixStream::connect(root_dir::socket(&root)).unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
            .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        needles.check(path, &answer);
        let (_, answer) = get(address, path, "*/*");
        needles.check(path, answer.as_bytes());
    }
    for command in ["status", "status web", "status -o json"] {
        let run = cluster.desk.run(&format!("{command} --root-dir root"));
        needles.check(command, run.stdout.as_bytes());
        needles.check(command, run.stderr.as_bytes());
    }
    for action in ["", "list -o json", "verify"] {
        let run = cluster.run(action);
        needles.check(action, run.stdout.as_bytes());
    }
    needles.check("the log", log.lock().as_bytes());
    check_files(&root, needles);
}

/// Looks at all files below the root directory but those of the pods, which show the Secret to the pods.
fn check_files(root: &Path, needles: &Needles) {
    for (path, content) in files(root) {
        if !path.strip_prefix(root).unwrap().starts_with("pods") {
            needles.check(&path.display().to_string(), &content);
        }
    }
}

/// Whether the Secret is in a file of a volume and in the variables of a container, as the pod's files have it.
fn is_delivered(root: &Path, value: &str) -> bool {
    let has = |name: &str| {
        let mut files = files(&root.join("pods")).into_iter();
        files.any(|(path, content)| {
            let found = content
                .windows(value.len())
                .any(|bytes| bytes == value.as_bytes());
            found && path.display().to_string().contains(name)
        })
    };
    has("kubernetes.io~secret/tls/") && has("kubernetes.io~projected/both/") && has("env.json")
}

/// The address of the agent's HTTP API, and its log from then on.
fn listening(agent: &mut Agent<'_>) -> (String, Arc<Mutex<String>>) {
    let listening = agent.event("listening");
    let address = listening["address"].as_str().unwrap().to_owned();
    (address, agent.collect_log())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_and_key_are_nowhere_but_in_volumes_and_nowhere_after_the_last_reference() {
    // offline 28: in the tree, in logs, in status, in memory
    let random = || fastrand::u128(..);
    let value = format!("canary-{:032x}-{:032x}", random(), random());
    let mut cluster = Cluster::start().await;
    cluster.fill(&value).await;
    let mut agent = start_agent(&cluster.desk);
    let (address, log) = listening(&mut agent);
    cluster.recorded(6).await;
    let key = fs::read(cluster.desk.path().join("key")).unwrap();
    let needles = Needles::of_value(&value).with_key(&key);
    let root = cluster.desk.path().join("root");
    until("the Secret in its place", || is_delivered(&root, &value)).await;
    check_what_is_shown(&cluster, &needles, &address, &log);
    let mut found = needles.count_in_memory(agent.pid());
    assert!(
        found.remove("the Secret") > Some(0),
        "the agent holds it: {found:?}"
    );
    // What the API server has sent may lie in a buffer of the TLS library.
    found.remove("the Secret in Base64");
    // It seals each change.
    assert!(found.remove("the key") > Some(0), "{found:?}");
    assert_eq!(found, BTreeMap::new());
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    needles.check("the log", log.lock().as_bytes());
    drop(agent);

    // A reboot while the API server is unreachable, which has lost the pod and the Secret meanwhile.
    cluster.delete_pod().await;
    let secrets = cluster.api::<Secret>();
    let now = DeleteParams::default();
    secrets.delete("tls", &now).await.unwrap();
    cluster.server.kill().await;
    fs::remove_dir_all(root.join("pods")).unwrap();
    let mut agent = start_agent(&cluster.desk);
    let (address, log) = listening(&mut agent);
    until("the pod from the checkpoint", || {
        is_delivered(&root, &value) && cluster.status()["pods"][0]["phase"] == "Stale"
    })
    .await;
    check_what_is_shown(&cluster, &needles, &address, &log);
    let found = needles.count_in_memory(agent.pid());
    assert!(
        found.contains_key("the Secret"),
        "the agent serves it: {found:?}"
    );

    // The API server returns, and says that both are gone.
    cluster.server.restart().await.unwrap();
    cluster.recorded(2).await;
    until("the volumes to go", || {
        cluster.status()["pods"]
            .as_array()
            .is_some_and(Vec::is_empty)
    })
    .await;
    check_files(&root, &needles);
    for (path, content) in files(&root) {
        needles.check(&path.display().to_string(), &content);
    }
    let mut found = needles.count_in_memory(agent.pid());
    assert!(found.remove("the key") > Some(0), "{found:?}");
    assert_eq!(found, BTreeMap::new());
    assert_eq!(agent.signal(Signal::TERM), Some(0));
    needles.check("the log", log.lock().as_bytes());
}
