//! The key of a lookup: the address that an application connects to, or the name that a request
//! selects in ingress mode.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use mesh_core::endpoint::AddressFamily;

use crate::host_name::is_host_name;

/// The destination of a connection or a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    Addr(SocketAddr),
    Name(NameAddr),
}

/// A host name in lower case, and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameAddr {
    host: Arc<str>,
    port: u16,
}

/// The reason why a text is not a [`NameAddr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a host name, optionally with a port")]
pub(crate) struct InvalidNameAddr;

/// As in Linkerd.
const DEFAULT_PORT: u16 = 80;

impl Destination {
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Addr(addr) => addr.port(),
            Self::Name(name) => name.port,
        }
    }

    /// Returns the family of the address, unless the destination is a name.
    pub(crate) fn family(&self) -> Option<AddressFamily> {
        self.addr().map(|addr| AddressFamily::of(addr.ip()))
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(self, Self::Name(_))
    }

    /// Returns the address, unless the destination is a name.
    pub(super) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Addr(addr) => Some(*addr),
            Self::Name(_) => None,
        }
    }
}

impl NameAddr {
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for NameAddr {
    type Err = InvalidNameAddr;

    /// Parses `host[:port]`. A final dot of the host is omitted.
    fn from_str(text: &str) -> Result<Self, InvalidNameAddr> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                (host, port.parse().map_err(|_invalid| InvalidNameAddr)?)
            }
            Some(_) => return Err(InvalidNameAddr),
            None => (text, DEFAULT_PORT),
        };
        let host = host.strip_suffix('.').unwrap_or(host);
        if port == 0 || !is_host_name(host) || host.parse::<IpAddr>().is_ok() {
            return Err(InvalidNameAddr);
        }
        Ok(Self {
            host: host.to_ascii_lowercase().into(),
            port,
        })
    }
}

impl From<SocketAddr> for Destination {
    fn from(addr: SocketAddr) -> Self {
        Self::Addr(addr)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Addr(addr) => addr.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl fmt::Display for NameAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_is_that_of_the_address_and_unknown_for_a_name() {
        let family = |addr: &str| Destination::Addr(addr.parse().unwrap()).family();
        assert_eq!(family("10.96.0.1:80"), Some(AddressFamily::V4));
        assert_eq!(family("[::ffff:10.96.0.1]:80"), Some(AddressFamily::V4));
        assert_eq!(family("[fd00::1]:80"), Some(AddressFamily::V6));
        assert_eq!(Destination::Name("web".parse().unwrap()).family(), None);
    }

    #[test]
    fn name_and_port_are_parsed() {
        let check = |text: &str, expected: Result<&str, InvalidNameAddr>| {
            let parsed = text.parse::<NameAddr>().map(|name| name.to_string());
            assert_eq!(parsed, expected.map(str::to_owned), "{text:?}");
        };
        check("web.shop:8080", Ok("web.shop:8080"));
        check("web", Ok("web:80"));
        check(
            "Web.Shop.svc.cluster.local.:81",
            Ok("web.shop.svc.cluster.local:81"),
        );
        for invalid in [
            "",
            ":80",
            ".",
            "web:",
            "web:0",
            "web:65536",
            "web:+1",
            "web:http",
            "a..b",
            "a b",
            "user@web",
            "web/",
            "10.0.0.1",
            "10.0.0.1:80",
            "[::1]:80",
            "::1",
            "w\u{e9}b",
        ] {
            check(invalid, Err(InvalidNameAddr));
        }
    }
}
