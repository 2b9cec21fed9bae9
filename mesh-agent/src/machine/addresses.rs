//! The addresses of the host, and their changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::io::unix::AsyncFd;

use crate::node::reachable_addresses;
use crate::sys::readiness;

/// Kernel: `RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const ADDRESS_GROUPS: u32 = 0x10 | 0x100;
/// Documentation addresses, which no packet is sent to.
const SOMEWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];
/// `::1`, as `/proc/net/if_inet6` prints it.
const LOOPBACK_V6: &str = "00000000000000000000000000000001 ";

#[derive(Debug, thiserror::Error)]
pub enum AddressesError {
    #[error("cannot list the addresses of the host")]
    List(#[source] io::Error),
    #[error("cannot observe changes of the host's addresses")]
    Observe(#[source] io::Error),
}

/// Returns the addresses of this network namespace without loopback and link-local ones; first the
/// ones that the host uses towards others, which units see as their own.
pub(super) fn of_host() -> Result<Vec<IpAddr>, AddressesError> {
    let found = reachable_addresses().map_err(AddressesError::List)?;
    let preferred = SOMEWHERE.into_iter().filter_map(source_towards);
    Ok(ordered(preferred, found))
}

/// Puts the preferred ones of the addresses first.
fn ordered(preferred: impl Iterator<Item = IpAddr>, mut found: Vec<IpAddr>) -> Vec<IpAddr> {
    let first: Vec<IpAddr> = preferred
        .filter(|address| found.contains(address))
        .collect();
    found.retain(|address| !first.contains(address));
    [first, found].concat()
}

/// Returns the address that the host has as the source of packets by its default route.
fn source_towards(destination: IpAddr) -> Option<IpAddr> {
    let any = match destination {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    // Selects a route; UDP sends nothing.
    socket.connect(SocketAddr::new(destination, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Returns whether programs of the host can listen on `::1`.
pub(super) fn has_ipv6_loopback() -> bool {
    let addresses = std::fs::read_to_string("/proc/thread-self/net/if_inet6");
    addresses.is_ok_and(|addresses| addresses.lines().any(|line| line.starts_with(LOOPBACK_V6)))
}

/// Notifications of the kernel that an address was added or removed.
#[derive(Debug)]
pub struct AddressChanges {
    socket: AsyncFd<OwnedFd>,
}

impl AddressChanges {
    /// Observes this thread's network namespace. Must be called on a tokio runtime.
    pub fn observe() -> Result<Self, AddressesError> {
        let open = || {
            let socket = socket(
                AddressFamily::Netlink,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
                SockProtocol::NetlinkRoute,
            )?;
            bind(socket.as_raw_fd(), &NetlinkAddr::new(0, ADDRESS_GROUPS))?;
            readiness::readable(socket)
        };
        let socket = open().map_err(AddressesError::Observe)?;
        Ok(Self { socket })
    }

    /// Waits for the next change.
    pub async fn next(&mut self) -> Result<(), AddressesError> {
        let mut guard = self
            .socket
            .readable()
            .await
            .map_err(AddressesError::Observe)?;
        let mut buffer = [0; 4096];
        let socket = guard.get_inner().as_raw_fd();
        // All addresses are read anew, so that lost messages (ENOBUFS) do no harm.
        loop {
            match recv(socket, &mut buffer, MsgFlags::empty()) {
                Ok(_) | Err(Errno::ENOBUFS) => {}
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(AddressesError::Observe(errno.into())),
            }
        }
        guard.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_addresses_come_first() {
        let addresses = |texts: &[&str]| -> Vec<IpAddr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let found = addresses(&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"]);
        let preferred = addresses(&["10.0.0.2", "fd00::2", "192.168.0.1"]);
        assert_eq!(
            ordered(preferred.into_iter(), found.clone()),
            addresses(&["10.0.0.2", "fd00::2", "10.0.0.1", "fd00::1"])
        );
        assert_eq!(ordered(std::iter::empty(), found.clone()), found);
    }
}
