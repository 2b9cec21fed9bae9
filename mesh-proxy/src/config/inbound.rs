//! Settings of inbound connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use mesh_core::endpoint::Http2Params;
use mesh_core::policy::inbound::DefaultPolicy;
use mesh_core::ports::PortSet;
use mesh_core::resilience::Backoff;

use super::discovery::has_suffix;
use super::env::Env;
use super::limits::HttpLimits;
use super::parse;
use super::server::{
    CONNECTIONS, DEFAULT_MAX_IN_FLIGHT, Http1Pool, Http2Server, INBOUND_HTTP2, client_windows,
    connect_backoff, detect_timeout, socket_options,
};
use crate::transport::SocketOptions;

/// See docs/reference/proxy-environment.md for the variable of each field.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    pub(crate) listen: SocketAddr,
    pub(crate) accept: SocketOptions,
    pub(crate) connect: SocketOptions,
    pub(crate) backlog: Option<u32>,
    pub(crate) connect_timeout: Duration,
    pub(crate) connect_backoff: Backoff,
    pub(crate) detect_timeout: Duration,
    /// Ports whose default policy does not detect protocols.
    pub(crate) opaque_ports: PortSet,
    pub(crate) max_in_flight: usize,
    /// Maximum number of open connections; `None`: limited by file descriptors.
    pub(crate) max_connections: Option<usize>,
    pub(crate) http1_pool: Http1Pool,
    pub(crate) http2_server: Http2Server,
    /// For connections to the application.
    pub(crate) http2_client: Http2Params,
    /// Addresses of this pod; connections to others are refused. If empty, all are allowed.
    pub(crate) ips: Vec<IpAddr>,
    /// Ports whose policy is watched from the start.
    pub(crate) ports: PortSet,
    pub(crate) default_policy: DefaultPolicy,
    pub(crate) cluster_networks: Vec<IpNet>,
    /// Whether `authority`, which clients control, is a metric label.
    pub(crate) authority_labels: bool,
    /// The domains of the Services that proxies of other clusters may reach through this one; empty
    /// unless it is a gateway.
    pub(crate) gateway_suffixes: Vec<Arc<str>>,
}

const DEFAULT_LISTEN: &str = "0.0.0.0:4143";
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_millis(300);
const DEFAULT_BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(10),
    jitter: 0.1,
};

impl Inbound {
    pub(super) fn read(env: &Env<'_>, limits: &HttpLimits) -> Self {
        let (stream_window, connection_window) = client_windows(env);
        let (default_policy, cluster_networks) = read_default_policy(env);
        Self {
            listen: env.or(
                "INBOUND_LISTEN_ADDR",
                parse::socket_addr,
                parse::constant_addr(DEFAULT_LISTEN),
            ),
            accept: socket_options(
                env,
                "INBOUND_ACCEPT_KEEPALIVE",
                "INBOUND_ACCEPT_USER_TIMEOUT",
            ),
            connect: socket_options(
                env,
                "INBOUND_CONNECT_KEEPALIVE",
                "INBOUND_CONNECT_USER_TIMEOUT",
            ),
            backlog: env.optional("INBOUND_TCP_LISTEN_BACKLOG", parse::number),
            connect_timeout: env.or(
                "INBOUND_CONNECT_TIMEOUT",
                parse::duration,
                DEFAULT_CONNECT_TIMEOUT,
            ),
            connect_backoff: connect_backoff(
                env,
                [
                    "INBOUND_CONNECT_EXP_BACKOFF_MIN",
                    "INBOUND_CONNECT_EXP_BACKOFF_MAX",
                    "INBOUND_CONNECT_EXP_BACKOFF_JITTER",
                ],
                DEFAULT_BACKOFF,
            ),
            detect_timeout: detect_timeout(env, "INBOUND_DETECT_TIMEOUT"),
            opaque_ports: env.or(
                "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION",
                parse::ports,
                PortSet::default(),
            ),
            max_connections: env.own(
                "MESH_PROXY_INBOUND_MAX_CONNECTIONS",
                parse::within(CONNECTIONS),
            ),
            max_in_flight: env.or(
                "INBOUND_MAX_IN_FLIGHT",
                parse::number,
                DEFAULT_MAX_IN_FLIGHT,
            ),
            http1_pool: Http1Pool::read(
                env,
                "MAX_IDLE_CONNS_PER_ENDPOINT",
                "INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT",
                &limits.for_application(),
            ),
            http2_server: Http2Server::read(env, &INBOUND_HTTP2),
            http2_client: Http2Params {
                stream_window: Some(stream_window),
                connection_window: Some(connection_window),
                ..Http2Params::default()
            },
            ips: env.or("INBOUND_IPS", parse::ips, Vec::new()),
            ports: env.or("INBOUND_PORTS", parse::ports, PortSet::default()),
            default_policy,
            cluster_networks,
            authority_labels: read_authority_labels(env),
            gateway_suffixes: env.or("INBOUND_GATEWAY_SUFFIXES", parse::suffixes, Vec::new()),
        }
    }

    /// Whether this proxy forwards to Services for proxies of other clusters.
    pub(crate) fn is_gateway(&self) -> bool {
        !self.gateway_suffixes.is_empty()
    }

    /// Whether proxies of other clusters may reach a host, in lower case.
    pub(crate) fn serves_as_gateway(&self, host: &str) -> bool {
        has_suffix(host, &self.gateway_suffixes)
    }
}

fn read_default_policy(env: &Env<'_>) -> (DefaultPolicy, Vec<IpNet>) {
    const NAME: &str = "INBOUND_DEFAULT_POLICY";
    let networks = env.or("POLICY_CLUSTER_NETWORKS", parse::networks, Vec::new());
    if !env.is_set(NAME) {
        tracing::warn!(
            "LINKERD2_PROXY_{NAME} is not set: ports allow all clients until the policy service responds"
        );
    }
    let policy = env.or(
        NAME,
        parse::default_policy,
        DefaultPolicy::AllUnauthenticated,
    );
    let needs_networks = matches!(
        policy,
        DefaultPolicy::ClusterAuthenticated | DefaultPolicy::ClusterUnauthenticated
    );
    if needs_networks && networks.is_empty() && !env.is_set("POLICY_CLUSTER_NETWORKS") {
        env.fail(
            NAME,
            format!("is {policy}, which requires POLICY_CLUSTER_NETWORKS"),
        );
    }
    (policy, networks)
}

fn read_authority_labels(env: &Env<'_>) -> bool {
    env.or(
        "INBOUND_METRICS_AUTHORITY_LABELS",
        |text: &str| match text {
            "" => Ok(false),
            "unsafe" => Ok(true),
            _ => Err(format!("{text:?} is neither empty nor \"unsafe\"")),
        },
        false,
    )
}
