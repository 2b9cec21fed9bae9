//! The configuration of a proxy: Linkerd's environment, read once at start and turned into typed settings.
//!
//! Nothing else in the proxy looks at the environment. Every variable is parsed before the verdict, so that one failed
//! start names all bad variables. Names that are not listed here are ignored: an injector may set what only another
//! version of the proxy understands. docs/reference/proxy-environment.md lists them for users.

mod env;
mod inbound;
mod outbound;
mod parse;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use mesh_core::identity::Identity;
use mesh_core::resilience::Backoff;

use self::env::Env;
pub use self::env::{Errors, VariableError};
pub use self::inbound::Inbound;
pub use self::outbound::Outbound;
pub use self::server::{Http1Pool, Http2KeepAlive, Http2Server, Queue, SocketOptions};
use crate::tls::TrustAnchors;

/// Everything the environment says.
#[derive(Clone, Debug)]
pub struct Config {
    pub outbound: Outbound,
    pub inbound: Inbound,
    pub admin: Admin,
    pub control: Control,
    pub identity: IdentityConfig,
    pub discovery: Discovery,
    pub workers: Workers,
    /// How long connections may take to finish after SIGTERM.
    pub shutdown_grace: Duration,
}

/// The admin interface and the metrics it serves.
#[derive(Clone, Debug)]
pub struct Admin {
    pub listen: SocketAddr,
    /// Whether `POST /shutdown` works.
    pub shutdown_endpoint: bool,
    pub metrics_retain_idle: Duration,
}

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

/// Who this proxy is and how it proves it.
#[derive(Clone, Debug)]
pub struct IdentityConfig {
    pub id: Identity,
    /// The SNI that peers ask for.
    pub server_name: Arc<str>,
    pub trust_anchors: TrustAnchors,
    /// Replaces the anchors above while the proxy runs, whenever its content changes.
    pub trust_anchors_file: Option<PathBuf>,
    pub service: ControlAddr,
    /// Read anew for every certificate: the kubelet rotates it.
    pub token_file: PathBuf,
    pub min_refresh: Duration,
    pub max_refresh: Duration,
}

/// What is asked of the destination and policy services.
#[derive(Clone, Debug)]
pub struct Discovery {
    pub destination: ControlAddr,
    pub policy: ControlAddr,
    /// Handed to the destination service with each look-up.
    pub context: Arc<str>,
    /// Handed to the policy service with each look-up.
    pub workload: Arc<str>,
    /// Addresses outside these networks have no profile.
    pub profile_networks: Vec<IpNet>,
    pub outbound_idle: Duration,
    pub inbound_idle: Duration,
    pub limits: StreamLimits,
}

/// Bounds of a control-plane response stream; `None` is no bound. Each is at most the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// Until the first message.
    pub initial: Option<Duration>,
    /// Between messages.
    pub idle: Option<Duration>,
    /// Of the whole stream.
    pub lifetime: Option<Duration>,
}

/// How many data threads to run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workers {
    pub min: usize,
    pub max: Option<usize>,
    pub max_ratio: Option<f64>,
}

impl Config {
    /// Reads the whole environment through `get`.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, Errors> {
        let env = Env::new(&get);
        let config = Self::read(&env);
        env.finish(config)
    }

    /// `None` only when a required variable is missing or bad, which `env` has noted.
    fn read(env: &Env<'_>) -> Option<Self> {
        // Read in full before the first `?`, so that all errors are found.
        let outbound = Outbound::read(env);
        let inbound = Inbound::read(env);
        let admin = Admin::read(env);
        let control = Control::read(env, &outbound, &inbound);
        let identity = IdentityConfig::read(env);
        let discovery = Discovery::read(env);
        let workers = Workers::read(env);
        let shutdown_grace = env.or("SHUTDOWN_GRACE_PERIOD", parse::duration, DEFAULT_GRACE);
        Some(Self {
            outbound,
            inbound,
            admin,
            control,
            identity: identity?,
            discovery: discovery?,
            workers,
            shutdown_grace,
        })
    }
}

// Linkerd's defaults, where the environment says nothing.
const DEFAULT_GRACE: Duration = Duration::from_secs(120);
const DEFAULT_ADMIN: &str = "127.0.0.1:4191";
const DEFAULT_RETAIN_IDLE: Duration = Duration::from_secs(600);
const DEFAULT_MIN_REFRESH: Duration = Duration::from_secs(10);
const DEFAULT_MAX_REFRESH: Duration = Duration::from_secs(24 * 3600);
const DEFAULT_OUTBOUND_IDLE: Duration = Duration::from_secs(5);
const DEFAULT_INBOUND_IDLE: Duration = Duration::from_secs(90);

/// Linkerd's proxy has no bound unless its injector sets one, and then keeps serving an endpoint set from a stream that
/// died silently. One hour is what the injector sets.
const DEFAULT_STREAM_LIFETIME: Duration = Duration::from_secs(3600);

impl Admin {
    fn read(env: &Env<'_>) -> Self {
        Self {
            listen: env.or(
                "ADMIN_LISTEN_ADDR",
                parse::socket_addr,
                parse::known(DEFAULT_ADMIN),
            ),
            shutdown_endpoint: env.or("SHUTDOWN_ENDPOINT_ENABLED", parse::boolean, false),
            metrics_retain_idle: env.or(
                "METRICS_RETAIN_IDLE",
                parse::duration,
                DEFAULT_RETAIN_IDLE,
            ),
        }
    }
}

impl Control {
    /// Connections are made like outbound ones. What failed is asked for again at the inbound side's pace: its longest
    /// pause is short enough to notice quickly that the control plane is back.
    fn read(env: &Env<'_>, outbound: &Outbound, inbound: &Inbound) -> Self {
        Self {
            connect_timeout: outbound.connect_timeout,
            connect: outbound.connect,
            backoff: inbound.connect_backoff,
            dns_min_ttl: env.optional("DNS_MIN_TTL", parse::duration),
            dns_max_ttl: env.optional("DNS_MAX_TTL", parse::duration),
        }
    }
}

impl ControlAddr {
    /// Reads `<service>_SVC_ADDR` and `<service>_SVC_NAME`.
    fn read(env: &Env<'_>, service: &str) -> Option<Self> {
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

impl IdentityConfig {
    fn read(env: &Env<'_>) -> Option<Self> {
        if env
            .text("IDENTITY_DISABLED")
            .is_some_and(|value| !value.is_empty())
        {
            env.fail(
                "IDENTITY_DISABLED",
                "is no longer supported: a proxy always has an identity",
            );
        }
        for spire in [
            "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS",
            "IDENTITY_SPIRE_SOCKET",
        ] {
            if env.is_set(spire) {
                env.fail(spire, "is set, but identities from SPIRE are not supported");
            }
        }
        let trust_anchors = env.required("IDENTITY_TRUST_ANCHORS", TrustAnchors::from_pem);
        let service = ControlAddr::read(env, "IDENTITY");
        let token_file = env.required("IDENTITY_TOKEN_FILE", parse::path);
        let (id, server_name) = local_names(env)?;
        let (min_refresh, max_refresh) = refresh_bounds(env);
        Some(Self {
            id,
            server_name,
            trust_anchors: trust_anchors?,
            trust_anchors_file: env.get("MESH_PROXY_TRUST_ANCHORS_FILE").map(PathBuf::from),
            service: service?,
            token_file: token_file?,
            min_refresh,
            max_refresh,
        })
    }
}

/// The identity and the server name: one variable for both, or one each.
fn local_names(env: &Env<'_>) -> Option<(Identity, Arc<str>)> {
    let id_name = if env.is_set("IDENTITY_SERVER_ID") {
        "IDENTITY_SERVER_ID"
    } else {
        "IDENTITY_LOCAL_NAME"
    };
    let id = env.required(id_name, parse::identity);
    let server_name = env.optional("IDENTITY_SERVER_NAME", parse::identity);
    let id = id?;
    if let Identity::Uri(_) = &id {
        env.fail(
            id_name,
            "must be a DNS name: certificates for SPIFFE identities come from SPIRE only",
        );
        return None;
    }
    if server_name.is_some_and(|name| name != id) {
        env.fail(
            "IDENTITY_SERVER_NAME",
            format!("must be the same name as {id_name}"),
        );
        return None;
    }
    let server_name = id.as_str().into();
    Some((id, server_name))
}

fn refresh_bounds(env: &Env<'_>) -> (Duration, Duration) {
    let min = env.or("IDENTITY_MIN_REFRESH", parse::duration, DEFAULT_MIN_REFRESH);
    let max = env.or("IDENTITY_MAX_REFRESH", parse::duration, DEFAULT_MAX_REFRESH);
    if min > max {
        env.fail(
            "IDENTITY_MIN_REFRESH",
            "must not be longer than IDENTITY_MAX_REFRESH",
        );
    }
    (min, max)
}

impl Discovery {
    fn read(env: &Env<'_>) -> Option<Self> {
        let destination = ControlAddr::read(env, "DESTINATION");
        let policy = ControlAddr::read(env, "POLICY");
        let context = env.text("DESTINATION_CONTEXT").unwrap_or_default();
        let workload = env.required("POLICY_WORKLOAD", parse::text);
        let profile_networks = env.or("DESTINATION_PROFILE_NETWORKS", parse::networks, Vec::new());
        let outbound_idle = env.or(
            "OUTBOUND_DISCOVERY_IDLE_TIMEOUT",
            parse::duration,
            DEFAULT_OUTBOUND_IDLE,
        );
        let inbound_idle = env.or(
            "INBOUND_DISCOVERY_IDLE_TIMEOUT",
            parse::duration,
            DEFAULT_INBOUND_IDLE,
        );
        let limits = StreamLimits::read(env);
        Some(Self {
            destination: destination?,
            policy: policy?,
            context: context.into(),
            workload: workload?.into(),
            profile_networks,
            outbound_idle,
            inbound_idle,
            limits,
        })
    }
}

impl StreamLimits {
    /// For control-plane services in this pod, whose streams cannot die without being noticed.
    pub const NONE: Self = Self {
        initial: None,
        idle: None,
        lifetime: None,
    };

    fn read(env: &Env<'_>) -> Self {
        let initial = env.optional("CONTROL_STREAM_INITIAL_TIMEOUT", parse::duration);
        let idle = env.optional("CONTROL_STREAM_IDLE_TIMEOUT", parse::duration);
        let lifetime = env
            .optional("CONTROL_STREAM_LIFETIME", parse::duration)
            .unwrap_or(DEFAULT_STREAM_LIFETIME);
        if initial
            .zip(idle)
            .is_some_and(|(initial, idle)| initial > idle)
        {
            env.fail(
                "CONTROL_STREAM_INITIAL_TIMEOUT",
                "must not be longer than CONTROL_STREAM_IDLE_TIMEOUT",
            );
        }
        if idle.or(initial).is_some_and(|shorter| shorter > lifetime) {
            env.fail(
                "CONTROL_STREAM_LIFETIME",
                "must not be shorter than CONTROL_STREAM_IDLE_TIMEOUT and CONTROL_STREAM_INITIAL_TIMEOUT",
            );
        }
        Self {
            initial,
            idle,
            lifetime: Some(lifetime),
        }
    }
}

impl Workers {
    /// The one family whose bad values are only warned of: an injector computes them from resource limits.
    fn read(env: &Env<'_>) -> Self {
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

    /// The number of data threads when `available` processors may be used.
    pub fn count(&self, available: usize) -> usize {
        let share = |ratio: f64| (available as f64 * ratio).round() as usize;
        let base = self.max.or_else(|| self.max_ratio.map(share)).unwrap_or(1);
        base.max(self.min).min(available).max(1)
    }
}

#[cfg(test)]
pub(crate) mod tests;
