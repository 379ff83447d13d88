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
    foreign::PULL_POLICIES,
    metadata,
    ports::{check_host_ports, check_ports},
    resources::{Owner, check_resources, check_whole},
    volumes::check_volume,
};
use crate::FieldPath;

/// Checks a pod as for its creation, after the defaults.
pub fn pod(pod: &Pod) -> FieldErrors {
    let mut errors = metadata(&pod.metadata, Scope::Namespaced);
    match &pod.spec {
        Some(spec) => check_spec(&mut errors, spec),
        None => errors.required("spec.containers", ""),
    }
    errors
}

fn check_spec(errors: &mut FieldErrors, spec: &PodSpec) {
    let (mut volumes, mut by_name) = (HashSet::new(), HashMap::new());
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        by_name.entry(&*volume.name).or_insert(volume);
        let field = FieldPath::fields("spec.volumes").index(index);
        let before = errors.len();
        check_volume(errors, &field, volume);
        if errors.len() == before && !volumes.insert(&*volume.name) {
            errors.duplicate(field.child("name"), &volume.name);
        }
    }
    if spec.containers.is_empty() {
        errors.required("spec.containers", "");
    }
    let mut names = HashSet::new();
    for container in containers(spec) {
        check_container(errors, &container, &mut names, (&volumes, &by_name), spec);
    }
    check_host_ports(errors, &spec.containers);
    check_whole(errors, spec);
    own::check_own(errors, spec);
    for container in containers(spec) {
        if container.image.trim() != container.image {
            let field = container.field.child("image");
            let rule = "must not have leading or trailing whitespace";
            errors.invalid(&field, container.image, rule);
        }
    }
}

/// The common fields of the three kinds of containers.
struct AnyContainer<'a> {
    field: FieldPath,
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
fn containers(spec: &PodSpec) -> Vec<AnyContainer<'_>> {
    macro_rules! any {
        ($list:expr, $name:literal) => {
            $list.enumerate().map(|(index, container)| AnyContainer {
                field: FieldPath::fields(concat!("spec.", $name)).index(index),
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
    errors: &mut FieldErrors,
    container: &AnyContainer<'a>,
    names: &mut HashSet<&'a str>,
    (volumes, volumes_by_name): (&HashSet<&str>, &HashMap<&str, &Volume>),
    spec: &PodSpec,
) {
    let field = &container.field;
    let name_field = field.child("name");
    errors.check_given(name_field.clone(), container.name, FieldErrors::check_label);
    errors.check_not_empty(field.child("image"), container.image);
    let choice = |errors: &mut FieldErrors, name, chosen, supported| {
        errors.check_choice(field.child(name), chosen, supported);
    };
    let policies = &["File", "FallbackToLogsOnError"];
    let policy = container.message_policy;
    choice(errors, "terminationMessagePolicy", policy, policies);
    let host_network = spec.host_network == Some(true) && container.is_regular;
    check_ports(errors, &field.child("ports"), container.ports, host_network);
    for (index, variable) in container.env.iter().enumerate() {
        let field = field.child("env").index(index);
        check_env(errors, &field, variable, volumes_by_name);
    }
    for (index, source) in container.env_from.iter().enumerate() {
        check_env_from(errors, &field.child("envFrom").index(index), source);
    }
    let security = container.security;
    let is_privileged = security.is_some_and(|context| context.privileged == Some(true));
    let mut paths = HashSet::new();
    for (index, mount) in container.mounts.iter().enumerate() {
        let field = field.child("volumeMounts").index(index);
        check_mount(errors, &field, mount, volumes, &mut paths);
        if mount.mount_propagation.as_deref() == Some("Bidirectional") && !is_privileged {
            let rule = "Bidirectional mount propagation is available only to privileged containers";
            errors.forbidden(field.child("mountPropagation"), rule);
        }
        check_recursive_read_only(errors, &field.child("recursiveReadOnly"), mount);
    }
    let policy = container.pull_policy;
    choice(errors, "imagePullPolicy", policy, &PULL_POLICIES);
    let resources = field.child("resources");
    check_resources(errors, &resources, container.resources, Owner::Container);
    if let Some(context) = security {
        check_security(errors, &field.child("securityContext"), context);
    }
    if !container.name.is_empty() && !names.insert(container.name) {
        errors.duplicate(&name_field, container.name);
    }
    let policies = &["Always", "Never", "OnFailure"];
    choice(errors, "restartPolicy", container.restart_policy, policies);
}

/// Rules of a container's security context (kube-apiserver 1.36, `ValidateSecurityContext`).
fn check_security(errors: &mut FieldErrors, field: &FieldPath, context: &SecurityContext) {
    errors.check_id(field.child("runAsUser"), context.run_as_user);
    errors.check_id(field.child("runAsGroup"), context.run_as_group);
    if context.allow_privilege_escalation != Some(false) {
        return;
    }
    if context.privileged == Some(true) {
        let rule = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
        errors.push(field, FieldErrorKind::Invalid, None, rule);
    }
    let added = context.capabilities.iter();
    let mut added = added.flat_map(|capabilities| capabilities.add.iter().flatten());
    // As the API server: the name without `CAP_`, which runtimes take too, passes.
    if added.any(|capability| capability == "CAP_SYS_ADMIN") {
        let rule =
            "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
        errors.push(field, FieldErrorKind::Invalid, None, rule);
    }
}

fn check_mount<'a>(
    errors: &mut FieldErrors,
    field: &FieldPath,
    mount: &'a VolumeMount,
    volumes: &HashSet<&str>,
    paths: &mut HashSet<&'a str>,
) {
    let (name_field, path_field) = (&field.child("name"), &field.child("mountPath"));
    errors.check_not_empty(name_field, &mount.name);
    if !volumes.contains(&*mount.name) {
        errors.not_found(name_field, &mount.name, volumes.iter().copied());
    }
    errors.check_not_empty(path_field, &mount.mount_path);
    if !paths.insert(&*mount.mount_path) {
        errors.invalid(path_field, &*mount.mount_path, "must be unique");
    }
    let text = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let (sub_path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
    if let Some(path) = &sub_path {
        errors.check_relative(field.child("subPath"), path);
    }
    if let Some(path) = &expression {
        let field = field.child("subPathExpr");
        if sub_path.is_some() {
            let rule = "subPathExpr and subPath are mutually exclusive";
            errors.invalid(&field, &**path, rule);
        }
        errors.check_relative(&field, path);
    }
    let options = mount.bind_mount_options.as_deref().unwrap_or(&[]);
    for (index, option) in options.iter().enumerate() {
        let field = field.child("bindMountOptions").index(index);
        errors.check_choice(&field, Some(option), &["nodev", "noexec", "nosuid"]);
        if options[..index].contains(option) {
            errors.duplicate(&field, option);
        }
    }
    let modes = ["Bidirectional", "HostToContainer", "None"];
    let mode = mount.mount_propagation.as_deref();
    errors.check_choice(field.child("mountPropagation"), mode, &modes);
}

fn check_recursive_read_only(errors: &mut FieldErrors, field: &FieldPath, mount: &VolumeMount) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(field, "may only be specified when readOnly is true");
            }
            let propagation = mount.mount_propagation.as_deref().unwrap_or("None");
            if propagation != "None" {
                let rule = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(field, rule);
            }
        }
        Some(other) => {
            errors.not_supported(field, other, &["Disabled", "Enabled", "IfPossible"]);
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
