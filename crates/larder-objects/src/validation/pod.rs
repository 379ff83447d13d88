//! A pod: its identity, its containers, their environment, mounts and volumes.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::{
    ContainerPort, EnvFromSource, EnvVar, Pod, PodSpec, ResourceRequirements, SecurityContext,
    Volume, VolumeMount,
};

mod own;

use super::{
    FieldErrorKind, FieldErrors, Scope,
    environment::{check_env, check_env_from},
    field::Field,
    metadata,
    ports::{check_host_ports, check_ports},
    resources::{Owner, check_resources, check_whole},
    volumes::check_volume,
};

/// Checks a pod as for its creation, after the defaults.
pub fn pod(pod: &Pod) -> FieldErrors {
    metadata(&pod.metadata, Scope::Namespaced).and(FieldErrors::found(|object| match &pod.spec {
        Some(spec) => check_spec(&object.child("spec"), spec),
        None => object.at("spec.containers").required(""),
    }))
}

fn check_spec(field: &Field<'_>, spec: &PodSpec) {
    let (mut volumes, mut by_name) = (HashSet::new(), HashMap::new());
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        by_name.entry(&*volume.name).or_insert(volume);
        let volume_field = field.child("volumes").index(index);
        let before = field.errors();
        check_volume(&volume_field, volume);
        if field.errors() == before && !volumes.insert(&*volume.name) {
            volume_field.child("name").duplicate(&volume.name);
        }
    }
    if spec.containers.is_empty() {
        field.child("containers").required("");
    }
    let mut names = HashSet::new();
    for container in containers(field, spec) {
        check_container(&container, &mut names, &volumes, &by_name, spec);
    }
    check_host_ports(&field.child("containers"), &spec.containers);
    check_whole(field, spec);
    own::check_own(field, spec);
    for container in containers(field, spec) {
        if container.image.trim() != container.image {
            let rule = "must not have leading or trailing whitespace";
            container
                .field
                .child("image")
                .invalid(container.image, rule);
        }
    }
}

/// The common fields of the three kinds of containers.
struct AnyContainer<'a> {
    field: Field<'a>,
    is_regular: bool,
    name: &'a str,
    image: &'a str,
    env: &'a [EnvVar],
    env_from: &'a [EnvFromSource],
    mounts: &'a [VolumeMount],
    ports: &'a [ContainerPort],
    pull_policy: Option<&'a str>,
    message_policy: Option<&'a str>,
    resources: Option<&'a ResourceRequirements>,
    restart_policy: Option<&'a str>,
    security: Option<&'a SecurityContext>,
}

/// All containers in the order of the API server's checks: regular, init, ephemeral.
fn containers<'a>(field: &Field<'a>, spec: &'a PodSpec) -> Vec<AnyContainer<'a>> {
    macro_rules! any {
        ($list:expr, $name:literal) => {
            $list.enumerate().map(|(index, container)| AnyContainer {
                field: field.child($name).index(index),
                is_regular: $name == "containers",
                name: &container.name,
                image: container.image.as_deref().unwrap_or(""),
                env: container.env.as_deref().unwrap_or(&[]),
                env_from: container.env_from.as_deref().unwrap_or(&[]),
                mounts: container.volume_mounts.as_deref().unwrap_or(&[]),
                ports: container.ports.as_deref().unwrap_or(&[]),
                pull_policy: container.image_pull_policy.as_deref(),
                message_policy: container.termination_message_policy.as_deref(),
                resources: container.resources.as_ref(),
                restart_policy: container.restart_policy.as_deref(),
                security: container.security_context.as_ref(),
            })
        };
    }
    let init = spec.init_containers.iter().flatten();
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    any!(spec.containers.iter(), "containers")
        .chain(any!(init, "initContainers"))
        .chain(any!(ephemeral, "ephemeralContainers"))
        .collect()
}

fn check_container<'a>(
    container: &AnyContainer<'a>,
    names: &mut HashSet<&'a str>,
    volumes: &HashSet<&str>,
    volumes_by_name: &HashMap<&str, &Volume>,
    spec: &PodSpec,
) {
    let field = &container.field;
    let name_field = field.child("name");
    name_field.check_given(container.name, Field::check_label);
    field.child("image").check_not_empty(container.image);
    let policies = &["File", "FallbackToLogsOnError"];
    field
        .child("terminationMessagePolicy")
        .check_choice(container.message_policy, policies);
    let host_network = spec.host_network == Some(true) && container.is_regular;
    check_ports(&field.child("ports"), container.ports, host_network);
    for (index, variable) in container.env.iter().enumerate() {
        check_env(&field.child("env").index(index), variable, volumes_by_name);
    }
    for (index, source) in container.env_from.iter().enumerate() {
        check_env_from(&field.child("envFrom").index(index), source);
    }
    let security = container.security;
    let is_privileged = security.is_some_and(|context| context.privileged == Some(true));
    let mut paths = HashSet::new();
    for (index, mount) in container.mounts.iter().enumerate() {
        let field = field.child("volumeMounts").index(index);
        check_mount(&field, mount, volumes, &mut paths);
        if mount.mount_propagation.as_deref() == Some("Bidirectional") && !is_privileged {
            let rule = "Bidirectional mount propagation is available only to privileged containers";
            field.child("mountPropagation").forbidden(rule);
        }
        check_recursive_read_only(&field.child("recursiveReadOnly"), mount);
    }
    field
        .child("imagePullPolicy")
        .check_choice(container.pull_policy, &["Always", "IfNotPresent", "Never"]);
    let resources = field.child("resources");
    check_resources(&resources, container.resources, Owner::Container);
    if let Some(context) = security {
        check_security(&field.child("securityContext"), context);
    }
    if !container.name.is_empty() && !names.insert(container.name) {
        name_field.duplicate(container.name);
    }
    let policies = &["Always", "Never", "OnFailure"];
    field
        .child("restartPolicy")
        .check_choice(container.restart_policy, policies);
}

/// Rules of a container's security context (kube-apiserver 1.36, `ValidateSecurityContext`).
fn check_security(field: &Field<'_>, context: &SecurityContext) {
    field.child("runAsUser").check_id(context.run_as_user);
    field.child("runAsGroup").check_id(context.run_as_group);
    if context.allow_privilege_escalation != Some(false) {
        return;
    }
    if context.privileged == Some(true) {
        let rule = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        field.report(FieldErrorKind::Invalid, None, rule);
    }
    let mut added = context
        .capabilities
        .iter()
        .flat_map(|capabilities| capabilities.add.iter().flatten());
    // As the API server: the name without `CAP_`, which runtimes take too, passes.
    if added.any(|capability| capability == "CAP_SYS_ADMIN") {
        let rule =
            "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
        field.report(FieldErrorKind::Invalid, None, rule);
    }
}

fn check_mount<'a>(
    field: &Field<'_>,
    mount: &'a VolumeMount,
    volumes: &HashSet<&str>,
    paths: &mut HashSet<&'a str>,
) {
    let (name_field, path_field) = (&field.child("name"), &field.child("mountPath"));
    name_field.check_not_empty(&mount.name);
    if !volumes.contains(&*mount.name) {
        name_field.not_found(&mount.name, volumes.iter().copied());
    }
    path_field.check_not_empty(&mount.mount_path);
    if !paths.insert(&*mount.mount_path) {
        path_field.invalid(&*mount.mount_path, "must be unique");
    }
    let text = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let (sub_path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
    if let Some(path) = &sub_path {
        field.child("subPath").check_relative(path);
    }
    if let Some(path) = &expression {
        let field = field.child("subPathExpr");
        if sub_path.is_some() {
            let rule = "subPathExpr and subPath are mutually exclusive";
            field.invalid(&**path, rule);
        }
        field.check_relative(path);
    }
    let options = mount.bind_mount_options.as_deref().unwrap_or(&[]);
    for (index, option) in options.iter().enumerate() {
        let field = field.child("bindMountOptions").index(index);
        field.check_choice(Some(option), &["nodev", "noexec", "nosuid"]);
        if options[..index].contains(option) {
            field.duplicate(option);
        }
    }
    let modes = ["Bidirectional", "HostToContainer", "None"];
    let mode = mount.mount_propagation.as_deref();
    field.child("mountPropagation").check_choice(mode, &modes);
}

fn check_recursive_read_only(field: &Field<'_>, mount: &VolumeMount) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                field.forbidden("may only be specified when readOnly is true");
            }
            let propagation = mount.mount_propagation.as_deref().unwrap_or("None");
            if propagation != "None" {
                let rule = "may only be specified when mountPropagation is None or not specified";
                field.forbidden(rule);
            }
        }
        Some(other) => {
            field.not_supported(other, &["Disabled", "Enabled", "IfPossible"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::defaults;

    #[track_caller]
    fn check(spec: Value, expected: Expect) {
        let metadata = json!({"name": "p", "namespace": "n"});
        let mut given: Pod = from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        defaults::pod(&mut given);
        expected.assert_eq(&pod(&given).lines());
    }

    fn with_container(mut fields: Value) -> Value {
        fields["name"] = json!("c");
        fields["image"] = json!("i:1");
        json!({"containers": [fields], "volumes": [{"name": "v"}]})
    }

    #[test]
    fn options_of_a_bind_mount_are_known_and_differ() {
        // projection 80
        check(
            with_container(json!({"volumeMounts": [
                {"name": "v", "mountPath": "/v", "bindMountOptions": ["noexec", "exec", "noexec"]}]})),
            expect![[r#"
                spec.containers[0].volumeMounts[0].bindMountOptions[1]: Unsupported value: "exec": supported values: "nodev", "noexec", "nosuid"
                spec.containers[0].volumeMounts[0].bindMountOptions[2]: Duplicate value: "noexec"
            "#]],
        );
    }

    #[test]
    fn containers_have_a_name_of_their_own_and_an_image() {
        check(
            json!({"containers": []}),
            expect![[r#"
            spec.containers: Required value
        "#]],
        );
        check(
            json!({
                "containers": [{"name": "a", "image": "i"}, {"name": "a", "image": "i"}, {"image": "i"}],
                "initContainers": [{"name": "a"}],
                "ephemeralContainers": [{"name": "B_", "image": "i"}],
            }),
            expect![[r#"
                spec.containers[1].name: Duplicate value: "a"
                spec.containers[2].name: Required value
                spec.initContainers[0].image: Required value
                spec.initContainers[0].name: Duplicate value: "a"
                spec.ephemeralContainers[0].name: Invalid value: "B_": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
            "#]],
        );
    }

    #[test]
    fn privileged_containers_may_escalate_their_privileges() {
        let check = |context: Value, expected: Expect| {
            check(
                with_container(json!({"securityContext": context})),
                expected,
            );
        };
        check(
            json!({"privileged": true, "allowPrivilegeEscalation": false}),
            expect![[r#"
                spec.containers[0].securityContext: Invalid value: cannot set `allowPrivilegeEscalation` to false and `privileged` to true
            "#]],
        );
        check(
            json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["KILL", "CAP_SYS_ADMIN"]}}),
            expect![[r#"
                spec.containers[0].securityContext: Invalid value: cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN
            "#]],
        );
        for allowed in [
            json!({"privileged": true}),
            json!({"privileged": true, "allowPrivilegeEscalation": true}),
            json!({"privileged": false, "allowPrivilegeEscalation": false}),
            json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["KILL"]}}),
            json!({"allowPrivilegeEscalation": true, "capabilities": {"add": ["CAP_SYS_ADMIN"]}}),
        ] {
            let spec = with_container(json!({"securityContext": allowed}));
            let given = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
            let mut given: Pod = from_value(given).unwrap();
            defaults::pod(&mut given);
            assert!(pod(&given).is_empty(), "{allowed}");
        }
    }

    #[test]
    fn mounts_name_volumes_of_the_pod() {
        check(
            with_container(json!({"volumeMounts": [
                {"name": "v", "mountPath": "/a", "subPath": "x"},
                {"name": "w", "mountPath": "/b"},
                {"name": "v", "mountPath": "/a"},
                {"name": "v"},
            ]})),
            expect![[r#"
                spec.containers[0].volumeMounts[1].name: Not found: "w"
                spec.containers[0].volumeMounts[2].mountPath: Invalid value: "/a": must be unique
                spec.containers[0].volumeMounts[3].mountPath: Required value
            "#]],
        );
    }

    #[test]
    fn sub_paths_stay_in_the_volume() {
        // projection 14.2
        check(
            with_container(json!({"volumeMounts": [
                {"name": "v", "mountPath": "/a", "subPath": "/x"},
                {"name": "v", "mountPath": "/b", "subPath": "a/../../x"},
                {"name": "v", "mountPath": "/c", "subPath": "x", "subPathExpr": "$(X)/.."},
            ]})),
            expect![[r#"
                spec.containers[0].volumeMounts[0].subPath: Invalid value: "/x": must be a relative path
                spec.containers[0].volumeMounts[1].subPath: Invalid value: "a/../../x": must not contain '..'
                spec.containers[0].volumeMounts[2].subPathExpr: Invalid value: "$(X)/..": subPathExpr and subPath are mutually exclusive
                spec.containers[0].volumeMounts[2].subPathExpr: Invalid value: "$(X)/..": must not contain '..'
            "#]],
        );
    }

    #[test]
    fn pod_wide_fields_are_checked() {
        check(
            json!({
                "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1x", "memory": "-1", "ephemeral-storage": " 1Gi "}}}],
                "volumes": [{"name": "v"}, {"name": "v"}, {"name": "A"}],
                "nodeName": "Node-1", "restartPolicy": "No", "dnsPolicy": "x", "terminationGracePeriodSeconds": -1,
                "securityContext": {"fsGroup": -1}, "imagePullSecrets": [{"name": ""}, {"name": "A"}],
            }),
            expect![[r#"
                spec.volumes[1].name: Duplicate value: "v"
                spec.volumes[2].name: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')
                spec.containers[0].resources.limits[cpu]: Invalid value: "1x": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
                spec.containers[0].resources.limits[memory]: Invalid value: "-1": must be greater than or equal to 0
                spec.containers[0].resources.requests[cpu]: Invalid value: "1x": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'
                spec.containers[0].resources.requests[memory]: Invalid value: "-1": must be greater than or equal to 0
                spec.restartPolicy: Unsupported value: "No": supported values: "Always", "OnFailure", "Never"
                spec.dnsPolicy: Unsupported value: "x": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"
                spec.securityContext.fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive
                spec.nodeName: Invalid value: "Node-1": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')
            "#]],
        );
    }
}
