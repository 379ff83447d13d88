//! A real nginx while its configuration is edited and requests run: under `larder exec`, and in a container of the agent.

use std::{
    fs,
    path::Path,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use larder_e2e::rounds;

use crate::{
    containers::permitted,
    recipes::{Recipe, RunningRecipe, has_nginx},
};

/// Edits, times `LARDER_ROUNDS`.
const EDITS: usize = 40;

/// Edits the answer in the manifest at `path` again and again while requests run: none fails, and the last answer
/// stays. The number of requests.
fn edit_under_load(recipe: &Recipe, running: &mut RunningRecipe, path: &Path) -> u32 {
    let manifest = fs::read_to_string(path).unwrap();
    thread::scope(|scope| {
        let (sender, answers) = channel();
        // Ends when the receiver is dropped. The pauses leave CPU time for the reloads.
        scope.spawn(move || {
            while sender.send(recipe.ask()).is_ok() {
                thread::park_timeout(Duration::from_millis(1));
            }
        });
        let mut served = 0;
        for edit in 1..=rounds(EDITS) {
            let next = recipe.path().join("next");
            fs::write(&next, manifest.replace("hello", &format!("edit {edit}"))).unwrap();
            fs::rename(next, path).unwrap();
            // Every second one is waited for; the others follow each other as they like.
            if edit % 2 == 0 {
                served += until_answered(&answers, running, &format!("edit {edit}"));
            }
        }
        served
    })
}

/// Takes answers until they stay `expected`: a worker of before a reload may give some last ones. Their number.
fn until_answered(
    answers: &Receiver<Option<String>>,
    running: &mut RunningRecipe,
    expected: &str,
) -> u32 {
    let (mut served, mut in_a_row) = (0, 0);
    while in_a_row < 20 {
        running.assert_runs();
        let answer = answers.recv().unwrap().expect("no request fails");
        in_a_row = if answer == expected { in_a_row + 1 } else { 0 };
        served += 1;
    }
    served
}

#[expect(clippy::print_stderr, reason = "numbers for the reader of the test")]
fn report(by: &str, reloads: usize, served: u32) {
    let edits = rounds(EDITS);
    assert!(reloads >= edits / 2 - 1, "{reloads} reloads");
    eprintln!("{by}: {edits} edits, {reloads} reloads, {served} requests, none failed");
}

#[test]
fn edits_of_nginx_lose_no_request() {
    if !has_nginx() {
        return;
    }
    let recipe = Recipe::named("nginx: test the configuration, then reload it");
    let hooks = recipe.path().join("reload.yaml");
    let hook = fs::read_to_string(&hooks).unwrap();
    let count = recipe.path().join("count");
    fs::write(&count, "").unwrap();
    let counting = format!("  - exec: [sh, -c, 'echo >> {}']\n", count.display());
    fs::write(&hooks, hook + &counting).unwrap();
    let mut running = recipe.start();
    recipe.ask_until(&mut running, "hello");
    let served = edit_under_load(&recipe, &mut running, &recipe.path().join("nginx.yaml"));
    let reloads = fs::read_to_string(&count).unwrap().lines().count();
    report("larder exec", reloads, served);
}

#[test]
fn edits_of_nginx_in_a_container_of_the_agent_lose_no_request() {
    if !has_nginx() || !permitted() {
        return;
    }
    let recipe = Recipe::named("nginx in a container: reload it");
    let manifest = recipe.path().join("manifests/web.yaml");
    let text = fs::read_to_string(&manifest).unwrap();
    // nginx says itself how often it has reloaded.
    let log = recipe.path().join("log");
    let logging = format!("error_log {} notice;", log.display());
    fs::write(&manifest, text.replace("error_log stderr;", &logging)).unwrap();
    let mut agent = recipe.start();
    agent.line();
    let mut nginx = recipe.start_command(1);
    recipe.ask_until(&mut nginx, "hello");
    let served = edit_under_load(&recipe, &mut nginx, &manifest);
    agent.assert_runs();
    let log = fs::read_to_string(&log).unwrap();
    let reloads = log.matches("signal 1 (SIGHUP) received").count();
    report("agent", reloads, served);
}
