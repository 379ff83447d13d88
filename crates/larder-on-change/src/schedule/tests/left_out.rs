//! Objects that are left out, against a model that knows objects and values only: no tags, digests or records.

use std::collections::BTreeMap;

use larder_objects::Kind;
use proptest::prelude::*;

use super::*;
use crate::left_out::{ItemObjects, LeftOut, ObjectTag};

const OBJECTS: usize = 3;
const POD: &str = "a";

/// What happens before a pass.
#[derive(Clone, Debug)]
enum Edit {
    /// A key gets this value, or goes.
    Set(usize, u8, Option<u8>),
    /// The annotation is set or removed, alone or with a key.
    Annotate(usize, bool, Option<(u8, u8)>),
    /// Nothing: another pass over the same content.
    Nothing,
}

/// An edit, whether larder restarts before its pass, and whether the round that it causes succeeds.
#[derive(Clone, Debug)]
struct Step {
    edit: Edit,
    restarts: bool,
    succeeds: bool,
}

type Values = BTreeMap<String, u8>;

/// An object, its values as hooks know them, and those of the last notification.
#[derive(Clone, Debug, Default)]
struct ModelObject {
    values: Values,
    known: Values,
    notified: Values,
    is_left_out: bool,
}

fn object() -> impl Strategy<Value = usize> {
    0..OBJECTS
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let edit = prop_oneof![
        4 => (object(), 0..3_u8, proptest::option::weighted(0.7, 0..3_u8))
            .prop_map(|(object, key, value)| Edit::Set(object, key, value)),
        3 => (object(), any::<bool>(), proptest::option::of((0..3_u8, 0..3_u8)))
            .prop_map(|(object, is_left_out, set)| Edit::Annotate(object, is_left_out, set)),
        1 => Just(Edit::Nothing),
    ];
    let step = (
        edit,
        proptest::bool::weighted(0.3),
        proptest::bool::weighted(0.8),
    );
    let step = step.prop_map(|(edit, restarts, succeeds)| Step {
        edit,
        restarts,
        succeeds,
    });
    proptest::collection::vec(step, 1..25)
}

/// A file of an object: of every object others.
fn file(object: usize, key: u8) -> String {
    format!("{object}.{key}")
}

fn tag_of(object: usize) -> ObjectTag {
    ObjectTag::of((Kind::ConfigMap, &object.to_string()))
}

/// The content of a pass, as a worker hands it over.
fn delivered(node: &Node, objects: &[ModelObject]) -> Vec<(PartKey, Arc<PartContent>)> {
    let left_out = objects
        .iter()
        .enumerate()
        .filter(|(_, one)| one.is_left_out);
    let left_out: LeftOut = left_out.map(|(index, _)| tag_of(index)).collect();
    let files = objects.iter().flat_map(|object| &object.values);
    let files = files.map(|(name, value)| (name, [*value]));
    let hooks = node.schedule.pod(POD).unwrap().hooks();
    let tags = PartTags::of(hooks, &Node::part(), files, &node.key).unwrap();
    let of = |name: &str| {
        let (object, _) = name.split_once('.')?;
        Some(tag_of(object.parse().ok()?))
    };
    let tags = tags.with_objects(&ItemObjects {
        left_out: &left_out,
        of: &of,
    });
    vec![(
        Node::part(),
        Arc::new(PartContent {
            tags,
            swapped: None,
        }),
    )]
}

/// The next larder: it has the record, and the files on disk, without their objects.
fn restarted(node: &mut Node, record: &str, on_disk: &[ModelObject]) -> Node {
    let files = on_disk.iter().flat_map(|object| &object.values);
    let files = files.map(|(name, value)| (name, [*value]));
    let hooks = Arc::clone(&node.schedule.pods.get(POD).unwrap().hooks);
    let tags = PartTags::of(&hooks, &Node::part(), files, &node.key).unwrap();
    let found = Arc::new(PartContent {
        tags,
        swapped: None,
    });
    let past = Past {
        content: Content::default().with([(Node::part(), found)]),
        record: Record::read(record.as_bytes()),
        is_uncertain: false,
    };
    let mut next = Node::new(8, node.key.clone());
    next.now = node.now;
    let (key, time) = (&next.key, next.now.time);
    next.schedule
        .adopt(&POD.into(), (), hooks, &past, key, time);
    next
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 150 } else { 2000 }))]

    // on-change 66, 67, 68, 69
    #[test]
    fn hooks_fire_for_changes_of_objects_that_are_not_left_out_and_for_no_others(
        first in proptest::collection::vec((object(), 0..3_u8, 0..3_u8), 0..6),
        steps in steps(),
    ) {
        let mut objects = vec![ModelObject::default(); OBJECTS];
        for (object, key, value) in first {
            objects[object].values.insert(file(object, key), value);
        }
        let mut node = Node::new(8, kept());
        node.add_undelivered(POD, "[{signal: HUP, debounce: 0s}]");
        let content = delivered(&node, &objects);
        node.schedule.pass(POD, content, &kept(), node.now);
        for object in &mut objects {
            object.known.clone_from(&object.values);
            object.notified.clone_from(&object.values);
        }
        let mut record = node.record(POD).unwrap();
        // A failed attempt may have notified the application of everything or of nothing.
        let mut is_uncertain = false;

        for Step { edit, restarts, succeeds } in steps {
            let before = objects.clone();
            let mut set = |object: usize, key: u8, value: Option<u8>| {
                let values = &mut objects[object].values;
                match value {
                    Some(value) => values.insert(file(object, key), value),
                    None => values.remove(&file(object, key)),
                };
            };
            match edit {
                Edit::Set(object, key, value) => set(object, key, value),
                Edit::Annotate(object, is_left_out, also) => {
                    if let Some((key, value)) = also {
                        set(object, key, Some(value));
                    }
                    objects[object].is_left_out = is_left_out;
                }
                Edit::Nothing => {}
            }
            if restarts {
                node = restarted(&mut node, &record, &before);
            }
            let content = delivered(&node, &objects);
            node.schedule.pass(POD, content, &kept(), node.now);
            record = node.record(POD).unwrap_or(record);
            for object in objects.iter_mut().filter(|object| !object.is_left_out) {
                object.known.clone_from(&object.values);
            }
            let owed = objects.iter().any(|object| object.known != object.notified);
            let attempts = node.due(3600);
            if is_uncertain {
                // It is retried in any case, or has been.
                prop_assert!(attempts.len() == 1);
            } else {
                prop_assert_eq!(attempts.len(), usize::from(owed), "{:?}", objects);
            }
            for attempt in &attempts {
                record = node.record(POD).unwrap_or(record);
                let end = if succeeds { AttemptEnd::Succeeded } else { failed() };
                node.ended(attempt, &end);
                record = node.record(POD).unwrap_or(record);
                is_uncertain = !succeeds;
                if succeeds {
                    for object in &mut objects {
                        object.notified.clone_from(&object.known);
                    }
                }
            }
        }
    }
}
