//! Defaults of a pod.

use k8s_openapi::{
    api::core::v1::{
        Container, DownwardAPIVolumeFile, EmptyDirVolumeSource, EnvVar, HTTPGetAction,
        LifecycleHandler, ObjectFieldSelector, Pod, PodSpec, Probe, ProjectedVolumeSource,
        ResourceFieldSelector, ResourceRequirements, Volume, VolumeProjection,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{CERTIFICATE_EXPIRATION_SECS, TOKEN_EXPIRATION_SECS, VOLUME_MODE, set};
use crate::resources::{Amounts, Side, of_containers};

const TERMINATION_PATH: &str = "/dev/termination-log";

/// Fills the defaults of a pod.
pub fn pod(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    pod_template(spec);
    spec.enable_service_links.get_or_insert(true);
    let host_network = spec.host_network == Some(true);
    let init = spec.init_containers.iter_mut().flatten();
    for given in init.chain(&mut spec.containers) {
        resources(&mut given.resources);
        for port in given.ports.iter_mut().flatten() {
            if host_network && port.host_port.unwrap_or(0) == 0 {
                port.host_port = Some(port.container_port);
            }
        }
    }
    pod_resources(spec);
}

/// Fills those that a template of pods has as well: its controller leaves the others to the API server
/// (kubernetes v1.36, `SetDefaults_PodSpec` and `SetDefaults_Pod` in `pkg/apis/core/v1/defaults.go`).
pub fn pod_template(spec: &mut PodSpec) {
    // The old name of the field is an alias; both are kept in step.
    let account = spec.service_account_name.as_deref();
    if account.unwrap_or("").is_empty() {
        spec.service_account_name = spec.service_account.clone();
    }
    spec.service_account.clone_from(&spec.service_account_name);
    set(&mut spec.dns_policy, "ClusterFirst");
    set(&mut spec.restart_policy, "Always");
    set(&mut spec.scheduler_name, "default-scheduler");
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.security_context.get_or_insert_default();
    let init = spec.init_containers.iter_mut().flatten();
    init.chain(&mut spec.containers).for_each(container);
    for given in spec.ephemeral_containers.iter_mut().flatten() {
        let policy = pull_policy(given.image.as_deref());
        set(&mut given.image_pull_policy, policy);
        set(&mut given.termination_message_path, TERMINATION_PATH);
        set(&mut given.termination_message_policy, "File");
        environment(given.env.as_mut());
    }
    for given in spec.volumes.iter_mut().flatten() {
        volume(given);
    }
}

fn container(given: &mut Container) {
    let policy = pull_policy(given.image.as_deref());
    set(&mut given.image_pull_policy, policy);
    set(&mut given.termination_message_path, TERMINATION_PATH);
    set(&mut given.termination_message_policy, "File");
    environment(given.env.as_mut());
    given.resources.get_or_insert_default();
    for port in given.ports.iter_mut().flatten() {
        set(&mut port.protocol, "TCP");
    }
    [
        &mut given.liveness_probe,
        &mut given.readiness_probe,
        &mut given.startup_probe,
    ]
    .into_iter()
    .flatten()
    .for_each(probe);
    if let Some(lifecycle) = &mut given.lifecycle {
        let handlers = [&mut lifecycle.post_start, &mut lifecycle.pre_stop];
        for handler in handlers.into_iter().flatten() {
            let handler: &mut LifecycleHandler = handler;
            handler.http_get.iter_mut().for_each(http_get);
        }
    }
}

/// `Always` for images whose tag is, or stands for, `latest`.
fn pull_policy(image: Option<&str>) -> &'static str {
    let image = image.unwrap_or("");
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    match name.split_once(':') {
        _ if image.contains('@') => "IfNotPresent",
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

fn environment(variables: Option<&mut Vec<EnvVar>>) {
    let variables = variables.into_iter().flatten();
    for source in variables.filter_map(|variable| variable.value_from.as_mut()) {
        selectors(&mut source.field_ref, &mut source.resource_field_ref);
        if let Some(file) = &mut source.file_key_ref {
            file.optional.get_or_insert(false);
        }
    }
}

fn probe(given: &mut Probe) {
    for (field, default) in [
        (&mut given.timeout_seconds, 1),
        (&mut given.period_seconds, 10),
        (&mut given.success_threshold, 1),
        (&mut given.failure_threshold, 3),
    ] {
        if field.unwrap_or(0) == 0 {
            *field = Some(default);
        }
    }
    given.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = &mut given.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn http_get(given: &mut HTTPGetAction) {
    if given.path.as_deref().unwrap_or("").is_empty() {
        given.path = Some("/".to_owned());
    }
    set(&mut given.scheme, "HTTP");
}

/// A limit without a request is the request as well.
fn resources(given: &mut Option<ResourceRequirements>) {
    let given = given.get_or_insert_default();
    if let Some(limits) = &given.limits
        && !limits.is_empty()
    {
        let requests = given.requests.get_or_insert_default();
        for (resource, limit) in limits {
            requests
                .entry(resource.clone())
                .or_insert_with(|| limit.clone());
        }
    }
}

/// What the pod as a whole does not state, it has from its containers; and its requests are its limits where they state
/// none.
fn pod_resources(spec: &mut PodSpec) {
    const HUGE_PAGES: &str = "hugepages-";
    let limits = of_containers(spec, Side::Limits);
    let requests = of_containers(spec, Side::Requests);
    let Some(given) = &mut spec.resources else {
        return;
    };
    let states = |amounts: &Option<Amounts>| amounts.as_ref().is_some_and(|held| !held.is_empty());
    if states(&given.limits) || states(&given.requests) {
        // Of huge pages the limit is the request.
        for (resource, sum) in limits {
            let requested = given.requests.as_ref();
            if resource.starts_with(HUGE_PAGES)
                && requested.is_none_or(|held| !held.contains_key(&resource))
            {
                given
                    .limits
                    .get_or_insert_default()
                    .entry(resource)
                    .or_insert_with(|| Quantity(sum.to_string()));
            }
        }
    }
    let Some(limits) = given.limits.clone().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let sums = requests
        .into_iter()
        .filter(|(resource, _)| matches!(&**resource, "cpu" | "memory"))
        .map(|(resource, sum)| (resource, Quantity(sum.to_string())));
    let limits = limits.into_iter().filter(|(resource, _)| {
        matches!(&**resource, "cpu" | "memory") || resource.starts_with(HUGE_PAGES)
    });
    for (resource, amount) in sums.chain(limits) {
        given
            .requests
            .get_or_insert_default()
            .entry(resource)
            .or_insert(amount);
    }
}

fn volume(given: &mut Volume) {
    if is_without_source(given) {
        given.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(secret) = &mut given.secret {
        secret.default_mode.get_or_insert(VOLUME_MODE);
    }
    if let Some(map) = &mut given.config_map {
        map.default_mode.get_or_insert(VOLUME_MODE);
    }
    if let Some(downward) = &mut given.downward_api {
        downward.default_mode.get_or_insert(VOLUME_MODE);
        downward.items.iter_mut().flatten().for_each(downward_file);
    }
    if let Some(projected) = &mut given.projected {
        projection(projected);
    }
    if let Some(path) = &mut given.host_path {
        path.type_.get_or_insert_default();
    }
    if let Some(iscsi) = &mut given.iscsi {
        set(&mut iscsi.iscsi_interface, "default");
    }
    if let Some(rbd) = &mut given.rbd {
        set(&mut rbd.pool, "rbd");
        set(&mut rbd.user, "admin");
        set(&mut rbd.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = &mut given.azure_disk {
        set(&mut disk.caching_mode, "ReadWrite");
        set(&mut disk.kind, "Shared");
        set(&mut disk.fs_type, "ext4");
        disk.read_only.get_or_insert(false);
    }
    if let Some(scale_io) = &mut given.scale_io {
        set(&mut scale_io.storage_mode, "ThinProvisioned");
        set(&mut scale_io.fs_type, "xfs");
    }
    if let Some(image) = &mut given.image {
        let policy = pull_policy(image.reference.as_deref());
        set(&mut image.pull_policy, policy);
    }
    let ephemeral = given.ephemeral.as_mut();
    if let Some(claim) = ephemeral.and_then(|held| held.volume_claim_template.as_mut()) {
        claim.metadata.get_or_insert_default();
        set(&mut claim.spec.volume_mode, "Filesystem");
    }
}

fn is_without_source(given: &Volume) -> bool {
    let named = Volume {
        name: given.name.clone(),
        ..Volume::default()
    };
    *given == named
}

fn projection(given: &mut ProjectedVolumeSource) {
    given.default_mode.get_or_insert(VOLUME_MODE);
    for source in given.sources.iter_mut().flatten() {
        // Without `..`: a type that Kubernetes adds is an error here.
        let VolumeProjection {
            secret: _,
            config_map: _,
            downward_api,
            service_account_token,
            cluster_trust_bundle: _,
            pod_certificate,
        } = source;
        if let Some(downward) = downward_api {
            downward.items.iter_mut().flatten().for_each(downward_file);
        }
        if let Some(token) = service_account_token {
            token
                .expiration_seconds
                .get_or_insert(TOKEN_EXPIRATION_SECS);
        }
        if let Some(certificate) = pod_certificate {
            certificate
                .max_expiration_seconds
                .get_or_insert(CERTIFICATE_EXPIRATION_SECS);
        }
    }
}

fn downward_file(given: &mut DownwardAPIVolumeFile) {
    selectors(&mut given.field_ref, &mut given.resource_field_ref);
}

fn selectors(
    field: &mut Option<ObjectFieldSelector>,
    resource: &mut Option<ResourceFieldSelector>,
) {
    if let Some(field) = field {
        set(&mut field.api_version, "v1");
    }
    if let Some(resource) = resource {
        resource.divisor.get_or_insert_with(no_divisor);
    }
}

/// How the API server writes a divisor that is not set.
fn no_divisor() -> Quantity {
    Quantity("0".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut given: Pod = from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        pod(&mut given);
        let once = given.clone();
        pod(&mut given);
        assert_eq!(given, once, "the second time must change nothing");
        to_value(given.spec).unwrap()
    }

    #[test]
    fn a_bare_pod_gets_the_fields_that_every_pod_has() {
        let expected = json!({
            "containers": [{
                "name": "c", "image": "app:1", "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "resources": {},
            }],
            "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
        });
        assert_eq!(
            defaulted(json!({"containers": [{"name": "c", "image": "app:1"}]})),
            expected
        );
    }

    #[test]
    fn images_without_a_fixed_tag_are_always_pulled() {
        for (image, policy) in [
            ("app", "Always"),
            ("app:latest", "Always"),
            ("localhost:5000/app", "Always"),
            ("localhost:5000/app:1", "IfNotPresent"),
            ("app@sha256:0", "IfNotPresent"),
            ("app:latest@sha256:0", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(Some(image)), policy, "{image}");
        }
    }

    #[test]
    fn every_volume_gets_its_mode_and_token_its_lifetime() {
        let spec = defaulted(json!({"containers": [], "volumes": [
            {"name": "a", "configMap": {"name": "m"}},
            {"name": "b", "secret": {"secretName": "s", "defaultMode": 256}},
            {"name": "c", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "e"},
        ]}));
        let expected = json!([
            {"name": "a", "configMap": {"name": "m", "defaultMode": 420}},
            {"name": "b", "secret": {"secretName": "s", "defaultMode": 256}},
            {"name": "c", "downwardAPI": {"defaultMode": 420, "items": [
                {"path": "n", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}},
            ]}},
            {"name": "d", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}},
            ]}},
            {"name": "e", "emptyDir": {}},
        ]);
        assert_eq!(spec["volumes"], expected);
    }

    #[test]
    fn a_limit_is_a_request_unless_one_is_stated() {
        let spec = defaulted(json!({
            "initContainers": [{"name": "i", "resources": {"limits": {"memory": "1Mi"}}}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "memory": "2Mi"}, "requests": {"cpu": "100m"}}}],
            "resources": {"limits": {"cpu": "3", "hugepages-2Mi": "4Mi"}},
        }));
        assert_eq!(
            spec["initContainers"][0]["resources"]["requests"],
            json!({"memory": "1Mi"})
        );
        assert_eq!(
            spec["containers"][0]["resources"]["requests"],
            json!({"cpu": "100m", "memory": "2Mi"})
        );
        assert_eq!(
            spec["resources"]["requests"],
            json!({"cpu": "100m", "hugepages-2Mi": "4Mi", "memory": "2Mi"})
        );
    }

    #[test]
    fn ports_probes_and_references_are_completed() {
        let spec = defaulted(json!({
            "hostNetwork": true, "serviceAccount": "old",
            "containers": [{
                "name": "c", "ports": [{"containerPort": 80}], "readinessProbe": {"httpGet": {"port": 80}},
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            }],
        }));
        let container = &spec["containers"][0];
        assert_eq!(
            container["ports"],
            json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}])
        );
        assert_eq!(
            container["readinessProbe"],
            json!({
                "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
            })
        );
        assert_eq!(
            container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"],
            "v1"
        );
        assert_eq!(spec["serviceAccountName"], "old");
    }
}
