//! Where the control plane is and how it is reached.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;

use super::env::Env;
use super::{Inbound, Outbound, SocketOptions, parse};

/// How the proxy talks to the control plane.
#[derive(Clone, Debug)]
pub struct Control {
    pub connect_timeout: Duration,
    pub connect: SocketOptions,
    pub backoff: Backoff,
    pub dns_min_ttl: Option<Duration>,
    pub dns_max_ttl: Option<Duration>,
}

/// One control-plane service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlAddr {
    /// A name (kept with its trailing dot, if any) or an address.
    pub host: Arc<str>,
    pub port: u16,
    /// Who must answer; absent when the address is this pod itself, which is reached in plain text.
    pub identity: Option<Identity>,
}

/// New destinations wait for the control plane to come back, and applications with them. Only the
/// first of the waiting streams connects, so this is also how often a proxy knocks.
const MAX_PAUSE: Duration = Duration::from_secs(3);

impl Control {
    /// Connections are made like outbound ones. What failed is asked for again at the inbound
    /// side's pace, but not more slowly than [`MAX_PAUSE`].
    pub(super) fn read(env: &Env<'_>, outbound: &Outbound, inbound: &Inbound) -> Self {
        Self {
            connect_timeout: outbound.connect_timeout,
            connect: outbound.connect,
            backoff: Backoff {
                max: inbound.connect_backoff.max.min(MAX_PAUSE),
                ..inbound.connect_backoff
            },
            dns_min_ttl: env.optional("DNS_MIN_TTL", parse::duration),
            dns_max_ttl: env.optional("DNS_MAX_TTL", parse::duration),
        }
    }
}

impl ControlAddr {
    /// Reads `<service>_SVC_ADDR` and `<service>_SVC_NAME`.
    pub(super) fn read(env: &Env<'_>, service: &str) -> Option<Self> {
        let addr_name = format!("{service}_SVC_ADDR");
        let name_name = format!("{service}_SVC_NAME");
        let addr = env.required(&addr_name, parse::host_port);
        let identity = env.optional(&name_name, parse::identity);
        let (host, port) = addr?;
        if is_this_pod(&host) {
            return Some(Self {
                host,
                port,
                identity: None,
            });
        }
        if identity.is_none() && !env.is_set(&name_name) {
            env.fail(
                &name_name,
                format!("is required because {addr_name} is not a loopback address"),
            );
        }
        Some(Self {
            host,
            port,
            identity: Some(identity?),
        })
    }

    /// As the `:authority` of requests.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub fn is_local(&self) -> bool {
        is_this_pod(&self.host)
    }
}

/// Whether `host` is the pod itself, so that no identity is needed to trust the answer.
fn is_this_pod(host: &str) -> bool {
    match host.parse::<std::net::IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => matches!(host, "localhost" | "localhost."),
    }
}
