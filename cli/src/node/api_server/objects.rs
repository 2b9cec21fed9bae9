//! The objects of a node by the paths of the Kubernetes API.

use http::Uri;
use serde_json::{Value, json};

use super::super::Node;

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
enum Wanted<'a> {
    Version,
    Namespaces,
    /// All objects of a kind in a namespace.
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
        "EndpointSlice",
    ),
];

/// The label that the objects of a list must have, with its value if that is required too.
#[derive(Debug, PartialEq, Eq)]
struct LabelSelector {
    label: String,
    value: Option<String>,
}

/// Returns an object or a list; `None` if the node does not have it.
pub(super) fn find(node: &Node, uri: &Uri) -> anyhow::Result<Option<Value>> {
    let list = |mut items: Vec<Value>| {
        if let Some(selector) = selector(uri.query().unwrap_or_default()) {
            items.retain(|object| selector.selects(object));
        }
        Some(json!({ "items": items }))
    };
    Ok(match parse(uri.path()) {
        None => None,
        Some(Wanted::Version) => Some(json!({ "gitVersion": env!("CARGO_PKG_VERSION") })),
        Some(Wanted::Namespaces) => list(node.objects("Namespace")?),
        Some(Wanted::List(kind, namespace)) => {
            let mut objects: Vec<Value> = node.objects(kind)?;
            objects.retain(|object| object["metadata"]["namespace"] == namespace);
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

/// Returns the selector of a list. The dashboard selects by one label.
fn selector(query: &str) -> Option<LabelSelector> {
    let (_, text) =
        form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "labelSelector")?;
    let (label, value) = match text.split_once('=') {
        Some((label, value)) => (label, Some(value.to_owned())),
        None => (&*text, None),
    };
    Some(LabelSelector {
        label: label.to_owned(),
        value,
    })
}

impl LabelSelector {
    fn selects(&self, object: &Value) -> bool {
        let found = object["metadata"]["labels"].get(&self.label);
        found.is_some_and(|found| self.value.as_ref().is_none_or(|value| found == value))
    }
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
    }

    #[test]
    fn lists_are_selected_by_label_and_value() {
        let selected = |query: &str, labels: Value| {
            let object = json!({ "metadata": { "labels": labels } });
            selector(query).map(|selector| selector.selects(&object))
        };
        let extension = "labelSelector=linkerd.io/extension&limit=100";
        let of_service = "labelSelector=kubernetes.io%2Fservice-name%3Dweb&limit=10";
        let viz = json!({ "linkerd.io/extension": "viz" });
        let slice = |service: &str| json!({ "kubernetes.io/service-name": service });
        assert_eq!(selected(extension, viz), Some(true));
        assert_eq!(selected(extension, json!({})), Some(false));
        assert_eq!(selected(of_service, slice("web")), Some(true));
        assert_eq!(selected(of_service, slice("web-2")), Some(false));
        assert_eq!(selected(of_service, json!({})), Some(false));
        assert_eq!(selected("limit=100", json!({})), None);
    }
}
