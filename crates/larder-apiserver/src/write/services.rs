//! Allocations for Services: cluster addresses and node ports.

use std::{collections::HashSet, net::Ipv4Addr};

use serde_json::{Value, json};

use super::{Writer, name};
use crate::{
    json::{items, set_default, text},
    resource::ApiKind,
    selector::Filter,
    status::{ApiError, Cause},
};

/// Cluster addresses are 10.96.0.0/16, as kubeadm's default range; the first ones are left to services that a cluster
/// fixes.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([10, 96, 0, 16]);
const LAST_ADDRESS: u32 = u32::from_be_bytes([10, 96, 255, 254]);
/// Node ports, as kube-apiserver's default range.
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30_000..=32_767;

impl Writer {
    /// Gives the Service what it needs and does not name. Of `old` it keeps what it had.
    pub(super) fn allocate(
        &self,
        old: Option<&Value>,
        service: &mut Value,
    ) -> Result<(), ApiError> {
        let kind = text(service, "/spec/type").to_owned();
        if kind == "ExternalName" {
            return Ok(());
        }
        if let Some(old) = old {
            keep(old, service);
        }
        let uid = text(service, "/metadata/uid").to_owned();
        let page = self
            .store
            .list(ApiKind::Service, &Filter::default(), None, None, None);
        let others: Vec<_> = page.map(|page| page.objects).unwrap_or_default();
        let others: Vec<_> = others.iter().filter(|other| other.uid != uid).collect();
        let taken = others.iter().map(|other| other.field("spec.clusterIP"));
        let taken: HashSet<_> = taken.collect();

        let given = text(service, "/spec/clusterIP").to_owned();
        let address = if given.is_empty() {
            let mut next = self.next_address.lock();
            let free = (FIRST_ADDRESS + *next..=LAST_ADDRESS)
                .chain(FIRST_ADDRESS..FIRST_ADDRESS + *next)
                .find(|address| !taken.contains(&*Ipv4Addr::from(*address).to_string()))
                .ok_or_else(|| ApiError::internal("no cluster address is free"))?;
            *next = (free + 1 - FIRST_ADDRESS) % (LAST_ADDRESS - FIRST_ADDRESS + 1);
            Ipv4Addr::from(free).to_string()
        } else {
            let changed = old.is_none_or(|old| text(old, "/spec/clusterIP") != given);
            if changed && given != "None" && taken.contains(&*given) {
                let why = format_args!("\"{given}\": provided IP is already allocated");
                let cause = Cause::invalid("spec.clusterIPs", why);
                return Err(ApiError::invalid("Service", name(service), vec![cause]));
            }
            given
        };
        let spec = &mut service["spec"];
        spec["clusterIP"] = address.as_str().into();
        spec["clusterIPs"] = json!([address]);
        for (field, value) in [
            ("ipFamilies", json!(["IPv4"])),
            ("ipFamilyPolicy", json!("SingleStack")),
        ] {
            set_default(&mut spec[field], value);
        }
        if matches!(&*kind, "NodePort" | "LoadBalancer") {
            let ports = |service: &Value| -> Vec<i64> {
                let ports = items(service, "/spec/ports");
                ports.filter_map(|port| port["nodePort"].as_i64()).collect()
            };
            let mut used: HashSet<i64> = others
                .iter()
                .filter(|other| matches!(other.field("spec.type"), "NodePort" | "LoadBalancer"))
                .flat_map(|other| ports(&other.value()))
                .chain(ports(service))
                .collect();
            for port in ports_mut(service) {
                if port["nodePort"].as_i64().unwrap_or(0) == 0 {
                    let free = NODE_PORTS.into_iter().find(|port| !used.contains(port));
                    let free = free.ok_or_else(|| ApiError::internal("no node port is free"))?;
                    used.insert(free);
                    port["nodePort"] = free.into();
                }
            }
        }
        Ok(())
    }
}

/// An update that names no address or node port means the one that the Service has.
fn keep(old: &Value, service: &mut Value) {
    if text(service, "/spec/clusterIP").is_empty() {
        service["spec"]["clusterIP"] = old["spec"]["clusterIP"].clone();
    }
    for port in ports_mut(service) {
        let same =
            |other: &&Value| other["port"] == port["port"] && other["protocol"] == port["protocol"];
        if port["nodePort"].as_i64().unwrap_or(0) == 0
            && let Some(held) = items(old, "/spec/ports").find(same)
            && !held["nodePort"].is_null()
        {
            port["nodePort"] = held["nodePort"].clone();
        }
    }
}

fn ports_mut(service: &mut Value) -> impl Iterator<Item = &mut Value> {
    let ports = service["spec"]["ports"].as_array_mut();
    ports.into_iter().flatten()
}
