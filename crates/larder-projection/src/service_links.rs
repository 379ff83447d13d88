//! Variables with the addresses of the Services in a container's namespace.
//!
//! Kubelet 1.36, `pkg/kubelet/envvars/envvars.go` and `getServiceEnvVarMap` in `pkg/kubelet/kubelet_pods.go`. If
//! variables of two Services clash, the Service that is later by name wins; in the kubelet the order is random.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{Assumptions, Question, ServiceFacts, Unknown, UnknownSource, Value, unknown::Form};

/// The name of the Service that every cluster has.
const API_SERVER: &str = "kubernetes";

/// The Services that a pod of `namespace` gets variables for, by name.
///
/// Always `default/kubernetes`. With `links` also those of the pod's namespace; one named `kubernetes` there stands in
/// for the one of `default`.
pub(crate) fn visible<'a>(
    services: &'a [ServiceFacts],
    namespace: &str,
    links: bool,
) -> BTreeMap<&'a str, &'a ServiceFacts> {
    let mut visible = BTreeMap::new();
    for service in services {
        let name: &str = &service.name;
        if service.is_api_server() {
            visible.entry(name).or_insert(service);
        } else if links && *service.namespace == *namespace {
            visible.insert(name, service);
        }
    }
    visible
}

/// Hands each variable of `service` to `emit`, name and value.
pub(crate) fn variables(service: &ServiceFacts, mut emit: impl FnMut(String, Value<'static>)) {
    let prefix = variable_name(&service.name);
    let host = &service.cluster_ip;
    let text = |text: String| Value::Owned(text.into_bytes());
    let with_host = |before: &str, after: &str| {
        if !host.is_empty() {
            return text([before, host, after].concat());
        }
        let what = format!("clusterIP of service {}", service.name);
        let unknown = Unknown::of(UnknownSource::fact(what, Form::Address));
        let parts = [Ok(before.as_bytes()), Err(&unknown), Ok(after.as_bytes())];
        Unknown::joined(parts.into_iter()).into()
    };
    emit(format!("{prefix}_SERVICE_HOST"), with_host("", ""));
    if let Some(first) = service.ports.first() {
        let port = text(first.port.to_string());
        emit(format!("{prefix}_SERVICE_PORT"), port);
    }
    for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
        let name = variable_name(&port.name);
        emit(
            format!("{prefix}_SERVICE_PORT_{name}"),
            text(port.port.to_string()),
        );
    }
    for (index, port) in service.ports.iter().enumerate() {
        let number = port.port;
        let protocol = port.protocol.to_lowercase();
        let url = if host.contains(':') {
            with_host(&format!("{protocol}://["), &format!("]:{number}"))
        } else {
            with_host(&format!("{protocol}://"), &format!(":{number}"))
        };
        if index == 0 {
            emit(format!("{prefix}_PORT"), url.clone());
        }
        let prefix = format!("{prefix}_PORT_{number}_{}", port.protocol.to_uppercase());
        emit(format!("{prefix}_PROTO"), text(protocol));
        emit(format!("{prefix}_PORT"), text(number.to_string()));
        emit(format!("{prefix}_ADDR"), with_host("", ""));
        emit(prefix, url);
    }
}

/// The name of the Service that gives `variable`, by the form of its name.
pub(crate) fn service_of(variable: &str) -> Option<String> {
    let is_part = |byte: u8| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_');
    let forms = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"];
    let at = forms
        .iter()
        .find_map(|form| variable.find(form).map(|at| (at, *form)));
    let (at, form) = at.filter(|(at, _)| *at > 0)?;
    let rest = &variable[at + form.len()..];
    let ends = rest.is_empty() || rest.starts_with('_') && form != "_SERVICE_HOST";
    let is_name = ends && variable.bytes().all(is_part);
    is_name.then(|| variable[..at].to_lowercase().replace('_', "-"))
}

/// The Services that a container would get variables of, and that are not listed.
#[derive(Clone, Debug)]
pub(crate) struct OtherServices {
    /// Namespaces and names of those that are.
    listed: Arc<BTreeSet<(String, String)>>,
    namespace: String,
    /// Whether the container gets variables of all Services of its namespace.
    links: bool,
}

impl OtherServices {
    /// `None` if all Services are listed.
    pub(crate) fn of(assumptions: &Assumptions, namespace: &str, links: bool) -> Option<Self> {
        Some(Self {
            listed: Arc::clone(assumptions.other_services.as_ref()?),
            namespace: namespace.to_owned(),
            links,
        })
    }

    /// What `variable` is, if one of them may give it, and it is there.
    pub(crate) fn perhaps(&self, variable: &str) -> Option<Unknown> {
        let source = self.source(variable)?;
        let question = Question::Fact(Arc::clone(&source.what));
        let is_certain = service_of(variable)? == API_SERVER;
        let value = Unknown::of(source);
        Some(if is_certain {
            value
        } else {
            Unknown::layered(None, question, value)
        })
    }

    /// What a reference to `variable` is, if one of them may give it.
    pub(crate) fn source(&self, variable: &str) -> Option<UnknownSource> {
        let name = service_of(variable)?;
        let is_api_server = name == API_SERVER;
        let is_in = |namespace: &str| {
            let key = (namespace.to_owned(), name.clone());
            self.listed.contains(&key)
        };
        let is_listed = self.links && is_in(&self.namespace) || is_api_server && is_in("default");
        (!is_listed && (self.links || is_api_server))
            .then(|| UnknownSource::service(&name, variable))
    }
}

/// `my-name` as `MY_NAME`.
fn variable_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::ServicePortFacts;

    fn service(key: (&str, &str), ip: &str, ports: &[(&str, i32, &str)]) -> ServiceFacts {
        ServiceFacts {
            namespace: key.0.into(),
            name: key.1.into(),
            cluster_ip: ip.into(),
            ports: ports
                .iter()
                .map(|&(name, port, protocol)| ServicePortFacts {
                    name: name.into(),
                    port,
                    protocol: protocol.into(),
                })
                .collect(),
        }
    }

    #[track_caller]
    fn check(service: &ServiceFacts, expected: Expect) {
        let mut shown = String::new();
        variables(service, |name, value| {
            let value = String::from_utf8_lossy(&value);
            shown.extend([&name, "=", &value, "\n"]);
        });
        expected.assert_eq(&shown);
    }

    #[test]
    fn an_unnamed_port_gives_host_port_and_link_variables() {
        // projection 59
        check(
            &service(("n", "my-svc"), "1.2.3.4", &[("", 8080, "TCP")]),
            expect![[r#"
                MY_SVC_SERVICE_HOST=1.2.3.4
                MY_SVC_SERVICE_PORT=8080
                MY_SVC_PORT=tcp://1.2.3.4:8080
                MY_SVC_PORT_8080_TCP_PROTO=tcp
                MY_SVC_PORT_8080_TCP_PORT=8080
                MY_SVC_PORT_8080_TCP_ADDR=1.2.3.4
                MY_SVC_PORT_8080_TCP=tcp://1.2.3.4:8080
            "#]],
        );
    }

    #[test]
    fn ports_have_their_own_variables_and_urls_bracket_ipv6() {
        // projection 59
        let ports = [("u-d-p", 8084, "UDP"), ("t", 8084, "TCP"), ("s", 9, "SCTP")];
        check(
            &service(("n", "q"), "2001:DB8::", &ports),
            expect![[r#"
                Q_SERVICE_HOST=2001:DB8::
                Q_SERVICE_PORT=8084
                Q_SERVICE_PORT_U_D_P=8084
                Q_SERVICE_PORT_T=8084
                Q_SERVICE_PORT_S=9
                Q_PORT=udp://[2001:DB8::]:8084
                Q_PORT_8084_UDP_PROTO=udp
                Q_PORT_8084_UDP_PORT=8084
                Q_PORT_8084_UDP_ADDR=2001:DB8::
                Q_PORT_8084_UDP=udp://[2001:DB8::]:8084
                Q_PORT_8084_TCP_PROTO=tcp
                Q_PORT_8084_TCP_PORT=8084
                Q_PORT_8084_TCP_ADDR=2001:DB8::
                Q_PORT_8084_TCP=tcp://[2001:DB8::]:8084
                Q_PORT_9_SCTP_PROTO=sctp
                Q_PORT_9_SCTP_PORT=9
                Q_PORT_9_SCTP_ADDR=2001:DB8::
                Q_PORT_9_SCTP=sctp://[2001:DB8::]:9
            "#]],
        );
    }

    #[test]
    fn a_local_kubernetes_service_replaces_the_default_one() {
        // projection 58
        let mut services = vec![
            service(("default", "kubernetes"), "1.1.1.1", &[]),
            service(("default", "other"), "1.1.1.2", &[]),
            service(("n", "kubernetes"), "2.2.2.1", &[]),
            service(("n", "mine"), "2.2.2.2", &[]),
        ];
        for _ in 0..2 {
            let seen = |namespace, links| -> Vec<&str> {
                let visible = visible(&services, namespace, links);
                visible
                    .values()
                    .map(|service| &*service.cluster_ip)
                    .collect()
            };
            assert_eq!(seen("n", true), ["2.2.2.1", "2.2.2.2"]);
            assert_eq!(seen("n", false), ["1.1.1.1"]);
            assert_eq!(seen("default", true), ["1.1.1.1", "1.1.1.2"]);
            assert_eq!(seen("default", false), ["1.1.1.1"]);
            services.reverse();
        }
    }
}
