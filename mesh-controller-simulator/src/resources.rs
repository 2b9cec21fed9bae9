//! The resources that the API server of a world serves.

/// A resource, by its place in [`ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource(usize);

/// What an API server knows about a resource.
#[derive(Debug)]
pub struct Api {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
}

const fn api(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> Api {
    Api {
        group,
        version,
        plural,
        kind,
    }
}

#[rustfmt::skip] // a table, one row a line
const ALL: [Api; 26] = [
    api("", "v1", "pods", "Pod"),
    api("", "v1", "nodes", "Node"),
    api("", "v1", "services", "Service"),
    api("", "v1", "namespaces", "Namespace"),
    api("", "v1", "secrets", "Secret"),
    api("apps", "v1", "replicasets", "ReplicaSet"),
    api("apps", "v1", "deployments", "Deployment"),
    api("batch", "v1", "jobs", "Job"),
    api("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice"),
    api("coordination.k8s.io", "v1", "leases", "Lease"),
    api("events.k8s.io", "v1", "events", "Event"),
    api("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"),
    api("policy.linkerd.io", "v1beta3", "servers", "Server"),
    api("policy.linkerd.io", "v1beta1", "serverauthorizations", "ServerAuthorization"),
    api("policy.linkerd.io", "v1alpha1", "authorizationpolicies", "AuthorizationPolicy"),
    api("policy.linkerd.io", "v1alpha1", "meshtlsauthentications", "MeshTLSAuthentication"),
    api("policy.linkerd.io", "v1alpha1", "networkauthentications", "NetworkAuthentication"),
    api("policy.linkerd.io", "v1alpha1", "httplocalratelimitpolicies", "HTTPLocalRateLimitPolicy"),
    api("policy.linkerd.io", "v1beta3", "httproutes", "HTTPRoute"),
    api("policy.linkerd.io", "v1alpha1", "egressnetworks", "EgressNetwork"),
    api("linkerd.io", "v1alpha2", "serviceprofiles", "ServiceProfile"),
    api("workload.linkerd.io", "v1beta1", "externalworkloads", "ExternalWorkload"),
    api("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute"),
    api("gateway.networking.k8s.io", "v1", "grpcroutes", "GRPCRoute"),
    api("gateway.networking.k8s.io", "v1alpha2", "tlsroutes", "TLSRoute"),
    api("gateway.networking.k8s.io", "v1alpha2", "tcproutes", "TCPRoute"),
];

impl Resource {
    pub fn all() -> impl Iterator<Item = Self> {
        (0..ALL.len()).map(Self)
    }

    /// Returns the resource of a group with this plural.
    pub fn find(group: &str, plural: &str) -> Option<Self> {
        Self::all().find(|it| it.api().group == group && it.api().plural == plural)
    }

    /// Returns the resource of an object's `apiVersion` and `kind`.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        Self::all().find(|it| it.api_version() == api_version && it.api().kind == kind)
    }

    pub fn api(self) -> &'static Api {
        &ALL[self.0]
    }

    pub fn api_version(self) -> String {
        let Api { group, version, .. } = self.api();
        match *group {
            "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// Whether its objects are CustomResourceDefinitions.
    pub fn defines(self) -> bool {
        self.api().kind == "CustomResourceDefinition"
    }

    /// Whether a CustomResourceDefinition defines it.
    pub fn is_custom(self) -> bool {
        let group = self.api().group;
        group.ends_with("linkerd.io") || group.starts_with("gateway.")
    }
}
