//! The kinds of objects that the rules take into account.

/// Group, the versions that the mesh reads, the preferred one first, and kind.
pub(crate) type Kind = (&'static str, &'static [&'static str], &'static str);

/// Policies, routes, ServiceProfiles and ExternalWorkloads.
pub(crate) const POLICIES: [Kind; 14] = [
    (
        "policy.linkerd.io",
        &["v1beta3", "v1beta2", "v1beta1"],
        "Server",
    ),
    ("policy.linkerd.io", &["v1beta1"], "ServerAuthorization"),
    ("policy.linkerd.io", &["v1alpha1"], "AuthorizationPolicy"),
    ("policy.linkerd.io", &["v1alpha1"], "MeshTLSAuthentication"),
    ("policy.linkerd.io", &["v1alpha1"], "NetworkAuthentication"),
    (
        "policy.linkerd.io",
        &["v1alpha1"],
        "HTTPLocalRateLimitPolicy",
    ),
    ("policy.linkerd.io", &["v1alpha1"], "EgressNetwork"),
    ("linkerd.io", &["v1alpha2", "v1alpha1"], "ServiceProfile"),
    EXTERNAL_WORKLOAD,
    (
        "policy.linkerd.io",
        &["v1beta3", "v1beta2", "v1beta1"],
        "HTTPRoute",
    ),
    ("gateway.networking.k8s.io", &["v1", "v1beta1"], "HTTPRoute"),
    (
        "gateway.networking.k8s.io",
        &["v1", "v1alpha2"],
        "GRPCRoute",
    ),
    (
        "gateway.networking.k8s.io",
        &["v1", "v1alpha3", "v1alpha2"],
        "TLSRoute",
    ),
    ("gateway.networking.k8s.io", &["v1", "v1alpha2"], "TCPRoute"),
];

/// Machines with a proxy.
pub(crate) const EXTERNAL_WORKLOAD: Kind = (
    "workload.linkerd.io",
    &["v1beta1", "v1alpha1"],
    "ExternalWorkload",
);

/// Objects that policies refer to.
pub(crate) const REFERENTS: [Kind; 3] = [
    ("", &["v1"], "Namespace"),
    ("", &["v1"], "Pod"),
    ("", &["v1"], "Service"),
];

/// Workloads and their accounts.
pub(crate) const WORKLOADS: [Kind; 7] = [
    ("", &["v1"], "ServiceAccount"),
    ("apps", &["v1"], "Deployment"),
    ("apps", &["v1"], "StatefulSet"),
    ("apps", &["v1"], "DaemonSet"),
    ("apps", &["v1"], "ReplicaSet"),
    ("batch", &["v1"], "Job"),
    ("batch", &["v1"], "CronJob"),
];
