//! The paths of requests to the destination service.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::model::Name;

/// The target of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Authority {
    Addr(SocketAddr),
    Service {
        service: Name,
        /// The hostname of an endpoint, a pod of a StatefulSet.
        instance: Option<Arc<str>>,
        port: u16,
        host: Arc<str>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Invalid authority: {0}")]
pub(super) struct AuthorityError(String);

/// The port of a path without port.
const DEFAULT_PORT: u16 = 80;

impl Authority {
    /// Parses `name.namespace.svc.<domain>` with or without port, or an address with port. Names
    /// are compared literally: one with a trailing dot is invalid.
    pub(super) fn parse(path: &str, domain: &str) -> Result<Self, AuthorityError> {
        let error = || AuthorityError(path.to_owned());
        let (host, port) = match path.rsplit_once(':') {
            None => (path, DEFAULT_PORT),
            Some((host, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (host, port.ok_or_else(error)?)
            }
        };
        let bracketed = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let ip: Option<IpAddr> = match bracketed {
            Some(inner) => Some(IpAddr::V6(inner.parse().map_err(|_error| error())?)),
            None => host.parse().ok().filter(IpAddr::is_ipv4),
        };
        if let Some(ip) = ip {
            return Ok(Self::Addr(SocketAddr::new(ip.to_canonical(), port)));
        }
        let name = host
            .strip_suffix(domain)
            .and_then(|name| name.strip_suffix(".svc."))
            .ok_or_else(error)?;
        let labels: Vec<&str> = name.split('.').collect();
        let (instance, service, namespace) = match labels[..] {
            [service, namespace] => (None, service, namespace),
            [instance, service, namespace] => (Some(Arc::from(instance)), service, namespace),
            _ => return Err(error()),
        };
        if labels.iter().any(|label| label.is_empty()) {
            return Err(error());
        }
        Ok(Self::Service {
            service: Name::new(namespace, service),
            instance,
            port,
            host: host.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_parsed() {
        let parse = |path: &str| Authority::parse(path, "cluster.local");
        let service = |instance: Option<&str>, port: u16, host: &str| {
            Ok(Authority::Service {
                service: Name::new("shop", "web"),
                instance: instance.map(Arc::from),
                port,
                host: host.into(),
            })
        };
        let host = "web.shop.svc.cluster.local";
        assert_eq!(parse(host), service(None, 80, host));
        assert_eq!(parse(&format!("{host}:8080")), service(None, 8080, host));
        let instance = "web-0.web.shop.svc.cluster.local";
        assert_eq!(
            parse(&format!("{instance}:1")),
            service(Some("web-0"), 1, instance)
        );
        let addr = |addr: &str| Ok(Authority::Addr(addr.parse().unwrap()));
        assert_eq!(parse("10.0.0.1:80"), addr("10.0.0.1:80"));
        assert_eq!(parse("[fd00::1]:80"), addr("[fd00::1]:80"));
        assert_eq!(parse("[::ffff:10.0.0.1]:80"), addr("10.0.0.1:80"));
        for bad in [
            "",
            ":80",
            "web",
            "web.shop",
            "web.shop.svc",
            "web.shop.svc.cluster.local.",
            "web.shop.svc.cluster.local:0",
            "web.shop.svc.cluster.local:65536",
            "web.shop.svc.cluster.local:http",
            "web.shop.svc.other.local",
            "Web.shop.SVC.cluster.local",
            "a.b.web.shop.svc.cluster.local",
            ".shop.svc.cluster.local",
            "svc.cluster.local",
            "fd00::1",
            "[fd00::1]",
            "[10.0.0.1]:80",
        ] {
            assert_eq!(parse(bad), Err(AuthorityError(bad.to_owned())), "{bad}");
        }
    }
}
