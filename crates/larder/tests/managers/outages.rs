//! Long outages of the API server under many watches: everything is in step soon after, in few requests, also with
//! another server in the place of the one before. Time paused.

use std::time::Duration;

use larder::{ConfigMapManager, ManagerConfig, ObjectState, WatchScope};
use tokio::time::{Instant, sleep};

use crate::{cluster::Cluster, scripted::pod_with};

const STEP: Duration = Duration::from_millis(100);
const STEPS_PER_SECOND: usize = 10;

/// The probe asks at least every 10 s.
const FOUND_OUT: Duration = Duration::from_secs(10);
/// After that, a hundred requests in a second on the average.
const APART: Duration = Duration::from_millis(10);

/// Objects that are followed, and hold `one`.
struct Scene {
    cluster: Cluster,
    manager: ConfigMapManager,
    names: Vec<String>,
}

impl Scene {
    async fn new(objects: usize, scope: WatchScope) -> Self {
        let cluster = Cluster::new();
        let config = ManagerConfig::default()
            .watch_scope(scope)
            // Nothing is idle here.
            .sync_frequency(Duration::from_hours(1));
        let manager = ConfigMapManager::new(cluster.client(), &config).unwrap();
        let scene = Self {
            cluster,
            manager,
            names: (0..objects).map(|number| format!("c{number}")).collect(),
        };
        scene.set("one");
        for (number, names) in scene.names.chunks(50).enumerate() {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            scene
                .manager
                .register_pod(&pod_with(&format!("p{number}"), &names));
        }
        sleep(Duration::from_secs(5)).await;
        assert!(scene.is_in_step());
        scene.serves("one").await;
        scene
    }

    fn set(&self, value: &str) {
        for name in &self.names {
            self.cluster.set(name, value, false);
        }
    }

    async fn serves(&self, value: &str) {
        for name in &self.names {
            let map = self.manager.get("n", name).await.unwrap();
            assert_eq!(map.data["k"], value, "{name}");
        }
    }

    fn is_in_step(&self) -> bool {
        let objects = self.manager.objects();
        objects
            .iter()
            .all(|object| object.failure.is_none() && object.age.is_zero())
    }

    /// Waits until all are in step again; the time, and the requests of the busiest second.
    async fn recover(&self) -> (Duration, usize) {
        let start = Instant::now();
        let mut requests = Vec::new();
        while !self.is_in_step() {
            assert!(start.elapsed() < Duration::from_mins(5));
            sleep(STEP).await;
            requests.push(self.cluster.requests().len());
        }
        let seconds = requests.windows(STEPS_PER_SECOND.min(requests.len()));
        let busiest = seconds.map(|steps| steps.iter().sum()).max();
        (start.elapsed(), busiest.unwrap_or_default())
    }
}

#[tokio::test(start_paused = true)]
async fn all_resync_soon_but_not_at_once_after_an_outage() {
    for objects in [1, 3, 100, 500] {
        let scene = Scene::new(objects, WatchScope::Object).await;
        scene.cluster.set_down(true);
        sleep(Duration::from_secs(30)).await;
        scene.cluster.requests();
        sleep(Duration::from_secs(270)).await;
        // Each asks by its back-off, which restarts every two minutes, and the probe every 5 to 10 s.
        let asked = scene.cluster.requests().len();
        assert!(asked <= objects * 20 + 270 / 5 + 1, "{asked}");
        scene.serves("one").await;
        scene.set("two");

        scene.cluster.set_down(false);
        scene.cluster.audit.take();
        let (waited, busiest) = scene.recover().await;
        let spread = APART * u32::try_from(objects).unwrap();
        assert!(waited <= FOUND_OUT + spread + STEP, "{objects}: {waited:?}");
        // The probe, then a hundred in a second, of 500 that would come together.
        assert!(busiest <= 101, "{objects}: {busiest} in a second");
        // The state of each, once.
        let audit = scene.cluster.audit.take();
        assert_eq!(audit.len(), objects);
        scene.serves("two").await;
        scene.set("three");
        sleep(STEP).await;
        scene.serves("three").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_and_goes_is_not_overrun() {
    let scene = Scene::new(500, WatchScope::Object).await;
    for _ in 0..8 {
        scene.cluster.set_down(true);
        sleep(Duration::from_secs(20)).await;
        scene.cluster.set_down(false);
        scene.cluster.requests();
        let mut seconds = Vec::new();
        for _ in 0..8 {
            sleep(Duration::from_secs(1)).await;
            seconds.push(scene.cluster.requests().len());
        }
        // Some ask at once when their watches are cut, as after any interruption.
        assert!(seconds.iter().all(|second| *second <= 200), "{seconds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_reader_waits_for_comes_before_the_rest() {
    let cluster = Cluster::new();
    cluster.set_down(true);
    let manager = ConfigMapManager::watching(cluster.client());
    let names: Vec<_> = (0..500).map(|number| format!("c{number}")).collect();
    for (number, names) in names.chunks(50).enumerate() {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        manager.register_pod(&pod_with(&format!("p{number}"), &names));
    }
    sleep(Duration::from_mins(1)).await;
    for name in &names {
        cluster.set(name, "one", false);
    }
    cluster.set_down(false);
    let synced = || {
        let objects = manager.objects().into_iter();
        objects.filter(|object| object.state == ObjectState::Synced)
    };
    while synced().count() < 10 {
        sleep(APART).await;
    }
    let missing = names
        .iter()
        .rfind(|name| synced().all(|object| object.key.name != **name));
    let start = Instant::now();
    let map = manager.get("n", missing.unwrap()).await.unwrap();
    assert_eq!(map.data["k"], "one");
    assert!(start.elapsed() <= APART * 2, "{:?}", start.elapsed());
    assert!(synced().count() < 50);
}

/// Another server is in the place of the one that was followed, at older versions: it was restored from a backup.
async fn is_replaced(scope: WatchScope) {
    let mut scene = Scene::new(100, scope).await;
    scene.set("later");
    sleep(STEP).await;
    scene.serves("later").await;
    scene.cluster.set_down(true);
    sleep(Duration::from_mins(2)).await;
    scene.cluster.replace();
    let lost = scene.names.pop().unwrap();
    scene.set("restored");
    scene.serves("later").await;
    scene.cluster.set_down(false);
    scene.cluster.requests();
    let (waited, _) = scene.recover().await;
    // What is older is requested twice.
    let twice = (APART * 100 + Duration::from_secs(2)) * 2;
    assert!(waited <= FOUND_OUT + twice, "{waited:?}");
    scene.serves("restored").await;
    let read = scene.manager.get("n", &lost).await;
    assert!(read.unwrap_err().is_not_found());
    // What happens there is followed from now on, at versions that were seen before.
    scene.set("followed");
    scene.cluster.set(&lost, "found", false);
    sleep(STEP).await;
    scene.serves("followed").await;
    let found = scene.manager.get("n", &lost).await.unwrap();
    assert_eq!(found.data["k"], "found");
}

// B14
#[tokio::test(start_paused = true)]
async fn a_server_restored_from_a_backup_is_believed() {
    is_replaced(WatchScope::Object).await;
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_is_believed_about_a_namespace() {
    is_replaced(WatchScope::Namespace).await;
}
