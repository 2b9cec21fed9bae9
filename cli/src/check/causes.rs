//! Groups of checks that explain the failures of others.

/// While one of these fails, no proxy gets a certificate that another accepts.
pub(super) const TRUST: &[&str] = &[
    "l5d-identity-cert-config-valid",
    "l5d-identity-trustAnchors-use-supported-crypto",
    "l5d-identity-trustAnchors-are-time-valid",
    "issuer-may-sign",
    "l5d-identity-issuer-cert-uses-supported-crypto",
    "l5d-identity-issuer-cert-is-time-valid",
    "l5d-identity-issuer-cert-issued-by-trust-anchor",
];

/// Why pods of the control plane do not run.
pub(super) const NOT_RUNNING: &[&str] = &[
    "pre-pod-security",
    "nodes-ready",
    "l5d-existence-sa",
    "control-plane-deployments",
    "l5d-existence-unschedulable-pods",
    "control-plane-containers",
];

/// Controllers that run and cannot do their work.
pub(super) const NOT_WORKING: &[&str] = &[
    "l5d-existence-crd",
    "controllers-permissions",
    "controllers-ready",
];

/// Why a node redirects no pod.
pub(super) const AGENTS: &[&str] = &["nodes-ready", "agent-ready", "agent-cni", "agent-waiting"];

/// The API server does not reach the injector, or does not believe it.
pub(super) const WEBHOOK: &[&str] = &[
    "l5d-existence-mwc",
    "l5d-proxy-injector-webhook-cert-valid",
    "webhook-presents",
    "control-plane-endpoints",
    "l5d-api-control-ready",
];
