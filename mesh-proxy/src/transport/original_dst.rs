//! Where an accepted connection was going before it was redirected to us.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use nix::libc;
use socket2::{SockAddr, SockRef};

/// Asks the kernel: conntrack answers where nftables or iptables redirects, the mesh's own program
/// where eBPF does.
///
/// A connection that nobody redirected has its local address as destination. Under conntrack such a
/// connection has no entry, or there is no conntrack at all; both mean "not redirected", and the
/// callers refuse what turns out to be addressed to the proxy's own ports.
pub fn of(socket: &impl AsFd, local: SocketAddr, peer: SocketAddr) -> io::Result<SocketAddr> {
    let socket = SockRef::from(socket);
    let answer = match peer.ip().to_canonical() {
        IpAddr::V4(_) => socket.original_dst_v4(),
        IpAddr::V6(_) => socket.original_dst_v6(),
    };
    match answer {
        Ok(address) => from_sock_addr(&address),
        Err(error) if not_redirected(&error) => Ok(local),
        Err(error) => Err(error),
    }
}

/// An IPv4 address that an IPv6 socket shows in IPv6 form, as IPv4: policies, labels and logs know
/// only that.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn from_sock_addr(address: &SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .map(canonical)
        .ok_or_else(|| io::Error::other("the original destination is no IP address"))
}

fn not_redirected(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOPROTOOPT | libc::EOPNOTSUPP)
    )
}
