use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use futures::{StreamExt as _, poll, stream::FuturesUnordered};
use larder_projection::VolumeKind;
use rustix::mount::UnmountFlags;
use tokio::{task::unconstrained, time::timeout};

use super::*;
use crate::{kubelet_dir::Mounts, testing::KubeletVolumes};

/// Longest wait for the kernel: a test that needs it has failed.
const PATIENCE: Duration = Duration::from_mins(1);

const ID: VolumeId<'static> = VolumeId {
    pod_uid: "u",
    kind: VolumeKind::ConfigMap,
    name: "v",
};

fn swaps_of(kubelet: &KubeletVolumes, detection: SwapDetection) -> Swaps {
    let directory = kubelet.open(Mounts::NotExpected);
    Swaps::new(Arc::new(directory), detection)
}

/// A pod whose volume `id` is on disk and is followed as 0.
fn following(kubelet: &KubeletVolumes, id: &VolumeId<'_>) -> (Swaps, PodSwaps) {
    kubelet.swap(id);
    let swaps = swaps_of(kubelet, SwapDetection::Inotify);
    let mut pod = swaps.of_pod();
    pod.follow(0, id);
    (swaps, pod)
}

async fn next(swaps: &mut PodSwaps) -> (usize, SwapSignal) {
    timeout(PATIENCE, swaps.next())
        .await
        .expect("the kernel sends an event")
}

#[tokio::test(start_paused = true)]
async fn polling_is_frequent_after_a_touch_and_rare_later() {
    let kubelet = KubeletVolumes::new();
    let swaps = swaps_of(&kubelet, SwapDetection::Polling);
    let mut pod = swaps.of_pod();
    pod.follow(7, &ID);
    for _ in 0..2 {
        let start = Instant::now();
        let mut ages = Vec::new();
        while start.elapsed() < Duration::from_secs(4) {
            assert_eq!(pod.next().await, (7, SwapSignal::Look));
            ages.push(start.elapsed().as_millis());
        }
        let within = |from, to| ages.iter().filter(|age| (from..to).contains(*age)).count();
        assert_eq!(within(0, 500), 24, "{ages:?}");
        assert_eq!(within(500, 1500), 10, "{ages:?}");
        assert_eq!(within(1500, 4000), 3, "{ages:?}");
        pod.restart();
    }
    pod.unfollow(7);
    timeout(Duration::from_hours(1), pod.next())
        .await
        .expect_err("nothing is followed");
}

#[tokio::test(start_paused = true)]
async fn signals_that_arrive_together_are_taken_together() {
    let kubelet = KubeletVolumes::new();
    let mut pod = swaps_of(&kubelet, SwapDetection::Polling).of_pod();
    assert_eq!(pod.pending(), None);
    for key in 0..3 {
        pod.follow(key, &ID);
    }
    assert_eq!(pod.next().await, (0, SwapSignal::Look));
    assert_eq!(pod.pending(), Some((1, SwapSignal::Look)));
    assert_eq!(pod.pending(), Some((2, SwapSignal::Look)));
    assert_eq!(pod.pending(), None);
}

#[tokio::test]
async fn swap_is_signaled_and_nothing_else_is() {
    let kubelet = KubeletVolumes::new();
    let (_swaps, mut pod) = following(&kubelet, &ID);
    fs::read(kubelet.path(&ID).join("a")).unwrap();
    fs::write(kubelet.path(&ID).join("other"), "").unwrap();
    fs::rename(
        kubelet.path(&ID).join("other"),
        kubelet.path(&ID).join("moved"),
    )
    .unwrap();
    kubelet.swap(&ID);
    kubelet.swap(&ID);
    assert_eq!(next(&mut pod).await, (0, SwapSignal::Swapped));
    // Both swaps were there before the first was received; nothing else follows.
    assert!(poll!(std::pin::pin!(pod.next())).is_pending());
    kubelet.swap(&ID);
    assert_eq!(next(&mut pod).await, (0, SwapSignal::Swapped));
}

#[tokio::test]
async fn each_pod_gets_its_own_signals_whichever_reader_reads_them() {
    let kubelet = KubeletVolumes::new();
    let other = VolumeId { pod_uid: "w", ..ID };
    kubelet.swap(&ID);
    kubelet.swap(&other);
    let swaps = swaps_of(&kubelet, SwapDetection::Inotify);
    let (mut first, mut second, mut third) = (swaps.of_pod(), swaps.of_pod(), swaps.of_pod());
    first.follow(0, &ID);
    first.follow(1, &other);
    second.follow(0, &other);
    third.follow(0, &other);
    drop(third);
    kubelet.swap(&other);
    // The first reads the events of the second.
    assert_eq!(next(&mut first).await, (1, SwapSignal::Swapped));
    assert_eq!(next(&mut second).await, (0, SwapSignal::Swapped));
    drop(second);
    kubelet.swap(&ID);
    kubelet.swap(&other);
    assert_eq!(next(&mut first).await, (0, SwapSignal::Swapped));
    assert_eq!(next(&mut first).await, (1, SwapSignal::Swapped));
    drop(first);
    let inotify = swaps.inotify.as_ref().unwrap();
    assert!(inotify.watches.lock().is_empty());
}

#[tokio::test]
async fn recreated_directory_is_polled_until_it_is_followed_again() {
    let kubelet = KubeletVolumes::new();
    let (_swaps, mut pod) = following(&kubelet, &ID);
    for round in 0..2 {
        if round == 0 {
            fs::remove_dir_all(kubelet.path(&ID)).unwrap();
        } else {
            fs::rename(kubelet.path(&ID), kubelet.root.path().join("aside")).unwrap();
        }
        while next(&mut pod).await != (0, SwapSignal::Gone) {}
        assert_eq!(next(&mut pod).await, (0, SwapSignal::Look));
        pod.follow(0, &ID);
        assert_eq!(next(&mut pod).await, (0, SwapSignal::Look));
        kubelet.swap(&ID);
        pod.follow(0, &ID);
        kubelet.swap(&ID);
        assert_eq!(next(&mut pod).await, (0, SwapSignal::Swapped));
    }
}

#[tokio::test]
async fn overflow_of_the_queue_signals_all_volumes() {
    let kubelet = KubeletVolumes::new();
    let (_swaps, mut pod) = following(&kubelet, &ID);
    let quiet = VolumeId {
        name: "quiet",
        ..ID
    };
    kubelet.swap(&quiet);
    pod.follow(1, &quiet);
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let (a, b) = (kubelet.path(&ID).join("x"), kubelet.path(&ID).join("y"));
    fs::write(&a, "").unwrap();
    for _ in 0..=limit / 2 {
        fs::rename(&a, &b).unwrap();
        fs::rename(&b, &a).unwrap();
    }
    assert_eq!(next(&mut pod).await, (0, SwapSignal::Look));
    assert_eq!(next(&mut pod).await, (1, SwapSignal::Look));
    kubelet.swap(&quiet);
    assert_eq!(next(&mut pod).await, (1, SwapSignal::Swapped));
}

#[tokio::test]
async fn watch_blocks_no_unmount_and_ends_with_it() {
    // beside-kubelet 28
    let Some(kubelet) = KubeletVolumes::with_mounts() else {
        return;
    };
    let id = VolumeId {
        kind: VolumeKind::Secret,
        ..ID
    };
    let (_swaps, mut pod) = following(&kubelet, &id);
    kubelet.swap(&id);
    assert_eq!(next(&mut pod).await, (0, SwapSignal::Swapped));
    // EBUSY if anything were open.
    rustix::mount::unmount(kubelet.path(&id), UnmountFlags::empty()).unwrap();
    assert_eq!(next(&mut pod).await, (0, SwapSignal::Gone));
}

#[tokio::test]
async fn volumes_are_followed_from_a_thread_that_may_wait_for_the_disk() {
    let kubelet = KubeletVolumes::new();
    kubelet.swap(&ID);
    let pod = swaps_of(&kubelet, SwapDetection::Inotify).of_pod();
    let volumes = vec![(3, ID.kind, ID.name.into())];
    let following = thread::spawn(move || pod.follow_all(ID.pod_uid, volumes));
    let mut pod = following.join().unwrap();
    kubelet.swap(&ID);
    assert_eq!(next(&mut pod).await, (3, SwapSignal::Swapped));
}

#[tokio::test]
async fn swap_of_one_pod_wakes_few_of_many_waiters() {
    const PODS: usize = 100;
    let kubelet = KubeletVolumes::new();
    let uids: Vec<_> = (0..PODS).map(|index| format!("u{index}")).collect();
    let ids = uids.iter().map(|uid| VolumeId { pod_uid: uid, ..ID });
    let ids: Vec<_> = ids.collect();
    for id in &ids {
        kubelet.swap(id);
    }
    let swaps = swaps_of(&kubelet, SwapDetection::Inotify);
    let polls = AtomicUsize::new(0);
    let waiting = ids.iter().enumerate().map(|(index, id)| {
        let mut pod = swaps.of_pod();
        pod.follow(index, id);
        let mut next = Box::pin(async move { pod.next().await });
        let polls = &polls;
        std::future::poll_fn(move |context| {
            polls.fetch_add(1, Ordering::Relaxed);
            next.as_mut().poll(context)
        })
    });
    let mut waiting: FuturesUnordered<_> = waiting.collect();
    assert!(poll!(unconstrained(waiting.next())).is_pending());
    assert_eq!(polls.swap(0, Ordering::Relaxed), PODS);
    // Those whose pod was swapped leave, so that others wait for the kernel.
    for index in [PODS / 2, 0, PODS - 1] {
        kubelet.swap(&ids[index]);
        let noticed = timeout(PATIENCE, unconstrained(waiting.next())).await;
        assert_eq!(noticed.unwrap(), Some((index, SwapSignal::Swapped)));
    }
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls <= 12, "{polls} polls for three swaps");
}
