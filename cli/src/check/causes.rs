//! Groups of checks whose failures explain the failures of other checks.

/// If one of these fails, no proxy gets a certificate that its peers accept.
pub(super) const TRUST: &[&str] = &[
    "l5d-identity-cert-config-valid",
    "l5d-identity-trustAnchors-use-supported-crypto",
    "l5d-identity-trustAnchors-are-time-valid",
    "issuer-may-sign",
    "l5d-identity-issuer-cert-uses-supported-crypto",
    "l5d-identity-issuer-cert-is-time-valid",
    "l5d-identity-issuer-cert-issued-by-trust-anchor",
];

/// If one of these fails, pods of the control plane do not run.
pub(super) const NOT_RUNNING: &[&str] = &[
    "pre-pod-security",
    "nodes-ready",
    "l5d-existence-sa",
    "control-plane-deployments",
    "l5d-existence-unschedulable-pods",
    "control-plane-containers",
];

/// If one of these fails, controllers run without doing their work.
pub(super) const NOT_WORKING: &[&str] = &[
    "l5d-existence-crd",
    "controllers-permissions",
    "controllers-ready",
];

/// If one of these fails, a node redirects no pods.
pub(super) const AGENTS: &[&str] = &["nodes-ready", "agent-ready", "agent-cni", "agent-waiting"];

/// If one of these fails, the API server does not reach or not trust the injector.
pub(super) const WEBHOOK: &[&str] = &[
    "l5d-existence-mwc",
    "l5d-proxy-injector-webhook-cert-valid",
    "webhook-presents",
    "control-plane-endpoints",
    "l5d-api-control-ready",
];
