//! The paths of requests to the destination service.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mesh_objects::model::Name;

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
    /// A name outside the cluster, in lower case.
    External {
        host: Arc<str>,
        port: u16,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Invalid authority: {0}")]
pub(super) struct AuthorityError(String);

impl AuthorityError {
    pub(super) fn new(path: &str) -> Self {
        Self(path.to_owned())
    }
}

/// The port of a path without port.
const DEFAULT_PORT: u16 = 80;

impl Authority {
    /// Parses `name.namespace.svc.<domain>` with or without port, an address with port, or a name
    /// of another domain. Names are compared literally: one with a trailing dot is invalid.
    pub(super) fn parse(path: &str, domain: &str) -> Result<Self, AuthorityError> {
        let error = || AuthorityError::new(path);
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
        if is_external(host, domain) {
            let host = host.to_ascii_lowercase().into();
            return Ok(Self::External { host, port });
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

/// Returns whether the name belongs to a host outside the cluster. The DNS search path of a pod
/// completes names without dots, and names that end in `svc`, to names of the cluster.
fn is_external(host: &str, domain: &str) -> bool {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        matches!(bytes.len(), 1..=63)
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte))
    };
    let mut labels = host.split('.');
    let in_cluster = host
        .strip_suffix(domain)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    host.len() <= 253
        && labels.clone().all(is_label)
        && labels.clone().count() > 1
        && labels.next_back() != Some("svc")
        && !in_cluster
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
        let external = |host: &str, port| {
            let host = host.into();
            Ok(Authority::External { host, port })
        };
        assert_eq!(parse("API.example.com"), external("api.example.com", 80));
        assert_eq!(parse("web.shop:81"), external("web.shop", 81));
        let other = "web.shop.svc.other.local";
        assert_eq!(parse(other), external(other, 80));
        let long = format!("{}.com", "a.".repeat(125));
        for bad in [
            "",
            ":80",
            "web",
            "web.shop.svc",
            "cluster.local",
            "example..com",
            "ex ample.com",
            &long,
            "web.shop.svc.cluster.local.",
            "web.shop.svc.cluster.local:0",
            "web.shop.svc.cluster.local:65536",
            "web.shop.svc.cluster.local:http",
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
