//! The addresses of a pod that a hook may send requests to (rule S5).
//!
//! The writer of a pod's status chooses them. A kubelet reports real addresses; the author of a manifest can state any.
//! So addresses in manifests count only within networks that the operator allows.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    str::FromStr,
};

use super::HttpError;

/// The services for a cloud's machines that are not link-local, as those of most clouds are: metadata of Alibaba and of
/// Oracle (Classic), and Azure's for its agent.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];
/// Metadata of AWS and its identities of pods, of Google, Oracle and Scaleway.
const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
];

/// The addresses that the status of a pod has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodAddresses {
    /// `status.podIPs`, in order.
    pub ips: Vec<IpAddr>,
    /// The only networks that they may be in; `None` for any.
    pub networks: Option<Vec<Network>>,
    /// Whether the pod uses the network of this machine, and so its addresses.
    pub is_host_network: bool,
}

impl PodAddresses {
    /// The addresses in the order in which they are tried.
    ///
    /// # Errors
    ///
    /// None of the pod's addresses may be used. Or the pod uses the network of this machine and states no address, so it
    /// will never have one of its own.
    pub(super) fn with_port(&self, port: u16) -> Result<Vec<SocketAddr>, HttpError> {
        if self.is_host_network && self.networks.is_some() && self.ips.is_empty() {
            return Err(HttpError::HostNetwork(port));
        }
        let checked = self.ips.iter().map(|&ip| self.check(ip, port));
        let (allowed, refused): (Vec<_>, Vec<_>) = checked.partition(Result::is_ok);
        match refused.into_iter().find_map(Result::err) {
            Some(refused) if allowed.is_empty() => Err(refused),
            _ => Ok(allowed
                .into_iter()
                .flatten()
                .map(|ip| SocketAddr::new(ip, port))
                .collect()),
        }
    }

    fn check(&self, ip: IpAddr, port: u16) -> Result<IpAddr, HttpError> {
        if self.is_host_network && ip.to_canonical().is_loopback() {
            return Err(HttpError::HostNetwork(port));
        }
        if is_refused(ip) {
            return Err(HttpError::RefusedAddress(ip));
        }
        let is_allowed = |networks: &Vec<Network>| networks.iter().any(|network| network.has(ip));
        if !self.networks.as_ref().is_none_or(is_allowed) {
            return Err(HttpError::StatedAddress(ip));
        }
        if !self.is_host_network && is_own(ip) {
            return Err(HttpError::OwnAddress(ip));
        }
        Ok(ip)
    }
}

/// Whether this machine has the address: then the kernel gives what is sent there this address as its source. Nothing is
/// sent.
fn is_own(ip: IpAddr) -> bool {
    let any: IpAddr = match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip().to_canonical() == ip.to_canonical())
}

/// A network: `10.244.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether the address is in the network.
    pub fn has(&self, ip: IpAddr) -> bool {
        match (self.address, ip.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let differing = network.to_bits() ^ ip.to_bits();
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let differing = network.to_bits() ^ ip.to_bits();
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

/// A text does not name a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a network such as 10.244.0.0/16")]
pub struct NetworkError;

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = text.split_once('/').ok_or(NetworkError)?;
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let prefix: u8 = prefix.parse().map_err(|_| NetworkError)?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if prefix > bits {
            return Err(NetworkError);
        }
        Ok(Self { address, prefix })
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Whether a pod's hook may not send requests to this address, because it reaches the machine, its neighbors, or the
/// metadata of a cloud's machine (rule S5). An IPv6 address that a translator or tunnel maps to an IPv4 address also
/// counts as that one.
pub(super) fn is_refused(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_refused_v4(ip),
        IpAddr::V6(ip) => {
            ip.is_loopback()
                || ip.is_unicast_link_local()
                || ip.is_multicast()
                || ip.is_unspecified()
                || METADATA_V6.contains(&ip)
                || embedded(ip).is_some_and(is_refused_v4)
        }
    }
}

/// Whether content may not be fetched from this address: it is link-local, of a cloud's metadata service, or of no
/// server.
pub(super) fn is_metadata(ip: IpAddr) -> bool {
    is_refused(ip) && !ip.to_canonical().is_loopback()
}

fn is_refused_v4(ip: Ipv4Addr) -> bool {
    ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_unspecified()
        || ip.is_broadcast()
        || METADATA_V4.contains(&ip)
}

/// The IPv4 address in an IPv6 one: NAT64 (RFC 6052 and 8215), 6to4 (RFC 3056), IPv4-compatible (RFC 4291).
fn embedded(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..]
        | [0, 0, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(addresses: &PodAddresses) -> Result<usize, String> {
        let allowed = addresses.with_port(80).map(|allowed| allowed.len());
        allowed.map_err(|error| error.to_string())
    }

    fn stated(ips: &[&str], networks: Option<&[&str]>) -> PodAddresses {
        let networks = networks.map(|networks| networks.iter().map(|text| text.parse().unwrap()));
        PodAddresses {
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            networks: networks.map(Iterator::collect),
            is_host_network: false,
        }
    }

    #[test]
    fn manifest_does_not_choose_whom_a_request_reaches() {
        let outside = Err(
            "10.0.0.1 is stated in a manifest, and no network in onChangeAllowedNetworks has it"
                .to_owned(),
        );
        assert_eq!(reason(&stated(&["10.0.0.1"], Some(&[]))), outside);
        let networks = ["10.244.0.0/16", "fd00:1::/64"];
        assert_eq!(reason(&stated(&["10.0.0.1"], Some(&networks))), outside);
        assert_eq!(
            reason(&stated(&["10.0.0.1", "10.244.3.4"], Some(&networks))),
            Ok(1)
        );
        assert_eq!(
            reason(&stated(
                &["fd00:1::9", "::ffff:10.244.3.4"],
                Some(&networks)
            )),
            Ok(2)
        );
        assert_eq!(reason(&stated(&["10.0.0.1"], None)), Ok(1));
    }

    #[test]
    fn metadata_of_the_machine_is_not_reached() {
        let all = ["0.0.0.0/0", "::/0"];
        for ip in [
            "169.254.169.254",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            "192.0.0.192",
            "168.63.129.16",
            "100.100.100.200",
            "::ffff:100.100.100.200",
            "64:ff9b::6464:64c8",
        ] {
            for networks in [None, Some(&all[..])] {
                let mut addresses = stated(&[ip], networks);
                addresses.is_host_network = true;
                let ip: IpAddr = ip.parse().unwrap();
                assert_eq!(
                    reason(&addresses),
                    Err(format!("{ip} is not the address of a pod"))
                );
            }
        }
    }

    #[test]
    fn address_of_the_machine_is_one_of_pods_on_its_network() {
        // The source of what would be sent elsewhere.
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.connect("192.0.2.1:9").is_err() {
            return;
        }
        let own = socket.local_addr().unwrap().ip();
        if is_refused(own) {
            return;
        }
        let mut addresses = stated(&[&own.to_string()], None);
        let refused =
            format!("{own} is an address of this machine, whose network the pod does not use");
        assert_eq!(reason(&addresses), Err(refused));
        addresses.is_host_network = true;
        assert_eq!(reason(&addresses), Ok(1));
    }

    #[test]
    fn a_pod_on_the_machines_network_without_another_address_is_told_what_to_do() {
        let advice = Err(
            "a pod with hostNetwork has no address that a hook may call by its port: put the hook into the agent's \
             configuration, with url: http://127.0.0.1:80/PATH"
                .to_owned(),
        );
        for ips in [&[][..], &["127.0.0.1"], &["::1", "::ffff:127.0.0.1"]] {
            let mut addresses = stated(ips, Some(&["0.0.0.0/0", "::/0"]));
            addresses.is_host_network = true;
            assert_eq!(reason(&addresses), advice, "{ips:?}");
        }
        // One of a cluster gets its address later.
        let mut addresses = stated(&[], None);
        addresses.is_host_network = true;
        assert_eq!(reason(&addresses), Ok(0));
    }

    #[test]
    fn networks_are_read() {
        for text in ["10.244.0.0/16", "fd00::/8", "0.0.0.0/0", "10.0.0.1/32"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/-1",
            "pods/8",
        ] {
            assert_eq!(text.parse::<Network>(), Err(NetworkError), "{text}");
        }
    }
}
