//! A pod's network namespace: whether it still is the enrolled one, and its addresses.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::sys::netns::{self, NetnsError};

#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("cannot use the pod's network namespace {path}")]
    Enter { path: PathBuf, source: NetnsError },
    #[error("cannot list the addresses in the pod's network namespace {path}")]
    Addresses { path: PathBuf, source: io::Error },
}

/// Runs `work` inside the namespace, on a thread of its own.
pub(super) fn run_in<T: Send>(
    path: &Path,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NamespaceError> {
    netns::open(path)
        .and_then(|file| netns::run_in(file, work))
        .map_err(|source| enter_error(path, source))
}

pub(super) fn cookie(path: &Path) -> Result<u64, NamespaceError> {
    netns::cookie_of(path).map_err(|source| enter_error(path, source))
}

/// Returns whether the path has lost the namespace with this cookie; false if unknown.
pub(super) fn is_gone(path: &Path, cookie: u64) -> bool {
    match netns::cookie_of(path) {
        Ok(found) => found != cookie,
        Err(NetnsError::Open { source, .. }) => source.kind() == io::ErrorKind::NotFound,
        // The path was a mount point of a namespace and is now an ordinary file.
        Err(NetnsError::Enter(source)) => source.raw_os_error() == Some(libc::EINVAL),
        Err(_) => false,
    }
}

/// Returns the addresses of the namespace's interfaces, without loopback and IPv6 link-local ones.
pub(crate) fn addresses(path: &Path) -> Result<Vec<IpAddr>, NamespaceError> {
    run_in(path, reachable_addresses)?.map_err(|source| NamespaceError::Addresses {
        path: path.to_owned(),
        source,
    })
}

/// Returns the addresses of this thread's network namespace, without loopback and IPv6 link-local
/// ones.
pub(crate) fn reachable_addresses() -> io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = getifaddrs()?
        .filter(|interface| !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK))
        .filter_map(|interface| ip(&interface.address?))
        .filter(is_reachable)
        .collect();
    addresses.sort();
    addresses.dedup();
    Ok(addresses)
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(v4.ip().into());
    }
    address.as_sockaddr_in6().map(|v6| v6.ip().into())
}

/// Excludes link-local IPv6 addresses: no peer in a cluster connects to them.
fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

fn enter_error(path: &Path, source: NetnsError) -> NamespaceError {
    NamespaceError::Enter {
        path: path.to_owned(),
        source,
    }
}
