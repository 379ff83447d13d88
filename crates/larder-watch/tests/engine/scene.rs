//! An engine and its API server, and what both have said, line by line.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

use larder_objects::{ConfigMap, ObjectKey, ResourceVersion};
use larder_transport::path::CollectionPath;
use larder_watch::{
    Api, ByName, Engine, Head, MinFreshness, Need, NodeContext, ObjectId, Presence,
    RegistrationSeq, Report, RequestError, SeqCounter, Target, TargetId,
};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::script::{Exchange, Script, Stream};

/// What a store would know.
type KnownVersions = Arc<Mutex<BTreeMap<String, ResourceVersion>>>;

/// ConfigMap `n/<name>`, or all of namespace `n`.
#[derive(Clone, Debug)]
pub(crate) struct Maps {
    name: Option<String>,
    /// Its newest registration is the newest of all.
    seqs: Arc<SeqCounter>,
    known: KnownVersions,
}

impl Target for Maps {
    type Item = Arc<ConfigMap>;
    type Tombstone = String;
    type State = BTreeMap<String, Arc<ConfigMap>>;

    const KIND: &'static str = "ConfigMap";
    const SECRET: bool = false;

    fn path(&self) -> Result<CollectionPath, RequestError> {
        ByName::<ConfigMap>::new(ObjectKey::new("n", "")).path()
    }

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn newest_registration(&self) -> Option<RegistrationSeq> {
        self.name.as_ref().map(|_| self.seqs.current())
    }

    fn known_version(&self) -> ResourceVersion {
        let name = self.name.as_deref().unwrap_or_default();
        self.known.lock().get(name).cloned().unwrap_or_default()
    }

    fn read(&self, json: &[u8]) -> Result<Option<Self::Item>, RequestError> {
        let name = Head::of(json).metadata.name;
        ByName::new(ObjectKey::new("n", name)).read(json)
    }

    fn gone(&self, head: Head) -> Option<String> {
        Some(head.metadata.name.to_string())
    }

    fn version(item: &Self::Item) -> &ResourceVersion {
        &item.metadata.resource_version
    }

    fn add(state: &mut Self::State, item: Self::Item) {
        state.insert(item.metadata.name.to_string(), item);
    }

    fn remove(state: &mut Self::State, gone: &String) {
        state.remove(gone);
    }

    fn into_item(mut state: Self::State) -> Option<Self::Item> {
        Some(state.pop_first()?.1)
    }
}

/// The target of all objects.
pub(crate) const ALL: TargetId = TargetId::Collection(0);

/// The target of the object with that name: `a` is number 0.
pub(crate) fn one(name: &str) -> TargetId {
    TargetId::Object(id(name))
}

fn id(name: &str) -> ObjectId {
    ObjectId(u64::from(name.as_bytes()[0] - b'a'))
}

pub(crate) struct Scene {
    pub(crate) engine: Engine<Maps>,
    script: Script,
    /// Requests that wait for their response, the oldest first.
    pub(crate) requests: VecDeque<Exchange>,
    /// Watches that stay open.
    streams: Vec<Stream>,
    known: KnownVersions,
    seqs: Arc<SeqCounter>,
    pub(crate) log: String,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with_max_requests(4)
    }

    pub(crate) fn with_max_requests(max_in_flight: usize) -> Self {
        let (client, script) = Script::new();
        let (seqs, context) = (Arc::default(), NodeContext::with_seed(7));
        let random = fastrand::Rng::with_seed(7);
        let engine = Engine::new(
            Api::new(client),
            max_in_flight,
            Arc::clone(&seqs),
            &context,
            random,
        );
        Self {
            engine,
            script,
            requests: VecDeque::new(),
            streams: Vec::new(),
            known: KnownVersions::default(),
            seqs,
            log: String::new(),
        }
    }

    fn note(&mut self, line: &str) {
        writeln!(self.log, "{line}").unwrap();
    }

    fn target(&self, name: Option<&str>) -> Maps {
        Maps {
            name: name.map(str::to_owned),
            seqs: Arc::clone(&self.seqs),
            known: Arc::clone(&self.known),
        }
    }

    /// Adds the object of that name, which is registered now, as a target, and starts it.
    pub(crate) async fn start(&mut self, name: &str) {
        self.seqs.advance();
        let target = self.target(Some(name));
        self.engine.add(one(name), target);
        self.engine.start(one(name), MinFreshness::Newest);
        self.settle().await;
    }

    /// Adds the collection, and starts it.
    pub(crate) async fn start_all(&mut self) {
        let target = self.target(None);
        self.engine.add(ALL, target);
        self.engine.start(ALL, MinFreshness::Newest);
        self.settle().await;
    }

    /// Readers that register now need these objects of a target, of which that much is known.
    pub(crate) async fn need(&mut self, id_of_target: TargetId, names: &[&str], known: Presence) {
        self.seqs.advance();
        let need = |name: &&str| Need {
            object: id(name),
            known,
            target: self.target(Some(name)),
        };
        let needs = names.iter().map(need).collect();
        self.engine
            .require_fresh(id_of_target, needs, MinFreshness::Newest);
        self.settle().await;
    }

    /// What is known of an object from now on.
    pub(crate) fn know(&mut self, name: &str, version: u64) {
        let version = ResourceVersion::new(version.to_string());
        self.known.lock().insert(name.to_owned(), version);
    }

    /// Answers the oldest request with a failure, or with an object.
    pub(crate) async fn answer(&mut self, code: u16, body: &str) {
        let request = self.requests.pop_front().unwrap();
        request.answer(code, body);
        self.settle().await;
    }

    /// Answers the oldest request, a list, with these objects.
    pub(crate) async fn list(&mut self, version: u64, object: Option<&str>) {
        self.requests.pop_front().unwrap().list(version, object);
        self.settle().await;
    }

    /// Answers the oldest request, a streaming list, with these objects; the watch stays open under the next number.
    pub(crate) async fn synced(&mut self, version: u64, object: Option<&str>) {
        let stream = self.requests.pop_front().unwrap().synced(version, object);
        self.streams.push(stream);
        self.settle().await;
    }

    /// Answers the oldest request with an open stream.
    pub(crate) async fn open(&mut self) {
        let stream = self.requests.pop_front().unwrap().stream();
        self.streams.push(stream);
        self.settle().await;
    }

    /// The newest stream.
    pub(crate) fn stream(&self) -> &Stream {
        self.streams.last().unwrap()
    }

    /// Ends the newest stream.
    pub(crate) async fn end_stream(&mut self) {
        drop(self.streams.pop());
        self.settle().await;
    }

    /// Notes everything that happens without further ado.
    pub(crate) async fn settle(&mut self) {
        self.run(Duration::from_millis(1)).await;
    }

    /// Notes everything that happens within a time.
    pub(crate) async fn run(&mut self, time: Duration) {
        let end = tokio::time::Instant::now() + time;
        loop {
            let left = end - tokio::time::Instant::now();
            let report = timeout(left, self.engine.next()).await;
            while let Some(request) = self.script.arrived() {
                self.note(&format!("> {}", describe(&request)));
                self.requests.push_back(request);
            }
            match report {
                Ok((id, report)) => self.report(id, &report),
                Err(_) => return,
            }
        }
    }

    fn report(&mut self, id: TargetId, report: &Report<Maps>) {
        let confirmed = |is: bool| if is { ", confirmed" } else { "" };
        let line = match report {
            Report::Responded { .. } => return,
            Report::Synced(snapshot) => {
                let names: Vec<_> = snapshot.state.keys().map(String::as_str).collect();
                let incomplete = snapshot.incomplete.is_some();
                format!(
                    "synced at {}: [{}]{}{}{}",
                    snapshot.version,
                    names.join(", "),
                    confirmed(snapshot.fresh_as_of.is_some()),
                    if snapshot.reset { ", reset" } else { "" },
                    if incomplete { ", incomplete" } else { "" },
                )
            }
            Report::Changed(item) => format!(
                "{} changed at {}",
                item.metadata.name, item.metadata.resource_version
            ),
            Report::Deleted(name, version) => format!("{name} deleted at {version}"),
            Report::Interrupted { restart, .. } => format!("interrupted: {}", restart.label()),
            Report::Resumed(_) => "resumed".to_owned(),
            Report::Failed(failure) => format!("failed: {failure}: {}", failure.error.label()),
            Report::Confirmed(confirmed) => {
                let version = confirmed.item.as_ref().map(Maps::version);
                let state = version.map_or("absent".to_owned(), |version| format!("at {version}"));
                let reset = if confirmed.reset { ", reset" } else { "" };
                format!("object {} confirmed {state}{reset}", confirmed.object.0)
            }
            Report::CheckFailed(object, failure) => {
                format!("check of {} failed: {}", object.0, failure.error.label())
            }
            Report::CheckDue => "check due".to_owned(),
        };
        let of = match id {
            TargetId::Object(object) => object.0.to_string(),
            TargetId::Collection(_) => "all".to_owned(),
        };
        self.note(&format!("{of}: {line}"));
    }
}

/// A request in a few words.
fn describe(request: &Exchange) -> String {
    let (path, query) = request
        .path_and_query
        .split_once('?')
        .unwrap_or((&request.path_and_query, ""));
    let parameter = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        Some(pairs.find(|(known, _)| *known == name)?.1)
    };
    let (_, last) = path.rsplit_once('/').unwrap();
    let verb = match (parameter("sendInitialEvents"), parameter("watch")) {
        (Some(_), _) => "streaming list",
        (None, Some(_)) => "watch",
        (None, None) if last == "configmaps" => "list",
        (None, None) => return format!("get {last}"),
    };
    let name = parameter("fieldSelector").map_or("all", |selector| {
        selector.strip_prefix("metadata.name%3D").unwrap()
    });
    match parameter("resourceVersion") {
        Some(version) => format!("{verb} of {name} from {version}"),
        None => format!("{verb} of {name}"),
    }
}
