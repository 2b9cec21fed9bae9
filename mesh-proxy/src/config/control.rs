//! The addresses and connection settings of the control plane.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;

use super::env::Env;
use super::{Inbound, Outbound, SocketOptions, parse};

/// Connection settings for the control plane.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) connect_timeout: Duration,
    pub(crate) connect: SocketOptions,
    pub(crate) backoff: Backoff,
    pub(crate) dns_min_ttl: Option<Duration>,
    pub(crate) dns_max_ttl: Option<Duration>,
}

/// One control-plane service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControlAddr {
    /// A name, with its trailing dot if present, or an address.
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    /// The identity that the service must authenticate as; `None` if it is in this pod, which is
    /// connected to in plaintext.
    pub(crate) identity: Option<Identity>,
}

/// Maximum back-off of control-plane retries. Short, because applications with new destinations
/// wait for the control plane to recover. Only the first of the waiting streams connects, so this
/// is also the proxy's connection rate.
const MAX_BACKOFF: Duration = Duration::from_secs(3);

impl Control {
    /// Uses the connection settings of outbound endpoints, and the inbound back-off up to
    /// [`MAX_BACKOFF`].
    pub(super) fn read(env: &Env<'_>, outbound: &Outbound, inbound: &Inbound) -> Self {
        let dns_min_ttl = env.optional("DNS_MIN_TTL", parse::duration);
        let dns_max_ttl = env.optional("DNS_MAX_TTL", parse::duration);
        if let (Some(min), Some(max)) = (dns_min_ttl, dns_max_ttl)
            && max < min
        {
            env.fail(
                "DNS_MAX_TTL",
                format!("is {max:?}, less than DNS_MIN_TTL, which is {min:?}"),
            );
        }
        Self {
            connect_timeout: outbound.connect_timeout,
            connect: outbound.connect,
            backoff: Backoff {
                max: inbound.connect_backoff.max.min(MAX_BACKOFF),
                ..inbound.connect_backoff
            },
            dns_min_ttl,
            dns_max_ttl,
        }
    }
}

impl ControlAddr {
    /// Reads the variables of an address and of an identity.
    pub(super) fn read(env: &Env<'_>, addr_variable: &str, name_variable: &str) -> Option<Self> {
        let addr = env.required(addr_variable, parse::host_port);
        let identity = env.optional(name_variable, parse::identity);
        let (host, port) = addr?;
        if is_this_pod(&host) {
            return Some(Self {
                host,
                port,
                identity: None,
            });
        }
        if identity.is_none() && !env.is_set(name_variable) {
            env.fail(
                name_variable,
                format!("is required because {addr_variable} is not a loopback address"),
            );
        }
        Some(Self {
            host,
            port,
            identity: Some(identity?),
        })
    }

    /// Returns the `:authority` of requests.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(crate) fn is_local(&self) -> bool {
        is_this_pod(&self.host)
    }
}

/// Whether `host` is the pod itself, so that no TLS is needed to trust it.
fn is_this_pod(host: &str) -> bool {
    match host.parse::<std::net::IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => matches!(host, "localhost" | "localhost."),
    }
}
