//! Objects of the API server that the JSON API shows: definitions of workloads, and the namespaces
//! of extensions.
//!
//! Definitions are shown without the values that often are secrets: see [`redact`].

use http::{Request, StatusCode};
use kube::Client;
use mesh_cluster::api_server::explain;
use mesh_core::annotation::EXTENSION;
use mesh_core::rights::{self, Right};
use serde_json::{Map, Value, json};

use super::client::Failure;
use super::query::{Params, canonical_type, is_object_name};

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

/// Replaces a value that may be a secret.
const REDACTED: &str = "REDACTED";

/// The lists of `name` and `value` in pod templates whose values may be secrets: environment
/// variables, and the header fields of probes and hooks.
const SECRET_LISTS: [&str; 2] = ["env", "httpHeaders"];

/// Suffixes of the names of annotations where tools keep the whole object as it was applied:
/// kubectl (`kubectl.kubernetes.io/last-applied-configuration`), kapp, Rancher's
/// `objectset.rio.cattle.io/applied` and others.
const APPLIED: [&str; 4] = [
    "last-applied-configuration",
    "last-applied",
    "/original",
    "/applied",
];

/// The annotation that has environment variables of the proxy.
const ADDITIONAL_ENV: &str = "config.linkerd.io/proxy-additional-env";

/// The most namespaces that are read; each extension has one.
const MAX_EXTENSIONS: usize = 100;

/// The groups of [`KINDS`], and their plurals.
pub(super) fn rights() -> impl Iterator<Item = Right> {
    KINDS.iter().flat_map(|(_, api, plural)| {
        let group = api.trim_start_matches("/api/").trim_start_matches("/apis/");
        let group = group.split_once('/').map_or("", |(group, _)| group);
        rights::all(group, *plural, &["get"])
    })
}

/// Reads an object or a list.
pub(super) async fn get(client: &Client, path: &str) -> Result<Value, Failure> {
    let request = Request::get(path).body(Vec::new());
    let request = request.map_err(|error| Failure::internal(&error))?;
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

/// Returns the redacted definition of an object in YAML.
pub(super) async fn definition(client: &Client, params: &Params) -> Result<String, Failure> {
    let path = definition_path(params).map_err(Failure::invalid)?;
    let mut object = get(client, &path).await?;
    if let Some(metadata) = object["metadata"].as_object_mut() {
        // Long, and only of interest to the API server.
        metadata.remove("managedFields");
    }
    redact(&mut object);
    serde_norway::to_string(&object).map_err(|error| Failure::internal(&error))
}

/// Removes the values that often are secrets from an object and the templates within it.
fn redact(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), &mut *field) {
                    (list, Value::Array(items)) if SECRET_LISTS.contains(&list) => {
                        items.iter_mut().for_each(redact_value);
                    }
                    ("annotations", Value::Object(annotations)) => redact_annotations(annotations),
                    _ => redact(field),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Replaces the value of a named value; a reference to a Secret or ConfigMap stays.
fn redact_value(named: &mut Value) {
    if let Some(value) = named.get_mut("value") {
        *value = REDACTED.into();
    }
}

fn redact_annotations(annotations: &mut Map<String, Value>) {
    annotations.retain(|name, _| !APPLIED.iter().any(|end| name.ends_with(end)));
    if let Some(value) = annotations.get_mut(ADDITIONAL_ENV) {
        *value = REDACTED.into();
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_environments_and_applied_configurations_are_redacted() {
        let container = |name: &str| {
            json!({
                "name": name,
                "image": "web:1",
                "env": [
                    { "name": "PASSWORD", "value": "hunter2" },
                    { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "a", "key": "b" } } },
                    { "name": "EMPTY" },
                ],
                "livenessProbe": { "httpGet": {
                    "path": "/live",
                    "httpHeaders": [{ "name": "authorization", "value": "hunter2" }],
                } },
            })
        };
        let pod = json!({
            "metadata": { "annotations": { "config.linkerd.io/proxy-additional-env": "hunter2" } },
            "spec": {
                "containers": [container("web")],
                "initContainers": [container("init")],
                "ephemeralContainers": [container("debug")],
            },
        });
        let annotations = json!({
            "kubectl.kubernetes.io/last-applied-configuration": "hunter2",
            "kapp.k14s.io/original": "hunter2",
            "banzaicloud.com/last-applied": "hunter2",
            "objectset.rio.cattle.io/applied": "hunter2",
            "linkerd.io/inject": "enabled",
        });
        for (name, path) in [
            ("a pod", &[][..]),
            ("a Deployment", &["template"]),
            ("a CronJob", &["jobTemplate", "template"]),
        ] {
            let mut object = pod.clone();
            for field in path.iter().rev() {
                object = json!({ "spec": { *field: object } });
            }
            object["metadata"]["annotations"]["linkerd.io/inject"] = "enabled".into();
            for (key, value) in annotations.as_object().unwrap() {
                object["metadata"]["annotations"][key] = value.clone();
            }
            redact(&mut object);
            let text = object.to_string();
            assert!(!text.contains("hunter2"), "{name}: {text}");
            for kept in [
                "PASSWORD",
                "secretKeyRef",
                "EMPTY",
                "web:1",
                "/live",
                "enabled",
            ] {
                assert!(text.contains(kept), "{name}: {kept}: {text}");
            }
            assert_eq!(text.matches(REDACTED).count(), 7, "{name}: {text}");
        }
    }

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
