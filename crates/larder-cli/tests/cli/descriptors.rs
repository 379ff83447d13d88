//! An agent whose descriptors run out.

use std::fs;

use larder_e2e::rounds;
use rustix::process::{Pid, Resource, getrlimit, prlimit};

use crate::{
    Desk,
    run::{Agent, ask, config_map, desk, key, pod, put, until},
};

/// Sets the soft limit of open files of another process; `None` is that of this one.
fn allow(process: Pid, descriptors: Option<u64>) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = descriptors.or(limit.current);
    prlimit(Some(process), Resource::Nofile, limit).unwrap();
}

/// The lowest descriptors that the process does not have.
fn free(process: Pid, count: usize) -> Vec<u64> {
    let open = format!("/proc/{}/fd", process.as_raw_nonzero());
    let is_free = |number: &u64| !fs::exists(format!("{open}/{number}")).unwrap();
    (0..).filter(is_free).take(count).collect()
}

fn serves(desk: &Desk) -> bool {
    ask(desk, "GET /readyz HTTP/1.0\r\n\r\n").0 == "200"
}

// Attack: something takes the node's descriptors while the agent runs.
#[tokio::test]
async fn agent_without_descriptors_goes_on_and_recovers() {
    let desk = desk();
    put(&desk, "two.yaml", &pod("two", "app"));
    let mut agent = Agent::start(&desk);
    agent.summary();
    let log = agent.collect_log();
    let process = agent.pid();
    // From none on; with `LARDER_ROUNDS=4`, to as many as a pass needs, and more. It has the first three.
    let limits = free(process, rounds(3));
    for (round, limit) in [3].into_iter().chain(limits).enumerate() {
        let value = format!("of-{round}");
        allow(process, Some(limit));
        let said = log.lock().len();
        put(
            &desk,
            "app.yaml",
            &config_map("app", &format!("a: {value}")),
        );
        let delivered = |name: &str| key(&desk, name, "a").as_ref() == Some(&value);
        // What it cannot do, it says.
        until("the edit, or a reason", || {
            let reason = log.lock()[said..].contains("Too many open files");
            reason || (delivered("web") && delivered("two"))
        })
        .await;
        if round == 0 {
            assert!(
                !delivered("web") && !delivered("two"),
                "nothing can be opened"
            );
        }
        // Nothing else happens that would wake it.
        allow(process, None);
        until("the edit", || delivered("web") && delivered("two")).await;
        assert!(serves(&desk), "with {limit}: {}", log.lock());
    }
    let log = log.lock();
    assert!(!log.contains("panicked"), "{log}");
}

// Attack: there were too few from the start.
#[test]
fn agent_with_few_descriptors_starts_or_says_why_not() {
    let desk = desk();
    // How many are open at a time varies from start to start.
    let between = (4..64).step_by(20 / rounds(1).min(5));
    for limit in between.chain([64]) {
        let script = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        let mut command = std::process::Command::new("sh");
        command.env_clear();
        command.args(["-c", &script, env!("CARGO_BIN_EXE_larder")]);
        let mut agent = Agent::spawn(&desk, command, "--manifests m --node-name n1");
        let line = agent.first_line();
        if line.is_empty() {
            let (code, error) = agent.end();
            // 2: the manifests could not be read.
            assert!(matches!(code, Some(1 | 2)), "{limit}: {code:?} {error}");
            assert!(error.contains("Too many open files"), "{limit}: {error}");
            assert!(!error.contains("panicked"), "{limit}: {error}");
            assert!(limit < 64, "64 are enough: {error}");
        }
    }
}
