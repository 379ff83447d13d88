//! The Node object of this machine, for API servers that have none.

use std::thread::available_parallelism;

use k8s_openapi::{
    api::core::v1::{Node, NodeAddress, NodeStatus},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};

/// A Node called `name` with the processors and memory of this machine, all allocatable, its host name and the loopback
/// address.
pub fn of_this_host(name: &str) -> Node {
    let processors = available_parallelism().map_or(1, usize::from);
    let info = rustix::system::sysinfo();
    let memory = info.totalram as u64 * u64::from(info.mem_unit);
    let resources = [
        ("cpu", processors.to_string()),
        ("memory", memory.to_string()),
    ];
    let resources = resources.map(|(name, amount)| (name.to_owned(), Quantity(amount)));
    let address = |type_: &str, address: &str| NodeAddress {
        type_: type_.to_owned(),
        address: address.to_owned(),
    };
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([("kubernetes.io/hostname".to_owned(), name.to_owned())].into()),
            ..ObjectMeta::default()
        },
        status: Some(NodeStatus {
            addresses: Some(vec![
                address("InternalIP", "127.0.0.1"),
                address("Hostname", name),
            ]),
            capacity: Some(resources.clone().into()),
            allocatable: Some(resources.into()),
            ..NodeStatus::default()
        }),
        ..Node::default()
    }
}
