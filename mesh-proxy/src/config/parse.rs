//! Parsers of single variables. Each returns its error as a clause that follows the variable's
//! name.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use mesh_core::identity::{Identity, IdentityError, is_spiffe_trust_domain};
use mesh_core::policy::inbound::{DefaultPolicy, UnknownDefaultPolicy};
use mesh_core::ports::{PortSet, PortSetError};
use mesh_core::units::{self, DurationError};

use crate::host_name::is_host_name;

pub(super) fn duration(text: &str) -> Result<Duration, DurationError> {
    units::parse_duration(text)
}

pub(super) fn ports(text: &str) -> Result<PortSet, PortSetError> {
    text.parse()
}

pub(super) fn default_policy(text: &str) -> Result<DefaultPolicy, UnknownDefaultPolicy> {
    text.parse()
}

/// Accepts a trailing dot, because the control plane's names may be fully qualified.
pub(super) fn identity(text: &str) -> Result<Identity, IdentityError> {
    Identity::parse(text.strip_suffix('.').unwrap_or(text))
}

pub(super) fn dns_name(text: &str) -> Result<Identity, String> {
    match identity(text) {
        Ok(name @ Identity::Dns(_)) => Ok(name),
        _ => Err(format!("{text:?} is not a DNS name")),
    }
}

pub(super) fn spiffe_id(text: &str) -> Result<Identity, String> {
    let id = Identity::parse(text).ok();
    id.filter(|id| id.spiffe_trust_domain().is_some_and(is_spiffe_trust_domain))
        .ok_or_else(|| {
            format!("{text:?} is not a SPIFFE identity (as in \"spiffe://example.org/web\")")
        })
}

/// The longest path of a socket that the kernel accepts (unix(7), without the final zero).
const MAX_SOCKET_PATH: usize = 107;

/// Parses the path of a Unix socket, with or without `unix:` before it.
pub(super) fn unix_socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix:").unwrap_or(text);
    if path.is_empty() {
        return Err(
            "is empty; expected the path of a socket (as in \"unix:///run/spire/agent.sock\")"
                .to_owned(),
        );
    }
    if path.contains("://") || path.starts_with("tcp:") {
        return Err(format!(
            "{text:?} is not the path of a Unix socket (as in \"unix:///run/spire/agent.sock\"); no other transport is supported"
        ));
    }
    if path.len() > MAX_SOCKET_PATH {
        return Err(format!(
            "is a path of {} bytes; a socket may have {MAX_SOCKET_PATH}",
            path.len()
        ));
    }
    Ok(PathBuf::from(path))
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.trim() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("{text:?} is neither \"true\" nor \"false\"")),
    }
}

pub(super) fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|_invalid: T::Err| format!("{text:?} is not a valid number"))
}

/// Returns a parser of numbers in `range`.
pub(super) fn within<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    move |text| match text.trim().parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!(
            "{text:?} is not a number from {} to {}",
            range.start(),
            range.end()
        )),
    }
}

/// Parses a non-negative ratio.
pub(super) fn ratio(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(ratio) if ratio.is_finite() && ratio >= 0.0 => Ok(ratio),
        _ => Err(format!("{text:?} is not a ratio (a non-negative number)")),
    }
}

pub(super) fn text(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    Ok(text.to_owned())
}

pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("is empty; expected a path".to_owned());
    }
    Ok(PathBuf::from(text))
}

pub(super) fn socket_addr(text: &str) -> Result<SocketAddr, String> {
    text.trim()
        .parse()
        .map_err(|_invalid: std::net::AddrParseError| {
            format!(
                "{text:?} is not an address with a port (as in \"127.0.0.1:4140\" or \"[::]:4143\")"
            )
        })
}

/// Parses one address, or two of different families.
pub(super) fn listen_addrs(text: &str) -> Result<Vec<SocketAddr>, String> {
    let addrs = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(socket_addr)
        .collect::<Result<Vec<_>, _>>()?;
    match addrs.as_slice() {
        [_] => Ok(addrs),
        [first, second] if first.is_ipv4() != second.is_ipv4() => Ok(addrs),
        _ => Err(format!(
            "{text:?} is not one address, or one IPv4 and one IPv6 address"
        )),
    }
}

/// Parses a constant address.
#[expect(
    clippy::expect_used,
    reason = "only called with constants, which a test parses"
)]
pub(super) fn constant_addr(addr: &str) -> SocketAddr {
    addr.parse().expect("default addresses are valid")
}

/// Parses `host:port`; the host is a name or an address, with IPv6 in brackets.
pub(super) fn host_port(text: &str) -> Result<(Arc<str>, u16), String> {
    let invalid = || format!("{text:?} is not a host and port (as in \"name.example.:8086\")");
    let text = text.trim();
    if let Ok(addr) = text.parse::<SocketAddr>() {
        return Ok((addr.ip().to_string().into(), addr.port()));
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
    let port: u16 = port
        .parse()
        .map_err(|_invalid: std::num::ParseIntError| invalid())?;
    if port == 0 || identity(host).is_err() || host.contains('/') {
        return Err(invalid());
    }
    Ok((host.into(), port))
}

pub(super) fn networks(text: &str) -> Result<Vec<IpNet>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| {
            item.parse().map_err(|_invalid: ipnet::AddrParseError| {
                format!("{item:?} is not a network (as in \"10.0.0.0/8\")")
            })
        })
        .collect()
}

/// Parses a comma-separated list of DNS suffixes; `.` is the suffix of every name. Returns them in
/// lower case, without dots at their ends.
pub(super) fn suffixes(text: &str) -> Result<Vec<Arc<str>>, String> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(|item| {
            let suffix = item.strip_suffix('.').unwrap_or(item);
            if suffix.is_empty() || is_host_name(suffix) {
                Ok(suffix.to_ascii_lowercase().into())
            } else {
                Err(format!(
                    "{item:?} is not a DNS suffix (as in \"svc.cluster.local.\")"
                ))
            }
        })
        .collect()
}

pub(super) fn ips(text: &str) -> Result<Vec<IpAddr>, String> {
    text.split(',')
        .map(|item| {
            item.trim()
                .parse()
                .map_err(|_invalid: std::net::AddrParseError| {
                    format!("{item:?} is not an IP address")
                })
        })
        .collect()
}
