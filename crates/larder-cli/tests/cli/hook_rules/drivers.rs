//! What runs hooks: an agent and a sidecar in this process, and the command as a process.

use std::{fs, sync::Arc};

use futures::stream;
use larder_agent::{
    agent::Agent as NodeAgent,
    config::{Config, Flags, Host},
    on_change::OnChangeConfig,
    root_dir::RootDir,
    status::Phase,
};
use larder_apiserver::{ApiKind, ApiServer, Options};
use larder_e2e::pods::PodBuilder;
use larder_objects::PodIdentity;
use larder_on_change::{
    Hook, Paths,
    parse::{self, ConfiguredHook, HookOrigin, PodSelector},
};
use larder_projection::disk::VolumeHost;
use larder_sidecar::{Health, MAX_SILENCE, OwnSettings, OwnVolume, join_volumes, run_own};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Contents;
use crate::{
    Desk,
    exec::{Running, web_pod},
    run::until,
};

const NODE: &str = "n1";

/// Runs the hooks of one application with the volumes `app` and `maybe`.
pub(super) trait Driver: Sized {
    /// Whether it keeps a record across restarts.
    const REMEMBERS: bool;
    /// Whether it knows what containers mount.
    const HAS_CONTAINERS: bool;

    /// With its files in `desk`; the container mounts only `sub_path` of `app`, if that is given.
    fn new(desk: Arc<Desk>, sub_path: Option<&str>) -> Self;

    /// Replaces the content.
    fn edit(&self, contents: &Contents, version: usize);

    /// The text of its record, if there is one.
    fn record(&self) -> Option<String> {
        None
    }

    /// Starts, and waits until hooks have taken the content in.
    async fn start(&mut self, hooks: &str);

    /// Ends without a warning, if it runs.
    async fn kill(&mut self);
}

fn hooks(text: &str) -> Vec<Hook> {
    parse::hooks(text, HookOrigin::Configuration, None).unwrap()
}

fn config_map(name: &str, data: &Value, version: usize) -> Value {
    let labels = json!({"version": version.to_string()});
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"namespace": "default", "name": name, "labels": labels},
    })
}

/// An API server with the two ConfigMaps.
struct Objects(ApiServer);

impl Objects {
    fn new() -> Self {
        Self(ApiServer::new(Options::default().fill_namespaces(true)))
    }

    fn edit(&self, [app, maybe]: &Contents, version: usize) {
        self.0
            .apply(&config_map("app", &json!(app), version))
            .unwrap();
        if maybe.is_empty() {
            // It may not be there.
            let _ = self.0.delete(ApiKind::ConfigMap, "default", "maybe");
        } else {
            let maybe = config_map("maybe", &json!(maybe), version);
            self.0.apply(&maybe).unwrap();
        }
    }
}

/// An agent, whose hooks are those of its configuration.
pub(super) struct Agent {
    objects: Objects,
    root: TempDir,
    tasks: JoinSet<()>,
}

impl Driver for Agent {
    const REMEMBERS: bool = true;
    const HAS_CONTAINERS: bool = true;

    fn new(_: Arc<Desk>, sub_path: Option<&str>) -> Self {
        let objects = Objects::new();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        objects.0.apply(&node).unwrap();
        let optional = json!({"configMap": {"name": "maybe", "optional": true}});
        let mut mount = json!({"name": "app", "mountPath": "/app"});
        if let Some(path) = sub_path {
            mount["subPath"] = path.into();
        }
        let pod = PodBuilder::new(NODE, "web")
            .config_map("app", "app")
            .volume("maybe", optional)
            .set(
                "/spec/containers/0/volumeMounts",
                json!([mount, {"name": "maybe", "mountPath": "/maybe"}]),
            );
        objects.0.apply(&pod.build()).unwrap();
        Self {
            objects,
            root: tempfile::tempdir().unwrap(),
            tasks: JoinSet::new(),
        }
    }

    fn edit(&self, contents: &Contents, version: usize) {
        self.objects.edit(contents, version);
    }

    fn record(&self) -> Option<String> {
        let pods = fs::read_dir(self.root.path().join("root/pods")).ok()?;
        let mut records =
            pods.filter_map(|pod| fs::read_to_string(pod.ok()?.path().join("on-change.json")).ok());
        records.next()
    }

    async fn start(&mut self, text: &str) {
        let host = Host {
            name: NODE.to_owned(),
            uid: 1000,
            runtime_dir: None,
            temp_dir: "/tmp".into(),
        };
        let flags = Flags {
            root_dir: Some(self.root.path().join("root")),
            ..Flags::default()
        };
        let (mut config, _) = Config::load(None, flags, &host).unwrap();
        let all = PodSelector::Names(Paths::default());
        let hooks = hooks(text).into_iter().map(|hook| ConfiguredHook {
            pods: all.clone(),
            hook: Arc::new(hook),
        });
        config.on_change = OnChangeConfig {
            hooks: hooks.collect(),
            ..OnChangeConfig::default()
        };
        let root = RootDir::lock(&config.root_dir).unwrap();
        let volumes = VolumeHost::open_without_mounts(root.path()).unwrap();
        let client = kube::Client::new(self.objects.0.service(), "default");
        // The pause after a restart is random, up to 10 s.
        let builder = NodeAgent::builder(config, root, volumes, client).seed(1);
        let agent = builder.build().unwrap();
        let handle = agent.handle();
        self.tasks.spawn(async move {
            agent.run(CancellationToken::new()).await.unwrap();
        });
        let has_hooks = || {
            let status = handle.status();
            let mut pods = status.pods.iter();
            pods.any(|pod| !pod.on_change.is_empty() && pod.delivery.phase == Phase::Delivered)
        };
        until("the hooks of the pod", has_hooks).await;
    }

    async fn kill(&mut self) {
        self.tasks.shutdown().await;
    }
}

/// A sidecar of the own form.
pub(super) struct Sidecar {
    objects: Objects,
    root: TempDir,
    tasks: JoinSet<()>,
}

impl Driver for Sidecar {
    const REMEMBERS: bool = true;
    const HAS_CONTAINERS: bool = false;

    fn new(_: Arc<Desk>, _: Option<&str>) -> Self {
        Self {
            objects: Objects::new(),
            root: tempfile::tempdir().unwrap(),
            tasks: JoinSet::new(),
        }
    }

    fn edit(&self, contents: &Contents, version: usize) {
        self.objects.edit(contents, version);
    }

    fn record(&self) -> Option<String> {
        let mut own = fs::read_dir(self.root.path().join("state")).ok()?;
        let text = fs::read_to_string(own.next()?.ok()?.path().join("index")).ok()?;
        let mut lines = text.lines().rev();
        lines
            .find(|line| line.contains("command line"))
            .map(str::to_owned)
    }

    async fn start(&mut self, text: &str) {
        let volumes = ["app", "maybe"].map(|name| {
            let name_of = format!("default/{name}");
            let source = json!({"name": name_of, "optional": true, "defaultMode": 0o644});
            let source = json!({"name": name, "configMap": source});
            OwnVolume {
                name: name.into(),
                path: self.root.path().join(name),
                sources: vec![serde_json::from_value(source).unwrap()],
            }
        });
        let settings = OwnSettings {
            volumes: join_volumes(volumes.into()).unwrap(),
            hooks: hooks(text),
            once: None,
            max_silence: MAX_SILENCE,
            listen: None,
            pod: PodIdentity::default(),
            state_dir: self.root.path().join("state"),
        };
        let client = kube::Client::new(self.objects.0.service(), "default");
        let (health, shutdown) = (Arc::<Health>::default(), CancellationToken::new());
        let shown = Arc::clone(&health);
        self.tasks.spawn(async move {
            let reloads = stream::pending();
            run_own(settings, client, health, reloads, shutdown)
                .await
                .unwrap();
        });
        until("the first sync", || shown.is_ready()).await;
    }

    async fn kill(&mut self) {
        self.tasks.shutdown().await;
    }
}

/// `larder exec`, whose manifest is in the desk.
pub(super) struct Exec {
    desk: Arc<Desk>,
    pod: String,
    running: Option<Running>,
}

impl Driver for Exec {
    const REMEMBERS: bool = false;
    const HAS_CONTAINERS: bool = true;

    fn new(desk: Arc<Desk>, sub_path: Option<&str>) -> Self {
        let sub_path = sub_path.map_or(String::new(), |path| format!(", subPath: {path}"));
        let mounts = format!(
            "volumeMounts: [{{name: app, mountPath: /larder-test/app{sub_path}}}, {{name: maybe, mountPath: /larder-test/maybe}}]"
        );
        let volumes = "{name: app, configMap: {name: app}}, {name: maybe, configMap: {name: maybe, optional: true}}";
        Self {
            desk,
            pod: web_pod(&mounts, volumes),
            running: None,
        }
    }

    fn edit(&self, [app, maybe]: &Contents, version: usize) {
        let mut text = format!(
            "{}---\n{}\n",
            self.pod,
            config_map("app", &json!(app), version)
        );
        if !maybe.is_empty() {
            let maybe = config_map("maybe", &json!(maybe), version);
            text = format!("{text}---\n{maybe}\n");
        }
        self.desk.replace("app.yaml", &text);
    }

    async fn start(&mut self, hooks: &str) {
        let script = "trap 'exit 0' TERM; echo ready; while :; do sleep 100 & wait $!; done";
        let mut running = Running::start(&self.desk, &["--on-change", hooks], script);
        assert_eq!(running.line(), "ready");
        self.running = Some(running);
    }

    async fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal(Signal::TERM);
            running.end();
        }
    }
}
