//! Objects of the API server that the JSON API shows: definitions of workloads, and the namespaces
//! of extensions.

use http::{Request, StatusCode};
use kube::Client;
use serde_json::{Map, Value, json};

use super::client::Failure;
use super::query::{Params, canonical_type, is_object_name};
use crate::cluster::explain;

/// The paths of the kinds whose definition is shown.
const KINDS: [(&str, &str, &str); 8] = [
    ("cronjob", "/apis/batch/v1", "cronjobs"),
    ("daemonset", "/apis/apps/v1", "daemonsets"),
    ("deployment", "/apis/apps/v1", "deployments"),
    ("job", "/apis/batch/v1", "jobs"),
    ("pod", "/api/v1", "pods"),
    ("replicaset", "/apis/apps/v1", "replicasets"),
    ("replicationcontroller", "/api/v1", "replicationcontrollers"),
    ("statefulset", "/apis/apps/v1", "statefulsets"),
];

/// The label by which Linkerd finds the namespaces of extensions.
const EXTENSION: &str = "linkerd.io/extension";

/// The most namespaces that are read; each extension has one.
const MAX_EXTENSIONS: usize = 100;

/// Reads an object or a list.
pub(super) async fn get(client: &Client, path: &str) -> Result<Value, Failure> {
    let request = Request::get(path).body(Vec::new());
    let request = request.map_err(|error| internal(error.to_string()))?;
    client.request(request).await.map_err(|error| match &error {
        kube::Error::Api(status) => Failure {
            status: StatusCode::from_u16(status.code)
                .ok()
                .filter(|status| *status == StatusCode::NOT_FOUND)
                .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            error: explain(&error),
        },
        error => Failure {
            status: StatusCode::SERVICE_UNAVAILABLE,
            error: format!("cannot reach the API server: {}", explain(error)),
        },
    })
}

/// Returns the definition of an object in YAML.
pub(super) async fn definition(client: &Client, params: &Params) -> Result<String, Failure> {
    let path = definition_path(params).map_err(invalid)?;
    let mut object = get(client, &path).await?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // Long, and only of interest to the API server.
        metadata.remove("managedFields");
    }
    serde_norway::to_string(&object).map_err(|error| internal(error.to_string()))
}

fn definition_path(params: &Params) -> Result<String, String> {
    let required = ["namespace", "resource_type", "resource_name"];
    let missing: Vec<&str> = required
        .into_iter()
        .filter(|name| params.get(name).is_empty())
        .collect();
    if !missing.is_empty() {
        return Err(format!(
            "Required params not provided: {}",
            missing.join(", ")
        ));
    }
    let [namespace, kind, name] = required.map(|name| params.get(name));
    let known = canonical_type(kind)?;
    let (_, api, plural) = KINDS
        .iter()
        .find(|(kind, ..)| *kind == known)
        .ok_or_else(|| format!("Invalid resource type: {known}"))?;
    for name in [namespace, name] {
        if !is_object_name(name) {
            return Err("namespace and resource_name are not names of objects".to_owned());
        }
    }
    Ok(format!("{api}/namespaces/{namespace}/{plural}/{name}"))
}

/// Returns the extension of the given name, or the namespaces of all extensions, in the shapes of
/// Linkerd's dashboard: there, the list is a text.
pub(super) async fn extensions(client: &Client, params: &Params) -> Result<Value, Failure> {
    let path = format!("/api/v1/namespaces?labelSelector={EXTENSION}&limit={MAX_EXTENSIONS}");
    let namespaces = get(client, &path).await?;
    let namespaces = namespaces["items"].as_array().cloned().unwrap_or_default();
    let name = params.get("extension_name");
    if name.is_empty() {
        let list = namespaces.iter().map(|namespace| {
            let metadata = &namespace["metadata"];
            json!({ "name": metadata["name"], "uid": metadata["uid"] })
        });
        let list: Value = list.collect();
        return Ok(json!({ "extensions": list.to_string() }));
    }
    let found = namespaces
        .iter()
        .map(|namespace| &namespace["metadata"])
        .find(|metadata| metadata["labels"][EXTENSION] == name);
    Ok(found.map_or(
        Value::Object(Map::new()),
        |metadata| json!({ "extensionName": name, "namespace": metadata["name"] }),
    ))
}

fn invalid(error: String) -> Failure {
    Failure {
        status: StatusCode::BAD_REQUEST,
        error,
    }
}

fn internal(error: String) -> Failure {
    Failure {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_read_by_type_and_name() {
        let path = |query: &str| definition_path(&Params::parse(query).unwrap());
        assert_eq!(
            path("namespace=shop&resource_type=deploy&resource_name=web").as_deref(),
            Ok("/apis/apps/v1/namespaces/shop/deployments/web")
        );
        for (query, problem) in [
            (
                "namespace=shop",
                "not provided: resource_type, resource_name",
            ),
            (
                "namespace=shop&resource_type=service&resource_name=web",
                "Invalid resource type: service",
            ),
            (
                "namespace=shop&resource_type=secret&resource_name=web",
                "not a type",
            ),
            (
                "namespace=..&resource_type=pod&resource_name=a%2F..%2F..%2Fsecrets",
                "not names",
            ),
            (
                "namespace=shop&resource_type=pod&resource_name=a%3Fb",
                "not names",
            ),
        ] {
            let error = path(query).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
