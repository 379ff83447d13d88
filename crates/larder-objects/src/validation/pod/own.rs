//! Fields of the pod itself. Not checked: affinity, spread constraints, system controls, and other fields that only a
//! scheduler or a kubelet reads.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, Toleration};
use serde_json::Value;

use crate::{FieldPath, validation::FieldErrors};

/// Most name servers of a pod.
const MAX_NAME_SERVERS: usize = 3;

pub(super) fn check_own(errors: &mut FieldErrors, spec: &PodSpec) {
    let policies = ["Always", "OnFailure", "Never"];
    let policy = spec.restart_policy.as_deref();
    errors.check_choice("spec.restartPolicy", policy, &policies);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    let policy = spec.dns_policy.as_deref();
    errors.check_choice("spec.dnsPolicy", policy, &policies);
    for (key, value) in spec.node_selector.iter().flatten() {
        errors.check_qualified_name("spec.nodeSelector", key, key);
        errors.check_label_value("spec.nodeSelector", value);
    }
    if let Some(context) = &spec.security_context {
        check_ids(errors, context);
    }
    check_name_servers(errors, spec);
    for (field, name) in [
        ("spec.serviceAccountName", &spec.service_account_name),
        ("spec.nodeName", &spec.node_name),
    ] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            errors.check_subdomain(field, name);
        }
    }
    let deadline = spec.active_deadline_seconds.unwrap_or(1);
    let deadlines = 1..=i64::from(i32::MAX);
    errors.check_range("spec.activeDeadlineSeconds", deadline, deadlines);
    for (field, name) in [
        ("spec.hostname", &spec.hostname),
        ("spec.subdomain", &spec.subdomain),
    ] {
        if let Some(name) = name.as_deref().filter(|name| !name.is_empty()) {
            errors.check_label(field, name);
        }
    }
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        let field = FieldPath::fields("spec.tolerations").index(index);
        check_toleration(errors, &field, toleration);
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let field = FieldPath::fields("spec.hostAliases").index(index);
        check_address(errors, &field.child("ip"), &alias.ip);
        for (place, name) in alias.hostnames.iter().flatten().enumerate() {
            errors.check_subdomain(field.child("hostnames").index(place), name);
        }
    }
    if let Some(os) = &spec.os {
        errors.check_choice("spec.os", Some(&os.name), &["linux", "windows"]);
    }
}

fn check_ids(errors: &mut FieldErrors, context: &PodSecurityContext) {
    errors.check_id("spec.securityContext.fsGroup", context.fs_group);
    errors.check_id("spec.securityContext.runAsUser", context.run_as_user);
    errors.check_id("spec.securityContext.runAsGroup", context.run_as_group);
    let groups = context.supplemental_groups.iter().flatten();
    for (index, group) in groups.enumerate() {
        let field = FieldPath::fields("spec.securityContext.supplementalGroups").index(index);
        errors.check_id(field, Some(*group));
    }
}

fn check_name_servers(errors: &mut FieldErrors, spec: &PodSpec) {
    let field = &FieldPath::fields("spec.dnsConfig.nameservers");
    let config = spec.dns_config.as_ref();
    let servers = config.and_then(|config| config.nameservers.as_deref());
    let servers = servers.unwrap_or_default();
    if spec.dns_policy.as_deref() == Some("None") {
        if spec.dns_config.is_none() {
            let rule = "must provide `dnsConfig` when `dnsPolicy` is None";
            return errors.required("spec.dnsConfig", rule);
        }
        if servers.is_empty() {
            let rule = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return errors.required(field, rule);
        }
    }
    if servers.len() > MAX_NAME_SERVERS {
        let rule = format!("must not have more than {MAX_NAME_SERVERS} nameservers");
        let shown = Value::from(servers).to_string();
        errors.invalid(field, format_args!("{shown}"), &rule);
    }
    for (index, server) in servers.iter().enumerate() {
        check_address(errors, &field.index(index), server);
    }
}

fn check_address(errors: &mut FieldErrors, field: &FieldPath, address: &str) {
    if address.parse::<IpAddr>().is_err() {
        let rule = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        errors.invalid(field, address, rule);
    }
}

fn check_toleration(errors: &mut FieldErrors, field: &FieldPath, toleration: &Toleration) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, value) = (text(&toleration.key), text(&toleration.value));
    let (operator, effect) = (text(&toleration.operator), text(&toleration.effect));
    if !key.is_empty() {
        errors.check_qualified_name(field.child("key"), &key, &key);
    }
    let operator_field = field.child("operator");
    if key.is_empty() && operator != "Exists" {
        let rule = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&operator_field, &*operator, rule);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let rule = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(field.child("effect"), &*effect, rule);
    }
    match &*operator {
        "" | "Equal" if !value.is_empty() => {
            errors.check_label_value(&operator_field, &value);
        }
        "" | "Equal" => {}
        "Exists" if value.is_empty() => {}
        "Exists" => {
            let rule = "value must be empty when `operator` is 'Exists'";
            errors.invalid(&operator_field, &*value, rule);
        }
        other => errors.not_supported(&operator_field, other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        let effects = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
        errors.check_choice(field.child("effect"), Some(&effect), &effects);
    }
}
