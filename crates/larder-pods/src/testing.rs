//! Builders of pods for the tests of this crate.

use std::{cell::Cell, sync::Arc};

use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};

use crate::{
    StoredPod,
    identity::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SOURCE, set_annotation},
};

thread_local! {
    static IS_RUNTIME: Cell<bool> = const { Cell::new(false) };
}

/// Marks the current thread as the runtime's, on which no manifest may be parsed.
pub(crate) fn mark_runtime_thread() {
    IS_RUNTIME.set(true);
}

#[track_caller]
pub(crate) fn assert_off_runtime() {
    assert!(
        !IS_RUNTIME.get(),
        "a manifest is parsed on the runtime's thread"
    );
}

/// The pod `name` in namespace `default`, with one container and UID `<name>-uid`.
pub(crate) fn pod(name: &str) -> PodBuilder {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("default".to_owned());
    pod.metadata.uid = Some(format!("{name}-uid"));
    pod.spec = Some(PodSpec {
        containers: vec![Container {
            name: "c".to_owned(),
            image: Some("i:1".to_owned()),
            ..Container::default()
        }],
        ..PodSpec::default()
    });
    PodBuilder(pod)
}

/// A pod from a file.
pub(crate) fn static_pod(name: &str) -> PodBuilder {
    pod(name)
        .annotation(CONFIG_SOURCE, "file")
        .annotation(CONFIG_HASH, "hash")
}

/// The mirror pod of that static pod.
pub(crate) fn mirror_pod(name: &str) -> PodBuilder {
    pod(name)
        .uid(&format!("{name}-mirror-uid"))
        .annotation(CONFIG_SOURCE, "api")
        .annotation(CONFIG_MIRROR, "hash")
}

#[derive(Clone)]
pub(crate) struct PodBuilder(Pod);

impl PodBuilder {
    pub(crate) fn namespace(mut self, namespace: &str) -> Self {
        self.0.metadata.namespace = Some(namespace.to_owned());
        self
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.0.metadata.uid = Some(uid.to_owned());
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        set_annotation(&mut self.0.metadata, key, Some(value.to_owned()));
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0
            .metadata
            .labels
            .get_or_insert_default()
            .insert(key.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn image(mut self, image: &str) -> Self {
        let spec = self.0.spec.get_or_insert_default();
        spec.containers[0].image = Some(image.to_owned());
        self
    }

    pub(crate) fn phase(mut self, phase: &str) -> Self {
        self.0.status.get_or_insert_default().phase = Some(phase.to_owned());
        self
    }

    pub(crate) fn deleted(mut self) -> Self {
        self.0.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        self
    }

    pub(crate) fn build(self) -> Pod {
        self.0
    }

    pub(crate) fn stored(self) -> StoredPod {
        StoredPod::new(self.0).unwrap()
    }

    pub(crate) fn shared(self) -> Arc<StoredPod> {
        Arc::new(self.stored())
    }
}
