//! Ports of containers.

use std::{collections::HashSet, ops::RangeInclusive};

use k8s_openapi::api::core::v1::{Container, ContainerPort};

use super::{field::Field, names::too_long};

/// Longest name of a port, in bytes.
const MAX_NAME: usize = 15;
/// Ports of TCP, UDP and SCTP.
pub(super) const PORTS: RangeInclusive<i64> = 1..=65535;
pub(super) const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Checks the ports of one container.
pub(super) fn check_ports(field: &Field<'_>, ports: &[ContainerPort], host_network: bool) {
    let mut names = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = field.index(index);
        let name = port.name.as_deref().unwrap_or_default();
        let problems = if name.is_empty() {
            Vec::new()
        } else {
            name_problems(name)
        };
        for problem in &problems {
            field.child("name").invalid(name, problem);
        }
        if problems.is_empty() && !name.is_empty() && !names.insert(name) {
            field.child("name").duplicate(name);
        }
        if port.container_port == 0 {
            field.child("containerPort").required("");
        } else {
            let number = port.container_port.into();
            field.child("containerPort").check_range(number, PORTS);
        }
        let host_port = port.host_port.unwrap_or(0);
        if host_port != 0 {
            field.child("hostPort").check_range(host_port.into(), PORTS);
        }
        let protocol = port.protocol.as_deref();
        field.child("protocol").check_choice(protocol, &PROTOCOLS);
        if host_network && host_port != port.container_port {
            let rule = "must match `containerPort` when `hostNetwork` is true";
            field.child("hostPort").invalid(host_port, rule);
        }
    }
}

/// Checks that no two of the `containers` of a pod in `field`, which run at the same time, want the same port of the host.
pub(super) fn check_host_ports(field: &Field<'_>, containers: &[Container]) {
    let mut taken = HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        for (place, port) in container.ports.iter().flatten().enumerate() {
            let Some(number) = port.host_port.filter(|number| *number != 0) else {
                continue;
            };
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let address = port.host_ip.as_deref().unwrap_or_default();
            let wanted = format!("{protocol}/{address}/{number}");
            if let Some(wanted) = taken.replace(wanted) {
                let field = field.index(index).child("ports").index(place);
                field.child("hostPort").duplicate(&wanted);
            }
        }
    }
}

/// Why `name` is not the name of a port (an IANA service name in lower case).
fn name_problems(name: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut check = |good: bool, rule: &str| {
        if !good {
            problems.push(rule.to_owned());
        }
    };
    let is_letter = |c: u8| c.is_ascii_lowercase();
    let is_allowed = |c: u8| is_letter(c) || c.is_ascii_digit() || c == b'-';
    check(name.len() <= MAX_NAME, &too_long(MAX_NAME));
    let rule = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)";
    check(name.bytes().all(is_allowed), rule);
    let rule = "must contain at least one letter (a-z)";
    check(name.bytes().any(is_letter), rule);
    check(!name.contains("--"), "must not contain consecutive hyphens");
    let hyphen_at_end = name.starts_with('-') || name.ends_with('-');
    check(!hyphen_at_end, "must not begin or end with a hyphen");
    problems
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::{from_value, json};

    use super::*;
    use crate::validation::FieldErrors;

    #[test]
    fn ports_have_numbers_in_range_and_names_of_their_own() {
        let ports: Vec<ContainerPort> = from_value(json!([
            {"containerPort": 80, "name": "web"},
            {"containerPort": 81, "name": "web"},
            {"containerPort": 0},
            {"containerPort": 70000, "hostPort": -1},
            {"containerPort": 82, "protocol": "HTTP"},
            {"containerPort": 83, "name": "-A--"},
            {"containerPort": 84, "name": "sixteen-letters-"},
        ]))
        .unwrap();
        let errors = FieldErrors::found(|object| check_ports(&object.at("p"), &ports, false));
        expect![[r#"
            p[1].name: Duplicate value: "web"
            p[2].containerPort: Required value
            p[3].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive
            p[3].hostPort: Invalid value: -1: must be between 1 and 65535, inclusive
            p[4].protocol: Unsupported value: "HTTP": supported values: "SCTP", "TCP", "UDP"
            p[5].name: Invalid value: "-A--": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)
            p[5].name: Invalid value: "-A--": must contain at least one letter (a-z)
            p[5].name: Invalid value: "-A--": must not contain consecutive hyphens
            p[5].name: Invalid value: "-A--": must not begin or end with a hyphen
            p[6].name: Invalid value: "sixteen-letters-": must be no more than 15 characters
            p[6].name: Invalid value: "sixteen-letters-": must not begin or end with a hyphen
        "#]]
        .assert_eq(&errors.lines());
    }

    #[test]
    fn a_port_of_the_host_is_taken_once() {
        let containers: Vec<Container> = from_value(json!([
            {"name": "a", "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]},
            {"name": "b", "ports": [
                {"containerPort": 81, "hostPort": 80, "protocol": "UDP"},
                {"containerPort": 82, "hostPort": 80, "hostIP": "127.0.0.1"},
                {"containerPort": 83, "hostPort": 80},
            ]},
        ]))
        .unwrap();
        let errors = FieldErrors::found(|object| {
            check_host_ports(&object.at("spec.containers"), &containers);
        });
        assert_eq!(
            errors.lines(),
            "spec.containers[1].ports[2].hostPort: Duplicate value: \"TCP//80\"\n"
        );
        let of = |container: &Container| {
            let ports = container.ports.clone().unwrap();
            FieldErrors::found(|object| check_ports(object, &ports, true)).len()
        };
        assert_eq!([of(&containers[0]), of(&containers[1])], [0, 3]);
    }
}
