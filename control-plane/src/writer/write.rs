//! One write of an object.

use std::collections::BTreeSet;

use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::{PartialObjectMeta, Status};
use kube::{Api, Client};
use mesh_objects::model::Name;
use serde_json::{Map, Value};

/// A request that changes an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Write {
    pub(crate) resource: ApiResource,
    pub(crate) name: Name,
    pub(crate) action: Action,
}

/// The change of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Create(Value),
    /// The object has the resource version that it replaces.
    Replace(Value),
    /// Reads the object, and replaces it with these fields if it still has this version. Other
    /// fields stay.
    Set {
        resource_version: String,
        fields: Vec<Field>,
    },
    /// Deletes the object of this version.
    Delete {
        resource_version: Option<String>,
    },
    /// A merge patch of the status.
    PatchStatus(Value),
}

/// A field of an object, and its change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) path: &'static [&'static str],
    pub(crate) change: Change,
}

/// The change of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change {
    Set(Value),
    Remove,
    /// Sets keys of a map. Other keys that this manager has set are removed, and so are the ones of
    /// clients that have set the field `mark`: they have written the object in its place before.
    /// Keys of other clients stay. A map of an object that none of these has written is replaced.
    Merge {
        keys: Map<String, Value>,
        mark: &'static [&'static str],
    },
}

const CONFLICT: u16 = 409;

impl Write {
    pub(super) async fn send(self, client: &Client, manager: &str) -> kube::Result<()> {
        let Name { namespace, name } = &self.name;
        let resource = &self.resource;
        let api: Api<DynamicObject> = if namespace.is_empty() {
            Api::all_with(client.clone(), resource)
        } else {
            Api::namespaced_with(client.clone(), namespace, resource)
        };
        let field_manager = Some(manager.to_owned());
        let params = PostParams {
            field_manager: field_manager.clone(),
            ..PostParams::default()
        };
        match self.action {
            Action::Create(object) => api.create(&params, &read(object)?).await.map(drop),
            Action::Replace(object) => api.replace(name, &params, &read(object)?).await.map(drop),
            Action::Set {
                resource_version,
                fields,
            } => {
                let object = api.get(name).await?;
                if object.metadata.resource_version.as_deref() != Some(&resource_version) {
                    let message = "the object has been modified";
                    let status = Status::failure(message, "Conflict").with_code(CONFLICT);
                    return Err(kube::Error::Api(Box::new(status)));
                }
                let mut object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
                for field in fields {
                    set(&mut object, field, manager);
                }
                api.replace(name, &params, &read(object)?).await.map(drop)
            }
            Action::Delete { resource_version } => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        resource_version,
                        uid: None,
                    }),
                    ..DeleteParams::default()
                };
                api.delete(name, &params).await.map(drop)
            }
            Action::PatchStatus(status) => {
                let params = PatchParams {
                    field_manager,
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(&status);
                // The response has the whole status again.
                let api: Api<PartialObjectMeta<DynamicObject>> =
                    Api::namespaced_with(client.clone(), namespace, resource);
                api.patch_status(name, &params, &patch).await.map(drop)
            }
        }
    }
}

/// Changes a field. Missing objects on the way to it are created.
fn set(object: &mut Value, Field { path, change }: Field, manager: &str) {
    let Some((last, parents)) = path.split_last() else {
        return;
    };
    let managed = match &change {
        Change::Merge { mark, .. } => managed_keys(object, manager, mark, path),
        Change::Set(_) | Change::Remove => None,
    };
    let mut object = object;
    for key in parents {
        object = entry(object, key);
    }
    match change {
        Change::Set(value) => *entry(object, last) = value,
        Change::Remove => {
            if let Some(fields) = object.as_object_mut() {
                fields.remove(*last);
            }
        }
        Change::Merge { mut keys, .. } => {
            let map = entry(object, last);
            if let (Some(managed), Some(before)) = (managed, map.as_object()) {
                let others = before.iter().filter(|(key, _)| !managed.contains(*key));
                for (key, value) in others {
                    keys.entry(key).or_insert_with(|| value.clone());
                }
            }
            *map = Value::Object(keys);
        }
    }
}

/// Returns the keys of a map that a manager has set, or others that have set the field `mark`, by
/// the records of the API server; `None` if none of them has written the object.
///
/// A key belongs to the client that has set its value first. A manager that replaces another one
/// owns no label until its value changes.
fn managed_keys(
    object: &Value,
    manager: &str,
    mark: &[&str],
    path: &[&str],
) -> Option<BTreeSet<String>> {
    let records = object["metadata"]["managedFields"].as_array()?.iter();
    let own = records.filter(|record| {
        record["manager"] == manager || !owned(&record["fieldsV1"], mark).is_null()
    });
    let mut own = own.map(|record| &record["fieldsV1"]).peekable();
    own.peek()?;
    let maps = own.map(|fields| {
        owned(fields, path)
            .as_object()
            .into_iter()
            .flat_map(Map::keys)
    });
    let keys = maps.flatten().filter_map(|key| key.strip_prefix("f:"));
    Some(keys.map(str::to_owned).collect())
}

/// Returns the part of a record about a field; null if the client does not own it.
fn owned<'a>(fields: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(fields, |at, key| &at[format!("f:{key}")])
}

fn entry<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    // Anything else has no fields.
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    &mut object[key]
}

fn read(object: Value) -> kube::Result<DynamicObject> {
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use mesh_k8s::kinds::{EndpointSlice, Namespace};
    use mesh_test_support::kube_api::ScriptedApi;
    use serde_json::json;

    use super::*;

    const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1";

    async fn send(api: &ScriptedApi, action: Action) -> Option<u16> {
        let client = Client::new(api.service("a"), "default");
        let write = Write {
            resource: ApiResource::erase::<EndpointSlice>(&()),
            name: Name::new("shop", "web-1"),
            action,
        };
        match write.send(&client, "test").await {
            Ok(()) => None,
            Err(kube::Error::Api(status)) => Some(status.code),
            Err(error) => panic!("{error:?}"),
        }
    }

    fn slice(version: Option<&str>, family: &str) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": { "name": "web-1", "namespace": "shop", "resourceVersion": version },
            "addressType": family,
        })
    }

    #[tokio::test]
    async fn object_is_created_replaced_and_deleted_in_the_version_that_was_read() {
        let api = ScriptedApi::default();
        let delete = |version: &str| Action::Delete {
            resource_version: Some(version.to_owned()),
        };
        let replace = |version, family| Action::Replace(slice(Some(version), family));
        assert_eq!(send(&api, replace("1", "IPv4")).await, Some(404));
        assert_eq!(send(&api, Action::Create(slice(None, "IPv4"))).await, None);
        assert_eq!(
            send(&api, Action::Create(slice(None, "IPv4"))).await,
            Some(409)
        );
        assert_eq!(send(&api, replace("0", "IPv6")).await, Some(409));
        assert_eq!(send(&api, replace("1", "IPv6")).await, None);
        assert_eq!(api.get(PATH).unwrap()["addressType"], "IPv6");
        let writes = api.writes(PATH);
        let queries: Vec<_> = writes.iter().map(|write| &*write.query).collect();
        assert_eq!(queries, ["&fieldManager=test", "&fieldManager=test"]);
        assert_eq!(send(&api, delete("1")).await, Some(409));
        assert_eq!(send(&api, delete("2")).await, None);
        assert_eq!(send(&api, delete("2")).await, Some(404));
        assert_eq!(api.get(PATH), None);
    }

    #[tokio::test]
    async fn fields_are_set_in_the_version_that_was_read_and_others_stay() {
        let api = ScriptedApi::default();
        let mut object = slice(None, "IPv4");
        object["metadata"]["labels"] = json!({ "a": "1", "b": "2" });
        object["endpoints"] = json!([{ "addresses": ["192.0.2.1"] }]);
        api.put(PATH, object);
        let set = |version: &str| Action::Set {
            resource_version: version.to_owned(),
            fields: vec![
                Field {
                    path: &["metadata", "labels", "a"],
                    change: Change::Remove,
                },
                Field {
                    path: &["metadata", "annotations", "c"],
                    change: Change::Set("3".into()),
                },
                Field {
                    path: &["ports"],
                    change: Change::Set(json!([])),
                },
            ],
        };
        assert_eq!(send(&api, set("0")).await, Some(409));
        assert!(api.writes(PATH).is_empty());
        assert_eq!(send(&api, set("1")).await, None);
        let object = api.get(PATH).unwrap();
        assert_eq!(object["metadata"]["labels"], json!({ "b": "2" }));
        assert_eq!(object["metadata"]["annotations"], json!({ "c": "3" }));
        assert_eq!(object["ports"], json!([]));
        assert_eq!(object["endpoints"][0]["addresses"][0], "192.0.2.1");
        api.delete(PATH);
        assert_eq!(send(&api, set("1")).await, Some(404));
    }

    #[test]
    fn keys_of_other_clients_stay_in_a_map_and_own_ones_are_replaced() {
        let merge = |managed: Value| {
            let mut object = json!({ "metadata": {
                "labels": { "mark": "1", "own": "1", "old": "1", "other": "1" },
                "managedFields": managed,
            }});
            let keys = json!({ "mark": "1", "own": "2", "new": "2" });
            let field = Field {
                path: &["metadata", "labels"],
                change: Change::Merge {
                    keys: keys.as_object().unwrap().clone(),
                    mark: &["metadata", "labels", "mark"],
                },
            };
            set(&mut object, field, "test");
            object["metadata"]["labels"].clone()
        };
        let record = |manager: &str, labels: Value| json!({ "manager": manager, "fieldsV1": { "f:metadata": { "f:labels": labels } } });
        let own = record("test", json!({ ".": {}, "f:own": {}, "f:old": {} }));
        let other = record("kubectl", json!({ "f:other": {} }));
        let status = json!({ "manager": "test", "fieldsV1": { "f:status": {} } });
        let kept = json!({ "mark": "1", "own": "2", "new": "2", "other": "1" });
        assert_eq!(merge(json!([status, other, own])), kept);
        let replaced = json!({ "mark": "1", "own": "2", "new": "2" });
        assert_eq!(merge(json!([other])), replaced);
        assert_eq!(merge(Value::Null), replaced);
        // The labels of another manager in the place of this one, whatever has changed since.
        let before = record("before", json!({ "f:mark": {}, "f:old": {} }));
        assert_eq!(merge(json!([before, other])), kept);
        let own = record("test", json!({ "f:own": {} }));
        assert_eq!(merge(json!([before, other, own])), kept);
    }

    #[tokio::test]
    async fn object_without_a_namespace_is_of_the_cluster() {
        let api = ScriptedApi::default();
        let client = Client::new(api.service("a"), "default");
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": "shop" },
        });
        let write = Write {
            resource: ApiResource::erase::<Namespace>(&()),
            name: Name::new("", "shop"),
            action: Action::Create(object),
        };
        write.send(&client, "test").await.unwrap();
        assert!(api.get("/api/v1/namespaces/shop").is_some());
    }
}
