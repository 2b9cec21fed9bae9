//! Objects as the API server sends them, in lists and events of watches.
//!
//! Each object is parsed on its own. Parsers limit how deep JSON is nested, the API server does
//! not, and the definition of a ServiceProfile allows any nesting of conditions: one such object
//! would otherwise make the list of all objects unreadable.

use std::borrow::Cow;

use kube::Resource;
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope};
use mesh_k8s::kinds::ObjectMeta;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

/// An object whose metadata has been read.
#[derive(Clone, Debug)]
pub(super) struct RawObject {
    metadata: ObjectMeta,
    json: Box<RawValue>,
}

/// An object of a list or an event.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) metadata: ObjectMeta,
    /// The object, or why it cannot be parsed.
    pub(super) object: Result<DynamicObject, String>,
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            metadata: ObjectMeta,
        }
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let Head { metadata } = serde_json::from_str(json.get()).map_err(de::Error::custom)?;
        Ok(Self { metadata, json })
    }
}

impl Resource for RawObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(api: &ApiResource) -> Cow<'_, str> {
        api.kind.as_str().into()
    }

    fn group(api: &ApiResource) -> Cow<'_, str> {
        api.group.as_str().into()
    }

    fn version(api: &ApiResource) -> Cow<'_, str> {
        api.version.as_str().into()
    }

    fn api_version(api: &ApiResource) -> Cow<'_, str> {
        api.api_version.as_str().into()
    }

    fn plural(api: &ApiResource) -> Cow<'_, str> {
        api.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl From<RawObject> for Received {
    fn from(raw: RawObject) -> Self {
        Self {
            object: serde_json::from_str(raw.json.get())
                .map_err(|error| format!("cannot be parsed: {error}")),
            metadata: raw.metadata,
        }
    }
}

impl From<DynamicObject> for Received {
    fn from(object: DynamicObject) -> Self {
        Self {
            metadata: object.metadata.clone(),
            object: Ok(object),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::*;

    fn profile(name: &str, depth: usize) -> String {
        let (open, close) = ("{\"not\":".repeat(depth), "}".repeat(depth));
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"shop"}},"spec":{{"routes":[{{"condition":{open}{{}}{close}}}]}}}}"#
        )
    }

    #[test]
    fn nested_object_does_not_hide_others() {
        let (nested, other) = (profile("nested", 10_000), profile("other", 1));
        let list = format!(
            r#"{{"apiVersion":"linkerd.io/v1alpha2","kind":"ServiceProfileList","metadata":{{}},"items":[{nested},{other}]}}"#
        );
        let list: ObjectList<RawObject> = serde_json::from_str(&list).unwrap();
        let [nested_item, other] = <[RawObject; 2]>::try_from(list.items)
            .unwrap()
            .map(Received::from);
        assert_eq!(nested_item.metadata.name.as_deref(), Some("nested"));
        let problem = nested_item.object.unwrap_err();
        assert!(
            problem.starts_with("cannot be parsed: recursion limit"),
            "{problem}"
        );
        let other = other.object.unwrap();
        assert_eq!(other.metadata.name.as_deref(), Some("other"));
        assert!(other.data["spec"]["routes"][0]["condition"]["not"].is_object());

        let event = format!(r#"{{"type":"MODIFIED","object":{nested}}}"#);
        let event: WatchEvent<RawObject> = serde_json::from_str(&event).unwrap();
        let WatchEvent::Modified(object) = event else {
            panic!("{event:?}");
        };
        assert!(Received::from(object).object.is_err());
    }
}
