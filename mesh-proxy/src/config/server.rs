//! Settings that the inbound and the outbound side have alike, read with the side's name in front.

use std::ops::RangeInclusive;
use std::time::Duration;

use mesh_core::resilience::Backoff;

use super::env::Env;
use super::limits::HttpLimits;
use super::parse;

/// Options of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Idle time before keep-alive probes; they are always on, with the kernel's time when this is
    /// `None`.
    pub keepalive: Option<Duration>,
    /// `TCP_USER_TIMEOUT`: how long sent data may stay unacknowledged.
    pub user_timeout: Option<Duration>,
}

/// What waits for an endpoint and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    pub capacity: usize,
    /// Without an available endpoint for this long, waiting requests fail at once.
    pub failfast: Duration,
}

/// Connections to servers: idle HTTP/1 ones that are kept for reuse, and what a server may cost on
/// any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http1Pool {
    pub max_idle: usize,
    pub idle_timeout: Duration,
    pub limits: HttpLimits,
}

/// What this proxy's HTTP/2 servers announce and enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Server {
    pub stream_window: u32,
    pub connection_window: u32,
    pub adaptive_window: bool,
    pub keep_alive: Option<Http2KeepAlive>,
    pub max_concurrent_streams: u32,
    pub max_frame_size: Option<u32>,
    pub max_header_list_size: u32,
    pub max_pending_accept_reset_streams: usize,
    pub max_send_buf_size: Option<usize>,
}

/// Pings that the server sends; the connection ends when one is not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2KeepAlive {
    pub interval: Duration,
    pub timeout: Duration,
}

pub(crate) const DEFAULT_STREAM_WINDOW: u32 = 65_535;
pub(super) const DEFAULT_CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Idle HTTP/1 connections kept per endpoint, Linkerd's default.
pub(super) const DEFAULT_MAX_IDLE: usize = 10_000;
const DEFAULT_POOL_IDLE: Duration = Duration::from_secs(3);

/// Process-wide requests that await response headers, Linkerd's default.
pub(super) const DEFAULT_MAX_IN_FLIGHT: usize = 100_000;
pub(super) const DEFAULT_QUEUE_CAPACITY: usize = 10_000;

/// hyper's default. Linkerd's proxy leaves it unset and gets the same.
const DEFAULT_CONCURRENT_STREAMS: u32 = 200;

/// h2 has 20, and so has Linkerd's proxy. Streams that are reset before anybody looked at them are
/// honest when the proxy had no processor for a moment, or the client wanted the first of many
/// answers; and all others on the connection would suffer. There can be no more honest ones than
/// streams at a time.
const DEFAULT_PENDING_RESETS: usize = 200;

/// Linkerd's proxy has 16 KiB and mangles large gRPC status details and long cookies; HTTP/1 heads
/// may be larger than that too, and become HTTP/2 between proxies.
const DEFAULT_HEADER_LIST: u32 = 256 * 1024;

/// RFC 9113, section 6.5.2; the library ends the process over others.
const FRAME_SIZES: RangeInclusive<u32> = 16_384..=16_777_215;

/// RFC 9113, section 6.9.1. Nothing could be sent in a window of 0.
const WINDOWS: RangeInclusive<u32> = 1..=(1 << 31) - 1;

/// Accepted connections of one side. More than a million descriptors are in no container.
pub(super) const CONNECTIONS: RangeInclusive<usize> = 1..=1 << 20;

/// More are never open at a time: each costs some kilobytes, and a window of data that nobody
/// reads.
const MAX_STREAMS: u32 = 1 << 20;

/// Smaller lists do not hold what browsers send; larger ones are nobody's headers.
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
}

impl Http1Pool {
    /// `max_idle` is the whole name: the inbound one lacks the side's.
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
        // Each pair takes effect only when both are given, as in Linkerd's proxy.
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
            max_concurrent_streams: env.or(
                &name("MAX_CONCURRENT_STREAMS"),
                parse::within(1..=MAX_STREAMS),
                DEFAULT_CONCURRENT_STREAMS,
            ),
            max_frame_size: env.optional(&name("MAX_FRAME_SIZE"), parse::within(FRAME_SIZES)),
            max_header_list_size: env.or(
                &name("MAX_HEADER_LIST_SIZE"),
                parse::within(HEADER_LISTS),
                DEFAULT_HEADER_LIST,
            ),
            max_pending_accept_reset_streams: env.or(
                &name("MAX_PENDING_ACCEPT_RESET_STREAMS"),
                parse::number,
                DEFAULT_PENDING_RESETS,
            ),
            max_send_buf_size: env.optional(&name("MAX_SEND_BUF_SIZE"), parse::number),
        }
    }
}

/// The windows of HTTP/2 clients, which servers share unless they have their own: stream, then
/// connection.
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
            // When the other one was given but bad, that is already noted.
            if !env.is_set(&name(missing)) {
                env.fail(&name(given), format!("needs {} beside it", name(missing)));
            }
            default
        }
    }
}
