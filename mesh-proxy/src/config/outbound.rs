//! Settings of outbound connections.

use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::endpoint::Http2Params;
use mesh_core::resilience::Backoff;

use super::env::Env;
use super::limits::HttpLimits;
use super::parse;
use super::server::{
    CONNECTIONS, DEFAULT_MAX_IN_FLIGHT, Http1Pool, Http2Server, OUTBOUND_HTTP2, Queue,
    client_windows, connect_backoff, detect_timeout, socket_options,
};
use crate::transport::SocketOptions;

/// See docs/reference/proxy-environment.md for the variable of each field.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    /// One or two addresses of different families.
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) accept: SocketOptions,
    pub(crate) connect: SocketOptions,
    pub(crate) backlog: Option<u32>,
    /// For TCP, TLS and transport header together.
    pub(crate) connect_timeout: Duration,
    pub(crate) connect_backoff: Backoff,
    pub(crate) detect_timeout: Duration,
    pub(crate) max_in_flight: usize,
    /// Maximum number of open connections; `None`: limited by file descriptors.
    pub(crate) max_connections: Option<usize>,
    /// Maximum of bytes that requests keep of their bodies in order to be retried.
    pub(crate) max_replay_bytes: usize,
    /// Maximum number of copies of requests for mirrors in flight.
    pub(crate) max_mirrors: usize,
    pub(crate) http_queue: Queue,
    pub(crate) tcp_queue: Queue,
    pub(crate) http1_pool: Http1Pool,
    pub(crate) http2_server: Http2Server,
    /// Settings of HTTP/2 clients, which discovery may override for an endpoint.
    pub(crate) http2_client: Http2Params,
    /// Whether applications receive `l5d-proxy-error` and related headers.
    pub(crate) informational_headers: bool,
    /// Ingress mode: `l5d-dst-override` selects the destination of a request.
    pub(crate) ingress: bool,
    /// Whether route metrics have the host of the request.
    pub(crate) hostname_labels: bool,
    /// The check address; see [`crate::redirection`].
    pub(crate) redirect_check: Option<SocketAddr>,
}

const DEFAULT_LISTEN: &str = "127.0.0.1:4140";
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Linkerd's maximum is 60 s. An application that restarts in place would not be tried for this
/// time. An attempt costs one packet.
const DEFAULT_BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(5),
    jitter: 0.1,
};

/// 512 bodies of 64 KiB, the largest that Linkerd's controller lets a proxy keep.
const DEFAULT_REPLAY_BYTES: usize = 32 << 20;
const MAX_REPLAY_BYTES: usize = 1 << 30;

/// Together they keep at most 32 MiB of bodies, as much as retries.
const DEFAULT_MIRRORS: usize = 512;
/// Together they keep at most 1 GiB.
const MAX_MIRRORS: usize = 16 * 1024;

impl Outbound {
    pub(super) fn read(env: &Env<'_>, limits: &HttpLimits) -> Self {
        let single = env.or(
            "OUTBOUND_LISTEN_ADDR",
            parse::socket_addr,
            parse::constant_addr(DEFAULT_LISTEN),
        );
        let listen = env
            .optional("OUTBOUND_LISTEN_ADDRS", parse::listen_addrs)
            .unwrap_or_else(|| vec![single]);
        let ingress = env.or("INGRESS_MODE", parse::boolean, false);
        let (stream_window, connection_window) = client_windows(env);
        Self {
            listen,
            accept: socket_options(
                env,
                "OUTBOUND_ACCEPT_KEEPALIVE",
                "OUTBOUND_ACCEPT_USER_TIMEOUT",
            ),
            connect: socket_options(
                env,
                "OUTBOUND_CONNECT_KEEPALIVE",
                "OUTBOUND_CONNECT_USER_TIMEOUT",
            ),
            backlog: env.optional("OUTBOUND_TCP_LISTEN_BACKLOG", parse::number),
            connect_timeout: env.or(
                "OUTBOUND_CONNECT_TIMEOUT",
                parse::duration,
                DEFAULT_CONNECT_TIMEOUT,
            ),
            connect_backoff: connect_backoff(
                env,
                [
                    "OUTBOUND_CONNECT_EXP_BACKOFF_MIN",
                    "OUTBOUND_CONNECT_EXP_BACKOFF_MAX",
                    "OUTBOUND_CONNECT_EXP_BACKOFF_JITTER",
                ],
                DEFAULT_BACKOFF,
            ),
            detect_timeout: detect_timeout(env, "OUTBOUND_DETECT_TIMEOUT"),
            max_connections: env.own(
                "MESH_PROXY_OUTBOUND_MAX_CONNECTIONS",
                parse::within(CONNECTIONS),
            ),
            max_in_flight: env.or(
                "OUTBOUND_MAX_IN_FLIGHT",
                parse::number,
                DEFAULT_MAX_IN_FLIGHT,
            ),
            max_replay_bytes: env.own_or(
                "MESH_PROXY_MAX_REPLAY_BYTES",
                parse::within(0..=MAX_REPLAY_BYTES),
                DEFAULT_REPLAY_BYTES,
            ),
            max_mirrors: env.own_or(
                "MESH_PROXY_MAX_MIRRORS",
                parse::within(0..=MAX_MIRRORS),
                DEFAULT_MIRRORS,
            ),
            http_queue: Queue::read(
                env,
                "OUTBOUND_HTTP_QUEUE_CAPACITY",
                "OUTBOUND_HTTP_FAILFAST_TIMEOUT",
            ),
            tcp_queue: Queue::read(
                env,
                "OUTBOUND_TCP_QUEUE_CAPACITY",
                "OUTBOUND_TCP_FAILFAST_TIMEOUT",
            ),
            http1_pool: Http1Pool::read(
                env,
                "OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT",
                "OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT",
                // Responses may come from another proxy of the mesh.
                &limits.behind_proxy(),
            ),
            http2_server: Http2Server::read(env, &OUTBOUND_HTTP2),
            http2_client: Http2Params {
                stream_window: Some(stream_window),
                connection_window: Some(connection_window),
                ..Http2Params::default()
            },
            informational_headers: !env.or(
                "OUTBOUND_DISABLE_INFORMATIONAL_HEADERS",
                parse::boolean,
                ingress,
            ),
            ingress,
            hostname_labels: env.or("OUTBOUND_METRICS_HOSTNAME_LABELS", parse::boolean, false),
            redirect_check: env.own("MESH_PROXY_REDIRECT_CHECK", parse::socket_addr),
        }
    }
}
