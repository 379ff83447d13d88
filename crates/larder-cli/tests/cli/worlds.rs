//! What `larder diff` says of two sides, held to every way to fill in what neither of them says.
//!
//! A world is a pod with objects on two sides ([`world`]). A completion decides everything that is not among its
//! documents ([`completion`]): whether an object exists, its keys and its values. Completed, nothing is unknown, and
//! `larder render`, which Kubernetes' own vectors verify, says exactly what each container sees ([`view`]).
//!
//! 1. A container that is not listed, or `same`, sees the same in every completion.
//! 2. `live`, `restart`, `starts`, `fails` and `neither` hold in every completion that the answer does not exclude: one in
//!    which the container starts on neither side, one that does not meet an `unless`, or one in which the first side,
//!    whose pod runs, does not start.
//! 3. `unknown` is said only where two completions disagree, and what they disagree on is named.

mod completion;
mod view;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use self::{
    completion::Completion,
    view::{Outcome, outcomes},
    world::World,
};
use crate::Desk;

/// Worlds in one call of the command.
const BATCH: u64 = 20;

/// Completions of each world.
const COMPLETIONS: u64 = 24;

/// The verdict on one container.
struct Claim {
    verdict: String,
    has_unless: bool,
    unknown: Vec<String>,
}

#[test]
fn every_verdict_holds_for_each_completion() {
    let number = |name, default| {
        let text = std::env::var(name);
        text.map_or(default, |text| text.parse::<u64>().unwrap())
    };
    let first = number("LARDER_WORLD_SEED", 0);
    let count = number("LARDER_WORLDS", 20);
    let mut faults = Vec::new();
    let mut seen = BTreeMap::new();
    for from in (first..first + count).step_by(usize::try_from(BATCH).unwrap()) {
        let seeds = from..(from + BATCH).min(first + count);
        let worlds: Vec<_> = seeds.map(World::new).collect();
        judge(&worlds, &mut seen, &mut faults);
        if faults.len() > 4 {
            break;
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    // A generator that makes only one kind of world protects nothing.
    for verdict in ["same", "live", "restart", "fails", "starts", "unknown"] {
        let worlds = seen.get(verdict).copied().unwrap_or_default();
        assert!(count < 200 || worlds > 0, "no world is {verdict}: {seen:?}");
    }
}

fn judge(worlds: &[World], seen: &mut BTreeMap<String, usize>, faults: &mut Vec<String>) {
    let claims = claims(worlds);
    let completions: Vec<Vec<_>> = worlds.iter().map(completions).collect();
    let mut documents = Vec::new();
    for (world, completions) in worlds.iter().zip(&completions) {
        for (number, completion) in completions.iter().enumerate() {
            documents.extend(completion.documents(world, &namespace(world, number)));
        }
    }
    let views = view::render(&documents);
    for (world, completions) in worlds.iter().zip(&completions) {
        for container in World::containers() {
            let results = completions.iter().enumerate();
            let results = results.map(|(number, completion)| {
                let namespace = namespace(world, number);
                let outcome = outcomes(world, container, &namespace, &views);
                (completion, outcome)
            });
            let results: Vec<_> = results.collect();
            let unlisted = Claim {
                verdict: "same".to_owned(),
                has_unless: false,
                unknown: Vec::new(),
            };
            let claim = claims.get(&(world.namespace(), container.to_owned()));
            let claim = claim.unwrap_or(&unlisted);
            *seen.entry(claim.verdict.clone()).or_default() += 1;
            if let Some(fault) = fault(claim, &results) {
                faults.push(format!(
                    "LARDER_WORLD_SEED={} LARDER_WORLDS=1: container {container} is {} (unknown {:?}), but {fault}\n{world}",
                    world.seed, claim.verdict, claim.unknown
                ));
            }
        }
    }
}

fn namespace(world: &World, number: usize) -> String {
    format!("{}-{number}", world.namespace())
}

/// Ways to fill in what is not known, without repetitions.
fn completions(world: &World) -> Vec<Completion> {
    let mut found = Vec::new();
    for number in 0..COMPLETIONS {
        let completion = Completion::new(world, number);
        if !found.contains(&completion) {
            found.push(completion);
        }
    }
    found
}

/// What `larder diff` says, by namespace and container.
fn claims(worlds: &[World]) -> BTreeMap<(String, String), Claim> {
    let side = |of: fn(&World) -> Vec<Value>| {
        let documents = worlds.iter().flat_map(of);
        let documents = documents.map(|document| document.to_string());
        documents.collect::<Vec<_>>().join("\n---\n")
    };
    let (from, to) = (
        side(|world| world.from.documents(world)),
        side(|world| world.to.documents(world)),
    );
    let desk = Desk::with([("from.yaml", &from), ("to.yaml", &to)]);
    let run = desk.run("diff --from-file from.yaml --to-file to.yaml -o json --show-secrets");
    let report: Value = serde_json::from_str(&run.stdout).expect(&run.stderr);
    assert!(report["notRead"].is_null(), "{}", run.stderr);
    let mut claims = BTreeMap::new();
    for pod in report["pods"].as_array().unwrap() {
        for (name, container) in pod["containers"].as_object().unwrap() {
            let unknown = container["unknown"].as_array();
            let unknown = unknown
                .into_iter()
                .flatten()
                .map(|one| one.as_str().unwrap().to_owned());
            let claim = Claim {
                verdict: container["verdict"].as_str().unwrap().to_owned(),
                has_unless: container["unless"]
                    .as_array()
                    .is_some_and(|one| !one.is_empty()),
                unknown: unknown.collect(),
            };
            let namespace = pod["namespace"].as_str().unwrap().to_owned();
            claims.insert((namespace, name.clone()), claim);
        }
    }
    claims
}

/// A completion that the claim does not hold for.
fn fault(claim: &Claim, results: &[(&Completion, Outcome)]) -> Option<String> {
    let contradicts = |allowed: &[Outcome]| {
        let mut results = results.iter();
        let found = results.find(|(_, outcome)| !allowed.contains(outcome))?;
        Some(format!("it is {:?} in {}", found.1, found.0))
    };
    let unmet = if claim.has_unless {
        Outcome::Fails
    } else {
        Outcome::Neither
    };
    match claim.verdict.as_str() {
        "same" => contradicts(&[Outcome::Same, Outcome::Neither, unmet]),
        "live" => contradicts(&[Outcome::Live, Outcome::Neither, Outcome::Starts, unmet]),
        "restart" => contradicts(&[Outcome::Restart, Outcome::Neither, Outcome::Starts, unmet]),
        "starts" => contradicts(&[Outcome::Starts, Outcome::Neither, unmet]),
        "fails" => contradicts(&[Outcome::Fails, Outcome::Neither]),
        "neither" => contradicts(&[Outcome::Neither]),
        "unknown" => {
            let outcomes = results.iter().map(|(_, outcome)| *outcome);
            let mut outcomes: BTreeSet<_> =
                outcomes.filter(|one| *one != Outcome::Neither).collect();
            // What an `unless` names is no part of the verdict, unless it is the only difference.
            if claim.has_unless
                && outcomes.len() > 1
                && !outcomes.iter().eq([&Outcome::Same, &Outcome::Fails])
            {
                outcomes.remove(&Outcome::Fails);
            }
            if outcomes.len() < 2 {
                return Some(format!("all completions agree: {outcomes:?}"));
            }
            // What is not named decides nothing: with the named ones fixed, all agree.
            let mut by_named = BTreeMap::new();
            for (completion, outcome) in results {
                let named = completion.choices_of(&claim.unknown);
                let (first, other) = *by_named.entry(named).or_insert((*outcome, *completion));
                let is_start = |one| matches!(one, Outcome::Neither | Outcome::Starts);
                if first != *outcome && !is_start(first) && !is_start(*outcome) {
                    return Some(format!(
                        "what is not named decides: {first:?} in {other}, {outcome:?} in {completion}"
                    ));
                }
            }
            None
        }
        other => Some(format!("there is no verdict {other}")),
    }
}
