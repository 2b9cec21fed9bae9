//! The object that an address belongs to. Discovery and the connections to the address notice by it
//! that another object has taken the address.

use std::sync::Arc;

use mesh_core::meta::Meta;
use mesh_core::profile::Profile;

/// A Service or a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetObject {
    kind: ObjectKind,
    namespace: Arc<str>,
    name: Arc<str>,
    /// `None` if the control plane is another project's, or does not know it.
    uid: Option<Arc<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectKind {
    Service,
    Pod,
}

impl TargetObject {
    /// Returns the object of a profile, or without a profile the parent of the policy.
    pub(super) fn of(profile: Option<&Profile>, parent: &Meta) -> Option<Self> {
        match profile {
            Some(profile) => Self::of_profile(profile),
            None => Self::of_parent(parent),
        }
    }

    /// Returns the object of a profile; `None` for an address that is not known to have one.
    pub(super) fn of_profile(profile: &Profile) -> Option<Self> {
        let uid = profile.uid.clone();
        if let Some(fqn) = &profile.fqn {
            let mut labels = fqn.split('.');
            let (name, namespace) = (labels.next()?.into(), labels.next()?.into());
            return Some(Self {
                kind: ObjectKind::Service,
                namespace,
                name,
                uid,
            });
        }
        let labels = &profile.endpoint.as_ref()?.labels;
        Some(Self {
            kind: ObjectKind::Pod,
            namespace: labels.get("namespace").unwrap_or_default().into(),
            name: labels.get("pod")?.into(),
            uid,
        })
    }

    fn of_parent(parent: &Meta) -> Option<Self> {
        (parent.kind() == "Service").then(|| Self {
            kind: ObjectKind::Service,
            namespace: parent.namespace().into(),
            name: parent.name().into(),
            uid: None,
        })
    }

    /// Whether the address does not belong to this object any more, but to `now`. Objects of one
    /// name are different if both UIDs are known and differ.
    pub(crate) fn is_replaced_by(&self, now: Option<&Self>) -> bool {
        let Some(now) = now else {
            return true;
        };
        let same_name =
            (self.kind, &self.namespace, &self.name) == (now.kind, &now.namespace, &now.name);
        let other_uid = self.uid.is_some() && now.uid.is_some() && self.uid != now.uid;
        !same_name || other_uid
    }
}

#[cfg(test)]
mod tests {
    use mesh_core::endpoint::Endpoint;
    use mesh_core::meta::Resource;

    use super::*;

    fn service(fqn: &str, uid: Option<&str>) -> Option<TargetObject> {
        TargetObject::of_profile(&Profile {
            fqn: Some(fqn.into()),
            uid: uid.map(Into::into),
            ..Profile::default()
        })
    }

    fn pod(name: &str, uid: Option<&str>) -> Option<TargetObject> {
        let mut endpoint = Endpoint::plain(([10, 1, 0, 1], 80).into());
        endpoint.labels = [("namespace", "shop"), ("pod", name)].into_iter().collect();
        TargetObject::of_profile(&Profile {
            endpoint: Some(endpoint),
            uid: uid.map(Into::into),
            ..Profile::default()
        })
    }

    #[test]
    fn object_is_replaced_by_another_name_kind_or_uid() {
        let web = "web.shop.svc.cluster.local";
        let cart = "cart.shop.svc.cluster.local";
        for (before, after, expect) in [
            (service(web, None), service(web, None), false),
            (service(web, Some("1")), service(web, Some("1")), false),
            (service(web, Some("1")), service(web, Some("2")), true),
            // Another control plane does not tell the UID.
            (service(web, Some("1")), service(web, None), false),
            (service(web, None), service(web, Some("1")), false),
            (service(web, None), service(cart, None), true),
            (
                service(web, None),
                service("web.other.svc.cluster.local", None),
                true,
            ),
            (service(web, None), None, true),
            (service(web, None), pod("web", None), true),
            (pod("web-0", Some("1")), pod("web-0", Some("2")), true),
            (pod("web-0", Some("1")), pod("web-1", Some("1")), true),
            (pod("web-0", Some("1")), pod("web-0", Some("1")), false),
        ] {
            let before = before.unwrap();
            let replaced = before.is_replaced_by(after.as_ref());
            assert_eq!(replaced, expect, "{before:?} {after:?}");
        }
    }

    #[test]
    fn parent_of_policy_is_the_service_of_the_profile() {
        let parent = Meta::Resource(Resource::new("core", "Service", "shop", "web"));
        let of_policy = TargetObject::of(None, &parent).unwrap();
        let of_profile = service("web.shop.svc.cluster.local", Some("1"));
        assert!(!of_policy.is_replaced_by(of_profile.as_ref()));
        assert_eq!(TargetObject::of(None, &Meta::new_default("fallback")), None);
        let unknown = Profile {
            endpoint: Some(Endpoint::plain(([10, 1, 0, 1], 80).into())),
            ..Profile::default()
        };
        assert_eq!(TargetObject::of(Some(&unknown), &parent), None);
    }
}
