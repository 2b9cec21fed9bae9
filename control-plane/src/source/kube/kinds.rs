//! What each controller follows in the cluster, and how the API names it.

use kube::core::{ApiResource, GroupVersionKind};
use mesh_core::annotation::CONTROL_PLANE_NS;

use crate::model::Kind;

/// One kind as a controller wants it.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) kind: Kind,
    /// Only objects with this label.
    label: Option<&'static str>,
}

/// How the API names a kind.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) plural: &'static str,
    /// The versions we can read, the one we like best first.
    pub(super) versions: &'static [&'static str],
    /// Kubernetes itself serves it, always and in this version.
    pub(super) built_in: bool,
    /// Nothing but its metadata matters to us.
    pub(super) metadata_only: bool,
    /// Objects that are left out.
    pub(super) fields: Option<&'static str>,
}

/// Endpoints need every pod: those that are not meshed have names, owners and zones too.
pub(crate) const DESTINATION: &[Watched] = &[
    all(Kind::Pod),
    all(Kind::Node),
    all(Kind::ReplicaSet),
    all(Kind::Job),
    all(Kind::Service),
    all(Kind::EndpointSlice),
    all(Kind::Server),
];

/// Nobody asks for the policy of a pod without proxy.
pub(crate) const POLICY: &[Watched] = &[
    Watched {
        kind: Kind::Pod,
        label: Some(CONTROL_PLANE_NS),
    },
    all(Kind::Service),
    all(Kind::Server),
    all(Kind::AuthorizationPolicy),
    all(Kind::MeshTlsAuthentication),
    all(Kind::NetworkAuthentication),
    all(Kind::PolicyHttpRoute),
    all(Kind::GatewayHttpRoute),
    all(Kind::GatewayGrpcRoute),
];

/// Pods of Jobs stay for long after they ended; their addresses are others' by then.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

const fn all(kind: Kind) -> Watched {
    Watched { kind, label: None }
}

impl Watched {
    pub(super) fn api(&self) -> Api {
        let built_in = |plural, version| Api {
            plural,
            versions: version,
            built_in: true,
            metadata_only: false,
            fields: None,
        };
        let metadata = |plural| Api {
            metadata_only: true,
            ..built_in(plural, &["v1"])
        };
        let custom = |plural, versions| Api {
            built_in: false,
            ..built_in(plural, versions)
        };
        match self.kind {
            Kind::Pod => Api {
                fields: Some(NOT_ENDED),
                ..built_in("pods", &["v1"])
            },
            Kind::Node => metadata("nodes"),
            Kind::ReplicaSet => metadata("replicasets"),
            Kind::Job => metadata("jobs"),
            Kind::Service => built_in("services", &["v1"]),
            Kind::EndpointSlice => built_in("endpointslices", &["v1"]),
            Kind::Server => custom("servers", &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"]),
            Kind::AuthorizationPolicy => custom("authorizationpolicies", &["v1alpha1"]),
            Kind::MeshTlsAuthentication => custom("meshtlsauthentications", &["v1alpha1"]),
            Kind::NetworkAuthentication => custom("networkauthentications", &["v1alpha1"]),
            Kind::PolicyHttpRoute => {
                custom("httproutes", &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"])
            }
            Kind::GatewayHttpRoute => custom("httproutes", &["v1", "v1beta1"]),
            Kind::GatewayGrpcRoute => custom("grpcroutes", &["v1", "v1alpha2"]),
        }
    }

    pub(super) fn config(&self) -> kube::runtime::watcher::Config {
        let mut config = kube::runtime::watcher::Config::default().timeout(WATCH_SECONDS);
        if let Some(label) = self.label {
            config = config.labels(label);
        }
        if let Some(fields) = self.api().fields {
            config = config.fields(fields);
        }
        config
    }
}

/// A watch is asked for anew this often, so that a connection that died without a word (a load
/// balancer forgot it, the server's machine is gone) is noticed soon: no more than a dozen small
/// requests a minute.
const WATCH_SECONDS: u32 = 60;

impl Api {
    pub(super) fn resource(&self, kind: Kind, version: &str) -> ApiResource {
        let named = GroupVersionKind::gvk(kind.group(), version, kind.as_str());
        ApiResource::from_gvk_with_plural(&named, self.plural)
    }

    /// As `kubectl api-resources` writes it.
    pub(super) fn name(&self, kind: Kind) -> String {
        match kind.group() {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::Resource;
    use mesh_k8s::{crd, kinds};

    use super::*;

    /// The first version is the one our own types are written in, and the plurals are those of the
    /// types.
    #[test]
    fn names_agree_with_the_types() {
        fn named<K: Resource<DynamicType = ()>>() -> (String, String, String) {
            let text = |text: std::borrow::Cow<'_, str>| text.into_owned();
            (
                text(K::group(&())),
                text(K::version(&())),
                text(K::plural(&())),
            )
        }
        for watched in DESTINATION.iter().chain(POLICY) {
            let expect = match watched.kind {
                Kind::Pod => named::<kinds::Pod>(),
                Kind::Node => named::<kinds::Node>(),
                Kind::ReplicaSet => named::<kinds::ReplicaSet>(),
                Kind::Job => named::<kinds::Job>(),
                Kind::Service => named::<kinds::Service>(),
                Kind::EndpointSlice => named::<kinds::EndpointSlice>(),
                Kind::Server => named::<crd::Server>(),
                Kind::AuthorizationPolicy => named::<crd::AuthorizationPolicy>(),
                Kind::MeshTlsAuthentication => named::<crd::MeshTLSAuthentication>(),
                Kind::NetworkAuthentication => named::<crd::NetworkAuthentication>(),
                Kind::PolicyHttpRoute => named::<crd::PolicyHttpRoute>(),
                Kind::GatewayHttpRoute => named::<kinds::HttpRoute>(),
                Kind::GatewayGrpcRoute => named::<kinds::GrpcRoute>(),
            };
            let api = watched.api();
            let resource = api.resource(watched.kind, api.versions[0]);
            assert_eq!((resource.group, resource.version, resource.plural), expect);
        }
    }
}
