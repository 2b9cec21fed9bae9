//! A pod's network namespace: is it still the one that was enrolled, and which addresses are in it?

use std::{
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags, sys::socket::SockaddrStorage};

use crate::sys::netns::{self, NetnsError};

#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    #[error("cannot use the pod's network namespace {path}")]
    Enter {
        path: PathBuf,
        #[source]
        source: NetnsError,
    },
    #[error("cannot list the addresses in the pod's network namespace {path}")]
    Addresses {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Runs `work` inside, on a thread of its own.
pub(super) fn inside<T: Send>(
    path: &Path,
    work: impl FnOnce() -> T + Send,
) -> Result<T, NamespaceError> {
    netns::open(path)
        .and_then(|file| netns::run_in(file, work))
        .map_err(|source| enter(path, source))
}

pub(super) fn cookie(path: &Path) -> Result<u64, NamespaceError> {
    netns::cookie_of(path).map_err(|source| enter(path, source))
}

/// Is the namespace with this cookie no longer at this path? When that cannot be found out, it is
/// not gone.
pub(super) fn is_gone(path: &Path, cookie: u64) -> bool {
    match netns::cookie_of(path) {
        Ok(found) => found != cookie,
        Err(NetnsError::Open { source, .. }) => source.kind() == io::ErrorKind::NotFound,
        // A file that was a mount point of a namespace and is now only a file.
        Err(NetnsError::Enter(source)) => source.raw_os_error() == Some(libc::EINVAL),
        Err(_) => false,
    }
}

/// The addresses of the namespace's interfaces that others can reach; loopback and IPv6 link-local
/// ones are not.
pub(crate) fn addresses(path: &Path) -> Result<Vec<IpAddr>, NamespaceError> {
    inside(path, reachable_addresses)?.map_err(|source| NamespaceError::Addresses {
        path: path.to_owned(),
        source,
    })
}

fn reachable_addresses() -> io::Result<Vec<IpAddr>> {
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

/// Link-local IPv6 addresses are left out: they are the same on other links, and nothing of a
/// cluster dials them.
fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

fn enter(path: &Path, source: NetnsError) -> NamespaceError {
    NamespaceError::Enter {
        path: path.to_owned(),
        source,
    }
}
