//! Fields of the pod itself. Not checked: affinity, spread constraints, system controls, and other fields that only a
//! scheduler or a kubelet reads.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodSecurityContext, PodSpec, Toleration};
use serde_json::Value;

use crate::validation::field::Field;

/// Most name servers of a pod.
const MAX_NAME_SERVERS: usize = 3;

pub(super) fn check_own(field: &Field<'_>, spec: &PodSpec) {
    let policies = ["Always", "OnFailure", "Never"];
    let policy = spec.restart_policy.as_deref();
    field.child("restartPolicy").check_choice(policy, &policies);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    let policy = spec.dns_policy.as_deref();
    field.child("dnsPolicy").check_choice(policy, &policies);
    for (key, value) in spec.node_selector.iter().flatten() {
        field.child("nodeSelector").check_qualified_name(key, key);
        field.child("nodeSelector").check_label_value(value);
    }
    if let Some(context) = &spec.security_context {
        check_ids(&field.child("securityContext"), context);
    }
    check_name_servers(field, spec);
    for (name, given) in [
        ("serviceAccountName", &spec.service_account_name),
        ("nodeName", &spec.node_name),
    ] {
        if let Some(given) = given.as_deref().filter(|given| !given.is_empty()) {
            field.child(name).check_subdomain(given);
        }
    }
    let deadline = spec.active_deadline_seconds.unwrap_or(1);
    let deadlines = 1..=i64::from(i32::MAX);
    field
        .child("activeDeadlineSeconds")
        .check_range(deadline, deadlines);
    for (name, given) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(given) = given.as_deref().filter(|given| !given.is_empty()) {
            field.child(name).check_label(given);
        }
    }
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        check_toleration(&field.child("tolerations").index(index), toleration);
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let field = field.child("hostAliases").index(index);
        check_address(&field.child("ip"), &alias.ip);
        for (place, name) in alias.hostnames.iter().flatten().enumerate() {
            field.child("hostnames").index(place).check_subdomain(name);
        }
    }
    if let Some(os) = &spec.os {
        let systems = ["linux", "windows"];
        field.child("os").check_choice(Some(&os.name), &systems);
    }
}

fn check_ids(field: &Field<'_>, context: &PodSecurityContext) {
    field.child("fsGroup").check_id(context.fs_group);
    field.child("runAsUser").check_id(context.run_as_user);
    field.child("runAsGroup").check_id(context.run_as_group);
    let groups = context.supplemental_groups.iter().flatten();
    for (index, group) in groups.enumerate() {
        let field = field.child("supplementalGroups").index(index);
        field.check_id(Some(*group));
    }
}

fn check_name_servers(field: &Field<'_>, spec: &PodSpec) {
    let list = field.at("dnsConfig.nameservers");
    let servers = spec
        .dns_config
        .as_ref()
        .and_then(|config| config.nameservers.as_deref())
        .unwrap_or_default();
    if spec.dns_policy.as_deref() == Some("None") {
        if spec.dns_config.is_none() {
            let rule = "must provide `dnsConfig` when `dnsPolicy` is None";
            return field.child("dnsConfig").required(rule);
        }
        if servers.is_empty() {
            let rule = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            return list.required(rule);
        }
    }
    if servers.len() > MAX_NAME_SERVERS {
        let rule = format!("must not have more than {MAX_NAME_SERVERS} nameservers");
        let shown = Value::from(servers).to_string();
        list.invalid(format_args!("{shown}"), &rule);
    }
    for (index, server) in servers.iter().enumerate() {
        check_address(&list.index(index), server);
    }
}

fn check_address(field: &Field<'_>, address: &str) {
    if address.parse::<IpAddr>().is_err() {
        let rule = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        field.invalid(address, rule);
    }
}

fn check_toleration(field: &Field<'_>, toleration: &Toleration) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, value) = (text(&toleration.key), text(&toleration.value));
    let (operator, effect) = (text(&toleration.operator), text(&toleration.effect));
    if !key.is_empty() {
        field.child("key").check_qualified_name(&key, &key);
    }
    let operator_field = field.child("operator");
    if key.is_empty() && operator != "Exists" {
        let rule = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        operator_field.invalid(&*operator, rule);
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let rule = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        field.child("effect").invalid(&*effect, rule);
    }
    match &*operator {
        "" | "Equal" if !value.is_empty() => {
            operator_field.check_label_value(&value);
        }
        "" | "Equal" => {}
        "Exists" if value.is_empty() => {}
        "Exists" => {
            let rule = "value must be empty when `operator` is 'Exists'";
            operator_field.invalid(&*value, rule);
        }
        other => operator_field.not_supported(other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() {
        let effects = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
        field.child("effect").check_choice(Some(&effect), &effects);
    }
}
