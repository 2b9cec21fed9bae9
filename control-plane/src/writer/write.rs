//! One write of an object.

use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
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
    /// A merge patch of the status.
    PatchStatus(Value),
}

impl Write {
    pub(super) async fn send(self, client: &Client, manager: &str) -> kube::Result<()> {
        let Name { namespace, name } = &self.name;
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), namespace, &self.resource);
        match self.action {
            Action::PatchStatus(status) => {
                let params = PatchParams {
                    field_manager: Some(manager.to_owned()),
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(&status);
                api.patch_status(name, &params, &patch).await.map(drop)
            }
        }
    }
}
