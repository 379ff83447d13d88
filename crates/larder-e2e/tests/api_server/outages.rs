//! Outages under many watches, against either API server: known objects stay served, everything recovers by itself,
//! nothing is stale afterwards, and returning clients do not overrun the server.
//!
//! The bounds are on numbers of requests. Each test prints the number in the busiest second.
//!
//! An outage takes its time: on the embedded server, where `larder`'s own tests do the same in paused time, these run
//! only with `LARDER_ROUNDS`.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use larder::{ConfigMapManager, ManagerConfig};
use larder_e2e::{Identity, NODE, Proxy, Server, rounds};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::connect::connect;

/// Watched objects.
const OBJECTS: usize = 500;
/// As many as a pod may plausibly mount.
const VOLUMES: usize = 50;
/// Objects that change during an outage.
const CHANGED: usize = 100;
/// Longer than anything here takes, restarts of a real server included.
const PATIENCE: Duration = Duration::from_mins(3);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A node with [`OBJECTS`] watches, all synced.
struct Scene {
    server: Server,
    proxy: Proxy,
    manager: ConfigMapManager,
    /// Requests before the outage.
    before: usize,
}

impl Scene {
    /// With the node connected through the proxy, or directly to the server; `None` where it is not to run.
    async fn start(through_proxy: bool) -> Option<Self> {
        Self::of(Identity::Node, through_proxy).await
    }

    /// With a client of that identity in place of the node's.
    async fn of(identity: Identity, through_proxy: bool) -> Option<Self> {
        if std::env::var_os("KUBEBUILDER_ASSETS").is_none() && rounds(1) == 1 {
            return None;
        }
        let server = Server::start().await.unwrap();
        let proxy = Proxy::start(server.address()).await.unwrap();
        create(&server, "0").await;
        let pods: Api<Pod> = Api::default_namespaced(server.client().await.unwrap());
        let path = if through_proxy {
            server.kubeconfig_through(&proxy, identity)
        } else {
            server.kubeconfig(identity)
        };
        let client = connect(path.unwrap()).await;
        let manager = ConfigMapManager::new(client, &ManagerConfig::default()).unwrap();
        for number in 0..OBJECTS / VOLUMES {
            let pod = pods.create(&PostParams::default(), &pod(number)).await;
            manager.register_pod(&pod.unwrap());
        }
        let mut scene = Self {
            server,
            proxy,
            manager,
            before: 0,
        };
        scene.all_in_step().await;
        scene.before = scene.server.node_requests().unwrap().len();
        Some(scene)
    }

    /// Gives some objects this value.
    async fn change(&self, value: &str) {
        let maps: Api<ConfigMap> = Api::default_namespaced(self.server.client().await.unwrap());
        let patch = Patch::Merge(json!({"data": {"key": value}}));
        in_parallel(0..CHANGED, async |index| {
            let name = format!("c-{:03}", index * (OBJECTS / CHANGED));
            maps.patch(&name, &PatchParams::default(), &patch)
                .await
                .unwrap();
        })
        .await;
    }

    /// Checks that every object is served with its value of before the outage.
    async fn all_are_served(&self) {
        for object in self.manager.objects() {
            let map = self.manager.get("default", &object.key.name).await.unwrap();
            assert_eq!(map.data["key"], "0");
        }
    }

    /// Waits until the sync of this many objects has failed.
    async fn until_failing(&self, failing: usize) {
        let count = || {
            let objects = self.manager.objects().into_iter();
            objects.filter(|object| object.failure.is_some()).count()
        };
        let noticed = timeout(PATIENCE, async {
            while count() < failing {
                sleep(POLL_INTERVAL).await;
            }
        });
        assert!(
            noticed.await.is_ok(),
            "only {} objects have failed",
            count()
        );
    }

    /// Waits until every object is watched again and equals the API server's. Returns the time that it took.
    async fn all_in_step(&self) -> Duration {
        let start = Instant::now();
        let client = self.server.client().await.unwrap();
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let listed = maps.list(&ListParams::default()).await.unwrap();
        let wanted: BTreeMap<_, _> = listed
            .iter()
            .map(|map| (map.name_any(), map.resource_version().unwrap()))
            .collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let objects = self.manager.objects().into_iter();
            let behind: Vec<_> = objects
                .filter(|object| {
                    object.failure.is_some()
                        || !object.age.is_zero()
                        || wanted.get(object.key.name.as_str()).map(String::as_str)
                            != Some(&*object.version.to_string())
                })
                .collect();
            if behind.is_empty() {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{} objects are behind, such as {:?}",
                behind.len(),
                behind[0]
            );
            sleep(POLL_INTERVAL).await;
        }
        let took = start.elapsed();
        for map in &listed {
            if map.name_any() != "kube-root-ca.crt" {
                let got = self.manager.get("default", &map.name_any()).await.unwrap();
                assert_eq!(
                    got.data["key"].as_bytes(),
                    map.data.as_ref().unwrap()["key"].as_bytes()
                );
            }
        }
        took
    }

    /// Prints the requests since the outage began, those of the busiest second, and the time until all watches were
    /// synced.
    fn requests(&self, what: &str, waited: Duration) -> usize {
        let requests = self.server.node_requests().unwrap().split_off(self.before);
        let mut verbs: BTreeMap<&str, usize> = BTreeMap::new();
        for request in &requests {
            *verbs.entry(&request.verb).or_default() += 1;
        }
        let times: Vec<Timestamp> = requests.iter().map(|request| request.at).collect();
        let within_a_second = |start: &Timestamp| {
            let after = times.iter().filter(|time| *time >= start);
            after
                .filter(|time| time.duration_since(*start).as_secs() < 1)
                .count()
        };
        let busiest = times.iter().map(within_a_second).max().unwrap_or_default();
        let text = format!(
            "{what}, {OBJECTS} watches, {}: {} requests {verbs:?}, at most {busiest} in a second; synced after {:.1} s\n",
            self.server.name(),
            requests.len(),
            waited.as_secs_f64(),
        );
        // Straight to the stream, which no test runner holds back.
        io::stderr().write_all(text.as_bytes()).unwrap();
        requests.len()
    }
}

/// Creates all objects with this value.
async fn create(server: &Server, value: &str) {
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await.unwrap());
    in_parallel(0..OBJECTS, async |index| {
        let map = json!({"metadata": {"name": format!("c-{index:03}")}, "data": {"key": value}});
        let map = serde_json::from_value(map).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    })
    .await;
}

/// A pod of the node that mounts some of the objects.
fn pod(number: usize) -> Pod {
    let volumes: Vec<_> = (number * VOLUMES..(number + 1) * VOLUMES)
        .map(|index| json!({"name": format!("v{index}"), "configMap": {"name": format!("c-{index:03}")}}))
        .collect();
    let pod = json!({
        "metadata": {"name": format!("p-{number}")},
        "spec": {
            "nodeName": NODE,
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": volumes,
        },
    });
    serde_json::from_value(pod).unwrap()
}

async fn in_parallel(indices: std::ops::Range<usize>, work: impl AsyncFn(usize)) {
    stream::iter(indices)
        .for_each_concurrent(8, |index| work(index))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catching_up_with_a_restarted_server_takes_few_requests() {
    let Some(mut scene) = Scene::start(false).await else {
        return;
    };
    scene.server.kill().await;
    scene.until_failing(OBJECTS).await;
    scene.all_are_served().await;
    scene.server.restart().await.unwrap();
    scene.change("1").await;
    let waited = scene.all_in_step().await;
    // The request for the state of each is its watch as well.
    let requests = scene.requests("server killed and restarted", waited);
    assert!(requests <= 4 * OBJECTS, "{requests}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_an_emptied_server_is_accepted() {
    // The API server denies a node the objects that its pods there do not reference, and the node would request them
    // again in any case. The administrator is not denied.
    let Some(mut scene) = Scene::of(Identity::Admin, false).await else {
        return;
    };
    for value in ["1", "2", "3"] {
        scene.change(value).await;
    }
    scene.all_in_step().await;
    scene.server.kill().await;
    scene.until_failing(OBJECTS).await;
    scene.server.forget().unwrap();
    scene.server.restart().await.unwrap();
    // At versions, on a real server, that were seen before.
    create(&scene.server, "restored").await;
    scene.all_in_step().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_compacted_during_an_outage_is_listed_again() {
    let Some(mut scene) = Scene::start(true).await else {
        return;
    };
    scene.proxy.stall(true);
    scene.change("1").await;
    scene.server.compact().await.unwrap();
    scene.all_are_served().await;
    // A real server answers from its watch cache, unless it was restarted.
    scene.server.kill().await;
    scene.server.restart().await.unwrap();
    scene.proxy.cut();
    scene.proxy.stall(false);
    let waited = scene.all_in_step().await;
    let requests = scene.requests("etcd compacted while the node was cut off", waited);
    assert!(requests <= 4 * OBJECTS, "{requests}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_requests_are_answered_with_fewer() {
    let Some(mut scene) = Scene::start(true).await else {
        return;
    };
    let began = Instant::now();
    scene.server.throttle(&scene.proxy).await.unwrap();
    scene.proxy.cut();
    scene.until_failing(OBJECTS).await;
    scene.change("1").await;
    scene.all_are_served().await;
    scene.server.relax(&scene.proxy);
    let waited = scene.all_in_step().await;
    let requests = scene.requests("429 with Retry-After: 1", waited);
    // No request is repeated before the server's `Retry-After` of a second.
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
    assert!(
        requests <= OBJECTS * (seconds + 3),
        "{requests} in {seconds} s"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewed_credentials_are_picked_up() {
    let Some(mut scene) = Scene::start(false).await else {
        return;
    };
    scene.server.expire_credentials().await.unwrap();
    scene.until_failing(OBJECTS).await;
    scene.all_are_served().await;
    scene.change("1").await;
    scene.server.renew_credentials().unwrap();
    let waited = scene.all_in_step().await;
    let requests = scene.requests("credentials expired and renewed", waited);
    // One request at a time probes with the new credentials; then each watch is resumed, some after a list.
    assert!(requests <= 3 * OBJECTS, "{requests}");
}
