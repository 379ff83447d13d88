//! A real nginx under `larder exec`, while its configuration is edited and requests run.

use std::{
    fs,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
};

use crate::recipes::{Recipe, has_nginx};

const EDITS: u32 = 200;

#[test]
fn two_hundred_edits_of_nginx_lose_no_request() {
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
    let path = recipe.path().join("nginx.yaml");
    let manifest = fs::read_to_string(&path).unwrap();
    let (is_over, served, failed) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let counter = match recipe.ask() {
                    Some(_) => &served,
                    None => &failed,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        for edit in 1..=EDITS {
            let next = recipe.path().join("nginx.yaml.next");
            fs::write(&next, manifest.replace("hello", &format!("edit {edit}"))).unwrap();
            fs::rename(next, &path).unwrap();
            // Every second one is waited for; the others follow each other as they like.
            if edit % 2 == 0 {
                recipe.ask_until(&mut running, &format!("edit {edit}"));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    recipe.ask_until(&mut running, &format!("edit {EDITS}"));
    assert_eq!(failed.load(Ordering::Relaxed), 0, "failed requests");
    let served = served.load(Ordering::Relaxed);
    let reloads = fs::read_to_string(&count).unwrap().lines().count();
    assert!(reloads >= EDITS as usize / 2 - 1, "{reloads} reloads");
    assert!(served > 0);
    #[expect(clippy::print_stderr, reason = "numbers for the reader of the test")]
    {
        eprintln!("{EDITS} edits, {reloads} reloads, {served} requests, none failed");
    }
}
