//! The objects whose statistics the metrics API serves.
//!
//! A record has the fields that the API's tables show. The other controllers have records of the
//! same objects with the fields that decide about traffic, which change less often.

use std::fmt;
use std::sync::Arc;

use mesh_k8s::select;

use super::{Labels, Name, OwnerRef};

/// An object that the metrics API lists.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedObject {
    pub kind: ListedKind,
    pub name: Name,
    pub labels: Labels,
    /// The owner; `None` if there are several.
    pub owner: Option<OwnerRef>,
    pub detail: Detail,
}

/// Defines the kinds: each with its API group, its `kind` in manifests and its type in requests.
macro_rules! kinds {
    ($($kind:ident: $group:literal, $name:literal, $type:literal;)+) => {
        /// The kinds that the metrics API lists.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ListedKind {
            $($kind,)+
        }

        impl ListedKind {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kind),+];

            /// Returns the `kind` in manifests.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

            /// Returns the API group; empty for the core group.
            pub fn group(self) -> &'static str {
                match self {
                    $(Self::$kind => $group,)+
                }
            }

            /// Returns the type in requests: the kind in lower case.
            pub fn resource_type(self) -> &'static str {
                match self {
                    $(Self::$kind => $type,)+
                }
            }
        }
    };
}

kinds! {
    Namespace: "", "Namespace", "namespace";
    Pod: "", "Pod", "pod";
    Service: "", "Service", "service";
    ReplicationController: "", "ReplicationController", "replicationcontroller";
    Deployment: "apps", "Deployment", "deployment";
    DaemonSet: "apps", "DaemonSet", "daemonset";
    StatefulSet: "apps", "StatefulSet", "statefulset";
    ReplicaSet: "apps", "ReplicaSet", "replicaset";
    Job: "batch", "Job", "job";
    CronJob: "batch", "CronJob", "cronjob";
    Server: "policy.linkerd.io", "Server", "server";
    ServerAuthorization: "policy.linkerd.io", "ServerAuthorization", "serverauthorization";
    AuthorizationPolicy: "policy.linkerd.io", "AuthorizationPolicy", "authorizationpolicy";
    HttpRoute: "policy.linkerd.io", "HTTPRoute", "httproute";
    ServiceProfile: "linkerd.io", "ServiceProfile", "serviceprofile";
}

/// The fields that the tables show in addition to the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Detail {
    None,
    Pod(Box<PodDetail>),
    /// The selector of a Service; empty if it has none.
    Service(Labels),
    Profile(ProfileDetail),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDetail {
    pub phase: PodPhase,
    /// The status in the notation of `kubectl get pods`.
    pub status: Arc<str>,
    /// The phase, `Terminating` or `Evicted`.
    pub summary: Arc<str>,
    pub ip: Arc<str>,
    pub service_account: Arc<str>,
    /// The namespace of its control plane; empty if the pod is not meshed.
    pub control_plane_ns: Arc<str>,
    /// Whether it is a pod of the control plane.
    pub control_plane: bool,
    pub proxy_ready: bool,
    /// The port of its proxy's admin server; `None` without a proxy.
    pub admin_port: Option<u16>,
    /// The port of its proxy's tap service; `None` without a proxy.
    pub tap_port: Option<u16>,
    /// Whether its proxy has a tap service.
    pub is_tap_enabled: bool,
    /// Whether it must not be tapped all the same.
    pub is_tap_disabled: bool,
    /// The tag of the proxy's image; empty if the image has a digest, or the pod no proxy.
    pub proxy_version: Arc<str>,
    pub resource_version: Arc<str>,
    pub errors: Vec<ContainerError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// Why a container does not run, or did not run until recently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerError {
    pub container: String,
    pub image: String,
    pub reason: String,
    pub message: String,
}

/// The fields of a ServiceProfile that are used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProfileDetail {
    /// The names of the routes.
    pub routes: Vec<String>,
    /// Authorities and weights.
    pub overrides: Vec<(String, String)>,
}

impl ListedKind {
    pub fn of_resource_type(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.resource_type() == name)
    }
}

impl fmt::Display for ListedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PodDetail {
    /// Returns whether the pod is pending or running.
    pub fn is_active(&self) -> bool {
        matches!(self.phase, PodPhase::Pending | PodPhase::Running)
    }
}

impl ListedObject {
    /// Returns whether it is a Service that selects a pod with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        match &self.detail {
            Detail::Service(selector) => select::service_matches(Some(selector), Some(labels)),
            _ => false,
        }
    }

    pub fn pod(&self) -> Option<&PodDetail> {
        match &self.detail {
            Detail::Pod(pod) => Some(pod),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_types_are_kinds_in_lower_case() {
        for kind in ListedKind::ALL {
            assert_eq!(kind.resource_type(), kind.as_str().to_ascii_lowercase());
            assert_eq!(
                ListedKind::of_resource_type(kind.resource_type()),
                Some(kind)
            );
        }
        assert_eq!(ListedKind::of_resource_type("Deployment"), None);
    }
}
