//! Settings of discovery and policy.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use super::env::Env;
use super::{ControlAddr, parse};

/// Settings of the lookups in the destination and policy services.
#[derive(Clone, Debug)]
pub(crate) struct Discovery {
    pub(crate) destination: ControlAddr,
    pub(crate) policy: ControlAddr,
    /// Sent to the destination service with each lookup.
    pub(crate) context: Arc<str>,
    /// Sent to the policy service with each lookup.
    pub(crate) workload: Arc<str>,
    /// Addresses outside these networks have no profile.
    pub(crate) profile_networks: Vec<IpNet>,
    /// Names without one of these suffixes have no profile. The empty suffix matches all names.
    pub(crate) profile_suffixes: Vec<Arc<str>>,
    pub(crate) outbound_idle: Duration,
    pub(crate) inbound_idle: Duration,
    pub(crate) limits: StreamLimits,
}

/// Time limits of a control-plane response stream; `None` is unlimited. Each limit is at most the
/// next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamLimits {
    /// Until the first message.
    pub(crate) initial: Option<Duration>,
    /// Between messages.
    pub(crate) idle: Option<Duration>,
    /// For the whole stream.
    pub(crate) lifetime: Option<Duration>,
}

// Defaults as in Linkerd.
const DEFAULT_PROFILE_SUFFIX: &str = "svc.cluster.local";
const DEFAULT_OUTBOUND_IDLE: Duration = Duration::from_secs(5);
const DEFAULT_INBOUND_IDLE: Duration = Duration::from_secs(90);

/// The limit that Linkerd's injector sets. Without one, a proxy would use the endpoints of a dead
/// stream indefinitely.
const DEFAULT_STREAM_LIFETIME: Duration = Duration::from_secs(3600);

impl Discovery {
    pub(super) fn read(env: &Env<'_>) -> Option<Self> {
        let destination = ControlAddr::read(env, "DESTINATION_SVC_ADDR", "DESTINATION_SVC_NAME");
        let policy = ControlAddr::read(env, "POLICY_SVC_ADDR", "POLICY_SVC_NAME");
        let context = env.text("DESTINATION_CONTEXT").unwrap_or_default();
        let workload = env.required("POLICY_WORKLOAD", parse::text);
        let profile_networks = env.or("DESTINATION_PROFILE_NETWORKS", parse::networks, Vec::new());
        let profile_suffixes = env
            .optional("DESTINATION_PROFILE_SUFFIXES", parse::suffixes)
            .unwrap_or_else(|| vec![DEFAULT_PROFILE_SUFFIX.into()]);
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
            profile_suffixes,
            outbound_idle,
            inbound_idle,
            limits,
        })
    }
}

impl Discovery {
    /// Whether the destination service is asked for the profile of an address.
    pub(crate) fn has_profile_network(&self, ip: IpAddr) -> bool {
        self.profile_networks.iter().any(|net| net.contains(&ip))
    }

    /// Whether the destination service is asked for the profile of a host, in lower case.
    pub(crate) fn has_profile_suffix(&self, host: &str) -> bool {
        has_suffix(host, &self.profile_suffixes)
    }
}

/// Whether a host, in lower case, is in one of the domains. The empty domain has every host.
pub(super) fn has_suffix(host: &str, suffixes: &[Arc<str>]) -> bool {
    suffixes.iter().any(|suffix| {
        let before = host.strip_suffix(&**suffix);
        suffix.is_empty() || before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
    })
}

impl StreamLimits {
    /// No limits, for control-plane services in this pod, whose connections do not fail silently.
    pub(crate) const NONE: Self = Self {
        initial: None,
        idle: None,
        lifetime: None,
    };

    pub(super) fn read(env: &Env<'_>) -> Self {
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
