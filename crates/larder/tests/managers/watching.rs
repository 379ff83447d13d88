//! Strategy `Watch` against a scripted API server, with time paused.

use std::time::Duration;

use larder::{ConfigMapManager, ObjectState};

use crate::scripted::{Script, immutable, object, pod};

fn manager() -> (ConfigMapManager, Script) {
    let (client, script) = Script::new();
    (ConfigMapManager::watching(client), script)
}

async fn value(manager: &ConfigMapManager) -> String {
    match manager.get("n", "a").await {
        Ok(map) => map.data["k"].clone(),
        Err(error) => error.to_string(),
    }
}

// managers 21
#[tokio::test(start_paused = true)]
async fn readers_follow_the_object() {
    let (manager, mut script) = manager();
    manager.register_pod(&pod("p1"));
    let stream = script.next().await.synced(5, None);
    assert_eq!(value(&manager).await, r#"configmap "a" not found"#);

    let mut changes = manager.subscribe();
    stream.event("ADDED", &object(6, "one"));
    changes.next().await.unwrap();
    assert_eq!(value(&manager).await, "one");
    stream.event("DELETED", &object(7, "one"));
    changes.next().await.unwrap();
    assert_eq!(value(&manager).await, r#"configmap "a" not found"#);

    manager.unregister_pod(&pod("p1"));
    assert_eq!(value(&manager).await, r#"object "n"/"a" not registered"#);
}

// managers 22, 23
#[tokio::test(start_paused = true)]
async fn one_watch_whatever_the_number_of_pods_and_none_after_the_last() {
    let (manager, mut script) = manager();
    manager.register_pod(&pod("p1"));
    let request = script.next().await;
    assert!(
        request
            .path_and_query
            .starts_with("/api/v1/namespaces/n/configmaps?")
    );
    request.check(
        "fieldSelector=metadata.name%3Da watch=true allowWatchBookmarks=true !resourceVersion",
    );
    assert_eq!(request.headers["accept-encoding"], "identity");
    let stream = request.synced(5, Some(&object(5, "one")));
    assert_eq!(value(&manager).await, "one");

    for round in 0..20 {
        let pod = pod(&format!("q{round}"));
        manager.register_pod(&pod);
        manager.unregister_pod(&pod);
    }
    manager.unregister_pod(&pod("p1"));
    script.silence(Duration::from_secs(10)).await;
    assert!(stream.is_dropped());
    assert!(manager.objects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_never_reads_data_older_than_its_registration() {
    let (manager, mut script) = manager();
    manager.register_pod(&pod("p1"));
    let _stream = script.next().await.synced(5, Some(&object(5, "old")));
    assert_eq!(value(&manager).await, "old");

    manager.register_pod(&pod("p2"));
    let (read, ()) = tokio::join!(value(&manager), async {
        let request = script.next().await;
        assert_eq!(request.path_and_query, "/api/v1/namespaces/n/configmaps/a");
        // The running pod does not wait for it.
        assert_eq!(
            manager.get_for(&pod("p1"), "a").await.unwrap().data["k"],
            "old"
        );
        request.answer(200, &object(6, "new"));
    });
    assert_eq!(read, "new");
    assert_eq!(value(&manager).await, "new");
    script.silence(Duration::from_secs(10)).await;
    assert_eq!(manager.objects()[0].state, ObjectState::Synced);
}

// managers 26
#[tokio::test(start_paused = true)]
async fn a_recreated_immutable_object_is_noticed_by_a_new_pod() {
    let (manager, mut script) = manager();
    manager.register_pod(&pod("p1"));
    let stream = script
        .next()
        .await
        .synced(5, Some(&immutable(5, "u1", "old")));
    assert_eq!(value(&manager).await, "old");
    script.silence(Duration::from_hours(1)).await;
    assert!(stream.is_dropped());
    assert_eq!(manager.objects()[0].state, ObjectState::Immutable);

    // Upstream serves the old data to every pod; B5: looked at once more for a new one.
    manager.register_pod(&pod("p2"));
    let (read, ()) = tokio::join!(value(&manager), async {
        script.next().await.answer(200, &immutable(9, "u2", "new"));
    });
    assert_eq!(read, "new");
    assert_eq!(
        manager.get_for(&pod("p1"), "a").await.unwrap().data["k"],
        "new"
    );
    script.silence(Duration::from_hours(1)).await;
}

// B15
#[tokio::test(start_paused = true)]
async fn the_last_reference_cancels_what_is_under_way() {
    let (manager, mut script) = manager();
    manager.register_pod(&pod("p1"));
    let request = script.next().await;
    manager.unregister_pod(&pod("p1"));
    script.silence(Duration::from_secs(10)).await;
    assert!(request.is_cancelled());
}

// B9: a list that is answered after its watch was stopped
#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_reach_the_next_incarnation() {
    let (manager, mut script) = manager();
    manager.register_pod(&pod("p1"));
    let late = script.next().await;
    manager.unregister_pod(&pod("p1"));
    manager.register_pod(&pod("p2"));
    let _late = late.synced(5, Some(&object(5, "late")));
    let request = script.next().await;
    let error = manager.get("n", "a").await.unwrap_err();
    assert!(error.to_string().contains("failed to sync"), "{error}");
    let _stream = request.synced(6, Some(&object(6, "new")));
    assert_eq!(value(&manager).await, "new");
}
