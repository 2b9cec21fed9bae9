//! What clients and servers may cost the HTTP engine. Ours, under names of ours, because Linkerd's
//! environment has no value that means any of them; the limits of HTTP/2 that it does have are in
//! [`super::server`]. docs/reference/proxy-http1.md and proxy-http2.md give users the reasons.

use std::time::Duration;

use mesh_core::units;

use super::env::Env;
use super::parse;

/// What one HTTP/1 message may take, a request or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http1Limits {
    /// Bytes of a head, with its start line.
    pub head: u32,
    /// Fields of a head or of trailers. HTTP/2 has the same.
    pub fields: u16,
    /// Bytes of all its chunk extensions.
    pub extensions: u32,
    /// Bytes of its trailers.
    pub trailers: u32,
}

/// What an accepted connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    pub http1: Http1Limits,
    /// From the first byte of a head to its last; over HTTP/2 also from the connection's begin to
    /// the client's settings.
    pub head_time: Duration,
    /// How long nothing may come of a request's body whose length was announced and that somebody
    /// waits for; `None`: for ever.
    pub body_time: Option<Duration>,
    /// How long a connection may do nothing; `None`: for ever.
    pub idle: Option<Duration>,
    /// What is read of an HTTP/1 request's body that nobody wants, so that the connection can be
    /// kept.
    pub drained_body: u64,
    pub http2: Http2Limits,
}

/// What the other side of an HTTP/2 connection may do that costs it nothing, whichever side it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Frames that carry nothing, beyond what the traffic explains.
    pub idle_frames: u32,
    /// Streams that a client resets, beyond those that it lets end.
    pub resets: u32,
    /// Points for stream errors of the peer: a client's costs ten, a server's and a stream beyond
    /// the limit one.
    pub mistakes: u32,
}

/// A head becomes a header list when it is carried over HTTP/2, so there is no use in taking more
/// than that side does by default: 256 KiB. That is above what Envoy (60 KiB) and nginx (32 KiB)
/// take, so nothing that passed them is refused here.
const HEAD: u32 = 256 * 1024;

/// hyper's and Envoy's number. Every field costs a table entry of about 100 bytes here and at every
/// later hop.
const FIELDS: u16 = 100;

/// Nobody uses them, and a byte of body may come with any number of them. hyper's number.
const EXTENSIONS: u32 = 16 * 1024;

/// Checksums and gRPC's status need some hundred bytes. hyper's number.
const TRAILERS: u32 = 16 * 1024;

/// Linkerd has no limit and so no protection against clients that send a byte now and then. 30 s is
/// what hyper recommends, and long enough for any honest client.
const HEAD_TIME: Duration = Duration::from_secs(30);

/// Envoy's for a stream on which nothing happens, and Node's for a whole request. Bodies of unknown
/// length are left alone: they may be conversations.
const BODY_TIME: Duration = Duration::from_secs(300);

/// Envoy's. Who does nothing for so long has forgotten the connection, or keeps it on purpose to
/// cost something.
const IDLE: Duration = Duration::from_secs(3600);

/// Reading more costs more than a new connection does.
const DRAINED_BODY: u64 = 64 * 1024;

/// Two orders of magnitude above what a browser or a gRPC client sends unexplained (settings,
/// priorities, pings of a keep-alive), and some milliseconds of work.
const IDLE_FRAMES: u32 = 1000;

/// A client that cancels everything when its own deadline passes has at most some hundred streams
/// to cancel, and is allowed a tenth of this per second after it.
const RESETS: u32 = 1000;

/// hyper's and h2's.
const MISTAKES: u32 = 1024;

impl Http1Limits {
    pub const DEFAULT: Self = Self {
        head: HEAD,
        fields: FIELDS,
        extensions: EXTENSIONS,
        trailers: TRAILERS,
    };

    fn read(env: &Env<'_>) -> Self {
        Self {
            // Less than 8 KiB is refused by no server; RFC 9112, section 3 asks for start lines of
            // 8000 bytes.
            head: env.own_or(
                "MESH_PROXY_HTTP1_MAX_HEAD_BYTES",
                parse::within(8 * 1024..=16 * 1024 * 1024),
                HEAD,
            ),
            fields: env.own_or(
                "MESH_PROXY_HTTP_MAX_FIELDS",
                parse::within(20..=10_000),
                FIELDS,
            ),
            extensions: env.own_or(
                "MESH_PROXY_HTTP1_MAX_CHUNK_EXTENSION_BYTES",
                parse::within(0..=16 * 1024 * 1024),
                EXTENSIONS,
            ),
            trailers: env.own_or(
                "MESH_PROXY_HTTP1_MAX_TRAILER_BYTES",
                parse::within(1024..=16 * 1024 * 1024),
                TRAILERS,
            ),
        }
    }
}

impl HttpLimits {
    pub const DEFAULT: Self = Self {
        http1: Http1Limits::DEFAULT,
        head_time: HEAD_TIME,
        body_time: Some(BODY_TIME),
        idle: Some(IDLE),
        drained_body: DRAINED_BODY,
        http2: Http2Limits {
            idle_frames: IDLE_FRAMES,
            resets: RESETS,
            mistakes: MISTAKES,
        },
    };

    pub(super) fn read(env: &Env<'_>) -> Self {
        let body_time = env.own_or("MESH_PROXY_HTTP_BODY_TIMEOUT", some_time_or_none, BODY_TIME);
        let idle = env.own_or("MESH_PROXY_HTTP_IDLE_TIMEOUT", parse::duration, IDLE);
        Self {
            http1: Http1Limits::read(env),
            head_time: env.own_or("MESH_PROXY_HTTP_HEAD_TIMEOUT", some_time, HEAD_TIME),
            body_time: (!body_time.is_zero()).then_some(body_time),
            idle: (!idle.is_zero()).then_some(idle),
            drained_body: env.own_or(
                "MESH_PROXY_HTTP1_MAX_DRAINED_BYTES",
                parse::number,
                DRAINED_BODY,
            ),
            http2: Http2Limits {
                idle_frames: env.own_or(
                    "MESH_PROXY_HTTP2_MAX_IDLE_FRAMES",
                    parse::within(100..=1_000_000),
                    IDLE_FRAMES,
                ),
                // After an honest client was told to go elsewhere it may still give up what is
                // open: 200 streams, at two each.
                resets: env.own_or(
                    "MESH_PROXY_HTTP2_MAX_RESETS",
                    parse::within(500..=1_000_000),
                    RESETS,
                ),
                mistakes: env.own_or(
                    "MESH_PROXY_HTTP2_MAX_MISTAKES",
                    parse::within(100..=1_000_000),
                    MISTAKES,
                ),
            },
        }
    }
}

/// Some time, or 0 for any.
fn some_time_or_none(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(time) if time.is_zero() => Ok(time),
        _ => some_time(text),
    }
}

/// A duration that is not nothing: without any time, nobody could be served.
fn some_time(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(time) if time >= Duration::from_secs(1) => Ok(time),
        Ok(_) => Err(format!("{text:?} is shorter than 1s")),
        Err(error) => Err(error.to_string()),
    }
}
