//! The original destination of an accepted connection, before it was redirected to the proxy.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use nix::libc;
use socket2::{SockAddr, SockRef};

/// Reads SO_ORIGINAL_DST, which conntrack answers where nftables or iptables redirects and the
/// mesh's BPF program where eBPF does.
///
/// The original destination of a connection that was not redirected is its local address: conntrack
/// has no entry for it, or is not loaded. Callers reject connections to the proxy's own ports.
pub(crate) fn get(
    socket: &impl AsFd,
    local: SocketAddr,
    peer: SocketAddr,
) -> io::Result<SocketAddr> {
    let socket = SockRef::from(socket);
    let original_dst = match peer.ip().to_canonical() {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    match original_dst {
        Ok(address) => from_sock_addr(&address),
        Err(error) if is_not_redirected(&error) => Ok(local),
        Err(error) => Err(error),
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4, the form that policies, labels and logs use.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn from_sock_addr(address: &SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .map(canonical)
        .ok_or_else(|| io::Error::other("original destination is not an IP address"))
}

fn is_not_redirected(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOPROTOOPT | libc::EOPNOTSUPP)
    )
}
