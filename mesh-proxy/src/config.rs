//! The configuration of a proxy: Linkerd's environment variables, parsed once at start into typed
//! settings.
//!
//! Nothing else in the proxy reads the environment. All variables are parsed before an error is
//! returned, so that one failed start reports all invalid variables. Unknown variables are ignored,
//! because an injector may set variables of another proxy version.
//! docs/reference/proxy-environment.md documents the variables.

mod control;
mod discovery;
mod env;
mod identity;
mod inbound;
pub(crate) mod limits;
mod outbound;
mod parse;
mod process;
mod server;
mod trace;

use std::time::Duration;

pub(crate) use self::control::{Control, ControlAddr};
pub(crate) use self::discovery::{Discovery, StreamLimits};
use self::env::{Env, Errors};
pub(crate) use self::identity::{
    IdentityConfig, IdentityService, IdentitySource, WorkloadApiConfig,
};
pub(crate) use self::inbound::Inbound;
pub(crate) use self::limits::{Http1Limits, HttpLimits};
pub(crate) use self::outbound::Outbound;
pub(crate) use self::process::{AccessLogFormat, Admin, MemoryLimit, Tap, Workers};
pub(crate) use self::server::{ClientTrust, Http1Pool, Http2KeepAlive, Http2Server};
pub(crate) use self::server::{DEFAULT_STREAM_WINDOW, FRAME_SIZES};
pub(crate) use self::trace::TraceConfig;
pub(crate) use crate::transport::SocketOptions;

/// All settings of a proxy.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    /// Limits of clients and servers in both directions.
    pub(crate) http: HttpLimits,
    pub(crate) memory: MemoryLimit,
    pub(crate) admin: Admin,
    pub(crate) tap: Tap,
    /// `None`: no access log.
    pub(crate) access_log: Option<AccessLogFormat>,
    /// `None`: no distributed tracing.
    pub(crate) trace: Option<TraceConfig>,
    pub(crate) control: Control,
    pub(crate) identity: IdentityConfig,
    pub(crate) discovery: Discovery,
    pub(crate) workers: Workers,
    /// How long connections may take to finish after SIGTERM.
    pub(crate) shutdown_grace: Duration,
    /// How long a half-closed opaque connection or tunnel may carry no byte.
    pub(crate) half_closed_idle: Duration,
}

impl Config {
    /// Reads the whole environment through `get`.
    pub fn from_env(get: impl Fn(&str) -> Option<String>) -> Result<Self, Errors> {
        let env = Env::new(&get);
        let config = Self::read(&env);
        env.finish(config)
    }

    /// Whether a control-plane service runs in this pod. The proxy does not wait for such a
    /// service, which may need a ready proxy before it can respond.
    pub(crate) fn is_control_plane_pod(&self) -> bool {
        [&self.discovery.destination, &self.discovery.policy]
            .into_iter()
            .chain(self.identity.source.service())
            .any(ControlAddr::is_local)
    }

    /// Returns `None` only if a required variable is missing or invalid, which `env` has recorded.
    fn read(env: &Env<'_>) -> Option<Self> {
        // Read in full before the first `?`, so that all errors are found.
        let http = HttpLimits::read(env);
        let outbound = Outbound::read(env, &http);
        let inbound = Inbound::read(env, &http);
        let memory = MemoryLimit::read(env);
        let admin = Admin::read(env);
        let tap = Tap::read(env);
        let access_log = AccessLogFormat::read(env);
        let trace = TraceConfig::read(env);
        let control = Control::read(env, &outbound, &inbound);
        let identity = IdentityConfig::read(env);
        let discovery = Discovery::read(env);
        let workers = Workers::read(env);
        let shutdown_grace = env.or("SHUTDOWN_GRACE_PERIOD", parse::duration, DEFAULT_GRACE);
        let half_closed_idle = env.own_or(
            "MESH_PROXY_HALF_CLOSED_IDLE_TIMEOUT",
            limits::idle_timeout,
            DEFAULT_HALF_CLOSED_IDLE,
        );
        Some(Self {
            outbound,
            inbound,
            http,
            memory,
            admin,
            tap,
            access_log,
            trace,
            control,
            identity: identity?,
            discovery: discovery?,
            workers,
            shutdown_grace,
            half_closed_idle,
        })
    }
}

/// As in Linkerd.
const DEFAULT_GRACE: Duration = Duration::from_secs(120);

/// As `MESH_PROXY_HTTP_IDLE_TIMEOUT`: longer than any application is silent that still has an
/// answer to give. Envoy closes idle connections of any kind after an hour, and conntrack forgets
/// half-closed ones after a minute.
pub(crate) const DEFAULT_HALF_CLOSED_IDLE: Duration = Duration::from_secs(3600);

#[cfg(test)]
pub(crate) mod tests;
