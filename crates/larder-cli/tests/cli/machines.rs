//! The recipes of `docs/machines.md`, as printed there, with directories of the test in place of those of the machine.

use std::{fs, process::Command};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    Desk,
    recipes::Blocks,
    run::{Agent, config_map, desk, key, pod, put, until},
};

pub(crate) const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/machines.md");

/// The commands of a recipe, for a machine below the desk whose manifests are in `m`.
fn commands(desk: &Desk, heading: &str) -> Vec<String> {
    let here = desk.path().display().to_string();
    let blocks = Blocks::in_page(PAGE, heading);
    let adapted = blocks.commands.iter().map(|commands| {
        commands
            .replace("/etc/larder/manifests", &format!("{here}/m"))
            .replace(
                "/run/credentials/larder.service",
                &format!("{here}/credentials"),
            )
            .replace("/run/secrets", &format!("{here}/secrets"))
            .replace("/srv", &here)
    });
    adapted.collect()
}

fn shell(desk: &Desk, commands: &str) {
    let mut command = Command::new("sh");
    command.args(["-ec", commands]).current_dir(desk.path());
    command.envs([
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{commands}: {output:?}");
}

fn secret(value: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: login}}\nstringData: {{a: {value}}}\n")
}

/// A desk whose pod `web` has the Secret `login` in its volume `cfg`, without that Secret.
fn desk_without_secret() -> Desk {
    let desk = desk();
    let pod = pod("web", "x").replace("configMap: {name: x}", "secret: {secretName: login}");
    put(&desk, "web.yaml", &pod);
    desk
}

fn login(desk: &Desk) -> Option<String> {
    let volume = "root/by-name/default/web/volumes/kubernetes.io~secret/cfg/a";
    fs::read_to_string(desk.path().join(volume)).ok()
}

#[tokio::test]
async fn secret_behind_a_replaced_link_is_followed() {
    let desk = desk_without_secret();
    let [first, next] = &*commands(&desk, "Secrets in a file in memory") else {
        panic!("the first version, and the next")
    };
    let mut agent = Agent::start(&desk);
    agent.collect_log();
    for (value, commands) in [("one", first), ("two", next)] {
        fs::write(desk.path().join("fetched.yaml"), secret(value)).unwrap();
        shell(&desk, commands);
        until(value, || login(&desk).as_deref() == Some(value)).await;
    }
    // As `systemctl reload larder` asks first.
    let check = desk.run("run --check --manifests m --root-dir root");
    assert_eq!(check.code, 0, "{check:?}");
    // Without its target the link is a problem, and the Secret stays.
    fs::remove_dir_all(desk.path().join("secrets")).unwrap();
    put(&desk, "note.yaml", &config_map("note", "a: b"));
    until("the link to be a problem", || {
        let status = desk.run("status --root-dir root -o json").stdout;
        let status: Value = serde_json::from_str(&status).unwrap();
        status["problems"].to_string().contains("login.yaml")
    })
    .await;
    assert_eq!(login(&desk).as_deref(), Some("two"));
}

#[tokio::test]
async fn secret_among_the_credentials_of_the_service_is_read() {
    let desk = desk_without_secret();
    let [commands] = &*commands(&desk, "Secrets as encrypted credentials of systemd") else {
        panic!("one block")
    };
    let link = commands.lines().find(|line| line.starts_with("ln -s "));
    shell(&desk, link.unwrap());
    // Dropping one unmounts what the next one takes over.
    let mut agents = Vec::new();
    for value in ["one", "two"] {
        // As systemd does at each start of the service: another directory, read-only.
        let credentials = desk.path().join("credentials");
        let _ = fs::remove_dir_all(&credentials);
        fs::create_dir(&credentials).unwrap();
        fs::write(credentials.join("login.yaml"), secret(value)).unwrap();
        let mut agent = Agent::start(&desk);
        agent.collect_log();
        until(value, || login(&desk).as_deref() == Some(value)).await;
        agent.signal(Signal::TERM);
        agents.push(agent);
    }
}

#[tokio::test]
async fn checkout_that_is_pulled_is_followed() {
    let desk = Desk::with([]);
    let heading = "A git checkout that each machine pulls";
    let clone = &commands(&desk, heading)[0];
    let (_, service) = &Blocks::in_page(PAGE, heading).files[0];
    let pull = service
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let manifests = desk.path().join("m").display().to_string();
    let pull = &pull.unwrap().replace("/etc/larder/manifests", &manifests);
    let commit = |name: &str, text: &str| {
        fs::write(desk.path().join("work").join(name), text).unwrap();
        shell(
            &desk,
            "git -C work add . && git -C work -c user.name=n -c user.email=e commit -qm change && git -C work push -q",
        );
    };
    shell(
        &desk,
        "git init -q --bare -b main manifests.git && git clone -q manifests.git work 2> /dev/null && git -C work checkout -qB main && git -C work config push.default current",
    );
    fs::write(
        desk.path().join("work/app.yaml"),
        config_map("app", "a: '1'"),
    )
    .unwrap();
    commit("web.yaml", &pod("web", "app"));
    shell(&desk, clone);
    let mut agent = Agent::start(&desk);
    agent.collect_log();
    until("the checkout", || {
        key(&desk, "web", "a").as_deref() == Some("1")
    })
    .await;
    commit("app.yaml", &config_map("app", "a: '2'"));
    shell(&desk, pull);
    until("the change", || {
        key(&desk, "web", "a").as_deref() == Some("2")
    })
    .await;
    // A broken commit changes nothing.
    commit("app.yaml", "kind: [");
    shell(&desk, pull);
    until("the problem", || {
        let status = desk.run("status --root-dir root -o json").stdout;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        status["problems"].to_string().contains("app.yaml")
    })
    .await;
    assert_eq!(key(&desk, "web", "a").as_deref(), Some("2"));
    commit("app.yaml", &config_map("app", "a: '3'"));
    shell(&desk, pull);
    until("the repair", || {
        key(&desk, "web", "a").as_deref() == Some("3")
    })
    .await;
}
