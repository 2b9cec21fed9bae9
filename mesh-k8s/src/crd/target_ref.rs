//! References from one policy object to another.

use kube::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{EgressNetwork, Server};
use crate::kinds::Service;

/// A reference to an object in the namespace of the referring object. The core group is an absent
/// or empty `group`, or `core`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct LocalTargetRef {
    /// The API group of the referenced object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind of the referenced object.
    pub kind: String,
    /// The name of the referenced object.
    pub name: String,
}

/// A reference to an object in any namespace; without `namespace` in the namespace of the referring
/// object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct NamespacedTargetRef {
    /// The API group of the referenced object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The kind of the referenced object.
    pub kind: String,
    /// The name of the referenced object.
    pub name: String,
    /// The namespace of the referenced object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The kind of a parent of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParentKind {
    /// A port of workloads, whose proxies apply the route.
    Server,
    /// A destination, whose clients apply the route.
    Service,
    /// Destinations outside the cluster, whose clients apply the route.
    EgressNetwork,
    /// A kind of another Gateway API implementation, or an unsupported one.
    Other,
}

impl LocalTargetRef {
    /// Returns whether the reference is to an object of kind `T`, in any case of letters.
    pub fn targets<T: Resource<DynamicType = ()>>(&self) -> bool {
        targets::<T>(self.group.as_deref(), &self.kind)
    }
}

impl NamespacedTargetRef {
    /// Returns whether the reference is to an object of kind `T`, in any case of letters.
    pub fn targets<T: Resource<DynamicType = ()>>(&self) -> bool {
        targets::<T>(self.group.as_deref(), &self.kind)
    }
}

impl ParentKind {
    /// Reads the group and kind of a reference. The default group, the Gateway API's, has none of
    /// the mesh's kinds.
    pub fn new(group: Option<&str>, kind: Option<&str>) -> Self {
        let (Some(_), Some(kind)) = (group, kind) else {
            return Self::Other;
        };
        if targets::<Server>(group, kind) {
            Self::Server
        } else if targets::<Service>(group, kind) {
            Self::Service
        } else if targets::<EgressNetwork>(group, kind) {
            Self::EgressNetwork
        } else {
            Self::Other
        }
    }

    /// Returns whether clients apply the routes of the parent.
    pub fn has_clients(self) -> bool {
        matches!(self, Self::Service | Self::EgressNetwork)
    }
}

/// Compares group and kind without regard to case, as Linkerd does.
fn targets<T: Resource<DynamicType = ()>>(group: Option<&str>, kind: &str) -> bool {
    let group = match group {
        Some(group) if !group.eq_ignore_ascii_case("core") => group,
        _ => "",
    };
    group.eq_ignore_ascii_case(&T::group(&())) && kind.eq_ignore_ascii_case(&T::kind(&()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::{Namespace, ServiceAccount};

    fn reference(group: Option<&str>, kind: &str) -> LocalTargetRef {
        LocalTargetRef {
            group: group.map(str::to_owned),
            kind: kind.into(),
            name: "x".into(),
        }
    }

    #[test]
    fn references_match_by_group_and_kind() {
        assert!(reference(None, "Namespace").targets::<Namespace>());
        assert!(reference(Some(""), "ServiceAccount").targets::<ServiceAccount>());
        assert!(reference(Some("core"), "serviceaccount").targets::<ServiceAccount>());
        assert!(reference(Some("policy.linkerd.io"), "Server").targets::<Server>());
        assert!(!reference(None, "Server").targets::<Server>());
        assert!(!reference(Some("policy.linkerd.io"), "Namespace").targets::<Namespace>());
    }
}
