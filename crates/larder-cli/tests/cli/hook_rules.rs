//! One table of the rules of hooks, against all that run them: the agent, `larder exec` and a sidecar.

mod drivers;

use std::{collections::BTreeMap, fs, sync::Arc};

use serde_json::Value;

use self::drivers::{Agent, Driver, Exec, Sidecar};
use crate::{Desk, run::until};

/// Which drivers a case is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    All,
    /// Those that keep a record across restarts.
    Remembering,
    /// The others, whose applications start with them.
    Forgetful,
    /// Those that know what a container mounts.
    Containers,
}

/// One rule, its hooks and what happens. The content begins with `key=1 other=1`.
struct Case {
    rule: &'static str,
    whom: For,
    /// A list of hooks, in which `$x` is a step that logs `x`.
    hooks: &'static str,
    /// The key that the container mounts by `subPath`, in place of the volume.
    sub_path: Option<&'static str>,
    steps: &'static [Step],
}

/// A step of a case.
enum Step {
    /// The content is this from now on: `key=value` of one volume, `maybe/key=value` of an optional one.
    Edit(&'static str),
    /// The same content has another version.
    Relabel,
    /// The step of this name fails, or does not.
    Fail(&'static str),
    Mend(&'static str),
    /// The step of this name waits before it ends, or goes on.
    Hold(&'static str),
    Release(&'static str),
    /// Waits until no attempt runs that may have notified the application.
    Settle,
    /// larder ends without warning.
    Kill,
    /// It is started again, with these hooks if they are others.
    Start(Option<&'static str>),
    /// Nothing runs but this, in this order: `NAME ATTEMPT CHANGES`, or `*` for any changes.
    Runs(&'static [&'static str]),
    /// The same in any order.
    RunsTogether(&'static [&'static str]),
}
use Step::{Edit, Fail, Hold, Kill, Mend, Relabel, Release, Runs, RunsTogether, Settle, Start};

const ONE: &str = "[{name: one, steps: [$a], debounce: 0s}]";

const CASES: &[Case] = &[
    // on-change 14
    Case {
        rule: "F4, F2: a first delivery fires nothing, and each change fires once",
        whom: For::All,
        hooks: ONE,
        sub_path: None,
        steps: &[
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key"]),
            Edit("key=2 other=1 new=1"),
            Runs(&["a 1 +app/new"]),
            Edit("key=2"),
            Runs(&["a 1 -app/new -app/other"]),
        ],
    },
    // on-change 14
    Case {
        rule: "F4: an initial hook fires once for what is there",
        whom: For::All,
        hooks: "[{name: one, steps: [$a], debounce: 0s, initial: true}]",
        sub_path: None,
        steps: &[
            Runs(&["a 1 +app/key +app/other"]),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    // on-change 15
    Case {
        rule: "F2: another version with the same bytes is no change",
        whom: For::All,
        hooks: ONE,
        sub_path: None,
        steps: &[Relabel, Edit("key=2 other=1"), Runs(&["a 1 ~app/key"])],
    },
    // on-change 17
    Case {
        rule: "F2: only files that a hook selects count",
        whom: For::All,
        hooks: "[{name: one, steps: [$a], debounce: 0s, paths: ['k*']}]",
        sub_path: None,
        steps: &[
            Edit("key=1 other=2"),
            Edit("key=2 other=2"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    Case {
        rule: "F2: only volumes that a hook selects count",
        whom: For::All,
        hooks: "[{name: one, steps: [$a], debounce: 0s, volumes: [maybe]}]",
        sub_path: None,
        steps: &[
            Edit("key=2 other=1"),
            Edit("key=2 other=1 maybe/f=1"),
            Runs(&["a 1 +maybe/f"]),
        ],
    },
    // on-change 68
    Case {
        rule: "F2: a key that is mounted nowhere does not count",
        whom: For::Containers,
        hooks: ONE,
        sub_path: Some("key"),
        steps: &[
            Edit("key=1 other=2"),
            Edit("key=2 other=2"),
            Runs(&["a 1 ~app/key"]),
            Edit("key=2 other=2 new=1"),
            Edit("key=3 other=3"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    // on-change 19
    Case {
        rule: "F5: an optional object that appears or goes is a change",
        whom: For::All,
        hooks: ONE,
        sub_path: None,
        steps: &[
            Edit("key=1 other=1 maybe/f=1"),
            Runs(&["a 1 +maybe/f"]),
            Edit("key=1 other=1"),
            Runs(&["a 1 -maybe/f"]),
        ],
    },
    // on-change 26, 31
    Case {
        rule: "T3, T5: changes during a round cause exactly one more, and delay no other hook",
        whom: For::All,
        hooks: "[{name: slow, steps: [$a], debounce: 0s}, {name: quick, steps: [$b], debounce: 0s}]",
        sub_path: None,
        steps: &[
            Hold("a"),
            Edit("key=2 other=1"),
            RunsTogether(&["a 1 ~app/key", "b 1 ~app/key"]),
            Edit("key=3 other=1"),
            Runs(&["b 1 ~app/key"]),
            Edit("key=4 other=1"),
            Runs(&["b 1 ~app/key"]),
            Edit("key=5 other=2"),
            Runs(&["b 1 ~app/key ~app/other"]),
            Release("a"),
            Runs(&["a 1 ~app/key ~app/other"]),
            Edit("key=6 other=2"),
            RunsTogether(&["a 1 ~app/key", "b 1 ~app/key"]),
        ],
    },
    // on-change 32, 33
    Case {
        rule: "T6, T8: a failed step ends the round, a retry begins with the first, and used up attempts rest",
        whom: For::All,
        hooks: "[{name: one, steps: [$a, $b], debounce: 0s, retry: {min: 1ms, max: 1ms, attempts: 2}}]",
        sub_path: None,
        steps: &[
            Fail("a"),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key", "a 2 ~app/key"]),
            Mend("a"),
            Fail("b"),
            Edit("key=2 other=2"),
            Runs(&[
                "a 1 ~app/key ~app/other",
                "b 1 ~app/key ~app/other",
                "a 2 ~app/key ~app/other",
                "b 2 ~app/key ~app/other",
            ]),
            Mend("b"),
            Edit("key=3 other=2"),
            Runs(&["a 1 ~app/key ~app/other", "b 1 ~app/key ~app/other"]),
            Edit("key=4 other=2"),
            Runs(&["a 1 ~app/key", "b 1 ~app/key"]),
        ],
    },
    // on-change 29
    Case {
        rule: "T8: attempts follow each other until one succeeds",
        whom: For::All,
        hooks: "[{name: one, steps: [$a, $b], debounce: 0s, retry: {min: 1ms, max: 1ms, attempts: 100}}]",
        sub_path: None,
        steps: &[
            Hold("b"),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key", "b 1 ~app/key"]),
            Fail("b"),
            Hold("a"),
            Release("b"),
            Runs(&["a 2 ~app/key"]),
            Mend("b"),
            Release("a"),
            Runs(&["b 2 ~app/key"]),
            Edit("key=3 other=1"),
            Runs(&["a 1 ~app/key", "b 1 ~app/key"]),
        ],
    },
    // on-change 30
    Case {
        rule: "T8: a newer change is tried at once after a failure",
        whom: For::All,
        hooks: "[{name: one, steps: [$a], debounce: 0s, retry: {min: 1h, max: 1h}}]",
        sub_path: None,
        steps: &[
            Fail("a"),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key"]),
            Edit("key=3 other=1"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    // on-change 44
    Case {
        rule: "T7: a step that exceeds its time is ended and has failed",
        whom: For::All,
        hooks: "[{name: one, steps: [$a], debounce: 0s, timeout: 3s, retry: {min: 1ms, max: 1ms, attempts: 2}}]",
        sub_path: None,
        steps: &[
            Hold("a"),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key", "a 2 ~app/key"]),
        ],
    },
    // on-change 33
    Case {
        rule: "onFailure Ignore: one attempt, which counts as done",
        whom: For::All,
        hooks: "[{name: one, steps: [$a], debounce: 0s, onFailure: Ignore, retry: {min: 1ms, max: 1ms}}]",
        sub_path: None,
        steps: &[
            Fail("a"),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key"]),
            Edit("key=2 other=2"),
            Runs(&["a 1 ~app/other"]),
        ],
    },
    // on-change 33
    Case {
        rule: "onFailure Ignore, P4: what was ignored is not repeated by a restart",
        whom: For::Remembering,
        hooks: "[{name: one, steps: [$a], debounce: 0s, onFailure: Ignore}]",
        sub_path: None,
        steps: &[
            Fail("a"),
            Edit("key=2 other=2"),
            Runs(&["a 1 ~app/key ~app/other"]),
            Settle,
            Start(None),
            Edit("key=3 other=2"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    // on-change 57
    Case {
        rule: "P4: nothing changed, nothing fires",
        whom: For::All,
        hooks: ONE,
        sub_path: None,
        steps: &[
            Kill,
            Start(None),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    // on-change 58
    Case {
        rule: "P4: a change while larder was away fires once",
        whom: For::Remembering,
        hooks: ONE,
        sub_path: None,
        steps: &[
            Kill,
            Edit("key=2 other=1"),
            Start(None),
            Runs(&["a 1 *"]),
            Edit("key=3 other=1"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    // on-change 60
    Case {
        rule: "P4: a crash during a round fires again",
        whom: For::Remembering,
        hooks: ONE,
        sub_path: None,
        steps: &[
            Hold("a"),
            Edit("key=2 other=1"),
            Runs(&["a 1 ~app/key"]),
            Kill,
            Release("a"),
            Start(None),
            Runs(&["a 1 *"]),
            Edit("key=3 other=1"),
            Runs(&["a 1 ~app/key"]),
        ],
    },
    Case {
        rule: "P7: the command starts with the present content",
        whom: For::Forgetful,
        hooks: ONE,
        sub_path: None,
        steps: &[
            Kill,
            Edit("key=2 other=1"),
            Start(None),
            Edit("key=2 other=2"),
            Runs(&["a 1 ~app/other"]),
        ],
    },
    // on-change 61
    Case {
        rule: "P5: an edited hook starts from the present content",
        whom: For::All,
        hooks: ONE,
        sub_path: None,
        steps: &[
            Kill,
            Edit("key=2 other=1"),
            Start(Some("[{name: one, steps: [$b], debounce: 0s}]")),
            Edit("key=2 other=2"),
            Runs(&["b 1 ~app/other"]),
        ],
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_keeps_the_rules_of_hooks() {
    run_all::<Agent>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_keeps_the_rules_of_hooks() {
    if crate::exec::may_mount() {
        run_all::<Exec>().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sidecar_keeps_the_rules_of_hooks() {
    run_all::<Sidecar>().await;
}

async fn run_all<D: Driver>() {
    for case in CASES {
        let is_meant = match case.whom {
            For::All => true,
            For::Remembering => D::REMEMBERS,
            For::Forgetful => !D::REMEMBERS,
            For::Containers => D::HAS_CONTAINERS,
        };
        if is_meant {
            run::<D>(case).await;
        }
    }
}

async fn run<D: Driver>(case: &Case) {
    let desk = Arc::new(Desk::with([("hook.sh", SCRIPT), ("log", "")]));
    let hooks = |text: &str| {
        let script = desk.path().join("hook.sh");
        let mut text = text.to_owned();
        for name in ["a", "b"] {
            let step = format!("{{exec: [sh, {}, {name}]}}", script.display());
            text = text.replace(&format!("${name}"), &step);
        }
        text
    };
    let mut log = Log {
        desk: &desk,
        rule: case.rule,
        read: 0,
    };
    let mut content = contents("key=1 other=1");
    let mut driver = D::new(Arc::clone(&desk), case.sub_path);
    driver.edit(&content, 0);
    let mut current = hooks(case.hooks);
    driver.start(&current).await;
    for (version, step) in (1..).zip(case.steps) {
        let flag = |kind: &str, name: &str| desk.path().join(format!("{kind}-{name}"));
        match step {
            Edit(text) => {
                content = contents(text);
                driver.edit(&content, version);
            }
            Relabel => driver.edit(&content, version),
            Fail(name) => fs::write(flag("fail", name), "").unwrap(),
            Mend(name) => fs::remove_file(flag("fail", name)).unwrap(),
            Hold(name) => fs::write(flag("hold", name), "").unwrap(),
            Release(name) => fs::remove_file(flag("hold", name)).unwrap(),
            Settle => {
                let is_certain = || {
                    driver
                        .record()
                        .is_some_and(|text| !text.contains("uncertain"))
                };
                until("a certain record", is_certain).await;
            }
            Kill => driver.kill().await,
            Start(text) => {
                current = text.map_or(current, hooks);
                driver.kill().await;
                driver.start(&current).await;
            }
            Runs(expected) => log.runs(expected, false).await,
            RunsTogether(expected) => log.runs(expected, true).await,
        }
    }
    driver.kill().await;
}

/// Logs its name, the attempt and the changes; waits while it is held; and fails if the test has asked for that.
const SCRIPT: &str = r#"cd "$(dirname "$0")"
look() { code=0; if [ -e "fail-$1" ]; then code=1; fi; }
look "$1"
printf '%s\t%s\t%s\n' "$1" "$LARDER_ATTEMPT" "$(cat "$LARDER_CHANGES")" >> log
while [ -e "hold-$1" ]; do sleep 0.01; [ -e "hold-$1" ] || look "$1"; done
exit "$code"
"#;

/// The data of both objects, by key; the second is there if it has any.
type Contents = [BTreeMap<String, String>; 2];

fn contents(text: &str) -> Contents {
    let mut all = Contents::default();
    for item in text.split(' ') {
        let (key, value) = item.split_once('=').unwrap();
        let (object, key) = match key.strip_prefix("maybe/") {
            Some(key) => (1, key),
            None => (0, key),
        };
        all[object].insert(key.to_owned(), value.to_owned());
    }
    all
}

/// What steps have logged.
struct Log<'a> {
    desk: &'a Desk,
    rule: &'static str,
    /// Lines that were expected.
    read: usize,
}

impl Log<'_> {
    async fn runs(&mut self, expected: &[&str], in_any_order: bool) {
        let lines = || -> Vec<String> {
            let text = fs::read_to_string(self.desk.path().join("log")).unwrap();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let new = whole.lines().skip(self.read);
            new.take(expected.len()).map(shown).collect()
        };
        let what = format!("{}: {expected:?}", self.rule);
        until(&what, || lines().len() == expected.len()).await;
        let mut lines = lines();
        if in_any_order {
            lines.sort();
        }
        for (line, expected) in lines.iter().zip(expected) {
            let is_it = match expected.strip_suffix('*') {
                Some(start) => line.starts_with(start),
                None => line == expected,
            };
            assert!(is_it, "{}: {lines:?} where {expected:?}", self.rule);
        }
        self.read += expected.len();
    }
}

/// A line of the log as cases have it.
fn shown(line: &str) -> String {
    let mut fields = line.split('\t');
    let mut next = || fields.next().unwrap();
    let (name, attempt) = (next(), next());
    let changes: Value = serde_json::from_str(next()).unwrap();
    let mut all = vec![name.to_owned(), attempt.to_owned()];
    for volume in changes["volumes"].as_array().unwrap() {
        for (sign, field) in [('+', "added"), ('~', "changed"), ('-', "removed")] {
            for path in volume[field].as_array().unwrap() {
                let (volume, path) = (volume["name"].as_str().unwrap(), path.as_str().unwrap());
                all.push(format!("{sign}{volume}/{path}"));
            }
        }
    }
    all.join(" ")
}
