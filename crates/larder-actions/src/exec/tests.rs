//! Real commands, on this machine.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{PidfdFlags, pidfd_open},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::http::RequestContext;
use larder_containers::processes::{FoundContainer, Processes};
use larder_objects::PodIdentity;
use larder_on_change::{Changes, RoundId, VolumeChange};

/// Longest time for a command.
const LIMIT: Duration = Duration::from_hours(1);
/// Longest wait for a process that was killed.
const A_MINUTE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

fn command(words: &[&str]) -> Command {
    Command {
        words: words.iter().map(ToString::to_string).collect(),
        user: None,
        working_directory: "/".to_owned(),
        env: Vec::new(),
        log_output: true,
    }
}

fn shell(script: &str) -> Command {
    command(&["sh", "-c", script])
}

fn change() -> PodChange {
    PodChange {
        hook: "0-exec".to_owned(),
        round: RoundId::from_random(1),
        attempt: 1,
        pod: PodIdentity {
            namespace: "demo".into(),
            name: "web".into(),
            uid: "4711".into(),
        },
        changes: Changes::default(),
    }
}

/// Commands on this machine.
struct Here {
    machine: Machine,
    /// Why output is withheld, before and after a command.
    withheld: [Option<&'static str>; 2],
    is_over: AtomicBool,
    report: parking_lot::Mutex<Option<ExecReport>>,
}

impl StepEnvironment for Here {
    fn processes(&self) -> &Processes {
        unreachable!("nothing is signaled")
    }

    fn target_names(&self) -> Vec<smol_str::SmolStr> {
        Vec::new()
    }

    async fn signal_targets(&self, _: bool) -> Result<Vec<FoundContainer>, StepOutcome> {
        Ok(Vec::new())
    }

    fn swapped(&self) -> Option<Duration> {
        None
    }

    fn request(&self) -> RequestContext<'_> {
        unreachable!("nothing is requested")
    }

    fn launch(&self, launch: Launch<'_>, _: &PodChange) -> Result<Launched, LaunchError> {
        self.machine.launch(launch)
    }

    fn withholds(&self) -> Option<&'static str> {
        self.withheld[usize::from(self.is_over.swap(true, Ordering::Relaxed))]
    }

    fn command_ended(&self, report: ExecReport, _: &PodChange) -> StepOutcome {
        let outcome = report.outcome.clone();
        *self.report.lock() = Some(report);
        outcome
    }
}

/// Runs a command on a machine; also one that does not start has a report.
async fn run_on(
    machine: Machine,
    withheld: [Option<&'static str>; 2],
    command: &Command,
    change: &PodChange,
) -> ExecReport {
    let here = Here {
        machine,
        withheld,
        is_over: AtomicBool::new(false),
        report: parking_lot::Mutex::default(),
    };
    let outcome = run(command, LIMIT, change, &here).await;
    let report = here.report.into_inner();
    report.unwrap_or(ExecReport {
        outcome,
        bytes: 0,
        output: CommandOutput::Empty,
    })
}

/// Runs a command with the file of changes in a fresh directory, which must be empty afterwards.
async fn run_here(command: &Command, change: &PodChange) -> ExecReport {
    let memory = tempfile::tempdir().unwrap();
    // Other users have to reach the file.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    fs::set_permissions(memory.path(), open).unwrap();
    let machine = Machine::new(memory.path().to_owned());
    let report = run_on(machine, [None; 2], command, change).await;
    let left = fs::read_dir(memory.path()).unwrap().count();
    assert_eq!(left, 0, "the file of changes is left over");
    report
}

fn printed(report: &ExecReport) -> &str {
    assert_eq!(report.outcome, StepOutcome::Succeeded, "{report:?}");
    shown(report)
}

fn shown(report: &ExecReport) -> &str {
    match &report.output {
        CommandOutput::Shown(output) => output,
        _ => "",
    }
}

fn failed(reason: &str) -> StepOutcome {
    StepOutcome::Failed(reason.to_owned())
}

// on-change 42
#[tokio::test]
async fn command_gets_its_cause_and_no_variable_of_larder() {
    let mut change = change();
    change.attempt = 3;
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    change.changes = Changes {
        volumes: vec![
            VolumeChange {
                name: "config".into(),
                directory: "/pods/config".into(),
                added: names(&["new.conf"]),
                changed: names(&["a b.conf", "ü"]),
                removed: names(&["old.conf"]),
            },
            VolumeChange {
                name: "tls".into(),
                ..VolumeChange::default()
            },
        ],
        variables: names(&["LOG_LEVEL"]),
    };
    let mut script = shell("env | sort; stat -c %a $LARDER_CHANGES; cat $LARDER_CHANGES");
    script.env = vec![("OWN".to_owned(), "1".to_owned())];
    let memory = tempfile::tempdir().unwrap();
    let machine = Machine {
        memory: memory.path().to_owned(),
        base: vec![("LANG".to_owned(), "C".to_owned())],
    };
    let report = run_on(machine, [None; 2], &script, &change).await;
    let mut lines: Vec<_> = printed(&report).lines().collect();
    let changes: Value = serde_json::from_str(lines.pop().unwrap()).unwrap();
    assert_eq!(lines.pop(), Some("600"));
    lines.retain(|line| {
        !["LARDER_CHANGES=", "PWD=", "OLDPWD=", "SHLVL=", "_="]
            .iter()
            .any(|own| line.starts_with(own))
    });
    assert_eq!(
        lines,
        [
            "HOME=/",
            "LANG=C",
            "LARDER_ATTEMPT=3",
            "LARDER_HOOK=0-exec",
            "LARDER_NAMESPACE=demo",
            "LARDER_POD=web",
            "LARDER_POD_UID=4711",
            "LARDER_REASON=volumes,environment",
            "LARDER_VOLUMES=config tls",
            "OWN=1",
            &format!("PATH={PATH}"),
        ]
    );
    let config = json!({"name": "config", "directory": "/pods/config", "added": ["new.conf"],
        "changed": ["a b.conf", "ü"], "removed": ["old.conf"]});
    assert_eq!(changes["volumes"][0], config);
    assert_eq!(changes["variables"], json!(["LOG_LEVEL"]));
    assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0);
}

// on-change 9
#[tokio::test]
async fn names_reach_the_command_in_variables_only() {
    let mut change = change();
    change.pod.name = "-h".into();
    change.changes.volumes = vec![VolumeChange {
        name: "$(reboot)".into(),
        ..VolumeChange::default()
    }];
    let words = ["sh", "-c", "echo \"$@\" $LARDER_POD $LARDER_VOLUMES", "x"];
    let words = [&words[..], &["$LARDER_POD", "{volume}", "*"]].concat();
    let report = run_here(&command(&words), &change).await;
    assert_eq!(printed(&report), "$LARDER_POD {volume} * -h $(reboot)");
}

#[tokio::test]
async fn command_has_an_empty_input_and_a_group_of_its_own() {
    let script = "cat; read _ _ _ _ group _ < /proc/self/stat; echo $((group == $$)); pwd";
    let report = run_here(&shell(script), &change()).await;
    assert_eq!(printed(&report), "1\n/");
}

// on-change 43
#[tokio::test]
async fn output_is_withheld_where_a_secret_can_be_read_before_or_after_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let script = shell("echo hunter2; exit 1");
    let why = Some("the pod reads Secrets");
    for withheld in [[why, None], [None, why], [why, why]] {
        let machine = Machine::new(directory.path().to_owned());
        let report = run_on(machine, withheld, &script, &change()).await;
        assert_eq!(report.outcome, failed("exit status 1"));
        assert_eq!(
            report.unshown().unwrap(),
            "8 bytes of output, withheld because the pod reads Secrets: \
             to see them, run sh by hand, with the arguments of the hook"
        );
        assert!(!format!("{:?}", report.output).contains("hunter2"));
    }
}

/// Runs a script whose time is over as soon as it has created `file`, however long that takes. Returns the report, and how
/// long the run took from then on. The clock stands still then, unless `has_grace`: only the end of the processes ends
/// the run.
async fn run_out_of_time(script: &str, file: &Path, has_grace: bool) -> (ExecReport, Duration) {
    let (script, change) = (shell(script), change());
    let running = run_here(&script, &change);
    tokio::pin!(running);
    while !file.exists() {
        let early = timeout(Duration::from_millis(5), &mut running).await;
        assert!(early.is_err(), "{early:?}");
    }
    // Time does not advance by itself while a blocking task is under way.
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let still = tokio::task::spawn_blocking(move || receiver.recv());
    tokio::time::pause();
    tokio::time::advance(LIMIT).await;
    let over = Instant::now();
    if has_grace {
        tokio::time::resume();
    }
    let report = running.await;
    let took = over.elapsed();
    assert_eq!(report.outcome, StepOutcome::timed_out(LIMIT));
    drop(sender);
    still.await.unwrap().unwrap_err();
    (report, took)
}

// on-change 44
#[tokio::test]
async fn group_that_ignores_term_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!(
        "trap '' TERM; echo $$; (sleep 1000 & echo $!; : > {}; wait) & sleep 1000 & wait; wait",
        ready.display()
    );
    let (report, took) = run_out_of_time(&script, &ready, true).await;
    assert_eq!(report.outcome.reason(), "timed out after 3600s");
    assert!(took >= GRACE, "{took:?}");
    let pids = shown(&report).to_owned();
    assert_eq!(pids.lines().count(), 2, "{pids:?}");
    for pid in pids.lines() {
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        // A process that was killed closes its files some time before it has ended.
        if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
            let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
            let polled = retry_on_intr(|| poll(&mut ended, Some(&A_MINUTE)));
            assert_eq!(polled, Ok(1), "{pid:?} runs");
        }
    }
}

// on-change 44
#[tokio::test]
async fn group_that_obeys_term_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let ready = folder.path().join("ready");
    let script = format!("sleep 1000 & echo started; : > {}; wait", ready.display());
    let (report, took) = run_out_of_time(&script, &ready, false).await;
    assert_eq!(shown(&report), "started");
    assert_eq!(took, Duration::ZERO);
}

#[tokio::test]
async fn child_that_keeps_the_pipe_is_not_waited_for() {
    let start = Instant::now();
    let report = run_here(&shell("sleep 1000 & echo $!"), &change()).await;
    let child = printed(&report).parse().unwrap();
    assert!(start.elapsed() < Duration::from_mins(1));
    // It keeps running.
    rustix::process::kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test]
async fn dropped_run_leaves_no_process() {
    let pids = tempfile::NamedTempFile::new().unwrap();
    let script = shell(&format!(
        "sleep 1000 & echo $! > {}; wait",
        pids.path().display()
    ));
    let change = change();
    let written = || fs::read_to_string(pids.path()).unwrap();
    let pidfd = {
        let mut running = Box::pin(run_here(&script, &change));
        while !written().ends_with('\n') {
            assert!(
                timeout(Duration::from_millis(5), &mut running)
                    .await
                    .is_err()
            );
        }
        let pid = Pid::from_raw(written().trim().parse().unwrap()).unwrap();
        pidfd_open(pid, PidfdFlags::empty()).unwrap()
    };
    let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
    // Children of other tests end, too.
    assert_eq!(retry_on_intr(|| poll(&mut ended, None)), Ok(1));
}

// on-change 45
#[tokio::test]
async fn user_has_all_groups_and_no_capability() {
    if !rustix::process::geteuid().is_root() {
        let mut command = shell("true");
        command.user = Some("root".to_owned());
        let report = run_here(&command, &change()).await;
        let reason = "not permitted to become user \"root\"";
        assert_eq!(report.outcome, failed(reason));
        return;
    }
    let mut command = shell(
        "id -u; id -G; cat $LARDER_CHANGES; echo; grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status",
    );
    command.user = Some("nobody".to_owned());
    let report = run_here(&command, &change()).await;
    let mut lines = printed(&report).lines();
    let user = users::find("nobody").unwrap().unwrap();
    assert_eq!(lines.next(), Some(&*user.uid.to_string()));
    let groups: Vec<_> = user.groups.iter().map(ToString::to_string).collect();
    assert_eq!(lines.next(), Some(&*groups.join(" ")));
    assert_eq!(lines.next(), Some(r#"{"volumes":[],"variables":[]}"#));
    let sets: Vec<_> = lines.collect();
    assert_eq!(sets.len(), 4);
    for set in sets {
        assert!(set.ends_with(":\t0000000000000000"), "{set}");
    }
    // The other threads of this process keep theirs.
    assert!(rustix::process::geteuid().is_root());
}

// on-change 46
#[tokio::test]
async fn last_output_of_a_talkative_command_is_kept() {
    let script = "yes 0123456789abcdef | head -c 1000000; printf end";
    let report = run_here(&shell(script), &change()).await;
    let output = printed(&report);
    assert_eq!(output.len(), 8 << 10);
    assert!(output.ends_with("end"));
}

#[tokio::test]
async fn output_is_counted_and_returned_only_when_requested() {
    for (log_output, code) in [(false, 0), (false, 3), (true, 0), (true, 3)] {
        let mut command = shell(&format!("echo text; exit {code}"));
        command.log_output = log_output;
        let report = run_here(&command, &change()).await;
        assert_eq!(report.bytes, 5);
        let shown = CommandOutput::Shown("text".to_owned());
        let expected = if log_output {
            shown
        } else {
            CommandOutput::Unlogged
        };
        assert_eq!(report.output, expected);
    }
}

#[tokio::test]
async fn failures_are_named() {
    let outcome = async |command: Command| run_here(&command, &change()).await.outcome;
    assert_eq!(outcome(shell("exit 3")).await, failed("exit status 3"));
    let segv = outcome(shell("kill -SEGV $$")).await;
    assert_eq!(segv, failed("killed by SIGSEGV"));
    let missing = outcome(command(&["no-such-command-here"])).await;
    assert_eq!(missing, failed("no such command"));
    let mut elsewhere = shell("true");
    elsewhere.working_directory = "/no/such/directory".to_owned();
    let elsewhere = outcome(elsewhere).await;
    assert!(
        elsewhere
            .reason()
            .starts_with("cannot enter the working directory: "),
        "{elsewhere:?}"
    );
    let mut unknown = shell("true");
    unknown.user = Some("no-such-user".to_owned());
    let unknown = outcome(unknown).await;
    assert_eq!(unknown, failed("no user \"no-such-user\" on this machine"));
}
