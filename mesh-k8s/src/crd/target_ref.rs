//! References from one policy object to another.

use kube::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// Compares group and kind without regard to case, as Linkerd does.
fn targets<T: Resource<DynamicType = ()>>(group: Option<&str>, kind: &str) -> bool {
    let group = match group {
        None | Some("core") => "",
        Some(group) => group,
    };
    group.eq_ignore_ascii_case(&T::group(&())) && kind.eq_ignore_ascii_case(&T::kind(&()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        crd::Server,
        kinds::{Namespace, ServiceAccount},
    };

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
