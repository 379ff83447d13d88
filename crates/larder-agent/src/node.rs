//! What this machine knows of its node: a Node object for API servers that have none, and its own addresses.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    thread::available_parallelism,
};

use k8s_openapi::{
    api::core::v1::{HostIP, Node, NodeAddress, NodeStatus, Pod},
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
    ]
    .map(|(name, amount)| (name.to_owned(), Quantity(amount)));
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

/// The addresses of this machine, IPv4 first: those from which it would send to the network. As the kubelet's default for
/// the address of its Node (1.36, `pkg/kubelet/nodestatus/setters.go`, `ResolveBindAddress`). Nothing is sent.
pub fn own_addresses() -> Vec<IpAddr> {
    // Addresses of documentation, to which the default route leads.
    let destinations = [
        IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    ];
    let source = |destination: IpAddr| {
        let any: IpAddr = match destination {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(SocketAddr::new(destination, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
    };
    destinations.into_iter().filter_map(source).collect()
}

/// States the addresses of this machine as those of the static pod's host, unless its status has one.
pub(crate) fn state_own_addresses(pod: &mut Pod) {
    let status = pod.status.get_or_insert_default();
    if status.host_ip.is_some() {
        return;
    }
    let ips: Vec<_> = own_addresses().iter().map(IpAddr::to_string).collect();
    status.host_ip = ips.first().cloned();
    status.host_ips = Some(ips.into_iter().map(|ip| HostIP { ip }).collect());
}
