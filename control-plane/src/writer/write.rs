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
