//! Terms against completions: a pod is projected with objects that nobody knows, and then with each way to complete them
//! (missing, with fewer and with more keys, with equal values among them), exactly. The terms, filled in, are what the
//! exact projection gives.

use std::collections::BTreeMap;

use larder_objects::Kind;
use larder_projection::{
    Existence, Question, Unavailable, Unknown, UnknownObject, partial_environment,
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

use super::World;

/// The objects that nobody knows: a Secret and a ConfigMap.
const OUTSIDE: [(Kind, &str); 2] = [(Kind::Secret, "s"), (Kind::ConfigMap, "o")];
/// What an object of [`OUTSIDE`] has, if it is there.
type Completion = [Option<BTreeMap<String, String>>; 2];

fn keyed(object: &str, key: &str, optional: bool) -> Value {
    let field = if object == "s" {
        "secretKeyRef"
    } else {
        "configMapKeyRef"
    };
    json!({field: {"name": object, "key": key, "optional": optional}})
}

fn object() -> impl Strategy<Value = &'static str> {
    select(vec!["s", "o", "known"])
}

fn container() -> impl Strategy<Value = Value> {
    let source = (object(), select(vec!["", "P_", "P"]), any::<bool>());
    let source = source.prop_map(|(object, prefix, optional)| {
        let field = if object == "s" {
            "secretRef"
        } else {
            "configMapRef"
        };
        json!({"prefix": prefix, field: {"name": object, "optional": optional}})
    });
    let name = || select(vec!["A", "B", "P_A", "PA", "X"]);
    let literal = "(a|[$][(](A|B|P_A|X|Y)[)]|[$][$]){0,3}".prop_map(|text| json!({"value": text}));
    let key = (object(), select(vec!["A", "B", "X"]), any::<bool>());
    let key =
        key.prop_map(|(object, key, optional)| json!({"valueFrom": keyed(object, key, optional)}));
    let variable = (name(), prop_oneof![literal, key]).prop_map(|(name, mut variable)| {
        variable["name"] = name.into();
        variable
    });
    (vec(source, 0..4), vec(variable, 0..5)).prop_map(|(sources, variables)| {
        let mounts = json!([{"name": "v", "mountPath": "/v"}]);
        json!({"envFrom": sources, "env": variables, "volumeMounts": mounts})
    })
}

fn volume() -> impl Strategy<Value = Value> {
    let item = (
        select(vec!["A", "B", "X"]),
        select(vec!["A", "B", "d/A"]),
        option::of(select(vec![0o400, 0o444])),
    );
    let item = item.prop_map(|(key, path, mode)| match mode {
        Some(mode) => json!({"key": key, "path": path, "mode": mode}),
        None => json!({"key": key, "path": path}),
    });
    let source = (object(), any::<bool>(), vec(item, 0..3));
    let source = source.prop_map(|(object, optional, items)| {
        let field = if object == "s" { "secret" } else { "configMap" };
        let mut source = json!({field: {"name": object, "optional": optional}});
        if !items.is_empty() {
            source[field]["items"] = items.into();
        }
        source
    });
    vec(source, 0..4).prop_map(
        |sources| json!({"name": "v", "projected": {"defaultMode": 0o644, "sources": sources}}),
    )
}

fn completions() -> impl Strategy<Value = Vec<Completion>> {
    let key = select(vec!["A", "B", "X", "P_A", "fresh"]).prop_map(str::to_owned);
    let value = select(vec!["", "a", "b"]).prop_map(str::to_owned);
    let data = || {
        option::weighted(
            0.8,
            prop::collection::btree_map(key.clone(), value.clone(), 0..5),
        )
    };
    vec([data(), data()], 12)
}

impl World {
    /// The pod, with an object that is known.
    fn of(container: &Value, volume: &Value) -> Self {
        let mut container = container.clone();
        container["name"] = "c".into();
        let world = Self::new(json!({"containers": [container], "volumes": [volume]}));
        world.config_map("known", json!({"A": "known-a", "B": "$(A)"}))
    }

    fn completed(container: &Value, volume: &Value, completion: &Completion) -> Self {
        let mut world = Self::of(container, volume);
        for ((kind, name), data) in OUTSIDE.into_iter().zip(completion) {
            world = match (kind, data) {
                (_, None) => world.missing(kind, name),
                (Kind::ConfigMap, Some(data)) => world.config_map(name, json!(data)),
                (Kind::Secret, Some(data)) => {
                    let data = data
                        .iter()
                        .map(|(key, value)| (key.as_str(), value.as_bytes()));
                    world.secret(name, &data.collect::<Vec<_>>())
                }
            };
        }
        world
    }

    fn unknown(container: &Value, volume: &Value) -> Self {
        let mut world = Self::of(container, volume);
        for (kind, name) in OUTSIDE {
            let object = UnknownObject::unseen(Existence::Unsure);
            world = world.unavailable(kind, name, Unavailable::Unknown(object.into()));
        }
        world
    }
}

fn data(completion: &Completion, kind: Kind) -> Option<&BTreeMap<String, String>> {
    let place = OUTSIDE.iter().position(|(outside, _)| *outside == kind);
    completion[place.unwrap()].as_ref()
}

fn is_true(completion: &Completion, question: &Question) -> bool {
    let data = data(completion, question.object().unwrap().kind);
    match question {
        Question::Exists(_) => data.is_some(),
        Question::HasKey(_, key) => data.is_some_and(|data| data.contains_key(&**key)),
        Question::Fact(_) => unreachable!("its pods read none"),
    }
}

/// The bytes of a term.
fn filled(term: &Unknown, completion: &Completion) -> Option<Vec<u8>> {
    let settled = term.settled(&|question| is_true(completion, question))?;
    let parts = settled.parts().map(|part| match part {
        Ok(text) => text.to_vec(),
        Err(source) => {
            let (_, key) = source
                .to_string()
                .rsplit_once(' ')
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .unwrap();
            data(completion, source.object.unwrap()).unwrap()[&key]
                .clone()
                .into_bytes()
        }
    });
    Some(parts.collect::<Vec<_>>().concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("LARDER_TEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
    ))]

    #[test]
    fn terms_filled_in_are_what_the_exact_projection_gives(
        container in container(),
        volume in volume(),
        completions in completions(),
    ) {
        let unknown = World::unknown(&container, &volume);
        let (environment, errors) = partial_environment(&unknown.pod, unknown.container("c"), &unknown.inputs).unwrap();
        let projection = unknown.projection();
        for completion in &completions {
            let exact = World::completed(&container, &volume, completion);
            let answer = |question: &Question| is_true(completion, question);
            match exact.environment_of("c") {
                Ok(exact) => {
                    prop_assert!(errors.is_empty() && environment.needs().iter().all(answer));
                    let names = ["A", "B", "X", "P_A", "PA", "fresh", "P_fresh", "Pfresh", "P_P_A", "PX", "P_X", "P_B", "PB", "PP_A"];
                    prop_assert!(exact.iter().all(|(name, _)| names.contains(&name)));
                    for name in names {
                        let term = environment.look_up(name).map(|found| found.into_owned().value.into_term());
                        let value = term.and_then(|term| filled(&term, completion));
                        let expected = exact.get(name).map(|found| found.value.to_vec());
                        prop_assert_eq!(value, expected, "{} {:?}", name, completion);
                    }
                }
                Err(error) => prop_assert!(
                    !errors.is_empty() || !environment.needs().iter().all(answer), "{}", error
                ),
            }
            match (exact.projection(), &projection) {
                (Ok(exact), Ok(projection)) => {
                    prop_assert!(projection.needs.iter().all(answer));
                    let paths = ["A", "B", "X", "P_A", "d/A", "fresh"];
                    prop_assert!(exact.payload.keys().all(|path| paths.contains(&path.as_str())));
                    for path in paths {
                        let view = projection.look_up(path);
                        let layer = view.layers.iter().rev().find(|layer| answer(&layer.question));
                        let file = layer.map(|layer| &layer.file).or(view.below.map(|(file, _)| file));
                        let found = file.map(|file| {
                            let value = filled(&file.data.clone().into_term(), completion);
                            (value.unwrap(), file.mode)
                        });
                        let expected = exact.payload.get(path).map(|file| (file.data.to_vec(), file.mode));
                        prop_assert_eq!(found, expected, "{} {:?}", path, completion);
                    }
                }
                (Ok(_), Err(error)) => prop_assert!(false, "{}", error),
                (Err(_), Err(_)) => {}
                (Err(error), Ok(projection)) => {
                    prop_assert!(!projection.needs.iter().all(answer), "{}", error);
                }
            }
        }
    }
}
