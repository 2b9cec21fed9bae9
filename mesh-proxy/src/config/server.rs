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
const FRAME_SIZES: RangeInclusive<u32> = 16_384..=16_777_215;

/// RFC 9113, section 6.9.1, without 0, which would allow no data.
const WINDOWS: RangeInclusive<u32> = 1..=(1 << 31) - 1;

/// Accepted connections of one direction. Containers do not have more than a million file
/// descriptors.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 1..=1 << 20;

/// Each stream costs a few kilobytes and a window of buffered data.
const MAX_STREAMS: u32 = 1 << 20;

/// Smaller lists do not fit what browsers send.
const HEADER_LISTS: RangeInclusive<u32> = 4096..=16 * 1024 * 1024;

/// `kind` is `INBOUND_ACCEPT`, `OUTBOUND_CONNECT` and so on.
pub(super) fn socket_options(env: &Env<'_>, kind: &str) -> SocketOptions {
    SocketOptions {
        keepalive: env.optional(&format!("{kind}_KEEPALIVE"), parse::duration),
        user_timeout: env.optional(&format!("{kind}_USER_TIMEOUT"), parse::duration),
    }
}

impl Queue {
    /// `kind` is `OUTBOUND_HTTP` or `OUTBOUND_TCP`.
    pub(super) fn read(env: &Env<'_>, kind: &str, failfast: Duration) -> Self {
        Self {
            capacity: env.or(
                &format!("{kind}_QUEUE_CAPACITY"),
                parse::number,
                DEFAULT_QUEUE_CAPACITY,
            ),
            failfast: env.or(
                &format!("{kind}_FAILFAST_TIMEOUT"),
                parse::duration,
                failfast,
            ),
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
    /// `max_idle` is the full name, because the inbound variable has no direction prefix.
    pub(super) fn read(env: &Env<'_>, side: &str, max_idle: &str, limits: &HttpLimits) -> Self {
        Self {
            max_idle: env.or(max_idle, parse::number, DEFAULT_MAX_IDLE),
            idle_timeout: env.or(
                &format!("{side}_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT"),
                parse::duration,
                DEFAULT_POOL_IDLE,
            ),
            limits: *limits,
        }
    }
}

impl Http2Server {
    pub(super) fn read(env: &Env<'_>, side: &str) -> Self {
        let name = |parameter: &str| format!("{side}_SERVER_HTTP2_{parameter}");
        // Each pair takes effect only if both variables are set, as in Linkerd's proxy.
        let windows = env
            .optional(&name("INITIAL_STREAM_WINDOW_SIZE"), parse::within(WINDOWS))
            .zip(env.optional(
                &name("INITIAL_CONNECTION_WINDOW_SIZE"),
                parse::within(WINDOWS),
            ));
        let (stream_window, connection_window) = windows.unwrap_or_else(|| client_windows(env));
        let keep_alive = env
            .optional(&name("KEEP_ALIVE_INTERVAL"), parse::duration)
            .zip(env.optional(&name("KEEP_ALIVE_TIMEOUT"), parse::duration))
            .map(|(interval, timeout)| Http2KeepAlive { interval, timeout });
        Self {
            stream_window,
            connection_window,
            adaptive_window: env.or(&name("ADAPTIVE_FLOW_CONTROL"), parse::boolean, false),
            keep_alive,
            max_concurrent_streams: env.optional(
                &name("MAX_CONCURRENT_STREAMS"),
                parse::within(1..=MAX_STREAMS),
            ),
            max_frame_size: env.optional(&name("MAX_FRAME_SIZE"), parse::within(FRAME_SIZES)),
            max_header_list_size: env.or(
                &name("MAX_HEADER_LIST_SIZE"),
                parse::within(HEADER_LISTS),
                DEFAULT_HEADER_LIST,
            ),
            max_pending_accept_reset_streams: env
                .optional(&name("MAX_PENDING_ACCEPT_RESET_STREAMS"), parse::number),
            max_send_buf_size: env.optional(&name("MAX_SEND_BUF_SIZE"), parse::number),
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

/// `<side>_DETECT_TIMEOUT`, which applies where [`crate::classify::Classifier`] says.
pub(super) fn detect_timeout(env: &Env<'_>, side: &str) -> Duration {
    let name = format!("{side}_DETECT_TIMEOUT");
    env.or(&name, parse::duration, DEFAULT_DETECT_TIMEOUT)
}

/// `<side>_CONNECT_EXP_BACKOFF_MIN/MAX/JITTER`.
pub(super) fn connect_backoff(env: &Env<'_>, side: &str, default: Backoff) -> Backoff {
    let name = |part: &str| format!("{side}_CONNECT_EXP_BACKOFF_{part}");
    let min = env.optional(&name("MIN"), parse::duration);
    let max = env.optional(&name("MAX"), parse::duration);
    let jitter = env.optional(&name("JITTER"), parse::ratio);
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
            env.fail(
                &name("MIN"),
                format!("must not be longer than {}", name("MAX")),
            );
            default
        }
        _ => {
            let (given, missing) = if min.is_some() {
                ("MIN", "MAX")
            } else {
                ("MAX", "MIN")
            };
            // If the other variable is set but invalid, that is recorded already.
            if !env.is_set(&name(missing)) {
                env.fail(&name(given), format!("requires {}", name(missing)));
            }
            default
        }
    }
}
