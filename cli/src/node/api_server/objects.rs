//! The objects of a node by the paths of the Kubernetes API.

use http::Uri;
use serde_json::{Value, json};

use super::super::Node;

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    Version,
    Namespaces,
    /// All objects of a kind in a namespace; of EndpointSlices, those of the Service that the query
    /// names.
    List(&'static str, &'a str),
    /// A kind, a namespace and a name.
    Object(&'static str, &'a str, &'a str),
}

/// The API group and plural of the kinds of a node that the dashboard shows.
const KINDS: [(&str, &str, &str); 4] = [
    ("/api/v1/", "pods", "Pod"),
    ("/apis/apps/v1/", "deployments", "Deployment"),
    ("/apis/apps/v1/", "replicasets", "ReplicaSet"),
    (
        "/apis/discovery.k8s.io/v1/",
        "endpointslices",
        ENDPOINT_SLICE,
    ),
];

const ENDPOINT_SLICE: &str = "EndpointSlice";

/// Returns an object or a list; `None` if the node does not have it.
pub(super) fn find(node: &Node, uri: &Uri) -> anyhow::Result<Option<Value>> {
    let list = |items: Vec<Value>| Some(json!({ "items": items }));
    Ok(match parse(uri.path()) {
        None => None,
        Some(Wanted::Version) => Some(json!({ "gitVersion": env!("CARGO_PKG_VERSION") })),
        Some(Wanted::Namespaces) => {
            let label = wanted_label(uri.query().unwrap_or_default());
            let mut namespaces: Vec<Value> = node.objects("Namespace")?;
            namespaces.retain(|namespace| {
                label.is_none_or(|label| namespace["metadata"]["labels"].get(label).is_some())
            });
            list(namespaces)
        }
        Some(Wanted::List(kind, namespace)) => {
            let mut objects: Vec<Value> = node.objects(kind)?;
            objects.retain(|object| object["metadata"]["namespace"] == namespace);
            if kind == ENDPOINT_SLICE {
                let service = service_of_slices(uri.query().unwrap_or_default());
                objects.retain(|object| {
                    let of = &object["metadata"]["labels"]["kubernetes.io/service-name"];
                    service.is_none_or(|service| of == service)
                });
            }
            list(objects)
        }
        Some(Wanted::Object(kind, namespace, name)) => {
            let objects: Vec<Value> = node.objects(kind)?;
            objects.into_iter().find(|object| {
                let metadata = &object["metadata"];
                metadata["namespace"] == namespace && metadata["name"] == name
            })
        }
    })
}

fn parse(path: &str) -> Option<Wanted<'_>> {
    match path {
        "/version" => return Some(Wanted::Version),
        "/api/v1/namespaces" => return Some(Wanted::Namespaces),
        _ => {}
    }
    KINDS.iter().find_map(|(group, plural, kind)| {
        let rest = path.strip_prefix(group)?.strip_prefix("namespaces/")?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts[..] {
            [namespace, found] if found == *plural => Some(Wanted::List(kind, namespace)),
            [namespace, found, name] if found == *plural => {
                Some(Wanted::Object(kind, namespace, name))
            }
            _ => None,
        }
    })
}

/// Returns the label that the objects of a list must have. Such labels contain no character that is
/// escaped in a query but the slash.
fn wanted_label(query: &str) -> Option<&str> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("labelSelector="))
}

/// Returns the Service whose EndpointSlices are wanted.
fn service_of_slices(query: &str) -> Option<&str> {
    wanted_label(query)?.strip_prefix("kubernetes.io%2Fservice-name%3D")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_dashboard_are_parsed() {
        for (path, expected) in [
            ("/version", Some(Wanted::Version)),
            ("/api/v1/namespaces", Some(Wanted::Namespaces)),
            (
                "/api/v1/namespaces/shop/pods",
                Some(Wanted::List("Pod", "shop")),
            ),
            (
                "/apis/apps/v1/namespaces/shop/deployments/web",
                Some(Wanted::Object("Deployment", "shop", "web")),
            ),
            ("/api/v1/namespaces/shop/secrets/key", None),
            ("/api/v1/namespaces/shop/deployments/web", None),
            ("/api/v1/pods", None),
            ("/", None),
        ] {
            assert_eq!(parse(path), expected, "{path}");
        }
        let query = "labelSelector=linkerd.io/extension&limit=100";
        assert_eq!(wanted_label(query), Some("linkerd.io/extension"));
        assert_eq!(wanted_label("limit=100"), None);
        let query = "labelSelector=kubernetes.io%2Fservice-name%3Dweb&limit=10";
        assert_eq!(service_of_slices(query), Some("web"));
    }
}
