//! Reads objects of an API server by name.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashSet},
    io::{self, IsTerminal as _},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use http::Method;
use larder_objects::{Kind, ObjectKey, SecretBytes, chain};
use larder_transport::{ClusterSource, Transport, path::Resource};
use larder_watch::{RequestError, request_secret};
use tokio::{select, time::interval};

use crate::{
    agent::connect,
    outcome::Failure,
    output::{self, progress::Progress},
    runtime::block_on,
};

/// Number of requests at a time.
const PARALLEL: usize = 8;
/// Time between two reports of the progress.
const PROGRESS: Duration = Duration::from_secs(1);
/// So many requests without an answer, one after the other, and the API server is taken as gone.
const MAX_UNANSWERED: usize = 8;

/// What could not be read. It was reported.
#[derive(Debug, Default)]
pub(crate) struct NotRead {
    /// The API server.
    pub(crate) server: String,
    /// Each object, as `Secret prod/db`, and why.
    pub(crate) reasons: BTreeSet<(String, String)>,
    /// The ConfigMaps and Secrets among them.
    pub(crate) objects: HashSet<(Kind, ObjectKey)>,
}

/// An object to read.
pub(super) struct Wanted {
    /// `Secret prod/db`
    pub(super) name: String,
    /// Its path, followed by others for an API server that does not serve the first one.
    pub(super) paths: Vec<String>,
    pub(super) purpose: Purpose,
}

/// Why an object is read, which decides what follows if it cannot be.
pub(super) enum Purpose {
    /// It is the pod or workload that is compared.
    Side,
    /// For its values.
    Object(Kind, ObjectKey),
    /// It is a pod that may say on which node it runs.
    PodFacts,
    /// It is the Node of a pod, so it must exist.
    Node,
}

impl Wanted {
    /// The object at one path; at none, if no object can have such a key.
    pub(super) fn at(kind: &str, resource: Resource, key: &ObjectKey, purpose: Purpose) -> Self {
        Self {
            name: format!("{kind} {key}"),
            paths: path(resource, key).into_iter().collect(),
            purpose,
        }
    }

    /// Whether its absence leaves the rest whole.
    fn is_fact(&self) -> bool {
        matches!(self.purpose, Purpose::PodFacts | Purpose::Node)
    }
}

/// The path of one object; `None` if no object can have this key.
pub(super) fn path(resource: Resource, key: &ObjectKey) -> Option<String> {
    let collection = match &*key.namespace {
        "" => resource.collection(),
        namespace => resource.in_namespace(namespace).ok()?,
    };
    Some(collection.object(&key.name).ok()?.as_str().to_owned())
}

pub(super) struct ClusterReader {
    client: kube::Client,
    transport: Transport,
    not_read: RefCell<NotRead>,
    /// Whether the API server has answered a request.
    has_answered: Cell<bool>,
    /// The last requests, as far as none was answered.
    unanswered: Cell<usize>,
}

impl ClusterReader {
    /// Runs `work`. Returns its result, and what could not be read.
    ///
    /// # Errors
    ///
    /// Those of `work`, or the API server cannot be reached.
    pub(super) fn with<T>(
        source: ClusterSource,
        work: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<(T, NotRead), Failure> {
        block_on(async {
            let (client, transport) = connect(source).await?;
            let reader = Self {
                client,
                transport,
                not_read: RefCell::default(),
                has_answered: Cell::default(),
                unanswered: Cell::default(),
            };
            let result = work(&reader).await?;
            let not_read = NotRead {
                server: reader.transport.server().to_string(),
                ..reader.not_read.take()
            };
            Ok((result, not_read))
        })
    }

    /// The ConfigMaps and Secrets that could not be read so far.
    pub(super) fn not_read(&self) -> HashSet<(Kind, ObjectKey)> {
        self.not_read.borrow().objects.clone()
    }

    /// Reads the objects that exist, and reports those that cannot be read: the failure of one is none of the others.
    ///
    /// # Errors
    ///
    /// The API server answers nothing, or rejects the credentials.
    pub(super) async fn read(
        &self,
        wanted: Vec<Wanted>,
    ) -> Result<Vec<(String, SecretBytes)>, Failure> {
        let total = output::count(wanted.len(), "object");
        let requests = wanted.into_iter().map(|wanted| async {
            let answer = self.get(&wanted.paths).await;
            (wanted, answer)
        });
        let mut requests = stream::iter(requests).buffered(PARALLEL);
        let mut answers = Vec::new();
        // Scripts that capture the errors of a command have no use for it.
        let mut progress = io::stderr().is_terminal().then(Progress::start);
        let mut ticks = interval(PROGRESS);
        loop {
            // Both are cancel-safe: the requests stay in the stream.
            select! {
                answer = requests.next() => match answer {
                    Some(answer) => answers.push(answer),
                    None => break,
                },
                _ = ticks.tick() => if let Some(progress) = &mut progress {
                    let server = self.transport.server();
                    let read = answers.len();
                    progress.tell(format!("reading {total} from {server}: {read} read"));
                },
            }
            if let Some((wanted, answer)) = answers.last() {
                self.check(wanted, answer)?;
            }
        }
        if let (false, Some((wanted, Err(error)))) = (self.has_answered.get(), answers.last()) {
            return Err(unreadable(wanted, error));
        }
        // Its line makes room for the reports.
        drop(progress);
        let read = answers.into_iter().filter_map(|(wanted, answer)| {
            let reason = match answer {
                Ok(Some(object)) => return Some((wanted.name, object)),
                Ok(None) if matches!(wanted.purpose, Purpose::Node) => "not found".to_owned(),
                Ok(None) => return None,
                Err(error) => chain(&error),
            };
            self.report(wanted, reason);
            None
        });
        Ok(read.collect())
    }

    /// Notes whether the API server answers.
    ///
    /// # Errors
    ///
    /// It has gone, or rejects the credentials.
    fn check(
        &self,
        wanted: &Wanted,
        answer: &Result<Option<SecretBytes>, RequestError>,
    ) -> Result<(), Failure> {
        let failed = answer.as_ref().err();
        if let Some(error) = failed.filter(|error| error.is_transport()) {
            self.unanswered.set(self.unanswered.get() + 1);
            if self.unanswered.get() < MAX_UNANSWERED {
                return Ok(());
            }
            return Err(unreadable(wanted, error));
        }
        self.unanswered.set(0);
        self.has_answered.set(true);
        match failed.filter(|error| error.is_unauthorized()) {
            Some(error) => Err(unreadable(wanted, error)),
            None => Ok(()),
        }
    }

    /// `None` if it does not exist.
    async fn get(&self, paths: &[String]) -> Result<Option<SecretBytes>, RequestError> {
        let mut not_served = None;
        for path in paths {
            match request_secret(&self.client, Method::GET, path, None::<&()>).await {
                // The embedded API server serves no workloads, but the pods that its manifests make of them.
                Err(error) if error.is_not_served() => not_served = Some(error),
                Err(error) if error.is_not_found() => return Ok(None),
                answer => return answer.map(Some),
            }
        }
        not_served.map_or(Ok(None), Err)
    }

    fn report(&self, wanted: Wanted, reason: String) {
        output::note(format_args!("cannot read {}: {reason}", wanted.name));
        if wanted.is_fact() {
            return;
        }
        let mut not_read = self.not_read.borrow_mut();
        not_read.reasons.insert((wanted.name, reason));
        if let Purpose::Object(kind, key) = wanted.purpose {
            not_read.objects.insert((kind, key));
        }
    }
}

fn unreadable(wanted: &Wanted, error: &RequestError) -> Failure {
    let (name, error) = (&wanted.name, chain(error));
    Failure::unreadable(format!("cannot read {name}: {error}"))
}
