//! Limits of the HTTP engine that Linkerd's proxy does not have, from `MESH_PROXY_` variables.
//! HTTP/2 limits that Linkerd has are in [`super::server`]. docs/reference/proxy-http1.md and
//! proxy-http2.md explain the limits to users.

use std::time::Duration;

use mesh_core::units;

use super::env::Env;
use super::parse;

/// Size limits of one HTTP/1 message, a request or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http1Limits {
    /// Maximum bytes of the start line and header section.
    pub(crate) head: u32,
    /// Maximum number of fields in a header or trailer section, also for HTTP/2.
    pub(crate) fields: u16,
    /// Maximum bytes of all chunk extensions.
    pub(crate) extensions: u32,
    /// Maximum bytes of the trailer section.
    pub(crate) trailers: u32,
    /// Whether responses come from the pod's own application. They are parsed leniently: its
    /// clients receive the same responses as without the mesh (docs/adr/0168).
    pub(crate) is_lenient: bool,
}

/// Limits of an HTTP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HttpLimits {
    pub(crate) http1: Http1Limits,
    /// Maximum time from the first to the last byte of a header section; for HTTP/2 also from the
    /// start of the connection to the client's SETTINGS.
    pub(crate) head_time: Duration,
    /// Maximum time without data of a request body with a declared length while the server waits
    /// for it; `None`: unlimited.
    pub(crate) body_time: Option<Duration>,
    /// Maximum time without activity on a connection; `None`: unlimited.
    pub(crate) idle: Option<Duration>,
    /// Maximum bytes of an unread HTTP/1 request body that are discarded to reuse the connection.
    pub(crate) drained_body: u64,
    pub(crate) http2: Http2Limits,
    /// Bytes of an HTTP/2 header list beyond its limit; see [`HttpLimits::behind_proxy`].
    pub(crate) added_bytes: u32,
}

/// Field lines that the proxies of a mesh add to a message, and their bytes. They add fewer than
/// ten (`l5d-…`, `traceparent`, `via`); the rest is for the filters of routes.
const ADDED_FIELDS: u16 = 64;
const ADDED_BYTES: u32 = 16 * 1024;

/// Bytes that an HTTP/2 header list counts for each field in addition to its name and value (RFC
/// 9113, section 6.5.2). HTTP/1 has four instead.
const LIST_OVERHEAD: u32 = 32;

/// Flood limits of an HTTP/2 peer, for clients and servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http2Limits {
    /// Control frames and empty frames in excess of those that the traffic explains.
    pub(crate) idle_frames: u32,
    /// Streams that a client resets, in excess of those that complete.
    pub(crate) resets: u32,
    /// Points for stream errors of the peer: ten for a client's error, one for a server's error or
    /// a stream beyond the concurrency limit.
    pub(crate) mistakes: u32,
}

impl Http1Limits {
    pub(crate) const DEFAULT: Self = Self {
        // The default limit of HTTP/2 header lists. Header sections are forwarded between proxies
        // in this form. Envoy (60 KiB) and nginx (32 KiB) accept less.
        head: 256 * 1024,
        // As in hyper and Envoy. Every field costs a table entry of about 100 bytes here and at
        // every later hop.
        fields: 100,
        // As in hyper. Chunk extensions are not used in practice, and could accompany every byte of
        // a body.
        extensions: 16 * 1024,
        // As in hyper. Checksums and gRPC's status need a few hundred bytes.
        trailers: 16 * 1024,
        is_lenient: false,
    };

    fn read(env: &Env<'_>) -> Self {
        Self {
            // RFC 9112, section 3 requires support for start lines of 8000 bytes.
            head: env.own_or(
                "MESH_PROXY_HTTP1_MAX_HEAD_BYTES",
                parse::within(8 * 1024..=16 * 1024 * 1024),
                Self::DEFAULT.head,
            ),
            fields: env.own_or(
                "MESH_PROXY_HTTP_MAX_FIELDS",
                parse::within(20..=10_000),
                Self::DEFAULT.fields,
            ),
            extensions: env.own_or(
                "MESH_PROXY_HTTP1_MAX_CHUNK_EXTENSION_BYTES",
                parse::within(0..=16 * 1024 * 1024),
                Self::DEFAULT.extensions,
            ),
            trailers: env.own_or(
                "MESH_PROXY_HTTP1_MAX_TRAILER_BYTES",
                parse::within(1024..=16 * 1024 * 1024),
                Self::DEFAULT.trailers,
            ),
            is_lenient: false,
        }
    }
}

impl HttpLimits {
    pub(crate) const DEFAULT: Self = Self {
        http1: Http1Limits::DEFAULT,
        // As hyper recommends, against clients that send headers slowly. Linkerd has no limit.
        head_time: Duration::from_secs(30),
        // As Envoy's stream idle timeout and Node's request timeout. Bodies of unknown length are
        // not limited, because they may be bidirectional streams.
        body_time: Some(Duration::from_secs(300)),
        // As in Envoy.
        idle: Some(Duration::from_secs(3600)),
        // Reading more would cost more than a new connection.
        drained_body: 64 * 1024,
        http2: Http2Limits {
            // Two orders of magnitude above what browsers and gRPC clients send (SETTINGS,
            // PRIORITY, keep-alive PING), and a few milliseconds of work.
            idle_frames: 1000,
            // A client whose deadline expires cancels at most a few hundred streams, and may then
            // cancel a tenth of this number per second.
            resets: 1000,
            // As in hyper and h2.
            mistakes: 1024,
        },
        added_bytes: 0,
    };

    /// Returns the limits for messages that another proxy of the mesh may pass on: this proxy must
    /// accept all that the other one has accepted, with the fields that it has added, and counted
    /// as HTTP/2 counts them.
    pub(crate) fn behind_proxy(mut self) -> Self {
        self.http1.fields = self.http1.fields.saturating_add(ADDED_FIELDS);
        self.http1.head = self.http1.head.saturating_add(ADDED_BYTES);
        self.added_bytes = ADDED_BYTES + LIST_OVERHEAD * u32::from(self.http1.fields);
        self
    }

    /// Returns the limits for responses of the pod's own application.
    pub(crate) fn for_application(mut self) -> Self {
        self.http1.is_lenient = true;
        self
    }

    pub(super) fn read(env: &Env<'_>) -> Self {
        let default = Self::DEFAULT;
        let unless_zero = |time: Duration| (!time.is_zero()).then_some(time);
        let body_time = env.own("MESH_PROXY_HTTP_BODY_TIMEOUT", timeout_or_zero);
        let idle = env.own("MESH_PROXY_HTTP_IDLE_TIMEOUT", parse::duration);
        Self {
            http1: Http1Limits::read(env),
            head_time: env.own_or("MESH_PROXY_HTTP_HEAD_TIMEOUT", timeout, default.head_time),
            body_time: body_time.map_or(default.body_time, unless_zero),
            idle: idle.map_or(default.idle, unless_zero),
            drained_body: env.own_or(
                "MESH_PROXY_HTTP1_MAX_DRAINED_BYTES",
                parse::number,
                default.drained_body,
            ),
            http2: Http2Limits {
                idle_frames: env.own_or(
                    "MESH_PROXY_HTTP2_MAX_IDLE_FRAMES",
                    parse::within(100..=1_000_000),
                    default.http2.idle_frames,
                ),
                // After a GOAWAY, a legitimate client may still cancel its 200 open streams, at two
                // each.
                resets: env.own_or(
                    "MESH_PROXY_HTTP2_MAX_RESETS",
                    parse::within(500..=1_000_000),
                    default.http2.resets,
                ),
                mistakes: env.own_or(
                    "MESH_PROXY_HTTP2_MAX_MISTAKES",
                    parse::within(100..=1_000_000),
                    default.http2.mistakes,
                ),
            },
            added_bytes: default.added_bytes,
        }
    }
}

/// Parses an idle timeout between a second and a year, which no clock overflows.
pub(super) fn idle_timeout(text: &str) -> Result<Duration, String> {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let idle = timeout(text)?;
    if idle > YEAR {
        return Err(format!("{text:?} is longer than a year"));
    }
    Ok(idle)
}

/// Parses a timeout, or 0 for unlimited.
fn timeout_or_zero(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(time) if time.is_zero() => Ok(time),
        _ => timeout(text),
    }
}

/// Parses a timeout of at least one second; with a shorter one clients could not be served.
fn timeout(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text) {
        Ok(time) if time >= Duration::from_secs(1) => Ok(time),
        Ok(_) => Err(format!("{text:?} is shorter than 1s")),
        Err(error) => Err(error.to_string()),
    }
}
