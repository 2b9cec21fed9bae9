//! A client that refuses requests that its process has no right to make, as the API server does
//! with the roles of the chart. Tests with scripted API servers, which authorize everything,
//! thereby find calls whose right is missing in the list of the component, and the list is compared
//! with the chart.

use std::sync::Arc;

use http::Request;
use kube::Client;
use kube::client::Body;
use mesh_core::rights::{self, Right};

use super::deadline;
use super::pace::Pace;

/// Returns the client with these rights.
pub(super) fn restrict(client: Client, program: &str, rights: Vec<Right>) -> Client {
    let program: Arc<str> = program.into();
    let rights: Arc<[Right]> = rights.into();
    let (namespace, valid_until) = (client.default_namespace().to_owned(), *client.valid_until());
    let pace = Arc::new(Pace::default());
    let restricted = tower::service_fn(move |request: Request<Body>| {
        let (method, uri) = (request.method().as_str(), request.uri());
        let asked = (method, uri.path(), uri.query().unwrap_or_default());
        let (client, checked) = (client.clone(), rights::check(&program, &rights, asked));
        let pace = pace.clone();
        async move {
            checked?;
            pace.wait(request.uri()).await;
            deadline::send(&client, request).await
        }
    });
    Client::new(restricted, namespace).with_valid_until(valid_until)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Secret};
    use kube::Api;
    use mesh_test_support::kube_api::ScriptedApi;
    use serde_json::json;

    use super::*;
    use crate::api_server::explain;

    #[tokio::test]
    async fn calls_without_a_right_are_refused_with_the_right_that_is_missing() {
        let api = ScriptedApi::default();
        let pod = json!({ "metadata": { "name": "a" } });
        api.put("/api/v1/namespaces/shop/pods/a", pod);
        let rights = rights::all("", "pods", &["get"]).collect();
        let client = Client::new(api.service("web"), "default");
        let client = restrict(client, "mesh-viz web", rights);
        let pods: Api<Pod> = Api::namespaced(client.clone(), "shop");
        assert!(pods.get("a").await.is_ok());
        let secrets: Api<Secret> = Api::namespaced(client, "shop");
        let error = explain(&secrets.get("a").await.unwrap_err());
        assert!(error.contains("mesh-viz web"), "{error}");
        assert!(error.contains("get secrets"), "{error}");
        assert!(pods.delete("a", &Default::default()).await.is_err());
    }
}
