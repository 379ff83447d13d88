//! Allocations for Services: cluster addresses and node ports.

use std::{collections::HashSet, net::Ipv4Addr};

use serde_json::{Value, json};

use super::{Writer, name};
use crate::{
    json::{items, set_default, text},
    resource::ApiKind,
    selector::Filter,
    status::{ApiError, Cause},
    store::Store,
};

/// Cluster addresses are 10.96.0.0/16, as kubeadm's default range; the first ones are left to services that a cluster
/// fixes.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([10, 96, 0, 16]);
const LAST_ADDRESS: u32 = u32::from_be_bytes([10, 96, 255, 254]);
/// Node ports, as kube-apiserver's default range.
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30_000..=32_767;

/// What Services may hold: all that they do, and what some held that are gone. That is found to be free when it is asked
/// for, or when nothing else is left, so that a write does not look at all Services.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    addresses: HashSet<String>,
    ports: HashSet<i64>,
    /// The address to try first, from [`FIRST_ADDRESS`] on.
    next: u32,
}

impl Allocations {
    /// Something that is free, by `find`; if that has nothing, after a look at what the Services of `store` other than
    /// `uid` hold.
    fn find<T>(
        &mut self,
        store: &Store,
        uid: &str,
        find: impl Fn(&Self) -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = find(self) {
            return Some(found);
        }
        let others = store
            .list(ApiKind::Service, &Filter::default(), None, None, None)
            .map(|page| page.objects)
            .unwrap_or_default();
        let others: Vec<_> = others.iter().filter(|other| other.uid != uid).collect();
        let addresses = others.iter().map(|other| other.field("spec.clusterIP"));
        self.addresses = addresses.map(str::to_owned).collect();
        self.ports = others
            .iter()
            .filter(|other| has_node_ports(other.field("spec.type")))
            .flat_map(|other| ports(&other.value()).collect::<Vec<_>>())
            .collect();
        find(self)
    }

    fn free_address(&self) -> Option<u32> {
        let first = FIRST_ADDRESS + self.next;
        let mut all = (first..=LAST_ADDRESS).chain(FIRST_ADDRESS..first);
        all.find(|address| {
            !self
                .addresses
                .contains(&Ipv4Addr::from(*address).to_string())
        })
    }
}

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
        let mut held = self.allocations.lock();
        let given = text(service, "/spec/clusterIP").to_owned();
        let address = if given.is_empty() {
            let free = held
                .find(&self.store, &uid, Allocations::free_address)
                .ok_or_else(|| ApiError::internal("no cluster address is free"))?;
            held.next = (free + 1 - FIRST_ADDRESS) % (LAST_ADDRESS - FIRST_ADDRESS + 1);
            Ipv4Addr::from(free).to_string()
        } else {
            let changed = old.is_none_or(|old| text(old, "/spec/clusterIP") != given);
            let is_free = |held: &Allocations| (!held.addresses.contains(&given)).then_some(());
            if changed && given != "None" && held.find(&self.store, &uid, is_free).is_none() {
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
        held.addresses.insert(address);
        if has_node_ports(&kind) {
            let mut own: HashSet<i64> = ports(service).collect();
            for port in ports_mut(service) {
                if port["nodePort"].as_i64().unwrap_or(0) == 0 {
                    let is_free = |held: &Allocations| {
                        let mut all = NODE_PORTS;
                        all.find(|port| !held.ports.contains(port) && !own.contains(port))
                    };
                    let free = held
                        .find(&self.store, &uid, is_free)
                        .ok_or_else(|| ApiError::internal("no node port is free"))?;
                    own.insert(free);
                    port["nodePort"] = free.into();
                }
            }
            held.ports.extend(own);
        }
        Ok(())
    }
}

fn has_node_ports(kind: &str) -> bool {
    matches!(kind, "NodePort" | "LoadBalancer")
}

fn ports(service: &Value) -> impl Iterator<Item = i64> {
    items(service, "/spec/ports").filter_map(|port| port["nodePort"].as_i64())
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
    service["spec"]["ports"]
        .as_array_mut()
        .into_iter()
        .flatten()
}
