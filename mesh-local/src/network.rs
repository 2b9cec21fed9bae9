//! The addresses of a node and its own network device.
//!
//! Every node has a number; from it follow the pods' and the Services' blocks and the name of a
//! device that holds the node's own addresses, where its DNS server and its agent's metrics listen.
//! Pods are not on that device: each has a routed link of its own (CNI plugin `ptp`), so that every
//! packet between pods passes the host's routing and connection tracking, and a Service's answer
//! finds its way back through the address translation.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
    path::Path,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::{
    command::{self, CommandError},
    instance::{Instance, STATE_ROOT},
    settings::Settings,
};

/// The address blocks of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    pub number: u8,
    pub pods_v4: Ipv4Net,
    /// Absent where the machine has no IPv6; then so is `services_v6`.
    pub pods_v6: Option<Ipv6Net>,
    pub services_v4: Ipv4Net,
    pub services_v6: Option<Ipv6Net>,
}

/// The blocks that a user chose instead of the usual ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chosen {
    pub pods_v4: Option<Ipv4Net>,
    pub services_v4: Option<Ipv4Net>,
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("lock {STATE_ROOT}")]
    Lock(#[source] io::Error),
    #[error(
        "all {NODES} local nodes of this machine are taken; take one down with: meshctl local down"
    )]
    Full,
    #[error("{0} is too small for pods or Services: a prefix of at most /28 is needed")]
    TooSmall(Ipv4Net),
    #[error("{0} and {1} overlap; choose other blocks with --pod-cidr and --service-cidr")]
    Overlap(IpNet, String),
    #[error("write {path}")]
    Sysctl {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("set up the node's network device")]
    Device(#[source] CommandError),
}

/// How many nodes a machine can have: pods take the lower half of 10.240.0.0/16, Services the
/// upper.
const NODES: u8 = 128;

impl Network {
    /// The blocks of a node by its number.
    fn numbered(number: u8, ipv6: bool, chosen: Chosen) -> Self {
        let v4 = |third: u8| Ipv4Net::new_assert(Ipv4Addr::new(10, 240, third, 0), 24);
        // A fixed unique local prefix: "mesh" in hexadecimal after fd.
        let v6 = |fourth: u16, prefix: u8| {
            let address = Ipv6Addr::new(0xfd6d, 0x6573, 0x6800, fourth, 0, 0, 0, 0);
            Ipv6Net::new_assert(address, prefix)
        };
        Self {
            number,
            pods_v4: chosen.pods_v4.unwrap_or(v4(number)),
            pods_v6: ipv6.then(|| v6(u16::from(number), 64)),
            services_v4: chosen.services_v4.unwrap_or(v4(NODES + number)),
            services_v6: ipv6.then(|| v6(0x100 | u16::from(number), 112)),
        }
    }

    /// The node's own addresses, the first of the Services' blocks.
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

/// Only one `up` at a time chooses a number; held until the choice is written.
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

/// Chooses the blocks of a new node: the lowest number that no other node has, with no block of
/// another.
pub fn choose(
    _lock: &Lock,
    others: &[Instance],
    ipv6: bool,
    chosen: Chosen,
) -> Result<Network, NetworkError> {
    let taken: Vec<(String, Network)> = others
        .iter()
        .filter_map(|other| {
            let settings = Settings::read(other).ok()?;
            Some((other.name().to_string(), settings.network))
        })
        .collect();
    choose_beside(&taken, ipv6, chosen)
}

fn choose_beside(
    taken: &[(String, Network)],
    ipv6: bool,
    chosen: Chosen,
) -> Result<Network, NetworkError> {
    let number = (0..NODES)
        .find(|number| taken.iter().all(|(_, other)| other.number != *number))
        .ok_or(NetworkError::Full)?;
    let network = Network::numbered(number, ipv6, chosen);
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
            if let Some(theirs) = other.blocks().into_iter().find(|b| overlap(b, &block)) {
                let theirs = format!("{theirs} of the node {name}");
                return Err(NetworkError::Overlap(block, theirs));
            }
        }
    }
    Ok(network)
}

/// Makes the device, gives it the node's addresses, leads the Services' blocks to it and lets the
/// host forward.
///
/// A bridge without ports serves as the device: it exists on every kernel that can run pods.
pub async fn set_up(network: &Network) -> Result<(), NetworkError> {
    let device = network.device();
    let mut script = format!("link add {device} type bridge\nlink set {device} up\n");
    let mut lead = |address: IpAddr, block: IpNet| {
        let host = IpNet::from(address);
        // Duplicate detection needs a carrier, which a bridge without ports never has.
        let nodad = if address.is_ipv6() { " nodad" } else { "" };
        let _ = writeln!(script, "addr add {host} dev {device}{nodad}");
        let _ = writeln!(script, "route replace {block} dev {device}");
    };
    lead(network.node_v4().into(), network.services_v4.into());
    if let (Some(address), Some(block)) = (network.node_v6(), network.services_v6) {
        lead(address.into(), block.into());
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

/// Removes the device; its addresses and routes go with it.
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

fn sysctl(name: &str) -> Result<(), NetworkError> {
    let path = format!("/proc/sys/{name}");
    let write = || {
        if fs::read_to_string(&path)?.trim() == "1" {
            return Ok(());
        }
        fs::File::options()
            .write(true)
            .open(&path)?
            .write_all(b"1\n")
    };
    write().map_err(|source| NetworkError::Sysctl {
        path: path.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_do_not_share_blocks() {
        let first = choose_beside(&[], true, Chosen::default()).unwrap();
        assert_eq!(first.pods_v4.to_string(), "10.240.0.0/24");
        assert_eq!(first.node_ips()[0].to_string(), "10.240.128.1");
        assert_eq!(first.node_ips()[1].to_string(), "fd6d:6573:6800:100::1");
        let taken = [("a".to_owned(), first)];
        let second = choose_beside(&taken, false, Chosen::default()).unwrap();
        assert_eq!(second.services_v4.to_string(), "10.240.129.0/24");
        assert_eq!(second.node_ips().len(), 1);
        let clash = Chosen {
            pods_v4: Some("10.240.128.0/20".parse().unwrap()),
            services_v4: None,
        };
        let error = choose_beside(&taken, false, clash).unwrap_err();
        assert!(matches!(error, NetworkError::Overlap(..)), "{error}");
    }

    #[test]
    fn numbers_run_out() {
        let taken: Vec<(String, Network)> = (0..NODES)
            .map(|number| {
                (
                    number.to_string(),
                    Network::numbered(number, true, Chosen::default()),
                )
            })
            .collect();
        assert!(matches!(
            choose_beside(&taken, true, Chosen::default()),
            Err(NetworkError::Full)
        ));
    }
}
