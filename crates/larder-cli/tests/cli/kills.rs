//! An agent that is killed again and again while it writes and while hooks run.
//!
//! `LARDER_SOAK_SEED` repeats the decisions of a run, not its timing. `LARDER_ROUNDS` multiplies their number.

use std::{
    env, fs,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    process::Command,
    sync::Arc,
    thread,
};

use larder_e2e::rounds;
use parking_lot::Mutex;
use rustix::process::Signal;

use crate::{
    Desk,
    run::{Agent, config_map, desk, key, status, until, volume},
};

/// Times `LARDER_ROUNDS`.
const KILLS: usize = 4;

/// The two keys that each request of a hook found in the volume, in order.
pub(crate) type Requests = Arc<Mutex<Vec<[String; 2]>>>;

/// Answers the requests of a hook, once it has read the volume of `web` as a program does: with the set resolved once.
pub(crate) fn listen(desk: &Desk) -> (SocketAddr, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (requests, volume) = (Requests::default(), volume(desk, "web"));
    let heard = Arc::clone(&requests);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            // The agent may be dead already; a request that did not come whole is none.
            let (mut request, end) = (Vec::new(), b"\r\n\r\n");
            while !request.ends_with(end)
                && stream
                    .read_until(b'\n', &mut request)
                    .is_ok_and(|read| read > 0)
            {}
            if !request.ends_with(end) {
                continue;
            }
            let read = || {
                let set = volume.join("..data").canonicalize()?;
                let key = |name| fs::read_to_string(set.join(name));
                Ok::<_, io::Error>([key("a")?, key("b")?])
            };
            // A set that is replaced meanwhile is gone: the hook tries again.
            let status = match read() {
                Ok(keys) => {
                    heard.lock().push(keys);
                    "204 No Content"
                }
                Err(_) => "503 Service Unavailable",
            };
            let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
            let _ = stream.get_mut().write_all(answer.as_bytes());
        }
    });
    (address, requests)
}

fn start(desk: &Desk) -> Agent<'_> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    let origin = "--manifests m --node-name n1 --config agent.yaml";
    Agent::spawn(desk, command, origin)
}

fn configure(desk: &Desk, address: SocketAddr) {
    let config = format!(
        "onChange: [{{name: tell, pods: [default/web], http: {{url: 'http://{address}/'}}, debounce: 0s, retry: {{min: 10ms, max: 100ms}}}}]\n"
    );
    fs::write(desk.path().join("agent.yaml"), config).unwrap();
}

/// What is below the root directory. The names of sets are new each time.
fn paths(desk: &Desk) -> Vec<String> {
    let root = desk.path().join("root");
    let (mut paths, mut directories) = (Vec::new(), vec![root.clone()]);
    while let Some(directory) = directories.pop() {
        // It may go meanwhile.
        for entry in fs::read_dir(directory)
            .into_iter()
            .flatten()
            .map(Result::unwrap)
        {
            let path = entry.path();
            let names = path.strip_prefix(&root).unwrap().iter();
            let names = names.map(|name| match name.to_str().unwrap() {
                name if name.starts_with("..") && name != "..data" => "..set",
                name => name,
            });
            paths.push(names.collect::<Vec<_>>().join("/"));
            if entry.file_type().unwrap().is_dir() {
                directories.push(path);
            }
        }
    }
    paths.sort();
    paths
}

/// The paths of an agent that has notified a hook, and was never killed.
async fn of_one_run() -> Vec<String> {
    let desk = desk();
    let (address, _) = listen(&desk);
    configure(&desk, address);
    let mut agent = start(&desk);
    agent.summary();
    desk.replace("m/app.yaml", &config_map("app", "a: once, b: once"));
    until("the edit", || {
        key(&desk, "web", "a").as_deref() == Some("once")
    })
    .await;
    until("the hook to succeed", || {
        !status(&desk)["pods"][0]["onChange"][0]["lastSuccess"].is_null()
    })
    .await;
    paths(&desk)
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that fails shows it")]
async fn kills_at_random_moments_lose_tear_and_tell_nothing_in_vain() {
    let kills = rounds(KILLS);
    let seed = env::var("LARDER_SOAK_SEED");
    let seed = seed.map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    eprintln!("LARDER_SOAK_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);

    let desk = desk();
    let (address, requests) = listen(&desk);
    configure(&desk, address);
    let mut version = 0;
    let mut edit = |desk: &Desk| {
        version += 1;
        let data = format!("a: v{version}, b: v{version}");
        desk.replace("m/app.yaml", &config_map("app", &data));
        format!("v{version}")
    };
    for _ in 0..kills {
        let mut agent = start(&desk);
        // While it starts, once it serves, or while hooks run.
        let moment = random.u8(..3);
        if moment > 0 {
            agent.first_line();
        }
        if moment > 1 {
            let before = requests.lock().len();
            until("a hook to run", || {
                edit(&desk);
                requests.lock().len() > before
            })
            .await;
        }
        for _ in 0..random.u32(..100) {
            edit(&desk);
        }
        agent.signal(Signal::KILL);
    }
    // Nothing is lost.
    let last = edit(&desk);
    let mut agent = start(&desk);
    agent.first_line();
    until("the last edit", || {
        key(&desk, "web", "a").as_ref() == Some(&last)
    })
    .await;
    let is_read = |version: &str| {
        let requests = requests.lock();
        requests
            .last()
            .is_some_and(|keys| keys == &[version, version])
    };
    until("the hook to see the last edit", || is_read(&last)).await;
    // Nothing is torn or left over.
    let count = requests.lock().len();
    assert_eq!(requests.lock().iter().find(|[a, b]| a != b), None);
    let once = of_one_run().await;
    until("the files of an agent that was never killed", || {
        paths(&desk) == once
    })
    .await;
    // No hook runs without a change: a kill repeats at most one, and a clean restart none.
    until("the hook to end", || {
        status(&desk)["pods"][0]["onChange"][0]["state"] == "Idle"
    })
    .await;
    agent.signal(Signal::TERM);
    let mut agent = start(&desk);
    agent.first_line();
    let last = edit(&desk);
    until("the hook to read one more edit", || is_read(&last)).await;
    assert_eq!(requests.lock().len(), count + 1);
    assert!(count <= version + kills, "{count} for {version}");
}
