//! The recipes of `docs/on-change.md` for the agent, whose containers are processes in mount namespaces of their own.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    path::PathBuf,
    process::Command,
};

use larder_e2e::own_address;

use crate::{
    containers::{Container, permitted},
    recipes::{Recipe, WORKER, has_nginx},
    run::Agent,
};

/// The directory of a pod of the agent.
fn pod(recipe: &Recipe, name: &str) -> PathBuf {
    let link = recipe.path().join("root/by-name/default").join(name);
    fs::canonicalize(link).unwrap()
}

#[test]
fn agent_reloads_nginx_in_its_container() {
    if !has_nginx() || !permitted() {
        return;
    }
    let recipe = Recipe::named("nginx in a container: reload it");
    let mut agent = recipe.start();
    let summary = agent.line();
    assert!(summary.contains(" serves 1 pod and 1 volume "), "{summary}");
    let mut nginx = recipe.start_command(1);
    recipe.ask_until(&mut nginx, "hello");
    recipe.run(2);
    recipe.ask_until(&mut nginx, "goodbye");
    agent.assert_runs();
}

#[test]
fn agent_restarts_a_container_whose_variable_has_changed() {
    if !permitted() {
        return;
    }
    let recipe = Recipe::of_agent(
        "Restart when a variable changes, signal when a file does",
        "A container that must restart when a variable changes",
    );
    recipe.program("worker", WORKER);
    let mut agent = Agent::start(&recipe.desk);
    agent.summary();
    let pod = pod(&recipe, "worker");
    let rules = pod.join("volumes/kubernetes.io~configmap/rules");
    let start = || {
        let variables = fs::read(pod.join("containers/worker/env.json")).unwrap();
        let variables: BTreeMap<_, _> = serde_json::from_slice(&variables).unwrap();
        let worker = recipe.path().join("worker").display().to_string();
        Container::start(&[(&rules, "/etc/worker")], &variables, &worker)
    };
    let mut first = start();
    assert_eq!(first.line(), "started info");
    // A file restarts nothing.
    recipe.run(1);
    recipe.run(2);
    assert_eq!(first.line(), "", "it ends, and hears of nothing else");
    assert_eq!(fs::read_to_string(rules.join("rules")).unwrap(), "deny");
    // As a container's runtime does.
    assert_eq!(start().line(), "started debug");
}

#[test]
fn agent_ends_a_container_with_its_stop_signal() {
    // on-change 66, 67
    if !permitted() {
        return;
    }
    for signal in ["TERM", "USR1"] {
        let recipe = Recipe::named("A pod that restarts in place");
        let path = recipe.path().join("manifests/stack.yaml");
        let manifest = fs::read_to_string(&path).unwrap();
        let command = manifest.lines().find_map(|line| {
            let (_, script) = line.split_once("command: [sh, -c, \"")?;
            script.strip_suffix("\"]")
        });
        let command = command.unwrap().replace("TERM", signal);
        if signal != "TERM" {
            let added = format!("- name: watcher\n    lifecycle: {{stopSignal: SIG{signal}}}\n");
            let manifest = manifest.replace("- name: watcher\n", &added);
            fs::write(
                &path,
                manifest.replace("spec:\n", "spec:\n  os: {name: linux}\n"),
            )
            .unwrap();
        }
        let larder = Command::new(env!("CARGO_BIN_EXE_larder"));
        let args = "--manifests manifests --node-name n1";
        let mut agent = Agent::spawn(&recipe.desk, larder, args);
        agent.summary();
        let volume = pod(&recipe, "stack").join("volumes/kubernetes.io~configmap/settings");
        let program = format!("#!/bin/sh\necho started\n{command}\n");
        recipe.program("watcher", &program);
        let watcher = recipe.path().join("watcher").display().to_string();
        let mounts = [(volume.as_path(), "/etc/watcher")];
        let mut watcher = Container::start(&mounts, &BTreeMap::new(), &watcher);
        assert_eq!(watcher.line(), "started");
        recipe.run(0);
        assert_eq!(watcher.exit_code(), Some(88), "{signal}");
    }
}

#[test]
fn agent_asks_a_pod_once_for_two_objects() {
    let Some(ip) = own_address() else { return };
    let recipe = Recipe::of_agent(
        "A Secret and a ConfigMap that change together",
        "A container that reloads once for two objects",
    );
    // What the container's runtime would report.
    let path = recipe.path().join("m/pair.yaml");
    let manifest = fs::read_to_string(&path).unwrap();
    assert_eq!(manifest.matches("spec:\n").count(), 1, "{manifest}");
    let manifest = manifest.replace("spec:\n", "spec:\n  hostNetwork: true\n");
    let status = format!("status:\n  podIPs:\n  - {{ip: {ip}}}\n");
    fs::write(&path, manifest + &status).unwrap();
    let config = format!("onChangeAllowedNetworks: [{ip}/32]\n");
    fs::write(recipe.path().join("agent.yaml"), config).unwrap();
    let listener = TcpListener::bind((ip.as_str(), recipe.port)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder"));
    command.env_clear();
    let args = "--manifests m --node-name n1 --config agent.yaml";
    let mut agent = Agent::spawn(&recipe.desk, command, args);
    agent.summary();
    let volumes = pod(&recipe, "pair").join("volumes");
    // What is in place when the request comes.
    let asked = || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream);
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            assert!(lines.read_line(&mut request).unwrap() > 0, "{request}");
        }
        assert!(
            request.starts_with("POST /-/reload HTTP/1.1\r\n"),
            "{request}"
        );
        let read = |file: &str| fs::read_to_string(volumes.join(file)).unwrap();
        let files = (
            read("kubernetes.io~configmap/config/listen"),
            read("kubernetes.io~secret/tls/tls.key"),
        );
        lines
            .get_mut()
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .unwrap();
        files
    };
    recipe.run(1);
    recipe.run(2);
    let files = |listen: &str, key: &str| (listen.to_owned(), key.to_owned());
    let first = asked();
    // Unless this machine has stood still for a second in between.
    if first != files("two", "two") {
        assert_eq!([first, asked()], [files("two", "one"), files("two", "two")]);
    }
}
