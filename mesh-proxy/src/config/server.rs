//! Settings that exist for both directions, with the direction as prefix of the variable.

use std::ops::RangeInclusive;
use std::time::Duration;

use mesh_core::resilience::{self, Backoff};

use super::env::Env;
use super::limits::HttpLimits;
use super::parse;
use crate::transport::SocketOptions;

/// The queue of requests that wait for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) capacity: usize,
    /// Fail-fast timeout: queued requests fail after this time without an available endpoint.
    pub(crate) failfast: Duration,
}

/// The pool of idle HTTP/1 connections to servers, and the limits of connections to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http1Pool {
    pub(crate) max_idle: usize,
    pub(crate) idle_timeout: Duration,
    pub(crate) limits: HttpLimits,
}

/// Settings of the proxy's HTTP/2 servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http2Server {
    pub(crate) stream_window: u32,
    pub(crate) connection_window: u32,
    pub(crate) adaptive_window: bool,
    pub(crate) keep_alive: Option<Http2KeepAlive>,
    /// The limit of concurrent streams for all clients; `None`: [`Http2Server::max_streams`].
    pub(crate) max_concurrent_streams: Option<u32>,
    pub(crate) max_frame_size: Option<u32>,
    pub(crate) max_header_list_size: u32,
    /// `None`: the same number as may be open.
    pub(crate) max_pending_accept_reset_streams: Option<u32>,
    pub(crate) max_send_buf_size: Option<usize>,
}

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientTrust {
    /// The pod's own application, or a peer that has authenticated itself.
    Known,
    /// Anyone.
    Unknown,
}

/// Keep-alive pings. The connection is closed if one is not acknowledged in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http2KeepAlive {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

/// The protocol's default, 65,535, is one byte less than common bodies and messages of 64 KiB,
/// whose last byte then waits for a WINDOW_UPDATE (docs/adr/0158).
pub(crate) const DEFAULT_STREAM_WINDOW: u32 = 72 * 1024;
pub(super) const DEFAULT_CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Idle HTTP/1 connections per endpoint, as in Linkerd.
pub(super) const DEFAULT_MAX_IDLE: usize = 10_000;
const DEFAULT_POOL_IDLE: Duration = Duration::from_secs(3);

const DEFAULT_FAILFAST: Duration = Duration::from_secs(3);

/// The time until the first bytes, which reveal the protocol, as in Linkerd.
const DEFAULT_DETECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests of the process that wait for response headers, as in Linkerd.
pub(super) const DEFAULT_MAX_IN_FLIGHT: usize = 100_000;
pub(super) const DEFAULT_QUEUE_CAPACITY: usize = 10_000;
/// The longest fail-fast timeout of a policy. A request that waits longer has lost its client.
const MAX_POLICY_FAILFAST: Duration = Duration::from_secs(3600);

/// As in hyper. Bounds what a client that does not authenticate itself can make the proxy store.
const UNKNOWN_CLIENT_STREAMS: u32 = 200;

/// Servers of applications allow more than hyper's, or set no limit, and a stream beyond the limit
/// waits for as long as the others last. gRPC clients keep hundreds of long streams (watches) on
/// one connection, which the client library shares with all other calls.
const KNOWN_CLIENT_STREAMS: u32 = 1000;

/// Linkerd's 16 KiB break large gRPC status details and long cookies. HTTP/1 header sections may be
/// larger too, and are forwarded as HTTP/2 between proxies.
const DEFAULT_HEADER_LIST: u32 = 256 * 1024;

/// RFC 9113, section 6.5.2.
pub(crate) const FRAME_SIZES: RangeInclusive<u32> = 16_384..=16_777_215;

/// RFC 9113, section 6.9.1, without 0, which would allow no data.
const WINDOWS: RangeInclusive<u32> = 1..=(1 << 31) - 1;

/// Accepted connections of one direction. Containers do not have more than a million file
/// descriptors.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 1..=1 << 20;

/// Each stream costs a few kilobytes and a window of buffered data.
const MAX_STREAMS: u32 = 1 << 20;

/// Smaller lists do not fit what browsers send.
const HEADER_LISTS: RangeInclusive<u32> = 4096..=16 * 1024 * 1024;

/// Reads two variables.
pub(super) fn socket_options(env: &Env<'_>, keepalive: &str, user_timeout: &str) -> SocketOptions {
    SocketOptions {
        keepalive: env.optional(keepalive, parse::duration),
        user_timeout: env.optional(user_timeout, parse::duration),
    }
}

impl Queue {
    /// Reads two variables.
    pub(super) fn read(env: &Env<'_>, capacity: &str, failfast: &str) -> Self {
        Self {
            capacity: env.or(capacity, parse::number, DEFAULT_QUEUE_CAPACITY),
            failfast: env.or(failfast, parse::duration, DEFAULT_FAILFAST),
        }
    }

    /// Returns the larger capacity of a policy and of these settings, and the time limit of the
    /// policy where it has one (docs/adr/0133).
    pub(crate) fn for_policy(self, policy: resilience::Queue) -> Self {
        let capacity = policy.capacity.map_or(0, |capacity| {
            usize::try_from(capacity.get()).unwrap_or(usize::MAX)
        });
        Self {
            capacity: self.capacity.max(capacity),
            failfast: policy
                .failfast_timeout
                .map_or(self.failfast, |timeout| timeout.min(MAX_POLICY_FAILFAST)),
        }
    }
}

impl Http1Pool {
    /// Reads two variables.
    pub(super) fn read(
        env: &Env<'_>,
        max_idle: &str,
        idle_timeout: &str,
        limits: &HttpLimits,
    ) -> Self {
        Self {
            max_idle: env.or(max_idle, parse::number, DEFAULT_MAX_IDLE),
            idle_timeout: env.or(idle_timeout, parse::duration, DEFAULT_POOL_IDLE),
            limits: *limits,
        }
    }
}

/// The variables of HTTP/2 servers in one direction, each in full so that a search finds it.
pub(super) struct Http2ServerNames {
    initial_stream_window_size: &'static str,
    initial_connection_window_size: &'static str,
    keep_alive_interval: &'static str,
    keep_alive_timeout: &'static str,
    adaptive_flow_control: &'static str,
    max_concurrent_streams: &'static str,
    max_frame_size: &'static str,
    max_header_list_size: &'static str,
    max_pending_accept_reset_streams: &'static str,
    max_send_buf_size: &'static str,
}

pub(super) const INBOUND_HTTP2: Http2ServerNames = Http2ServerNames {
    initial_stream_window_size: "INBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE",
    initial_connection_window_size: "INBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE",
    keep_alive_interval: "INBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL",
    keep_alive_timeout: "INBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT",
    adaptive_flow_control: "INBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL",
    max_concurrent_streams: "INBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS",
    max_frame_size: "INBOUND_SERVER_HTTP2_MAX_FRAME_SIZE",
    max_header_list_size: "INBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE",
    max_pending_accept_reset_streams: "INBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS",
    max_send_buf_size: "INBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE",
};

pub(super) const OUTBOUND_HTTP2: Http2ServerNames = Http2ServerNames {
    initial_stream_window_size: "OUTBOUND_SERVER_HTTP2_INITIAL_STREAM_WINDOW_SIZE",
    initial_connection_window_size: "OUTBOUND_SERVER_HTTP2_INITIAL_CONNECTION_WINDOW_SIZE",
    keep_alive_interval: "OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_INTERVAL",
    keep_alive_timeout: "OUTBOUND_SERVER_HTTP2_KEEP_ALIVE_TIMEOUT",
    adaptive_flow_control: "OUTBOUND_SERVER_HTTP2_ADAPTIVE_FLOW_CONTROL",
    max_concurrent_streams: "OUTBOUND_SERVER_HTTP2_MAX_CONCURRENT_STREAMS",
    max_frame_size: "OUTBOUND_SERVER_HTTP2_MAX_FRAME_SIZE",
    max_header_list_size: "OUTBOUND_SERVER_HTTP2_MAX_HEADER_LIST_SIZE",
    max_pending_accept_reset_streams: "OUTBOUND_SERVER_HTTP2_MAX_PENDING_ACCEPT_RESET_STREAMS",
    max_send_buf_size: "OUTBOUND_SERVER_HTTP2_MAX_SEND_BUF_SIZE",
};

impl Http2Server {
    pub(super) fn read(env: &Env<'_>, names: &Http2ServerNames) -> Self {
        // Each pair takes effect only if both variables are set, as in Linkerd's proxy.
        let windows = env
            .optional(names.initial_stream_window_size, parse::within(WINDOWS))
            .zip(env.optional(names.initial_connection_window_size, parse::within(WINDOWS)));
        let (stream_window, connection_window) = windows.unwrap_or_else(|| client_windows(env));
        let keep_alive = env
            .optional(names.keep_alive_interval, parse::duration)
            .zip(env.optional(names.keep_alive_timeout, parse::duration))
            .map(|(interval, timeout)| Http2KeepAlive { interval, timeout });
        Self {
            stream_window,
            connection_window,
            adaptive_window: env.or(names.adaptive_flow_control, parse::boolean, false),
            keep_alive,
            max_concurrent_streams: env
                .optional(names.max_concurrent_streams, parse::within(1..=MAX_STREAMS)),
            max_frame_size: env.optional(names.max_frame_size, parse::within(FRAME_SIZES)),
            max_header_list_size: env.or(
                names.max_header_list_size,
                parse::within(HEADER_LISTS),
                DEFAULT_HEADER_LIST,
            ),
            max_pending_accept_reset_streams: env
                .optional(names.max_pending_accept_reset_streams, parse::number),
            max_send_buf_size: env.optional(names.max_send_buf_size, parse::number),
        }
    }

    /// Returns the limit of concurrent streams on one connection.
    pub(crate) fn max_streams(&self, client: ClientTrust) -> u32 {
        self.max_concurrent_streams.unwrap_or(match client {
            ClientTrust::Known => KNOWN_CLIENT_STREAMS,
            ClientTrust::Unknown => UNKNOWN_CLIENT_STREAMS,
        })
    }

    /// Returns the limit of streams that are reset before the proxy accepts them.
    ///
    /// h2 and Linkerd's proxy allow 20. Legitimate clients also reset streams before the proxy
    /// accepts them, if the proxy had no processor time or the client needed only the first of
    /// several responses. The limit closes the whole connection, so by default it is the number of
    /// concurrent streams.
    pub(crate) fn max_pending_accept_resets(&self, client: ClientTrust) -> u32 {
        self.max_pending_accept_reset_streams
            .unwrap_or_else(|| self.max_streams(client))
    }
}

/// Returns the stream window and connection window of HTTP/2 clients, which are also the servers'
/// defaults.
pub(super) fn client_windows(env: &Env<'_>) -> (u32, u32) {
    (
        env.or(
            "HTTP2_INITIAL_STREAM_WINDOW_SIZE",
            parse::within(WINDOWS),
            DEFAULT_STREAM_WINDOW,
        ),
        env.or(
            "HTTP2_INITIAL_CONNECTION_WINDOW_SIZE",
            parse::within(WINDOWS),
            DEFAULT_CONNECTION_WINDOW,
        ),
    )
}

/// Applies where [`crate::classify::Classifier`] says.
pub(super) fn detect_timeout(env: &Env<'_>, name: &str) -> Duration {
    env.or(name, parse::duration, DEFAULT_DETECT_TIMEOUT)
}

/// Reads the variables of the shortest and the longest wait and of the jitter.
pub(super) fn connect_backoff(
    env: &Env<'_>,
    [min_name, max_name, jitter_name]: [&str; 3],
    default: Backoff,
) -> Backoff {
    let min = env.optional(min_name, parse::duration);
    let max = env.optional(max_name, parse::duration);
    let jitter = env.optional(jitter_name, parse::ratio);
    match (min, max) {
        (None, None) => Backoff {
            jitter: jitter.unwrap_or(default.jitter),
            ..default
        },
        (Some(min), Some(max)) if min <= max && !max.is_zero() => Backoff {
            min,
            max,
            jitter: jitter.unwrap_or(0.0),
        },
        (Some(_), Some(_)) => {
            env.fail(min_name, format!("must not be longer than {max_name}"));
            default
        }
        _ => {
            let (given, missing) = if min.is_some() {
                (min_name, max_name)
            } else {
                (max_name, min_name)
            };
            // If the other variable is set but invalid, that is recorded already.
            if !env.is_set(missing) {
                env.fail(given, format!("requires {missing}"));
            }
            default
        }
    }
}
