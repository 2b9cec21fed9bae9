//! The protocol between the self-test's two workers: the application sends one request per
//! connection, the proxy responds with one line of JSON about that connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use mesh_ebpf_common::verdict;
use serde::{Deserialize, Serialize};

/// The proxy worker's first line, once it listens.
pub(super) const READY: &str = "ready";

/// Prefix of the last line of a worker that fails.
pub(super) const FAILED: &str = "failed: ";

pub(super) const PROXY_UID: u32 = 2102;
pub(super) const INBOUND_PORT: u16 = 4143;
pub(super) const OUTBOUND_PORT: u16 = 4140;
pub(super) const ADMIN_PORT: u16 = 4191;
pub(super) const CONTROL_PORT: u16 = 4190;
/// A port that the scratch pod skips in both directions.
pub(super) const SKIPPED_PORT: u16 = 4567;

/// The scratch pod's addresses, from the ranges for benchmarks and for private use.
pub(super) const OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(super) const OTHER_OWN_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);
pub(super) const OWN_V6: Ipv6Addr = Ipv6Addr::new(0xfd6d, 0x6573, 0x68, 0, 0, 0, 0, 1);
/// Addresses on the same loopback interface that are not the pod's, used as external ones.
pub(super) const OUTSIDE_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
pub(super) const OUTSIDE_V6: Ipv6Addr = Ipv6Addr::new(0xfd6d, 0x6573, 0x68, 0, 0, 0, 0, 2);
/// Documentation addresses, which no host has: reaching them requires redirection.
pub(super) const TARGET_V4: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)), 80);
pub(super) const OTHER_TARGET_V4: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 11)), 8443);
pub(super) const TARGET_V6: SocketAddr = SocketAddr::new(
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10)),
    80,
);

/// The check address, which is redirected even for the proxy.
pub(super) fn check_address() -> SocketAddr {
    SocketAddr::from((verdict::CHECK_V4, verdict::CHECK_PORT))
}

/// All connections are local: a longer delay means that one hangs.
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(2);

/// The size of every request, which tells the proxy when all of it is readable.
pub(super) const REQUEST_SIZE: usize = 100;

/// The first byte of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Request {
    /// Respond and close.
    Report = b'r',
    /// Respond and keep the connection until the application closes it.
    Hold = b'h',
    /// Connect to the check address as the proxy, and respond with the report of that connection.
    Check = b'c',
    /// Close all listeners, open new ones, then respond and close.
    Relisten = b'l',
}

/// One connection as the proxy observes it. Addresses are without IPv4 mapping.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    /// SO_ORIGINAL_DST at the level of the connection's family.
    pub(super) original: Option<SocketAddr>,
    pub(super) peer: SocketAddr,
    /// The port of the listener's role.
    pub(super) listener: u16,
    /// FIONREAD when the whole request had been received.
    pub(super) readable: usize,
}

impl Request {
    pub(super) fn bytes(self) -> [u8; REQUEST_SIZE] {
        [self as u8; REQUEST_SIZE]
    }

    pub(super) fn from_byte(byte: u8) -> Option<Request> {
        [
            Request::Report,
            Request::Hold,
            Request::Check,
            Request::Relisten,
        ]
        .into_iter()
        .find(|request| *request as u8 == byte)
    }
}

/// Converts an IPv4-mapped address to IPv4.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
