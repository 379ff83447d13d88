//! What `larder diff`, `render` and `exec` say, held to every way to fill in what the documents do not say.
//!
//! A world is a workload with objects on two sides ([`world`], drawn by [`draw`]). A completion decides everything that is
//! not among its documents ([`completion`]; of objects [`keys`], of the pod [`facts`]): whether an object exists, its keys and its values, and facts of the running
//! pod. Completed, nothing is unknown, and the projection that Kubernetes' own results verify says exactly what each
//! container sees ([`view`]). Completions are drawn, and made from the differences that they show ([`equal`]).
//!
//! 1. A container that is not listed, or `same`, sees the same in every completion.
//! 2. `live`, `restart`, `starts`, `fails` and `neither` hold in every completion that the answer does not exclude: one in
//!    which the container starts on neither side, one that does not meet an `unless`, or one in which the first side,
//!    whose pod runs, does not start.
//! 3. `unknown` is said only where two completions disagree, and what they disagree on is named.
//! 4. `render` and `exec` say that a container starts, or does not, and what it sees, as it is in every completion
//!    ([`one_side`]).
//!
//! A completion keeps to what both sides take as given: an object of the documents exists, and so does one that a document
//! makes, as its controller runs; a signer issues the certificates of pods. An account that no document has says nothing of
//! tokens. A key of an unknown object is never the name of a directory of the same volume, nor of one in which a `subPath`
//! selects something; but where a `subPath` selects this name, `unknown` is no fault. Keys may have any length, so a name with two prefixes may always be a longer key with one, and is no
//! difference. That a key may have the name and the value of a variable of a Service that no document has is not said.
//!
//! The documents of a world are read once, and each pod is rendered once for all its containers: a world takes
//! milliseconds, so that many thousands can be tried.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod completion;
mod draw;
mod equal;
mod facts;
mod keys;
mod one_side;
mod smaller;
mod spec;
mod view;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use larder_objects::manifest::{Loader, Manifests};
use serde_json::Value;

use self::{
    completion::{Alphabet, Completion},
    draw::Draw,
    view::{BothSides, FilledPod, Outcome, Templates, running},
    world::{Side, World},
};

/// Completions that are drawn of each world.
const COMPLETIONS: u64 = 20;
/// Of them, those that answers about one side are held to: the extreme ones, and a few others.
const ONE_SIDE: usize = 15;
/// Completions that are drawn of a world before an answer counts as one that all completions agree on.
const MANY_COMPLETIONS: u64 = 800;
/// Differences that are made equal, one after the other; also of completions of which many are drawn.
const MAX_EQUAL: usize = 6;
const MANY_EQUAL: usize = 24;
/// Faults that are shown.
const MAX_FAULTS: usize = 4;

/// The verdict on one container.
#[derive(Debug)]
struct Claim {
    verdict: String,
    has_unless: bool,
    unknown: Vec<String>,
}

#[test]
fn every_answer_holds_for_each_completion() {
    let number = |name, default| {
        let text = std::env::var(name);
        text.map_or(default, |text| text.parse::<u64>().unwrap())
    };
    let first = number("LARDER_WORLD_SEED", 0);
    let count = number("LARDER_WORLDS", 20);
    let (mut faults, mut seen) = (Vec::new(), BTreeMap::<String, usize>::new());
    for seed in first..first + count {
        let world = World::new(seed);
        match judge(&world) {
            Ok(verdicts) => {
                for verdict in verdicts {
                    *seen.entry(verdict).or_default() += 1;
                }
            }
            Err(_) => faults.push(smallest(world)),
        }
        if faults.len() >= MAX_FAULTS {
            break;
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    // A generator that makes only one kind of world protects nothing.
    for verdict in [
        "same", "live", "restart", "fails", "starts", "neither", "unknown",
    ] {
        let worlds = seen.get(verdict).copied().unwrap_or_default();
        assert!(
            count < 1000 || worlds > 0,
            "no world is {verdict}: {seen:?}"
        );
    }
}

/// The smallest world with a fault that is in this one, and the fault.
fn smallest(mut world: World) -> String {
    let seed = world.seed;
    while let Some(next) = smaller::smaller(&world)
        .into_iter()
        .find(|one| judge(one).is_err())
    {
        world = next;
    }
    let fault = judge(&world).unwrap_err();
    format!("LARDER_WORLD_SEED={seed} LARDER_WORLDS=1: {fault}\n{world}")
}

/// The verdicts on the containers of a world.
fn judge(world: &World) -> Result<Vec<String>, String> {
    let loaded = Loaded::of(world);
    let (templates, alphabet) = (Templates::of(&loaded), Alphabet::of(world));
    let claims = claims(&loaded);
    let drawn = |count| -> Vec<_> {
        let numbers = 0..count;
        numbers
            .map(|number| Completion::new(world.seed, &alphabet, number))
            .collect()
    };
    let completions = drawn(COMPLETIONS);
    let containers = World::containers();
    let all = results(world, &templates, &containers, &completions, MAX_EQUAL);
    let mut verdicts = Vec::new();
    for (container, results) in containers.iter().zip(&all) {
        let claim = claims.get(*container);
        let mut found = fault(claim, results);
        let may_sample_more = claim.is_some_and(|claim| claim.verdict == "unknown");
        if found.is_some() && may_sample_more {
            let completions = drawn(MANY_COMPLETIONS);
            let containers = [*container];
            let all = self::results(world, &templates, &containers, &completions, MANY_EQUAL);
            found = fault(claim, &all[0]);
        }
        if let Some(fault) = found {
            return Err(format!("container {container} is {claim:?}, but {fault}"));
        }
        let verdict = claim.map_or("same", |claim| &claim.verdict);
        verdicts.push(verdict.to_owned());
    }
    one_side::judge(world, &loaded.to, &templates.to, &completions[..ONE_SIDE])?;
    Ok(verdicts)
}

/// What becomes of a container in each completion.
type Results<'w> = Vec<(Completion<'w>, Outcome)>;

/// The outcomes for each container, in all completions and in those that are made of them.
fn results<'w>(
    world: &World,
    templates: &Templates<'_>,
    containers: &[&str],
    completions: &[Completion<'w>],
    max_equal: usize,
) -> Vec<Results<'w>> {
    let mut draw = Draw::of(world.seed);
    let mut results: Vec<Results<'w>> = containers.iter().map(|_| Vec::new()).collect();
    for completion in completions {
        let next = tried(
            world,
            templates,
            containers,
            completion,
            &mut results,
            &mut draw,
        );
        for (place, next) in next.into_iter().enumerate() {
            let (container, results) = (&containers[place..=place], &mut results[place..=place]);
            let mut next = next;
            for _ in 0..max_equal {
                let Some(completion) = next else { break };
                let mut made = tried(world, templates, container, &completion, results, &mut draw);
                next = made.pop().flatten();
            }
        }
    }
    results
}

/// Adds the outcomes in one completion, and returns for each container the completion in which less differs.
fn tried<'w>(
    world: &World,
    templates: &Templates<'_>,
    containers: &[&str],
    completion: &Completion<'w>,
    results: &mut [Results<'w>],
    draw: &mut Draw,
) -> Vec<Option<Completion<'w>>> {
    let (from, to) = running(world, templates, completion);
    let (from, to) = (from.as_ref().map(FilledPod::new), FilledPod::new(&to));
    let next = containers.iter().zip(results).map(|(container, results)| {
        let sides = BothSides::of(from.as_ref(), &to, container);
        let outcome = sides.outcome();
        results.push((completion.clone(), outcome));
        if !completion.is_unique || !matches!(outcome, Outcome::Live | Outcome::Restart) {
            return None;
        }
        let (before, after) = (sides.before.as_ref()?, sides.after.as_ref()?);
        equal::with_one_less(before, after, completion, draw)
    });
    next.collect()
}

/// The documents of both sides, as they are read.
struct Loaded {
    from: Manifests,
    to: Manifests,
}

impl Loaded {
    fn of(world: &World) -> Self {
        Self {
            from: load(&world.from),
            to: load(&world.to),
        }
    }
}

fn load(side: &Side) -> Manifests {
    let mut loader = Loader::new("ns").by_workload();
    loader.text("side.yaml", &side.text());
    let manifests = loader.finish();
    assert!(manifests.errors.is_empty(), "{:?}", manifests.errors);
    manifests
}

/// The same documents, to be consumed.
fn copy(of: &Manifests) -> Manifests {
    let mut copy = Manifests::default();
    copy.documents.clone_from(&of.documents);
    copy.made.clone_from(&of.made);
    copy
}

/// What `larder diff` says of each container.
fn claims(loaded: &Loaded) -> BTreeMap<String, Claim> {
    let report = larder_cli::diff_report(copy(&loaded.from), copy(&loaded.to));
    let pods = report["pods"].as_array().unwrap().iter();
    let mut there = pods.filter(|pod| pod["change"] != "removed");
    let mut claims = BTreeMap::new();
    let Some(pod) = there.next() else {
        return claims;
    };
    for (name, container) in pod["containers"].as_object().unwrap() {
        let unknown = container["unknown"].as_array().into_iter().flatten();
        let unknown = unknown.map(|one| one.as_str().unwrap().to_owned());
        let unless = container["unless"].as_array();
        let claim = Claim {
            verdict: container["verdict"].as_str().unwrap().to_owned(),
            has_unless: unless.is_some_and(|one: &Vec<Value>| !one.is_empty()),
            unknown: unknown.collect(),
        };
        claims.insert(name.clone(), claim);
    }
    claims
}

/// A completion that the claim does not hold for. A container without a claim is the same.
fn fault(claim: Option<&Claim>, results: &[(Completion<'_>, Outcome)]) -> Option<String> {
    let contradicts = |allowed: &[Outcome]| {
        let mut results = results.iter();
        let found = results.find(|(_, outcome)| !allowed.contains(outcome))?;
        Some(format!("it is {:?} in {}", found.1, found.0))
    };
    let Some(claim) = claim else {
        return contradicts(&[Outcome::Same, Outcome::Neither]);
    };
    let unmet = if claim.has_unless {
        Outcome::Fails
    } else {
        Outcome::Neither
    };
    match &*claim.verdict {
        "same" => contradicts(&[Outcome::Same, Outcome::Neither]),
        "live" => contradicts(&[Outcome::Live, Outcome::Neither, Outcome::Starts, unmet]),
        "restart" => contradicts(&[Outcome::Restart, Outcome::Neither, Outcome::Starts, unmet]),
        "starts" => contradicts(&[Outcome::Starts, Outcome::Neither, unmet]),
        "fails" => contradicts(&[Outcome::Fails, Outcome::Neither]),
        "neither" => contradicts(&[Outcome::Neither]),
        "unknown" => undecided(claim, results),
        other => Some(format!("there is no verdict {other}")),
    }
}

/// Why `unknown` is no answer: all completions agree, or what is not named decides.
fn undecided(claim: &Claim, results: &[(Completion<'_>, Outcome)]) -> Option<String> {
    let outcomes = results.iter().map(|(_, outcome)| *outcome);
    let mut outcomes: BTreeSet<_> = outcomes.filter(|one| *one != Outcome::Neither).collect();
    // What an `unless` names is no part of the verdict, unless it is the only difference.
    if claim.has_unless
        && outcomes.len() > 1
        && !outcomes.iter().eq([&Outcome::Same, &Outcome::Fails])
    {
        outcomes.remove(&Outcome::Fails);
    }
    let selects_directory = results.iter().any(|(one, _)| one.selects_directory());
    if outcomes.len() < 2 && !selects_directory {
        return Some(format!("all completions agree: {outcomes:?}"));
    }
    // What is not named decides nothing: with the named ones fixed, all agree.
    let mut by_named = BTreeMap::new();
    let named = results.iter();
    for (completion, outcome) in named.filter(|(one, _)| !one.repeats_service()) {
        let named = completion.choices_of(&claim.unknown);
        let (first, other) = *by_named.entry(named).or_insert((*outcome, completion));
        let is_start = |one| matches!(one, Outcome::Neither | Outcome::Starts);
        if first != *outcome && !is_start(first) && !is_start(*outcome) {
            return Some(format!(
                "what is not named decides: {first:?} in {other}\n{outcome:?} in {completion}"
            ));
        }
    }
    None
}
