//! Settings of the process: threads, memory, the admin interface, the tap service and the access
//! log.

use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::identity::Identity;

use super::env::Env;
use super::parse;

/// Settings of the admin interface and its metrics.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) listen: SocketAddr,
    /// Whether `POST /shutdown` is enabled.
    pub(crate) shutdown_endpoint: bool,
    pub(crate) metrics_retain_idle: Duration,
    /// Whether the times to the ends of responses are observed, besides the latencies.
    pub(crate) response_durations: bool,
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessLogFormat {
    /// Client, identity, time, request line and status, as in the Common Log Format.
    Apache,
    /// An object with the fields of Linkerd's proxy.
    Json,
}

/// Settings of the tap service.
#[derive(Clone, Debug)]
pub(crate) struct Tap {
    pub(crate) listen: SocketAddr,
    /// The identity that may observe requests. `None` disables the service.
    pub(crate) observer: Option<Identity>,
}

/// Settings of the number of data threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Workers {
    pub(crate) min: usize,
    pub(crate) max: Option<usize>,
    pub(crate) max_ratio: Option<f64>,
}

/// New connections are closed at this memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    /// The container's limit, if it has one.
    Container,
    /// A limit for the process.
    Bytes(u64),
    None,
}

// Defaults as in Linkerd.
const DEFAULT_ADMIN: &str = "127.0.0.1:4191";
const DEFAULT_TAP: &str = "0.0.0.0:4190";
const DEFAULT_RETAIN_IDLE: Duration = Duration::from_secs(600);

impl Admin {
    pub(super) fn read(env: &Env<'_>) -> Self {
        Self {
            listen: env.or(
                "ADMIN_LISTEN_ADDR",
                parse::socket_addr,
                parse::constant_addr(DEFAULT_ADMIN),
            ),
            shutdown_endpoint: env.or("SHUTDOWN_ENDPOINT_ENABLED", parse::boolean, false),
            metrics_retain_idle: env.or(
                "METRICS_RETAIN_IDLE",
                parse::duration,
                DEFAULT_RETAIN_IDLE,
            ),
            response_durations: env.own_or("MESH_PROXY_RESPONSE_DURATIONS", parse::boolean, false),
        }
    }
}

impl AccessLogFormat {
    /// Returns `None` if there is no access log.
    pub(super) fn read(env: &Env<'_>) -> Option<Self> {
        let parse = |text: &str| match text {
            "" => Ok(None),
            "apache" => Ok(Some(Self::Apache)),
            "json" => Ok(Some(Self::Json)),
            _ => Err(format!("{text:?} is neither \"apache\" nor \"json\"")),
        };
        env.or("ACCESS_LOG", parse, None)
    }
}

impl Tap {
    pub(super) fn read(env: &Env<'_>) -> Self {
        Self {
            listen: env.or(
                "CONTROL_LISTEN_ADDR",
                parse::socket_addr,
                parse::constant_addr(DEFAULT_TAP),
            ),
            observer: env.optional("TAP_SVC_NAME", parse::identity),
        }
    }
}

/// The proxy itself needs more than this.
const MIN_MEMORY: u64 = 8 << 20;

impl MemoryLimit {
    pub(super) fn read(env: &Env<'_>) -> Self {
        env.own_or("MESH_PROXY_MAX_MEMORY", Self::parse, Self::Container)
    }

    fn parse(text: &str) -> Result<Self, String> {
        match parse::number(text)? {
            0 => Ok(Self::None),
            bytes if bytes >= MIN_MEMORY => Ok(Self::Bytes(bytes)),
            _ => Err(format!(
                "{text:?} is neither 0 nor a number of bytes of at least {MIN_MEMORY}"
            )),
        }
    }
}

impl Workers {
    /// Reads the settings. Invalid values are only logged, because an injector computes them from
    /// resource limits.
    pub(super) fn read(env: &Env<'_>) -> Self {
        let positive = |text: &str| match parse::number::<usize>(text) {
            Ok(0) => Err("must be at least 1".to_owned()),
            other => other,
        };
        Self {
            min: env
                .lenient("CORES_MIN", positive)
                .or_else(|| env.lenient("CORES", positive))
                .unwrap_or(1),
            max: env.lenient("CORES_MAX", positive),
            max_ratio: env.lenient("CORES_MAX_RATIO", parse::ratio),
        }
    }

    /// Returns the number of data threads for `available` processors.
    pub(crate) fn count(&self, available: usize) -> usize {
        let share = |ratio: f64| (available as f64 * ratio).round() as usize;
        let base = self.max.or_else(|| self.max_ratio.map(share)).unwrap_or(1);
        base.max(self.min).min(available).max(1)
    }
}
