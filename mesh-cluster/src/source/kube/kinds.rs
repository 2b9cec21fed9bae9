//! The kinds that each controller watches, and their APIs.

use kube::core::{ApiResource, GroupVersionKind};
use mesh_core::annotation::CONTROL_PLANE_NS;
use mesh_core::rights::{self, Right};
use mesh_objects::model::{ExternalKind, Kind, ListedKind, ReportedKind};

use crate::api_server::WATCH_SECONDS;

/// A kind that a controller watches.
#[derive(Debug)]
pub struct WatchedKind {
    pub kind: Kind,
    /// The kind of a second record of each object, for a controller that writes objects.
    pub(super) second: Option<Kind>,
    /// Watch only objects with this label.
    label: Option<&'static str>,
    /// Whether the first batch waits until the API server serves the kind. Without the objects that
    /// restrict access, an incomplete index would allow what they deny.
    pub(super) required: bool,
    /// Whether whole objects are read, although their metadata suffices for other watches.
    whole: bool,
}

/// The API of a kind.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) plural: &'static str,
    /// The supported versions, the preferred one first.
    pub(super) versions: &'static [&'static str],
    /// Whether Kubernetes always serves it in this version.
    pub(super) built_in: bool,
    /// Whether only its metadata is used.
    pub(super) metadata_only: bool,
    /// A field selector.
    pub(super) fields: Option<&'static str>,
}

/// The kinds for endpoints and profiles. All pods are watched, because unmeshed ones are endpoints
/// with labels too.
pub const DESTINATION: &[WatchedKind] = &[
    all(Kind::Pod),
    all(Kind::Node),
    all(Kind::ReplicaSet),
    all(Kind::Job),
    external(ExternalKind::Service),
    external(ExternalKind::Slice),
    external(ExternalKind::Workload),
    all(Kind::Server),
    all(Kind::ServiceProfile),
];

/// The kinds for endpoints of other clusters. The accounts that Linkerd makes for links may read
/// these.
pub const REMOTE: &[WatchedKind] = &[
    all(Kind::Pod),
    all(Kind::ReplicaSet),
    all(Kind::Job),
    all(Kind::Service),
    all(Kind::EndpointSlice),
    all(Kind::Server),
];

/// The kinds for policies. Only meshed pods are watched, because others have no policy. The kinds
/// that restrict access are required: without them every port would have the default policy.
pub const POLICY: &[WatchedKind] = POLICY_AND_NODES.split_at(1).1;

/// The same with whole nodes, whose specification has addresses, and which are only watched where
/// these admit probes.
pub const POLICY_AND_NODES: &[WatchedKind] = &[
    WatchedKind {
        whole: true,
        ..all(Kind::Node)
    },
    WatchedKind {
        label: Some(CONTROL_PLANE_NS),
        ..all(Kind::Pod)
    },
    all(Kind::Service),
    all(Kind::ExternalWorkload),
    required(Kind::Server),
    required(Kind::ServerAuthorization),
    required(Kind::AuthorizationPolicy),
    required(Kind::MeshTlsAuthentication),
    required(Kind::NetworkAuthentication),
    reported(ReportedKind::RateLimitPolicy, Kind::RateLimitPolicy),
    reported(ReportedKind::PolicyHttpRoute, Kind::PolicyHttpRoute),
    reported(ReportedKind::GatewayHttpRoute, Kind::GatewayHttpRoute),
    reported(ReportedKind::GatewayGrpcRoute, Kind::GatewayGrpcRoute),
    reported(ReportedKind::GatewayTlsRoute, Kind::GatewayTlsRoute),
    reported(ReportedKind::GatewayTcpRoute, Kind::GatewayTcpRoute),
    reported(ReportedKind::EgressNetwork, Kind::EgressNetwork),
];

/// The kinds of the metrics API.
pub const METRICS_API: &[WatchedKind] = &[
    all(Kind::Listed(ListedKind::Namespace)),
    all(Kind::Listed(ListedKind::Pod)),
    all(Kind::Listed(ListedKind::Service)),
    all(Kind::Listed(ListedKind::ReplicationController)),
    all(Kind::Listed(ListedKind::Deployment)),
    all(Kind::Listed(ListedKind::DaemonSet)),
    all(Kind::Listed(ListedKind::StatefulSet)),
    all(Kind::Listed(ListedKind::ReplicaSet)),
    all(Kind::Listed(ListedKind::Job)),
    all(Kind::Listed(ListedKind::CronJob)),
    all(Kind::Listed(ListedKind::Server)),
    all(Kind::Listed(ListedKind::ServerAuthorization)),
    all(Kind::Listed(ListedKind::AuthorizationPolicy)),
    all(Kind::Listed(ListedKind::HttpRoute)),
    all(Kind::Listed(ListedKind::ServiceProfile)),
];

/// The kinds whose pods can be tapped, and the kinds between pods and their workloads.
pub const TAP: &[WatchedKind] = &[
    all(Kind::Listed(ListedKind::Namespace)),
    all(Kind::Listed(ListedKind::Pod)),
    all(Kind::Listed(ListedKind::Service)),
    all(Kind::Listed(ListedKind::ReplicationController)),
    all(Kind::Listed(ListedKind::Deployment)),
    all(Kind::Listed(ListedKind::DaemonSet)),
    all(Kind::Listed(ListedKind::StatefulSet)),
    all(Kind::Listed(ListedKind::ReplicaSet)),
    all(Kind::Listed(ListedKind::Job)),
    all(Kind::Listed(ListedKind::CronJob)),
];

/// Terminated pods of Jobs remain for long, while their addresses may belong to other pods.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Returns the kinds that are read from directories: first the kinds in `watched`, which take
/// precedence, then the kinds of the other controllers, so that each controller reports invalid
/// documents of all kinds.
pub fn in_directories(watched: &[WatchedKind]) -> Vec<Kind> {
    let watched = watched.iter().map(|watched| watched.kind);
    watched.chain(Kind::ALL).collect()
}

const READ: &[&str] = &["list", "watch"];

/// Returns the rights to watch the kinds, to watch the definitions that reveal new APIs, and to
/// write the status of reported kinds.
pub fn rights(watched: &[WatchedKind]) -> Vec<Right> {
    let (group, plural) = ("apiextensions.k8s.io", "customresourcedefinitions");
    let definitions = are_defined(watched).then(|| rights::all(group, plural, READ));
    let kinds = rights_to_watch(watched);
    definitions.into_iter().flatten().chain(kinds).collect()
}

/// Returns the rights to watch the kinds of a linked cluster. Credentials of links, which may be
/// Linkerd's, do not include definitions.
pub fn remote_rights() -> Vec<Right> {
    rights_to_watch(REMOTE).collect()
}

fn rights_to_watch(watched: &[WatchedKind]) -> impl Iterator<Item = Right> {
    watched.iter().flat_map(|watched| {
        let (group, plural) = (watched.kind.group(), watched.api().plural);
        let reported = matches!(watched.second, Some(Kind::Reported(_)));
        let status = reported.then(|| format!("{plural}/status"));
        let patched = status.map(|status| rights::all(group, status, &["patch"]));
        rights::all(group, plural, READ).chain(patched.into_iter().flatten())
    })
}

/// Whether some of the kinds have definitions, so that new versions of them may appear.
pub(super) fn are_defined(watched: &[WatchedKind]) -> bool {
    watched.iter().any(|watched| !watched.api().built_in)
}

const fn all(kind: Kind) -> WatchedKind {
    WatchedKind {
        kind,
        second: None,
        label: None,
        required: false,
        whole: false,
    }
}

/// A kind without which the controller does not respond.
const fn required(kind: Kind) -> WatchedKind {
    WatchedKind {
        required: true,
        ..all(kind)
    }
}

/// A kind whose status the controller writes.
const fn reported(reported: ReportedKind, kind: Kind) -> WatchedKind {
    WatchedKind {
        kind,
        second: Some(Kind::Reported(reported)),
        ..all(kind)
    }
}

/// A kind that decides about EndpointSlices of ExternalWorkloads.
const fn external(external: ExternalKind) -> WatchedKind {
    WatchedKind {
        second: Some(Kind::External(external)),
        ..all(external.indexed())
    }
}

impl WatchedKind {
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
        let custom_metadata = |plural, versions| Api {
            metadata_only: true,
            ..custom(plural, versions)
        };
        match self.kind {
            Kind::Pod => Api {
                fields: Some(NOT_ENDED),
                ..built_in("pods", &["v1"])
            },
            Kind::Node if self.whole => built_in("nodes", &["v1"]),
            Kind::Node => metadata("nodes"),
            Kind::ReplicaSet => metadata("replicasets"),
            Kind::Job => metadata("jobs"),
            Kind::Service => built_in("services", &["v1"]),
            Kind::EndpointSlice => built_in("endpointslices", &["v1"]),
            Kind::Server => custom("servers", &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"]),
            Kind::ExternalWorkload => custom("externalworkloads", &["v1beta1", "v1alpha1"]),
            Kind::ServerAuthorization => custom("serverauthorizations", &["v1beta1", "v1alpha1"]),
            Kind::AuthorizationPolicy => custom("authorizationpolicies", &["v1alpha1"]),
            Kind::MeshTlsAuthentication => custom("meshtlsauthentications", &["v1alpha1"]),
            Kind::NetworkAuthentication => custom("networkauthentications", &["v1alpha1"]),
            Kind::RateLimitPolicy => custom("httplocalratelimitpolicies", &["v1alpha1"]),
            Kind::PolicyHttpRoute => {
                custom("httproutes", &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"])
            }
            Kind::GatewayHttpRoute => custom("httproutes", &["v1", "v1beta1"]),
            Kind::GatewayGrpcRoute => custom("grpcroutes", &["v1", "v1alpha2"]),
            Kind::ServiceProfile => custom("serviceprofiles", &["v1alpha2", "v1alpha1"]),
            Kind::GatewayTlsRoute => custom("tlsroutes", &["v1", "v1alpha3", "v1alpha2"]),
            Kind::GatewayTcpRoute => custom("tcproutes", &["v1", "v1alpha2"]),
            Kind::EgressNetwork => custom("egressnetworks", &["v1alpha1"]),
            Kind::Listed(kind) => match kind {
                ListedKind::Namespace => metadata("namespaces"),
                ListedKind::Pod => built_in("pods", &["v1"]),
                ListedKind::Service => built_in("services", &["v1"]),
                ListedKind::ReplicationController => metadata("replicationcontrollers"),
                ListedKind::Deployment => metadata("deployments"),
                ListedKind::DaemonSet => metadata("daemonsets"),
                ListedKind::StatefulSet => metadata("statefulsets"),
                ListedKind::ReplicaSet => metadata("replicasets"),
                ListedKind::Job => metadata("jobs"),
                ListedKind::CronJob => metadata("cronjobs"),
                ListedKind::Server => {
                    custom_metadata("servers", &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"])
                }
                ListedKind::ServerAuthorization => {
                    custom_metadata("serverauthorizations", &["v1beta1", "v1alpha1"])
                }
                ListedKind::AuthorizationPolicy => {
                    custom_metadata("authorizationpolicies", &["v1alpha1"])
                }
                ListedKind::HttpRoute => {
                    custom_metadata("httproutes", &["v1beta3", "v1beta2", "v1beta1", "v1alpha1"])
                }
                ListedKind::ServiceProfile => custom("serviceprofiles", &["v1alpha2"]),
            },
            Kind::Reported(kind) => self.of(kind.indexed()).api(),
            Kind::External(kind) => self.of(kind.indexed()).api(),
        }
    }

    /// Returns the same with another kind of record.
    fn of(&self, kind: Kind) -> Self {
        Self { kind, ..*self }
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

impl Api {
    pub(super) fn resource(&self, kind: Kind, version: &str) -> ApiResource {
        let named = GroupVersionKind::gvk(kind.group(), version, kind.as_str());
        ApiResource::from_gvk_with_plural(&named, self.plural)
    }

    /// Returns the name in the notation of `kubectl api-resources`.
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

    #[test]
    fn metrics_api_watches_each_listed_kind_once() {
        let watched: Vec<Kind> = METRICS_API.iter().map(|watched| watched.kind).collect();
        assert_eq!(watched, ListedKind::ALL.map(Kind::Listed));
        for watched in METRICS_API {
            let api = watched.api();
            let singular = watched.kind.as_str().to_ascii_lowercase();
            let stem = singular.strip_suffix('y').unwrap_or(&singular);
            assert!(api.plural.starts_with(stem), "{api:?}");
            assert_eq!(api.built_in, !watched.kind.group().contains("linkerd"));
        }
        assert_eq!(
            in_directories(METRICS_API)[1],
            Kind::Listed(ListedKind::Pod)
        );
    }

    #[test]
    fn nodes_are_read_whole_where_their_addresses_are_used() {
        let of_nodes = |watched: &[WatchedKind]| {
            let mut watched = watched.iter();
            let nodes = watched.find(|watched| watched.kind == Kind::Node)?;
            Some(nodes.api().metadata_only)
        };
        assert_eq!(of_nodes(DESTINATION), Some(true));
        assert_eq!(of_nodes(POLICY), None);
        assert_eq!(of_nodes(POLICY_AND_NODES), Some(false));
        assert_eq!(POLICY.len() + 1, POLICY_AND_NODES.len());
    }

    #[test]
    fn group_first_version_and_plural_match_types() {
        fn named<K: Resource<DynamicType = ()>>() -> (String, String, String) {
            let text = |text: std::borrow::Cow<'_, str>| text.into_owned();
            (
                text(K::group(&())),
                text(K::version(&())),
                text(K::plural(&())),
            )
        }
        for watched in DESTINATION.iter().chain(POLICY_AND_NODES) {
            let expect = match watched.kind {
                Kind::Pod => named::<kinds::Pod>(),
                Kind::Node => named::<kinds::Node>(),
                Kind::ReplicaSet => named::<kinds::ReplicaSet>(),
                Kind::Job => named::<kinds::Job>(),
                Kind::Service => named::<kinds::Service>(),
                Kind::EndpointSlice => named::<kinds::EndpointSlice>(),
                Kind::ExternalWorkload => named::<crd::ExternalWorkload>(),
                Kind::Server => named::<crd::Server>(),
                Kind::ServerAuthorization => named::<crd::ServerAuthorization>(),
                Kind::RateLimitPolicy => named::<crd::HttpLocalRateLimitPolicy>(),
                Kind::AuthorizationPolicy => named::<crd::AuthorizationPolicy>(),
                Kind::MeshTlsAuthentication => named::<crd::MeshTLSAuthentication>(),
                Kind::NetworkAuthentication => named::<crd::NetworkAuthentication>(),
                Kind::PolicyHttpRoute => named::<crd::PolicyHttpRoute>(),
                Kind::GatewayHttpRoute => named::<kinds::HttpRoute>(),
                Kind::GatewayGrpcRoute => named::<kinds::GrpcRoute>(),
                Kind::ServiceProfile => named::<crd::ServiceProfile>(),
                Kind::GatewayTlsRoute => named::<kinds::TlsRoute>(),
                Kind::GatewayTcpRoute => named::<kinds::TcpRoute>(),
                Kind::EgressNetwork => named::<crd::EgressNetwork>(),
                Kind::Listed(_) | Kind::Reported(_) | Kind::External(_) => {
                    unreachable!("{watched:?}")
                }
            };
            let api = watched.api();
            let resource = api.resource(watched.kind, api.versions[0]);
            assert_eq!((resource.group, resource.version, resource.plural), expect);
        }
    }
}
