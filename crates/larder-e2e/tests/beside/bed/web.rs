//! The pod of most scenarios: `web`, with the volume `app` of a ConfigMap or the volume `login` of a Secret.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{Bed, config_map_volume, pod, secret_volume, until_content};
use crate::node::MountView;

impl Bed {
    /// The pod with a ConfigMap of this value, in a new namespace. Without larder.
    pub(crate) async fn web_with_app(&mut self, value: &str) -> (String, Pod) {
        let ns = self.namespace().await;
        self.create_config_map(&ns, "app", value).await;
        let web = pod("web", json!([config_map_volume("app")]));
        let web = self.run_pod(&ns, &web).await;
        (ns, web)
    }

    /// The same, and then larder, which has found nothing out of date.
    pub(crate) async fn web_beside_larder(&mut self, value: &str) -> (String, Pod) {
        let (ns, web) = self.web_with_app(value).await;
        self.start_larder().await;
        self.until_phase(&web, "app", "Delivered").await;
        (ns, web)
    }

    /// The pod with a Secret of the value 1, in a new namespace. It starts after larder, which has this view of mounts.
    pub(crate) async fn web_with_login_seen_as(&mut self, view: MountView) -> (String, Pod) {
        let ns = self.namespace().await;
        self.create_secret(&ns, "login", "1").await;
        self.start_larder_with(view).await;
        let web = pod("web", json!([secret_volume("login")]));
        let web = self.run_pod(&ns, &web).await;
        (ns, web)
    }

    /// The file of the ConfigMap on the kubelet's disk.
    pub(crate) fn app_file(&self, web: &Pod) -> PathBuf {
        self.volume(web, "kubernetes.io~configmap", "app").join("k")
    }

    /// The file of the Secret on the kubelet's disk.
    pub(crate) fn login_file(&self, web: &Pod) -> PathBuf {
        self.volume(web, "kubernetes.io~secret", "login").join("k")
    }

    /// Waits until the ConfigMap's file has this value, and larder says so.
    pub(crate) async fn until_app_is(&mut self, web: &Pod, value: &str) {
        until_content(&self.app_file(web), value).await;
        self.until_phase(web, "app", "Delivered").await;
    }

    /// Gives the ConfigMap another value, and waits until it has arrived and larder says so.
    pub(crate) async fn change_app(&mut self, namespace: &str, web: &Pod, value: &str) {
        self.set_config_map(namespace, "app", value).await;
        self.until_app_is(web, value).await;
    }

    /// Gives the Secret another value, and waits until it has arrived.
    pub(crate) async fn change_login(&self, namespace: &str, web: &Pod, value: &str) {
        self.set_secret(namespace, "login", value).await;
        until_content(&self.login_file(web), value).await;
    }
}
