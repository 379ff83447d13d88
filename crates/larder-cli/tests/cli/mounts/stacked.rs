//! An ordinary user stacks mounts in namespaces of his own, while hooks search for their containers.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use tokio::time::{Duration, Instant, sleep};

use crate::{
    containers::{Container, permitted},
    run::{self, Agent, config_map, desk, put, status, until, volume},
};

/// Namespaces, each with 49,152 mounts more than this machine.
const NAMESPACES: usize = 20;
/// While hooks of a container that does not run search for it.
const MEASURED: Duration = Duration::from_secs(20);

/// Each `rbind` of the directory doubles its mounts. Further namespaces are copies of the first.
const STACK: &str = r#"
set -e
mount -t tmpfs none /mnt
mkdir /mnt/all; mount -t tmpfs none /mnt/all
for i in $(seq 14); do mkdir /mnt/all/$i; mount --rbind /mnt/all /mnt/all/$i; done
mkdir /mnt/b /mnt/c
for d in b c; do mount --rbind /mnt/all /mnt/$d; done
for i in $(seq $(($0 - 1))); do unshare -m sh -c 'echo made; exec sleep 1000' & done
echo made
exec sleep 1000
"#;

/// Ended with its namespaces when it is dropped.
struct Attacker(Child);

impl Attacker {
    fn start() -> Self {
        let mut child = Command::new("setpriv")
            .args(["--reuid=23456", "--regid=23456", "--clear-groups"])
            .args(["unshare", "--user", "--map-root-user", "--mount"])
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", STACK])
            .arg(NAMESPACES.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.take(NAMESPACES).count(), NAMESPACES);
        Self(child)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pod(name: &str) -> String {
    run::pod(name, "app").replace("/cfg", "/etc/larder-test")
}

/// The time that a processor has worked for the agent.
fn cpu(agent: &Agent<'_>) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid().as_raw_nonzero())).unwrap();
    let fields: Vec<_> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

#[tokio::test]
#[ignore = "measures for a minute"]
#[expect(clippy::print_stderr, reason = "the figures")]
async fn mounts_stacked_by_an_ordinary_user_cost_at_most_a_quarter_of_a_processor() {
    if !permitted() {
        return;
    }
    for is_attacked in [false, true] {
        let desk = desk();
        put(&desk, "web.yaml", &pod("web"));
        // Its container does not run, so its hook searches for ever.
        put(&desk, "other.yaml", &pod("other"));
        let config = "onChange: [{signal: SIGHUP, pods: [default/web, default/other], debounce: 0s, retry: {min: 1s, max: 1s}}]\n";
        fs::write(desk.path().join("agent.yaml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
        command.env_clear();
        let origin = "--manifests m --node-name n1 --config agent.yaml";
        let mut agent = Agent::spawn(&desk, command, origin);
        agent.summary();
        let _attacker = is_attacked.then(Attacker::start);
        let mut delays = Vec::new();
        for number in 0..5 {
            let directory = volume(&desk, "web");
            let command =
                "perl -e '$| = 1; $SIG{HUP} = sub { print \"changed\\n\" }; print \"ready\\n\";
                select(undef, undef, undef, 0.05) while 1'";
            let mounts = [(&*directory, "/etc/larder-test")];
            let mut container = Container::start(&mounts, &BTreeMap::new(), command);
            assert_eq!(container.line(), "ready");
            let began = Instant::now();
            desk.replace(
                "m/app.yaml",
                &config_map("app", &format!("a: '{number}{number}'")),
            );
            assert_eq!(container.line(), "changed");
            delays.push(began.elapsed());
        }
        delays.sort();
        let (before, began) = (cpu(&agent), Instant::now());
        sleep(MEASURED).await;
        let (used, measured) = (cpu(&agent).saturating_sub(before), began.elapsed());
        eprintln!(
            "attacked: {is_attacked}; from the edit to the signal, median {:?}, most {:?}; processor {:.1} %",
            delays[2],
            delays[4],
            100.0 * used.as_secs_f64() / measured.as_secs_f64()
        );
        // A second may be taken after a quiet time.
        assert!(
            used <= measured / 4 + Duration::from_secs(2),
            "{used:?} in {measured:?}"
        );
        until("the other hook to have failed", || {
            status(&desk)["pods"].to_string().contains("Retrying")
        })
        .await;
    }
}
