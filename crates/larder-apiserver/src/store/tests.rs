//! The store against a naive model, and the rules for watchers.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use larder_objects::ObjectKey;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::selector::{FieldSelector, LabelSelector};

const KIND: ApiKind = ApiKind::ConfigMap;
const LIMITS: Limits = Limits {
    changes: 1000,
    bytes: 1 << 20,
};

fn object(name: &str, label: &str) -> Value {
    json!({"metadata": {"namespace": "n", "name": name, "labels": {"l": label}}})
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("n", name)
}

fn filter(fields: &str, labels: &str) -> Arc<Filter> {
    Arc::new(Filter {
        namespace: Some("n".into()),
        fields: FieldSelector::parse(fields, KIND.resource()).unwrap(),
        labels: LabelSelector::parse(labels).unwrap(),
    })
}

fn events(watch: &Watch) -> Vec<(EventType, String, u64)> {
    match watch.poll_take(Waker::noop()) {
        Poll::Pending => Vec::new(),
        Poll::Ready(Taken::Events(events)) => events
            .into_iter()
            .map(|event| {
                let object = event.object;
                (event.event, object.key.name.to_string(), object.version)
            })
            .collect(),
        Poll::Ready(other) => panic!("{other:?}"),
    }
}

fn store(limits: Limits) -> Arc<Store> {
    Arc::new(Store::new(100, limits))
}

#[test]
fn an_object_that_enters_or_leaves_the_selector_is_added_or_deleted() {
    let store = store(LIMITS);
    let (watch, ..) = store.watch(KIND, filter("", "l=in"), Start::State).unwrap();
    let a = store.create(KIND, object("a", "out")).unwrap();
    assert_eq!(events(&watch), []);
    let a = store.replace(&a, object("a", "in")).unwrap();
    let a = store.replace(&a, object("a", "in")).unwrap();
    let a = store.replace(&a, object("a", "out")).unwrap();
    store.delete(&a).unwrap();
    let seen = [
        (EventType::Added, "a".to_owned(), 102),
        (EventType::Modified, "a".to_owned(), 103),
        (EventType::Deleted, "a".to_owned(), 104),
    ];
    assert_eq!(events(&watch), seen);
    // The same from the history.
    let (late, ..) = store
        .watch(KIND, filter("", "l=in"), Start::After(100))
        .unwrap();
    assert_eq!(events(&late), seen);
}

#[test]
fn writes_based_on_a_stale_read_are_rejected() {
    let store = store(LIMITS);
    let a = store.create(KIND, object("a", "1")).unwrap();
    assert_eq!(store.create(KIND, object("a", "1")).unwrap_err(), Changed);
    store.replace(&a, object("a", "2")).unwrap();
    assert_eq!(store.replace(&a, object("a", "3")).unwrap_err(), Changed);
    assert_eq!(store.delete(&a).unwrap_err(), Changed);
    assert_eq!(store.version(), 102, "a rejected write takes no version");
}

#[test]
fn only_a_watcher_behind_the_history_expires() {
    let store = store(Limits {
        changes: 2,
        ..LIMITS
    });
    let (slow, ..) = store.watch(KIND, filter("", ""), Start::State).unwrap();
    let (idle, ..) = store
        .watch(KIND, filter("metadata.name=b", ""), Start::State)
        .unwrap();
    let mut a = store.create(KIND, object("a", "0")).unwrap();
    for label in ["1", "2", "3"] {
        a = store.replace(&a, object("a", label)).unwrap();
    }
    assert!(matches!(
        slow.poll_take(Waker::noop()),
        Poll::Ready(Taken::Expired)
    ));
    assert_eq!(idle.in_step_with(), Some(104));
    store.create(KIND, object("b", "0")).unwrap();
    assert_eq!(events(&idle), [(EventType::Added, "b".to_owned(), 105)]);
    assert_eq!(
        store.watch(KIND, filter("", ""), Start::After(102)).err(),
        Some(Compacted { oldest: 103 })
    );
}

#[test]
fn history_is_bounded_in_bytes_as_well() {
    let store = store(Limits {
        changes: 1000,
        bytes: 300,
    });
    let mut a = store.create(KIND, object("a", "0")).unwrap();
    for _ in 0..10 {
        a = store.replace(&a, object("a", "0")).unwrap();
    }
    assert!(
        store
            .watch(KIND, filter("", ""), Start::After(101))
            .is_err()
    );
    assert!(store.watch(KIND, filter("", ""), Start::After(110)).is_ok());
}

#[test]
fn a_dropped_watch_leaves_nothing_behind() {
    let store = store(LIMITS);
    let watches: Vec<_> = ["metadata.name=a", "metadata.name=a", ""]
        .map(|fields| {
            store
                .watch(KIND, filter(fields, ""), Start::State)
                .unwrap()
                .0
        })
        .into();
    assert_eq!(store.watchers(), 3);
    drop(watches);
    assert_eq!(store.watchers(), 0);
    store.create(KIND, object("a", "0")).unwrap();
}

#[test]
fn watches_end_from_outside_and_later_ones_do_not() {
    let store = store(LIMITS);
    let (watch, ..) = store.watch(KIND, filter("", ""), Start::State).unwrap();
    store.end_watches();
    let taken = watch.poll_take(Waker::noop());
    assert!(matches!(taken, Poll::Ready(Taken::Over(End::Ended))));
    let (later, ..) = store.watch(KIND, filter("", ""), Start::State).unwrap();
    assert!(later.poll_take(Waker::noop()).is_pending());
}

/// Compared watchers and read changes when all of `objects` are edited before their watchers read.
fn work_of_an_edit(objects: &[(String, String)]) -> usize {
    let store = store(Limits {
        changes: 10_000,
        bytes: 10 << 20,
    });
    let value = |(namespace, name): &(String, String), label| json!({"metadata": {"namespace": namespace, "name": name, "labels": {"l": label}}});
    let stored: Vec<_> = objects
        .iter()
        .map(|object| store.create(KIND, value(object, "old")).unwrap())
        .collect();
    let watches: Vec<_> = objects
        .iter()
        .map(|(namespace, name)| {
            let filter = Filter {
                namespace: Some(namespace.into()),
                ..Filter::clone(&filter(&format!("metadata.name={name}"), ""))
            };
            store.watch(KIND, Arc::new(filter), Start::State).unwrap().0
        })
        .collect();
    for (object, current) in objects.iter().zip(&stored) {
        store.replace(current, value(object, "new")).unwrap();
    }
    for watch in &watches {
        assert_eq!(events(watch).len(), 1);
    }
    let mut inner = store.inner.lock();
    let table = inner.table(KIND);
    table.watchers.compared + table.history.read.get()
}

#[test]
fn an_edit_of_many_objects_costs_each_watcher_its_own_change() {
    let edit = |count: usize, object: fn(usize) -> (String, String)| {
        work_of_an_edit(&(0..count).map(object).collect::<Vec<_>>())
    };
    for object in [
        |at| (format!("n{at}"), "app".to_owned()),
        |at| ("n".to_owned(), format!("app-{at}")),
    ] {
        let (once, twice) = (edit(200, object), edit(400, object));
        assert_eq!(twice, 2 * once, "work for 200 and 400 objects");
    }
}

#[derive(Debug, Clone)]
enum StoreAction {
    Put(usize, usize),
    Delete(usize),
    /// All watchers read what waits for them.
    Read,
    /// A new watcher begins at the state, or at a version some changes ago.
    Watch(usize, Option<u64>),
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const LABELS: [&str; 3] = ["x", "y", "z"];
const FILTERS: [(&str, &str); 5] = [
    ("", ""),
    ("metadata.name=a", ""),
    ("", "l=x"),
    ("metadata.name!=b", "l!=y"),
    ("metadata.name=c", "l in (x,z)"),
];

fn action() -> impl Strategy<Value = StoreAction> {
    prop_oneof![
        6 => (0..NAMES.len(), 0..LABELS.len()).prop_map(|(name, label)| StoreAction::Put(name, label)),
        2 => (0..NAMES.len()).prop_map(StoreAction::Delete),
        1 => Just(StoreAction::Read),
        1 => (0..FILTERS.len(), proptest::option::of(0..8_u64)).prop_map(|(filter, ago)| StoreAction::Watch(filter, ago)),
    ]
}

/// Name and version of all objects that a filter lets through.
type State = BTreeMap<String, u64>;

struct Replay {
    watch: Watch,
    filter: Arc<Filter>,
    state: State,
    last: u64,
}

impl Replay {
    fn read(&mut self) {
        for (event, name, version) in events(&self.watch) {
            assert!(version > self.last, "versions grow");
            self.last = version;
            let before = match event {
                EventType::Deleted => self.state.remove(&name),
                _ => self.state.insert(name.clone(), version),
            };
            assert_eq!(
                before.is_none(),
                event == EventType::Added,
                "{name} at {version}"
            );
        }
    }
}

fn list(store: &Store, filter: &Filter, at: Option<u64>) -> State {
    let page = store.list(KIND, filter, at, None, None).unwrap();
    let objects = page.objects.iter();
    objects
        .map(|object| (object.key.name.to_string(), object.version))
        .collect()
}

proptest! {
    #[test]
    fn every_replay_equals_the_list_and_every_old_list_equals_what_was_listed_then(
        ops in proptest::collection::vec(action(), 1..120),
    ) {
        let store = store(LIMITS);
        let all = filter("", "");
        let mut past = BTreeMap::from([(store.version(), State::new())]);
        let mut replays: Vec<Replay> = Vec::new();
        for op in ops {
            match op {
                StoreAction::Put(name, label) => {
                    let value = object(NAMES[name], LABELS[label]);
                    match store.get(KIND, &key(NAMES[name])) {
                        Some(current) => store.replace(&current, value).unwrap(),
                        None => store.create(KIND, value).unwrap(),
                    };
                }
                StoreAction::Delete(name) => {
                    if let Some(current) = store.get(KIND, &key(NAMES[name])) {
                        store.delete(&current).unwrap();
                    }
                }
                StoreAction::Read => replays.iter_mut().for_each(Replay::read),
                StoreAction::Watch(index, ago) => {
                    let filter = filter(FILTERS[index].0, FILTERS[index].1);
                    let now = store.version();
                    let version = ago.map_or(now, |ago| now.saturating_sub(ago).max(100));
                    let state = list(&store, &filter, Some(version));
                    let start = ago.map_or(Start::State, |_| Start::After(version));
                    let (watch, objects, _) = store.watch(KIND, filter.clone(), start).unwrap();
                    if ago.is_none() {
                        prop_assert_eq!(objects.len(), state.len());
                    }
                    replays.push(Replay { watch, filter, state, last: version });
                }
            }
            past.insert(store.version(), list(&store, &all, None));
        }
        for replay in &mut replays {
            replay.read();
            prop_assert_eq!(&replay.state, &list(&store, &replay.filter, None));
        }
        for (version, state) in &past {
            prop_assert_eq!(&list(&store, &all, Some(*version)), state);
        }
    }

    #[test]
    fn pages_make_up_the_list_of_the_first_page_whatever_happens_meanwhile(
        names in proptest::collection::btree_set("[a-f]{1,2}", 0..20),
        limit in 1_usize..6,
    ) {
        let store = store(LIMITS);
        for name in &names {
            store.create(KIND, object(name, "x")).unwrap();
        }
        let all = filter("", "");
        let (mut listed, mut after, mut at) = (Vec::new(), None, None);
        loop {
            let page = store.list(KIND, &all, at, after.as_ref(), Some(limit)).unwrap();
            at = Some(page.version);
            listed.extend(page.objects.iter().map(|object| object.key.name.to_string()));
            prop_assert_eq!(listed.len() + page.remaining, names.len());
            // What comes and goes between two pages does not show.
            if let Some(gone) = store.get(KIND, &page.objects.last().map_or(key("-"), |object| object.key.clone())) {
                store.delete(&gone).unwrap();
            }
            store.create(KIND, object(&format!("g{}", listed.len()), "x")).unwrap();
            match page.last {
                Some(last) => after = Some(last),
                None => break,
            }
        }
        prop_assert_eq!(listed, names.into_iter().collect::<Vec<_>>());
    }
}
