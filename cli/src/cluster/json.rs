//! Objects as JSON, whatever their kind: an object that is invalid for its type can still be named.

use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use serde_json::Value;

use super::{Cluster, PAGE_SIZE, error};
use crate::clients;

/// The objects of some kinds.
#[derive(Debug, Default)]
pub(crate) struct JsonObjects {
    /// The objects with `apiVersion` and `kind`.
    pub(crate) items: Vec<Value>,
    /// Group and kind of the objects that the API server does not serve.
    pub(crate) unserved: Vec<(&'static str, &'static str)>,
}

impl Cluster {
    /// Lists all objects of several kinds, each given by its group, its versions and its name. The
    /// first version that is served is read.
    pub(crate) async fn list_json(
        &self,
        kinds: impl IntoIterator<Item = (&'static str, &'static [&'static str], &'static str)>,
    ) -> anyhow::Result<JsonObjects> {
        let lists = kinds.into_iter().map(async |(group, versions, kind)| {
            let items = self.list_kind(group, versions, kind).await;
            items.map(|items| (group, kind, items))
        });
        let mut objects = JsonObjects::default();
        for list in clients::concurrently(lists).await {
            match list? {
                (_, _, Some(items)) => objects.items.extend(items),
                (group, kind, None) => objects.unserved.push((group, kind)),
            }
        }
        Ok(objects)
    }

    /// Returns the objects of the first version that is served, or `None` if none is.
    async fn list_kind(
        &self,
        group: &str,
        versions: &[&str],
        kind: &str,
    ) -> anyhow::Result<Option<Vec<Value>>> {
        for version in versions {
            let named = GroupVersionKind::gvk(group, version, kind);
            let resource = ApiResource::from_gvk(&named);
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let mut params = ListParams::default().limit(PAGE_SIZE);
            let mut items = Vec::new();
            loop {
                let page = match api.list(&params).await {
                    Ok(page) => page,
                    Err(error) if error::is_missing(&error) => break,
                    Err(error) => {
                        let what = format!("list the objects of kind {kind}");
                        return Err(error::failed(&what, error));
                    }
                };
                for object in page.items {
                    let mut json = serde_json::to_value(object)?;
                    // Items of a list have no type.
                    json["apiVersion"] = Value::from(resource.api_version.clone());
                    json["kind"] = Value::from(kind);
                    items.push(json);
                }
                match page.metadata.continue_ {
                    Some(next) if !next.is_empty() => params = params.continue_token(&next),
                    _ => return Ok(Some(items)),
                }
            }
        }
        Ok(None)
    }
}
