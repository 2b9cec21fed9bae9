//! The routes of an OpenAPI document: Swagger 2, or OpenAPI 3.

use std::collections::BTreeMap;

use mesh_k8s::crd::ServiceProfileSpec;
use mesh_k8s::crd::service_profile::{ResponseClass, ResponseCondition, Route, StatusRange};
use serde::Deserialize;

use super::route::route;
use crate::exit::Failure;
use crate::output;

/// The fields of a document that routes are made of.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    swagger: Option<String>,
    openapi: Option<String>,
    /// The beginning of all paths in version 2.
    #[serde(default)]
    base_path: String,
    /// The beginnings of URLs in version 3.
    #[serde(default)]
    servers: Vec<Server>,
    #[serde(default)]
    paths: BTreeMap<String, PathItem>,
}

#[derive(Debug, Deserialize)]
struct Server {
    url: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PathItem {
    #[serde(rename = "$ref")]
    reference: Option<String>,
    delete: Option<Operation>,
    get: Option<Operation>,
    head: Option<Operation>,
    options: Option<Operation>,
    patch: Option<Operation>,
    post: Option<Operation>,
    put: Option<Operation>,
    trace: Option<Operation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Operation {
    responses: BTreeMap<String, serde_json::Value>,
    #[serde(rename = "x-linkerd-retryable")]
    retryable: bool,
    #[serde(rename = "x-linkerd-timeout")]
    timeout: Option<String>,
}

/// Returns a route for each operation, in the order of paths and methods of `linkerd profile`.
pub(super) fn spec(text: &str, file: &str) -> Result<ServiceProfileSpec, Failure> {
    let invalid = |problem: String| Failure::Input(format!("{file}: {problem}"));
    // JSON is YAML. The errors of this parser name the field.
    let document: Document = serde_norway::from_str(text)
        .map_err(|error| invalid(format!("not an OpenAPI document: {error}")))?;
    let base = base(&document, file).map_err(invalid)?;
    let mut routes = Vec::new();
    for (path, item) in &document.paths {
        if path.starts_with("x-") {
            continue;
        }
        if let Some(reference) = &item.reference {
            return Err(invalid(format!(
                "paths.{path}.$ref: {reference:?} is not followed; write the operations into the document"
            )));
        }
        if !path.starts_with('/') {
            return Err(invalid(format!("paths.{path}: a path begins with a slash")));
        }
        routes.extend(operations(item).map(|(method, operation)| {
            operation_route(method, &format!("{base}{path}"), operation)
        }));
    }
    if routes.is_empty() {
        return Err(invalid("paths: has no operations".to_owned()));
    }
    Ok(ServiceProfileSpec {
        routes: Some(routes),
        ..ServiceProfileSpec::default()
    })
}

/// Returns what comes before each path.
fn base(document: &Document, file: &str) -> Result<String, String> {
    let version = (document.swagger.as_deref(), document.openapi.as_deref());
    match version {
        (Some("2.0"), None) => Ok(document.base_path.trim_end_matches('/').to_owned()),
        (None, Some(version)) if version.starts_with("3.") => {
            let bases: Vec<&str> = document.servers.iter().map(path_of_url).collect();
            let first = *bases.first().unwrap_or(&"");
            if bases.iter().any(|base| *base != first) {
                output::note(&format!(
                    "{file}: the paths of the servers differ; the routes begin with that of the first one, {first:?}"
                ));
            }
            Ok(first.to_owned())
        }
        (None, None) => {
            Err("not an OpenAPI document: it has neither swagger nor openapi".to_owned())
        }
        (swagger, openapi) => {
            let version = openapi.or(swagger).unwrap_or_default();
            Err(format!(
                "version {version:?} of OpenAPI is not supported; write a document of swagger 2.0 or openapi 3"
            ))
        }
    }
}

/// Returns the path of a URL, which may be relative, without a slash at the end.
fn path_of_url(server: &Server) -> &str {
    let url = server.url.split(['?', '#']).next().unwrap_or_default();
    let path = match url.split_once("://") {
        Some((_scheme, rest)) => rest.find('/').map_or("", |slash| &rest[slash..]),
        None => url,
    };
    path.trim_end_matches('/')
}

fn operations(item: &PathItem) -> impl Iterator<Item = (&'static str, &Operation)> {
    let all = [
        ("DELETE", &item.delete),
        ("GET", &item.get),
        ("HEAD", &item.head),
        ("OPTIONS", &item.options),
        ("PATCH", &item.patch),
        ("POST", &item.post),
        ("PUT", &item.put),
        ("TRACE", &item.trace),
    ];
    all.into_iter()
        .filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

fn operation_route(method: &str, path: &str, operation: &Operation) -> Route {
    let classes: Vec<ResponseClass> = operation
        .responses
        .keys()
        .filter_map(|status| response_class(status))
        .collect();
    Route {
        response_classes: (!classes.is_empty()).then_some(classes),
        is_retryable: operation.retryable.then_some(true),
        timeout: operation.timeout.clone(),
        ..route(format!("{method} {path}"), method, path)
    }
}

/// Returns the class of a status such as `404`, or of a range such as `4XX`; none for `default`.
fn response_class(status: &str) -> Option<ResponseClass> {
    let is_range = matches!(status.as_bytes(), [b'1'..=b'5', b'X' | b'x', b'X' | b'x']);
    let (min, max) = if is_range {
        let hundred = u32::from(status.as_bytes()[0] - b'0') * 100;
        (hundred, hundred + 99)
    } else {
        let status = status.parse().ok()?;
        (status, status)
    };
    Some(ResponseClass {
        condition: ResponseCondition {
            status: Some(StatusRange {
                min: Some(min),
                max: Some(max),
            }),
            ..ResponseCondition::default()
        },
        is_failure: (min >= 500).then_some(true),
    })
}
