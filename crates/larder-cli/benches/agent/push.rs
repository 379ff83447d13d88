//! From the write at the API server to the file.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use http::Request;
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use larder_e2e::figures::Quantiles;
use larder_objects::Kind;
use serde_json::Value;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use crate::{
    node::{KEY, NAMESPACE, Node, Object},
    process::Agent,
    reader::Readers,
};

/// Updates that are timed in one series.
const UPDATES: usize = 200;
/// Time from the end of one update to the next, at most: random, so that no rhythm is measured.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// From just before a write is sent.
pub(crate) struct Latency {
    /// Until the write is answered.
    pub(crate) write: Quantiles,
    /// Until a bare watch of the same object has the event.
    pub(crate) bare: Quantiles,
    /// Until a reader that was woken by the swap has read the new content.
    pub(crate) file: Quantiles,
}

/// Objects to update, with a bare watch of each and a reader of each one's volume.
pub(crate) struct Push<'a> {
    node: &'a Node,
    targets: Vec<WatchedFile>,
    readers: Readers,
}

struct WatchedFile {
    object: Object,
    file: PathBuf,
    bare: Mutex<Body>,
}

impl<'a> Push<'a> {
    pub(crate) async fn prepare(
        agent: &Agent,
        client: &Client,
        node: &'a Node,
    ) -> anyhow::Result<Self> {
        let mut targets = Vec::new();
        let mut files = Vec::new();
        for object in Node::objects().filter(|object| object.is_timed()) {
            let type_ = object.kind().as_str().to_lowercase();
            let volume = agent.volume(NAMESPACE, &object.pod(), &type_, &object.name());
            targets.push(WatchedFile {
                object,
                file: volume.join(KEY),
                bare: Mutex::new(bare_watch(client, object).await?),
            });
            files.push((volume, KEY));
        }
        Ok(Self {
            node,
            targets,
            readers: Readers::start(files)?,
        })
    }

    /// One series over the objects of `kind`, one after the other, at most `pause` apart.
    pub(crate) async fn measure(&self, kind: Kind, pause: Duration) -> anyhow::Result<Latency> {
        let targets = self
            .targets
            .iter()
            .filter(|target| target.object.kind() == kind);
        let (mut write, mut bare, mut file) = (Vec::new(), Vec::new(), Vec::new());
        for target in targets.cycle().take(UPDATES) {
            sleep(pause.mul_f64(fastrand::f64())).await;
            let (new, content) = target.object.fresh();
            let start = Instant::now();
            let (written, seen, read) = tokio::try_join!(
                async {
                    self.node.replace(target.object, &new).await?;
                    Ok(Instant::now())
                },
                target.event(),
                self.readers.read(&target.file, &content),
            )?;
            write.push(written - start);
            bare.push(seen - start);
            file.push(read - start);
        }
        Ok(Latency {
            write: Quantiles::of(write),
            bare: Quantiles::of(bare),
            file: Quantiles::of(file),
        })
    }
}

impl WatchedFile {
    /// When the bare watch had its next event. No other client changes a target, so it is the expected one.
    async fn event(&self) -> anyhow::Result<Instant> {
        let mut bare = self.bare.lock().await;
        // An event of this size is one frame.
        bare.frame().await.context("the bare watch has ended")??;
        Ok(Instant::now())
    }
}

/// A watch of one object from its present version on.
async fn bare_watch(client: &Client, object: Object) -> anyhow::Result<Body> {
    let path = object.path();
    let name = object.name();
    let request = Request::get(format!("{path}/{name}")).body(Vec::new())?;
    let found: Value = client.request(request).await?;
    let version = found["metadata"]["resourceVersion"]
        .as_str()
        .context("the object has a version")?;
    let watch =
        format!("{path}?watch=true&resourceVersion={version}&fieldSelector=metadata.name%3D{name}");
    let response = client
        .send(Request::get(watch).body(Body::empty())?)
        .await?;
    let status = response.status();
    ensure!(status.is_success(), "the bare watch is refused: {status}");
    Ok(response.into_body())
}
