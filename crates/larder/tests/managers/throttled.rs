//! An API server that answers every request with 429 for a minute, under 500 watches.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use larder::{ConfigMapManager, ObjectState};
use larder_apiserver::Fault;
use tokio::time::sleep;

use crate::{cluster::Cluster, scripted::pod_with};

/// Watched objects, and how many of them a pod mounts.
const OBJECTS: usize = 500;
const VOLUMES: usize = 50;
/// What the server asks for, in seconds.
const RETRY_AFTER: u32 = 5;

fn name(number: usize) -> String {
    format!("c-{number:03}")
}

/// Every object is served with that value; `behind` returns whether its watch may be broken.
async fn check(manager: &ConfigMapManager, value: &str, behind: bool) {
    let objects = manager.objects();
    assert_eq!(objects.len(), OBJECTS);
    for object in objects {
        let read = manager.get("n", &object.key.name).await.unwrap();
        assert_eq!(read.data["k"], value);
        assert!(behind || object.failure.is_none(), "{object:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_429_ends_without_a_herd() {
    let cluster = Cluster::new();
    for number in 0..OBJECTS {
        cluster.set(&name(number), "before", false);
    }
    let manager = ConfigMapManager::watching(cluster.client());
    for pod in 0..OBJECTS / VOLUMES {
        let names: Vec<_> = (pod * VOLUMES..(pod + 1) * VOLUMES).map(name).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        manager.register_pod(&pod_with(&format!("p{pod}"), &names));
    }
    let synced = |manager: &ConfigMapManager| {
        let objects = manager.objects().into_iter();
        objects
            .filter(|object| object.state == ObjectState::Synced && object.failure.is_none())
            .count()
    };
    while synced(&manager) < OBJECTS {
        sleep(Duration::from_millis(100)).await;
    }
    check(&manager, "before", false).await;

    let fault = Fault::on_any().retry_after(429, RETRY_AFTER);
    let busy = cluster.server.faults().inject(fault);
    cluster.requests();
    cluster.cut();
    let mut during = Vec::new();
    for second in 0..60 {
        sleep(Duration::from_secs(1)).await;
        during.push(cluster.requests().len());
        if second == 30 {
            for number in 0..OBJECTS {
                cluster.set(&name(number), "after", false);
            }
        }
        if second % 10 == 0 {
            check(&manager, "before", true).await;
        }
    }
    assert_eq!(synced(&manager), 0);
    // Each once before the time that the server asks for is over, and then ever less often; never all at once.
    let (total, busiest): (usize, _) = (during.iter().sum(), *during.iter().max().unwrap());
    assert!(busiest <= 200, "{during:?}");
    let pause = usize::try_from(RETRY_AFTER).unwrap();
    assert_eq!(during[..pause].iter().sum::<usize>(), OBJECTS, "{during:?}");
    // The probe, every 5 s at most, comes on top.
    let most = OBJECTS * (60 / pause) / 2 + 60 / 5;
    assert!(total <= most, "{total}: {during:?}");

    cluster.server.faults().clear();
    drop(busy);
    let mut after = Vec::new();
    while synced(&manager) < OBJECTS {
        sleep(Duration::from_secs(1)).await;
        after.push(cluster.requests().len());
        // One requester probes every 5 to 10 s, and no other is throttled for longer than that.
        assert!(
            after.len() <= 20,
            "{} are in step: {after:?}",
            synced(&manager)
        );
    }
    check(&manager, "after", false).await;
    // Straight to the stream, which no test runner holds back.
    let text = format!("requests each second, during: {during:?}, after: {after:?}\n");
    io::stderr().write_all(text.as_bytes()).unwrap();
    // Each watch is opened again, or lists once more, at the limited rate.
    let (total, busiest): (usize, _) = (after.iter().sum(), *after.iter().max().unwrap());
    assert!(total <= 2 * OBJECTS, "{total}: {after:?}");
    assert!(busiest <= OBJECTS / 5, "{after:?}");
}
