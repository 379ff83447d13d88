//! The roles of `deploy/sidecar` grant what a sidecar asks for, and nothing that it does not need.

use std::collections::BTreeSet;

use larder_apiserver::{ApiServer, AuditLog, Options};

use crate::{
    granted::{client, rights},
    world::World,
};

// sidecar 8, 62
#[tokio::test(start_paused = true)]
async fn each_role_is_enough_and_a_verb_less_is_named() {
    let roles: [(&str, &[(&str, &str)]); 5] = [
        ("labeled.yaml", &[("RESOURCE", "both")]),
        (
            "labeled.yaml",
            &[("RESOURCE", "both"), ("NAMESPACE", "n,empty")],
        ),
        (
            "labeled-all.yaml",
            &[("RESOURCE", "both"), ("NAMESPACE", "ALL")],
        ),
        ("polled.yaml", &[("RESOURCE", "both"), ("METHOD", "SLEEP")]),
        (
            "named.yaml",
            &[
                ("RESOURCE", "both"),
                ("RESOURCE_NAME", "configmap/app,secret/tls"),
            ],
        ),
    ];
    for (file, variables) in roles {
        let granted = rights(file);
        let mut all_used = BTreeSet::new();
        // API servers with streaming lists, and without.
        for streams_lists in [true, false] {
            let world = world(variables);
            let (client, used) = client(&world.api, granted.clone(), streams_lists);
            let sidecar = world.start_with(client);
            crate::world::until(|| sidecar.health.is_ready()).await;
            world.until_files("app=1 tls=1").await;
            all_used.extend(used.lock().clone());
        }
        assert_eq!(all_used, granted, "{file}");
        for right in &granted {
            let mut less = granted.clone();
            less.remove(right);
            let world = world(variables);
            let (client, _) = client(&world.api, less, false);
            let sidecar = world.start_with(client);
            let verb = format!("cannot {} {}", right.0, right.1);
            let is_all = file == "labeled-all.yaml";
            let place = if is_all {
                "all namespaces"
            } else {
                "namespace n"
            };
            let named = || {
                let live = sidecar.health.live(None, tokio::time::Instant::now());
                live.body.contains(&verb) && live.body.contains(place)
            };
            crate::world::until(named).await;
        }
    }
}

// sidecar 62
#[tokio::test(start_paused = true)]
async fn one_list_takes_the_rights_to_list_and_names_a_missing_one() {
    let variables = [("RESOURCE", "both"), ("METHOD", "LIST")];
    let granted = rights("polled.yaml");
    let world = world(&variables);
    let (allowed, used) = client(&world.api, granted.clone(), true);
    assert_eq!(world.start_with(allowed).ended().await, Ok(()));
    assert_eq!(world.files(), "app=1 tls=1");
    assert_eq!(*used.lock(), granted);
    for right in &granted {
        let mut less = granted.clone();
        less.remove(right);
        let (refused, _) = client(&world.api, less, true);
        let error = world.start_with(refused).ended().await.unwrap_err();
        let expected = format!("cannot list {} in namespace n: ", right.1);
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

fn world(variables: &[(&str, &str)]) -> World {
    let mut world = World::new();
    let options = Options::default()
        .fill_namespaces(true)
        .audit(AuditLog::in_memory());
    world.api = ApiServer::new(options);
    for (name, value) in variables {
        world.set(name, value);
    }
    world.config_map("n", "app", &[("app", "1")]);
    world.secret("n", "tls", &[("tls", "1")]);
    world
}
