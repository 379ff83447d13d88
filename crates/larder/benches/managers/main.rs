//! The cost of a manager for its callers, compared with the kubelet's own manager (Kubernetes 1.36, the same kind of
//! machine) and with larder's budget, and the same for the pod manager. The node has 50 pods with 10 references each;
//! each pod reads through its guard.
//!
//! The time of atomic operations depends on the machine, and varies on a virtual one. So the first row is a baseline:
//! two of them, in the same run. A read has four: it takes and releases the object's lock and a reference to the object.
//!
//! Measured in CPU time of the thread, the slower one of two, so that other work on the machine disturbs little. On a
//! busy machine two threads seldom run at the same time. `best` is the quickest sample.
//!
//! `cargo bench -p larder --bench managers`
//!
//! `cargo bench -p larder --bench managers -- 'guard, Watch'` measures just the fast path: a known object, read through
//! the guard of a registered pod.
//!
//! With `LARDER_KUBELET_MANAGERS`, the path of the program that `.ci/bench managers --kubelet DIR` builds from
//! `kubelet.go`, the kubelet's own managers run in alternation with larder's, and the ratio is the median of those of all
//! rounds.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark may panic, prints what it found, and does not count that far"
)]

use std::{
    cell::RefCell,
    convert::Infallible,
    hint::black_box,
    io::{BufRead as _, BufReader, Write as _},
    iter,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    rc::Rc,
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use futures::{FutureExt, StreamExt, stream};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use larder::{ConfigMap, ConfigMapManager, NodeTtl, RegisteredPod};
use larder_pods::{PodManager, StoredPod};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;

const OBJECTS: usize = 500;
/// Rounds in alternation with the kubelet, and repetitions in each.
const ROUNDS: usize = 24;
const ALTERNATING: u64 = 100_000;
/// The rows that the kubelet has.
const ALTERNATED: [&str; 6] = [
    "read of a known object through the guard, Watch",
    "read of a known object through the guard, Cache",
    "register + unregister",
    "register again, 10 references",
    "add + update + remove a pod beside 100",
    "add + update + remove a pod beside 1000",
];

/// An API server that has every ConfigMap of namespace `n`, and changes none.
fn client() -> kube::Client {
    let answer = |request: Request<Body>| async move {
        let target = request.uri().to_string();
        let name = match target.split_once("metadata.name%3D") {
            Some((_, rest)) => rest.split('&').next().unwrap().to_owned(),
            None => target.rsplit('/').next().unwrap().to_owned(),
        };
        let object = format!(
            r#"{{"metadata":{{"namespace":"n","name":"{name}","uid":"u","resourceVersion":"5"}},"data":{{"k":"v"}}}}"#
        );
        let watch = target.contains("watch=true");
        let text = if watch {
            format!(
                "{{\"type\":\"ADDED\",\"object\":{object}}}\n{{\"type\":\"BOOKMARK\",\"object\":{{\"metadata\":{{\
                 \"resourceVersion\":\"5\",\"annotations\":{{\"k8s.io/initial-events-end\":\"true\"}}}}}}}}\n"
            )
        } else {
            object
        };
        let whole = stream::once(async { Ok::<_, Infallible>(Frame::data(Bytes::from(text))) });
        let body = if watch {
            whole.chain(stream::pending()).boxed()
        } else {
            whole.boxed()
        };
        Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
    };
    kube::Client::new(tower::service_fn(answer), "default")
}

/// Pod `n/<name>` that refers to these ConfigMaps.
fn pod(name: &str, config_maps: impl Iterator<Item = String>) -> Pod {
    let volumes: Vec<_> = config_maps
        .map(|name| serde_json::json!({"name": name, "configMap": {"name": name}}))
        .collect();
    // As long as a real one.
    let uid = format!("{name:-<36}");
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "n", "name": name, "uid": uid},
        "spec": {"containers": [], "volumes": volumes},
    }))
    .unwrap()
}

fn names() -> impl Iterator<Item = String> {
    (0..OBJECTS).map(|number| format!("config-{number}"))
}

/// A manager that knows all objects, and each object's name with the guard of the pod that refers to it.
struct Node {
    manager: ConfigMapManager,
    guards: Vec<(RegisteredPod<ConfigMap>, Vec<String>)>,
}

impl Node {
    fn synced(manager: ConfigMapManager, runtime: &Runtime) -> Self {
        let names: Vec<_> = names().collect();
        let pods = names.chunks(10).enumerate().map(|(number, names)| {
            let pod = pod(&format!("pod-{number}"), names.iter().cloned());
            (manager.registered(&pod), names.to_vec())
        });
        let guards = pods.collect();
        runtime.block_on(async {
            for name in &names {
                manager.get("n", name).await.unwrap();
            }
        });
        Self { manager, guards }
    }

    /// What `read` makes of objects, one after the other.
    fn reads<'a>(
        &'a self,
        count: u64,
        read: impl Fn(&'a ConfigMapManager, &'a RegisteredPod<ConfigMap>, &'a str),
    ) -> Duration {
        let objects = self
            .guards
            .iter()
            .flat_map(|(guard, names)| names.iter().map(move |name| (guard, name.as_str())));
        let objects: Vec<_> = objects.collect();
        let objects = objects.iter().cycle().take(usize::try_from(count).unwrap());
        cpu_time(|| objects.for_each(|(guard, name)| read(&self.manager, guard, name)))
    }
}

fn read_by_guard(_: &ConfigMapManager, guard: &RegisteredPod<ConfigMap>, name: &str) {
    let read = black_box(guard).get(black_box(name)).now_or_never();
    drop(black_box(read.unwrap().unwrap()));
}

fn read_by_name(manager: &ConfigMapManager, _: &RegisteredPod<ConfigMap>, name: &str) {
    let read = black_box(manager).get("n", black_box(name)).now_or_never();
    drop(black_box(read.unwrap().unwrap()));
}

/// Takes and gives back a reference: two atomic operations.
fn yardstick(c: &mut Criterion) {
    let shared = Arc::new(());
    let take = || drop(black_box(Arc::clone(black_box(&shared))));
    c.bench_function("yardstick, clone and drop of an Arc", |b| {
        b.iter_custom(|count| cpu_time(|| (0..count).for_each(|_| take())));
    });
}

/// The kubelet's own managers, in a process beside this one.
struct Kubelet {
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Ends with its input.
    _process: Child,
}

impl Kubelet {
    /// The program that `LARDER_KUBELET_MANAGERS` names.
    fn start() -> Option<Self> {
        let program = std::env::var_os("LARDER_KUBELET_MANAGERS")?;
        let (stdin, stdout) = (Stdio::piped(), Stdio::piped());
        let mut process = Command::new(program)
            .stdin(stdin)
            .stdout(stdout)
            .spawn()
            .unwrap();
        Some(Self {
            input: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()),
            _process: process,
        })
    }

    /// CPU time of one `what`, of `count`, in nanoseconds.
    fn measure(&mut self, what: &str, count: u64) -> f64 {
        writeln!(self.input, "{count} {what}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim().parse().unwrap()
    }

    /// Measures `what` and `run` in turns.
    fn alternate(&mut self, what: &str, mut run: impl FnMut(u64) -> Duration) {
        let (mut pairs, count) = (Vec::new(), ALTERNATING);
        for round in 0..ROUNDS {
            let ours = |run: &mut dyn FnMut(u64) -> Duration| {
                run(count).as_secs_f64() * 1e9 / count as f64
            };
            // Each goes first in half of the rounds.
            let first = (round % 2 == 0).then(|| ours(&mut run));
            let kubelet = self.measure(what, count);
            pairs.push((kubelet, first.unwrap_or_else(|| ours(&mut run))));
        }
        let median = |value: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<_> = pairs.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "  in turns: kubelet {:.0} ns, larder {:.1} ns, ratio {:.1}\n",
            median(|pair| pair.0),
            median(|pair| pair.1),
            median(|pair| pair.0 / pair.1)
        );
    }
}

/// A measurement, with the kubelet's figure and larder's budget, in nanoseconds.
struct Row {
    name: String,
    kubelet: f64,
    budget: f64,
    subject: Rc<RefCell<Option<Kubelet>>>,
}

impl Row {
    /// Measures `run`, which repeats its work a given number of times and returns how long that took.
    fn measure(&self, c: &mut Criterion, mut run: impl FnMut(u64) -> Duration) {
        self.measure_alone(c, &mut run);
        if ALTERNATED.contains(&&*self.name)
            && let Some(kubelet) = &mut *self.subject.borrow_mut()
        {
            kubelet.alternate(&self.name, run);
        }
    }

    fn measure_alone(&self, c: &mut Criterion, mut run: impl FnMut(u64) -> Duration) {
        let mut best = f64::INFINITY;
        c.bench_function(&self.name, |b| {
            b.iter_custom(|count| {
                let time = run(count);
                // The first rounds are short and cold.
                if count >= 1000 {
                    best = best.min(time.as_secs_f64() * 1e9 / count as f64);
                }
                time
            });
        });
        let (kubelet, budget) = (self.kubelet, self.budget);
        println!(
            "  best {best:.0} ns, budget {budget} ns, kubelet {kubelet} ns: {:.1} times as long\n",
            kubelet / best
        );
    }
}

/// The CPU time that this thread needs for `work`.
fn cpu_time(work: impl FnOnce()) -> Duration {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap()
    };
    let start = now();
    work();
    now().saturating_sub(start)
}

fn reads(
    c: &mut Criterion,
    node: &Node,
    strategy: &str,
    (kubelet, budget): (f64, f64),
    subject: &Rc<RefCell<Option<Kubelet>>>,
) {
    let row = |how: &str, budget| Row {
        name: format!("read of a known object {how}, {strategy}"),
        kubelet,
        budget,
        subject: Rc::clone(subject),
    };
    row("through the guard", budget).measure(c, |count| node.reads(count, read_by_guard));
    row("through the guard by two threads", budget).measure(c, |count| {
        thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(|| node.reads(count, read_by_guard)));
            let times = threads.map(|thread| thread.join().unwrap());
            times.into_iter().max()
        })
        .unwrap()
    });
    row("by name", kubelet).measure(c, |count| node.reads(count, read_by_name));
}

fn managers(c: &mut Criterion) {
    yardstick(c);
    let runtime = Runtime::new().unwrap();
    let _entered = runtime.enter();
    let watching = Node::synced(ConfigMapManager::watching(client()), &runtime);
    let subject = Rc::new(RefCell::new(Kubelet::start()));
    reads(c, &watching, "Watch", (258.0, 30.0), &subject);
    let caching = ConfigMapManager::caching(client(), NodeTtl::default());
    let cached = Node::synced(caching, &runtime);
    reads(c, &cached, "Cache", (100.0, 100.0), &subject);

    let row = |name: &str, kubelet, budget| Row {
        name: name.to_owned(),
        kubelet,
        budget,
        subject: Rc::clone(&subject),
    };
    let manager = &watching.manager;
    let pod_of_one = pod("one", names().take(1));
    row("register + unregister", 1733.0, 300.0).measure(c, |count| {
        cpu_time(|| {
            for _ in 0..count {
                manager.register_pod(black_box(&pod_of_one));
                manager.unregister_pod(black_box(&pod_of_one));
            }
        })
    });
    let pod_of_ten = pod("ten", names().take(10));
    manager.register_pod(&pod_of_ten);
    row("register again, 10 references", 2894.0, 500.0).measure(c, |count| {
        cpu_time(|| (0..count).for_each(|_| manager.register_pod(black_box(&pod_of_ten))))
    });
    let stored = |name: &str, object: &str| {
        let pod = pod(name, iter::once(object.to_owned()));
        Arc::new(StoredPod::new(pod).unwrap())
    };
    let (added, updated) = (stored("one", "config-0"), stored("one", "config-1"));
    for (others, kubelet) in [(100, 287.0), (1000, 268.0)] {
        let mut manager = PodManager::default();
        (0..others)
            .for_each(|other| manager.add_pod(stored(&format!("other-{other}"), "config-0")));
        let name = format!("add + update + remove a pod beside {others}");
        row(&name, kubelet, kubelet).measure(c, |count| {
            cpu_time(|| {
                for _ in 0..count {
                    manager.add_pod(Arc::clone(black_box(&added)));
                    manager.add_pod(Arc::clone(black_box(&updated)));
                    manager.remove_pod(black_box(&updated));
                }
            })
        });
    }
}

criterion_group!(benches, managers);
criterion_main!(benches);
