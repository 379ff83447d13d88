//! Outages of the API server, and what health says of them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt as _;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use larder_apiserver::{ApiKind, Fault, Verb};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::world::{World, meanwhile, until};

/// Watches that fall silent without closing, as behind a firewall that forgets connections.
#[derive(Default)]
struct Silence(Arc<Mutex<Vec<Arc<AtomicBool>>>>);

impl Silence {
    /// A client whose watches can fall silent.
    fn client(&self, world: &World) -> kube::Client {
        let (client, open) = (world.client(), Arc::clone(&self.0));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (client, open) = (client.clone(), Arc::clone(&open));
            async move {
                let is_watch = request.uri().to_string().contains("watch=true");
                let response = client.send(request).await?;
                let silent = Arc::<AtomicBool>::default();
                if is_watch {
                    open.lock().push(Arc::clone(&silent));
                }
                Ok::<_, kube::Error>(response.map(|body| {
                    StreamBody::new(body.into_data_stream().then(move |data| {
                        let silent = Arc::clone(&silent);
                        async move {
                            if silent.load(Ordering::SeqCst) {
                                std::future::pending::<()>().await;
                            }
                            data.map(Frame::data)
                        }
                    }))
                }))
            }
        });
        kube::Client::new(service, "default")
    }

    /// Nothing comes over the watches that are open, from now on.
    fn begin(&self) {
        for watch in &*self.0.lock() {
            watch.store(true, Ordering::SeqCst);
        }
    }
}

// sidecar 40
#[tokio::test(start_paused = true)]
async fn silent_watch_is_opened_anew_and_the_change_meanwhile_arrives() {
    let world = World::new().with("WATCH_CLIENT_TIMEOUT", "60");
    world.config_map("n", "a", &[("a", "1")]);
    let silence = Silence::default();
    let sidecar = world.start_with(silence.client(&world));
    until(|| sidecar.health.is_ready() && world.api.open_watches() == 1).await;
    let before = world.requests().len();
    silence.begin();
    world.config_map("n", "a", &[("a", "2")]);
    let began = Instant::now();
    while world.files() != "a=2" {
        assert!(sidecar.health.live(None, Instant::now()).is_ok);
        assert!(
            began.elapsed() <= Duration::from_mins(2),
            "{}",
            world.files()
        );
        sleep(Duration::from_secs(1)).await;
    }
    assert!(began.elapsed() >= Duration::from_secs(50), "it was silent");
    let request = &world.requests()[before];
    assert_eq!(request.verb, "watch");
    let is_resumed = request.query.contains("resourceVersion=");
    assert!(is_resumed, "{}", request.query);
}

// sidecar 42
#[tokio::test(start_paused = true)]
async fn stopped_worker_fails_health_within_four_minutes() {
    let world = World::new();
    world.config_map("n", "a", &[("a", "1")]);
    let sidecar = world.ready().await;
    let health = Arc::clone(&sidecar.health);
    // While it runs, quiet times are no problem.
    sleep(Duration::from_mins(30)).await;
    assert!(health.live(None, Instant::now()).is_ok);
    sidecar.kill().await;
    sleep(Duration::from_mins(4)).await;
    let live = health.live_and_ready(None, Instant::now());
    let is_named = live.body.contains("configmaps in namespace n: no sign for");
    assert!(!live.is_ok && is_named, "{}", live.body);
}

// sidecar 41
#[tokio::test(start_paused = true)]
async fn outage_changes_no_file_and_deletions_of_the_meantime_arrive() {
    let world = World::new();
    world.config_map("n", "a", &[("a", "1")]);
    world.config_map("n", "b", &[("b", "1")]);
    let sidecar = world.ready().await;
    let fault = world.api.faults().inject(Fault::on_any().drop_connection());
    world.api.faults().cut_watches();
    sleep(Duration::from_mins(10)).await;
    assert_eq!(world.files(), "a=1 b=1");
    let now = Instant::now();
    assert!(sidecar.health.ready(now).is_ok);
    let live = sidecar.health.live(None, now);
    assert!(
        live.is_ok && live.body.contains("degraded"),
        "{}",
        live.body
    );
    assert!(!sidecar.health.live(Some(Duration::from_mins(1)), now).is_ok);
    world.delete(ApiKind::ConfigMap, "n", "a");
    world.config_map("n", "b", &[("b", "2")]);
    fault.lift();
    let back = Instant::now();
    world.until_files("b=2").await;
    assert!(
        back.elapsed() <= Duration::from_mins(1),
        "{:?}",
        back.elapsed()
    );
    let live = sidecar
        .health
        .live(Some(Duration::from_mins(1)), Instant::now());
    assert!(
        live.is_ok && !live.body.contains("degraded"),
        "{}",
        live.body
    );
}

// sidecar 43
#[tokio::test(start_paused = true)]
async fn forbidden_namespace_keeps_readiness_away_and_nothing_of_it_is_removed() {
    let world = World::new().with("NAMESPACE", "a,b");
    world.config_map("a", "x", &[("x", "1")]);
    world.config_map("b", "y", &[("y", "1")]);
    world.ready().await.kill().await;
    let _fault = world
        .api
        .faults()
        .inject(Fault::on_any().namespace("b").status(403));
    world.config_map("a", "x", &[("x", "2")]);
    world.delete(ApiKind::ConfigMap, "b", "y");
    let sidecar = world.start();
    world.until_files("x=2 y=1").await;
    sleep(Duration::from_mins(5)).await;
    let ready = sidecar.health.live_and_ready(None, Instant::now());
    assert!(!ready.is_ok);
    assert!(
        ready.body.contains("configmaps in namespace b"),
        "{}",
        ready.body
    );
    assert_eq!(world.files(), "x=2 y=1");
}

// sidecar 47
#[tokio::test(start_paused = true)]
async fn no_file_is_lost_over_expired_throttled_and_cut_watches() {
    let world = World::new();
    for name in ["a", "b", "c"] {
        world.config_map("n", name, &[(name, "1")]);
    }
    let _sidecar = world.ready().await;
    let paths = ["a", "b", "c"].map(|name| world.folder().join(name));
    let reader = meanwhile(move || {
        for path in &paths {
            assert!(path.exists(), "{} is lost", path.display());
        }
    });
    // Its version is too old, as a status and as an event.
    let fault = Fault::on(Verb::Watch).times(1).status(410);
    let fault = world.api.faults().inject(fault);
    world.api.faults().cut_watches();
    until(|| fault.hits() == 1).await;
    world.api.faults().cut_watches();
    world.config_map("n", "a", &[("a", "2")]);
    world.api.compact();
    world.until_files("a=2 b=1 c=1").await;
    // Throttled.
    let fault = Fault::on_any().times(3).retry_after(429, 2);
    let fault = world.api.faults().inject(fault);
    world.api.faults().cut_watches();
    world.config_map("n", "b", &[("b", "2")]);
    world.until_files("a=2 b=2 c=1").await;
    assert_eq!(fault.hits(), 3);
    // Cut in the middle of an object.
    for bytes in [10, 200, 500] {
        let fault = Fault::on(Verb::Watch);
        let fault = world
            .api
            .faults()
            .inject(fault.times(1).cut_after_bytes(bytes));
        world.api.faults().cut_watches();
        let text = bytes.to_string();
        world.config_map("n", "c", &[("c", &text)]);
        world.until_files(&format!("a=2 b=2 c={bytes}")).await;
        fault.lift();
    }
    reader.end();
}

// sidecar 43, 45: also when the object that takes over cannot be read at first
#[tokio::test(start_paused = true)]
async fn file_of_a_deleted_object_keeps_readiness_until_the_next_owner_was_read() {
    let world = World::new();
    world.config_map("n", "z", &[("p", "old")]);
    world.ready().await.kill().await;
    world.delete(ApiKind::ConfigMap, "n", "z");
    world.config_map("n", "a", &[("p", "new")]);
    let fault = Fault::on(Verb::List).name("a").times(3);
    let fault = world.api.faults().inject(fault.retry_after(429, 5));
    let sidecar = world.start();
    for hits in 1..=3 {
        until(|| fault.hits() == hits).await;
        let now = Instant::now();
        assert!(!sidecar.health.ready(now).is_ok, "after {hits}");
        assert_eq!(world.files(), "p=old");
    }
    let began = Instant::now();
    until(|| sidecar.health.is_ready()).await;
    assert!(
        began.elapsed() >= Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(world.files(), "p=new");
}
