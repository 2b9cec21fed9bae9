//! One write of an object.

use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, Client};
use mesh_objects::model::Name;
use serde_json::Value;

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
    /// Deletes the object of this version.
    Delete {
        resource_version: Option<String>,
    },
    /// A merge patch of the status.
    PatchStatus(Value),
}

impl Write {
    pub(super) async fn send(self, client: &Client, manager: &str) -> kube::Result<()> {
        let Name { namespace, name } = &self.name;
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &self.resource);
        let field_manager = Some(manager.to_owned());
        let params = PostParams {
            field_manager: field_manager.clone(),
            ..PostParams::default()
        };
        match self.action {
            Action::Create(object) => api.create(&params, &read(object)?).await.map(drop),
            Action::Replace(object) => api.replace(name, &params, &read(object)?).await.map(drop),
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
                api.patch_status(name, &params, &patch).await.map(drop)
            }
        }
    }
}

fn read(object: Value) -> kube::Result<DynamicObject> {
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use mesh_k8s::kinds::EndpointSlice;
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
}
