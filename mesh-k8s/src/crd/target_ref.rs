//! References from one policy object to another.

use kube::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An object in the namespace of the one that refers to it. The core group is written as an empty
/// or absent group, or as `core`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct LocalTargetRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    pub kind: String,
    pub name: String,
}

/// The same with a namespace; absent means that of the referring object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub struct NamespacedTargetRef {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    pub kind: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl LocalTargetRef {
    /// Does the reference name an object of kind `T`?
    pub fn targets<T: Resource<DynamicType = ()>>(&self) -> bool {
        targets::<T>(self.group.as_deref(), &self.kind)
    }
}

impl NamespacedTargetRef {
    /// Does the reference name an object of kind `T`?
    pub fn targets<T: Resource<DynamicType = ()>>(&self) -> bool {
        targets::<T>(self.group.as_deref(), &self.kind)
    }
}

/// Group and kind compare without regard to case, as Linkerd does.
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
    fn groups_and_kinds() {
        assert!(reference(None, "Namespace").targets::<Namespace>());
        assert!(reference(Some(""), "ServiceAccount").targets::<ServiceAccount>());
        assert!(reference(Some("core"), "serviceaccount").targets::<ServiceAccount>());
        assert!(reference(Some("policy.linkerd.io"), "Server").targets::<Server>());
        assert!(!reference(None, "Server").targets::<Server>());
        assert!(!reference(Some("policy.linkerd.io"), "Namespace").targets::<Namespace>());
    }
}
