//! The address ranges and the network device of a node. Every node has a number, which determines
//! the ranges of pods and Services and the name of its network device. The device has the addresses
//! of the node. Its DNS server and its agent's admin server listen on them. Each pod has a routed
//! link of its own (CNI plugin `ptp`), so that packets between pods pass the host's routing and
//! connection tracking, and the addresses of responses from Services are translated back.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::command::{self, CommandError};
use crate::file::{self, FileError};
use crate::node_paths::STATE_ROOT;

/// The address ranges of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    pub number: u8,
    pub pods_v4: Ipv4Net,
    /// `None` if the machine has no IPv6, as is `services_v6`.
    pub pods_v6: Option<Ipv6Net>,
    pub services_v4: Ipv4Net,
    pub services_v6: Option<Ipv6Net>,
}

/// The ranges that replace the default ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddressOverrides {
    pub pods_v4: Option<Ipv4Net>,
    pub services_v4: Option<Ipv4Net>,
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("lock {STATE_ROOT}")]
    Lock(#[source] io::Error),
    #[error(
        "this machine has the maximum of {NODES} local nodes; take one down with: meshctl local down"
    )]
    Full,
    #[error("{0} is too small for pods or Services: the prefix must be /28 or shorter")]
    TooSmall(Ipv4Net),
    #[error("{0} and {1} overlap; set other ranges with --pod-cidr and --service-cidr")]
    Overlap(IpNet, String),
    #[error(transparent)]
    Sysctl(#[from] FileError),
    #[error("set up the node's network device")]
    Device(#[source] CommandError),
}

/// Maximum number of nodes on a machine: pods use the lower half of 10.240.0.0/16, Services the
/// upper half.
const NODES: u8 = 128;

impl Network {
    /// Returns the ranges of a node.
    fn with_number(number: u8, ipv6: bool, overrides: AddressOverrides) -> Self {
        let v4 = |third: u8| Ipv4Net::new_assert(Ipv4Addr::new(10, 240, third, 0), 24);
        // A unique local prefix with the ASCII codes of "mesh" after fd.
        let v6 = |fourth: u16, prefix: u8| {
            let address = Ipv6Addr::new(0xfd6d, 0x6573, 0x6800, fourth, 0, 0, 0, 0);
            Ipv6Net::new_assert(address, prefix)
        };
        Self {
            number,
            pods_v4: overrides.pods_v4.unwrap_or(v4(number)),
            pods_v6: ipv6.then(|| v6(u16::from(number), 64)),
            services_v4: overrides.services_v4.unwrap_or(v4(NODES + number)),
            services_v6: ipv6.then(|| v6(0x100 | u16::from(number), 112)),
        }
    }

    /// Returns the IPv4 address of the node, the first of the Service range.
    pub fn node_v4(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.services_v4.network().to_bits() + 1)
    }

    pub fn node_v6(&self) -> Option<Ipv6Addr> {
        let block = self.services_v6?;
        Some(Ipv6Addr::from_bits(block.network().to_bits() + 1))
    }

    pub fn node_ips(&self) -> Vec<IpAddr> {
        let v6 = self.node_v6().map(IpAddr::V6);
        [IpAddr::V4(self.node_v4())].into_iter().chain(v6).collect()
    }

    pub fn device(&self) -> String {
        format!("mesh-local{}", self.number)
    }

    fn blocks(&self) -> Vec<IpNet> {
        let v4 = [self.pods_v4, self.services_v4].map(IpNet::V4);
        let v6 = self.pods_v6.iter().chain(&self.services_v6);
        v4.into_iter().chain(v6.copied().map(IpNet::V6)).collect()
    }
}

/// A lock that serialises the allocation of node numbers. It is held until the settings of the node
/// are written.
pub struct Lock(#[expect(dead_code, reason = "closing it unlocks")] nix::fcntl::Flock<OwnedFd>);

impl Lock {
    pub fn take() -> Result<Self, NetworkError> {
        fs::create_dir_all(STATE_ROOT).map_err(NetworkError::Lock)?;
        let file = fs::File::open(STATE_ROOT).map_err(NetworkError::Lock)?;
        nix::fcntl::Flock::lock(OwnedFd::from(file), nix::fcntl::FlockArg::LockExclusive)
            .map(Self)
            .map_err(|(_, error)| NetworkError::Lock(error.into()))
    }
}

/// Allocates the ranges of a new node, with the lowest free number. Fails if they overlap with
/// another node's.
pub fn allocate(
    _lock: &Lock,
    taken: &[(String, Network)],
    ipv6: bool,
    overrides: AddressOverrides,
) -> Result<Network, NetworkError> {
    allocate_excluding(taken, ipv6, overrides)
}

fn allocate_excluding(
    taken: &[(String, Network)],
    ipv6: bool,
    overrides: AddressOverrides,
) -> Result<Network, NetworkError> {
    let number = (0..NODES)
        .find(|number| taken.iter().all(|(_, other)| other.number != *number))
        .ok_or(NetworkError::Full)?;
    let network = Network::with_number(number, ipv6, overrides);
    for block in [network.pods_v4, network.services_v4] {
        if block.prefix_len() > 28 {
            return Err(NetworkError::TooSmall(block));
        }
    }
    let overlap = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
    let (pods, services) = (network.pods_v4.into(), network.services_v4.into());
    if overlap(&pods, &services) {
        return Err(NetworkError::Overlap(pods, services.to_string()));
    }
    for block in network.blocks() {
        for (name, other) in taken {
            if let Some(existing) = other.blocks().into_iter().find(|b| overlap(b, &block)) {
                let existing = format!("{existing} of node {name}");
                return Err(NetworkError::Overlap(block, existing));
            }
        }
    }
    Ok(network)
}

/// Creates the device with the addresses of the node, routes the Service ranges to it and enables
/// IP forwarding. The device is a bridge without ports, because every kernel that can run pods
/// supports bridges.
pub async fn set_up(network: &Network) -> Result<(), NetworkError> {
    let device = network.device();
    let mut script = format!("link add {device} type bridge\nlink set {device} up\n");
    let mut add_route = |address: IpAddr, block: IpNet| {
        let host = IpNet::from(address);
        // Duplicate address detection requires a carrier, which a bridge without ports does not
        // have.
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        let _ = writeln!(script, "addr add {host} dev {device}{nodad}");
        let _ = writeln!(script, "route replace {block} dev {device}");
    };
    add_route(network.node_v4().into(), network.services_v4.into());
    if let (Some(address), Some(block)) = (network.node_v6(), network.services_v6) {
        add_route(address.into(), block.into());
    }
    command::run("ip", &["-batch", "-"], script.as_bytes())
        .await
        .map_err(NetworkError::Device)?;
    sysctl("net/ipv4/ip_forward")?;
    if network.pods_v6.is_some() {
        sysctl("net/ipv6/conf/all/forwarding")?;
    }
    Ok(())
}

/// Removes the device with its addresses and routes.
pub async fn tear_down(network: &Network) -> Result<(), NetworkError> {
    let device = network.device();
    if !Path::new("/sys/class/net").join(&device).exists() {
        return Ok(());
    }
    command::run("ip", &["link", "del", &device], b"")
        .await
        .map(drop)
        .map_err(NetworkError::Device)
}

fn sysctl(name: &str) -> Result<(), FileError> {
    let path = Path::new("/proc/sys").join(name);
    let write = || {
        if fs::read_to_string(&path)?.trim() == "1" {
            return Ok(());
        }
        fs::File::options()
            .write(true)
            .open(&path)?
            .write_all(b"1\n")
    };
    write().map_err(file::failed("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_disjoint_ranges() {
        let first = allocate_excluding(&[], true, AddressOverrides::default()).unwrap();
        assert_eq!(first.pods_v4.to_string(), "10.240.0.0/24");
        assert_eq!(first.node_ips()[0].to_string(), "10.240.128.1");
        assert_eq!(first.node_ips()[1].to_string(), "fd6d:6573:6800:100::1");
        let taken = [("a".to_owned(), first)];
        let second = allocate_excluding(&taken, false, AddressOverrides::default()).unwrap();
        assert_eq!(second.services_v4.to_string(), "10.240.129.0/24");
        assert_eq!(second.node_ips().len(), 1);
        let clash = AddressOverrides {
            pods_v4: Some("10.240.128.0/20".parse().unwrap()),
            services_v4: None,
        };
        let error = allocate_excluding(&taken, false, clash).unwrap_err();
        assert!(matches!(error, NetworkError::Overlap(..)), "{error}");
    }

    #[test]
    fn allocation_fails_when_all_numbers_are_used() {
        let taken: Vec<(String, Network)> = (0..NODES)
            .map(|number| {
                (
                    number.to_string(),
                    Network::with_number(number, true, AddressOverrides::default()),
                )
            })
            .collect();
        assert!(matches!(
            allocate_excluding(&taken, true, AddressOverrides::default()),
            Err(NetworkError::Full)
        ));
    }
}
