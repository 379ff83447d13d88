//! Pods, static pods and mirror pods of one node against an API server in memory, with time paused.
#![expect(
    clippy::unwrap_used,
    reason = "the lint does not see that helpers of tests are tests"
)]

// The examples, as a part of this executable.
#[path = "../examples/static_pods.rs"]
mod static_pods;

use std::{future::Future, path::Path, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use larder_apiserver::{ApiServer, Options};
use larder_pods::{
    FullName, PodAction, PodLoop, PodManager, PodMerge, PodSource, PodUid, Pods, ResolvedPodUid,
    SourcePods, StoredPod,
    identity::{CONFIG_HASH, CONFIG_MIRROR, is_mirror_pod, is_mirror_pod_of},
    mirror::MirrorClient,
    source::{ApiSource, SourceEvent, SourceReport},
    static_pod::{ApiReferences, StaticPods},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{self, Instant},
};

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: c, image: 'i:1'}
";

/// What an agent does with pods, without their volumes: those are gone when the test says so.
struct TestNode {
    client: Client,
    reports: mpsc::Sender<SourceReport>,
    pods: Pods,
    volumes_gone: mpsc::UnboundedSender<()>,
    tasks: JoinSet<()>,
}

impl TestNode {
    /// A node n1 that the API server knows.
    async fn start() -> Self {
        let server = ApiServer::new(Options::default());
        let client = Client::new(server.service(), "default");
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
        Self::start_on(client)
    }

    fn start_on(client: Client) -> Self {
        let (reports, received) = mpsc::channel(16);
        let (volumes_gone, volumes) = mpsc::unbounded_channel();
        let merge = PodMerge::new([PodSource::Api, PodSource::File]);
        let node = PodLoop::new(merge, PodManager::default());
        let pods = node.pods();
        let mirrors = node.mirror_pods(MirrorClient::new(client.clone(), "n1"));
        let mut tasks = JoinSet::new();
        tasks.spawn(ApiSource::new(client.clone(), "n1").run(reports.clone()));
        tasks.spawn(mirrors.run());
        tasks.spawn(follow(node, received, volumes));
        Self {
            client,
            reports,
            pods,
            volumes_gone,
            tasks,
        }
    }

    /// The manifests of the static pods are now these.
    async fn manifests(&self, texts: &[&str]) {
        let static_pods = StaticPods::new("n1", ApiReferences::Refuse);
        let pod = |text: &&str| {
            static_pods
                .from_file(Path::new("/m/web.yaml"), text)
                .unwrap()
                .pod
        };
        let pods = SourcePods::All(texts.iter().map(pod).collect());
        let report = SourceReport {
            source: PodSource::File,
            event: SourceEvent::Pods(pods),
        };
        self.reports.send(report).await.unwrap();
    }

    fn api(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    async fn mirror(&self) -> Option<Pod> {
        self.api().get_opt("web-n1").await.unwrap()
    }

    /// The mirror pod, as soon as `wanted`; and how long that took.
    async fn mirror_when(&self, wanted: impl Fn(&Pod) -> bool) -> (Pod, Duration) {
        let start = Instant::now();
        let found = until(async || self.mirror().await.filter(&wanted)).await;
        (found, start.elapsed())
    }
}

/// Asks every 10 ms, for a minute at most.
async fn until<T, F: Future<Output = Option<T>>>(ask: impl Fn() -> F) -> T {
    let found = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    time::timeout(Duration::from_mins(1), found)
        .await
        .expect("it comes about in time")
}

async fn follow(
    mut pods: PodLoop,
    mut reports: mpsc::Receiver<SourceReport>,
    mut volumes_gone: mpsc::UnboundedReceiver<()>,
) {
    let now = Timestamp::UNIX_EPOCH;
    let mut retiring = Vec::new();
    loop {
        let actions = tokio::select! {
            report = reports.recv() => pods.report(report.unwrap(), now),
            Some(()) = volumes_gone.recv() => {
                let gone = std::mem::take(&mut retiring).into_iter();
                gone.flat_map(|uid| pods.volumes_gone(&uid, now)).collect()
            }
        };
        for action in actions {
            if let PodAction::Retire(pod) = action {
                retiring.push(ResolvedPodUid::of(&pod.metadata));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_has_a_mirror_pod_while_it_exists() {
    // managers 52, 53, 60
    let node = TestNode::start().await;
    node.manifests(&[WEB]).await;
    let (mirror, _) = node.mirror_when(|_| true).await;
    assert!(is_mirror_pod(&mirror.metadata));
    let web = until(async || node.pods.pod_by_name("default", "web-n1")).await;
    assert!(is_mirror_pod_of(&mirror.metadata, &web.metadata));
    assert_ne!(mirror.uid(), web.metadata.uid);
    let owners = mirror.owner_references();
    let expected: Node = Api::all(node.client.clone()).get("n1").await.unwrap();
    assert_eq!(owners.len(), 1);
    assert_eq!(
        (&*owners[0].kind, Some(&owners[0].uid)),
        ("Node", expected.metadata.uid.as_ref())
    );

    // The node's own view of it.
    let known = until(async || node.pods.mirror_pod_by_pod(&web)).await;
    assert_eq!(known.metadata.uid, mirror.uid());
    assert_eq!(node.pods.pods().len(), 1);
    let translated = node.pods.translate_pod_uid(&PodUid::of(&mirror.metadata));
    assert_eq!(translated.as_str(), web.metadata.uid.as_deref().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_mirror_pod_is_back_within_a_second() {
    let node = TestNode::start().await;
    node.manifests(&[WEB]).await;
    let mut uid = node.mirror_when(|_| true).await.0.uid();
    for parameters in [
        DeleteParams::default().grace_period(0),
        DeleteParams::default(),
    ] {
        for _ in 0..5 {
            node.api().delete("web-n1", &parameters).await.unwrap();
            let (mirror, waited) = node.mirror_when(|mirror| mirror.uid() != uid).await;
            assert!(waited < Duration::from_secs(1), "{waited:?}");
            uid = mirror.uid();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_stays_until_its_pod_has_ended() {
    // managers 58
    let node = TestNode::start().await;
    node.manifests(&[WEB]).await;
    let (mirror, _) = node.mirror_when(|_| true).await;
    let stored = StoredPod::new(mirror.clone()).unwrap();
    until(async || node.pods.mirror_pod_by_pod(&stored)).await;
    node.manifests(&[]).await;
    time::sleep(Duration::from_secs(19)).await;
    assert_eq!(
        node.mirror().await.and_then(|mirror| mirror.uid()),
        mirror.uid()
    );
    node.volumes_gone.send(()).unwrap();
    until(async || node.mirror().await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn after_many_manifest_changes_the_last_one_is_mirrored() {
    // managers 59
    let node = TestNode::start().await;
    node.manifests(&[WEB]).await;
    let (first, _) = node.mirror_when(|_| true).await;
    for image in 2..=300 {
        node.manifests(&[&WEB.replace("i:1", &format!("i:{image}"))])
            .await;
    }
    time::sleep(Duration::from_secs(5)).await;
    assert_eq!(
        node.mirror().await.and_then(|mirror| mirror.uid()),
        first.uid()
    );
    node.volumes_gone.send(()).unwrap();
    let (last, _) = node.mirror_when(|mirror| mirror.uid() != first.uid()).await;
    let image = &last.spec.as_ref().unwrap().containers[0].image;
    assert_eq!(image.as_deref(), Some("i:300"));
    let hash = |key: &str| last.annotations().get(key).cloned();
    assert_eq!(hash(CONFIG_MIRROR), hash(CONFIG_HASH));
}

#[tokio::test(start_paused = true)]
async fn under_a_fixed_uid_the_mirror_pod_follows_the_content() {
    let node = TestNode::start().await;
    let fixed = WEB.replace("{name: web}", "{name: web, uid: fixed}");
    node.manifests(&[&fixed]).await;
    let (first, _) = node.mirror_when(|_| true).await;
    node.manifests(&[&fixed.replace("i:1", "i:2")]).await;
    let (second, _) = node.mirror_when(|mirror| mirror.uid() != first.uid()).await;
    let image = &second.spec.as_ref().unwrap().containers[0].image;
    assert_eq!(image.as_deref(), Some("i:2"));
}

#[tokio::test(start_paused = true)]
async fn an_orphaned_mirror_pod_goes_once_all_sources_reported() {
    let node = TestNode::start().await;
    node.manifests(&[WEB]).await;
    let (mirror, _) = node.mirror_when(|_| true).await;
    let client = node.client.clone();
    drop(node.tasks);

    // The manifest was removed while the agent was down.
    let again = TestNode::start_on(client);
    let stored = StoredPod::new(mirror.clone()).unwrap();
    until(async || again.pods.mirror_pod_by_pod(&stored)).await;
    time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        again.mirror().await.and_then(|mirror| mirror.uid()),
        mirror.uid()
    );
    again.manifests(&[]).await;
    until(async || again.mirror().await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_api_server_come_change_and_go() {
    // managers 69, 70
    let node = TestNode::start().await;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "app"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i:1"}]},
    }))
    .unwrap();
    let mut elsewhere = pod.clone();
    elsewhere.metadata.name = Some("elsewhere".to_owned());
    elsewhere.spec.as_mut().unwrap().node_name = Some("n2".to_owned());
    let parameters = PostParams::default();
    node.api().create(&parameters, &elsewhere).await.unwrap();
    let mut created = node.api().create(&parameters, &pod).await.unwrap();
    let app = || node.pods.pod_by_name("default", "app");
    until(async || app()).await;
    assert_eq!(node.pods.pods().len(), 1);

    created.labels_mut().insert("l".to_owned(), "1".to_owned());
    let replaced = node
        .api()
        .replace("app", &parameters, &created)
        .await
        .unwrap();
    let seen = until(async || {
        app().filter(|pod| {
            let labels = pod.metadata.labels.as_ref();
            labels.is_some_and(|labels| labels.contains_key("l"))
        })
    })
    .await;
    assert_eq!(seen.metadata.resource_version, replaced.resource_version());

    node.api()
        .delete("app", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    until(async || app().is_none().then_some(())).await;
    let full_name = FullName::of(&created.metadata);
    assert_eq!(node.pods.pod_by_full_name(&full_name), None);
}
