//! The objects of a node by the paths of the Kubernetes API.

use http::Uri;
use mesh_core::node::{PodStatus, TIER_ANNOTATION, TIER_REASON_ANNOTATION};
use serde_json::{Value, json};

use super::super::Node;
use crate::resource::AgentReport;

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

/// Returns whether a path names pods.
pub(super) fn is_of_pods(path: &str) -> bool {
    matches!(
        parse(path),
        Some(Wanted::List("Pod", _) | Wanted::Object("Pod", _, _))
    )
}

/// Adds to pods the redirection tier that the node's agent reports: nothing scrapes its metrics. A
/// pod cannot claim another one.
pub(super) fn add_redirection(found: &mut Value, report: &AgentReport) {
    match found.get_mut("items").and_then(Value::as_array_mut) {
        Some(items) => items.iter_mut().for_each(|pod| annotate(pod, report)),
        None => annotate(found, report),
    }
}

fn annotate(pod: &mut Value, report: &AgentReport) {
    let metadata = &mut pod["metadata"];
    let is_pod = |status: &&PodStatus| {
        metadata["namespace"] == *status.pod.namespace && metadata["name"] == *status.pod.name
    };
    let pods = report.pods.as_deref().unwrap_or_default();
    let tier = pods.iter().find(is_pod).map(|status| status.tier);
    let annotations = metadata.get_mut("annotations");
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.remove(TIER_ANNOTATION);
        annotations.remove(TIER_REASON_ANNOTATION);
    }
    let Some(tier) = tier else {
        return;
    };
    let annotations = &mut metadata["annotations"];
    annotations[TIER_ANNOTATION] = tier.as_str().into();
    annotations[TIER_REASON_ANNOTATION] = match &report.status {
        Ok(status) if status.tier == tier => status.reason.as_str().into(),
        Ok(status) => format!(
            "the pod was enrolled before the agent changed the tier to {}",
            status.tier
        )
        .into(),
        Err(_unknown) => "".into(),
    };
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
    fn pods_have_the_tier_of_the_agent_and_no_other() {
        let status: PodStatus = serde_json::from_value(json!({
            "pod": { "namespace": "shop", "name": "web", "uid": "" },
            "containerId": "c", "netns": "/n", "netnsCookie": 1, "addresses": [],
            "tier": "nft", "connections": {},
        }))
        .unwrap();
        let report = AgentReport {
            node: "n".to_owned(),
            status: Err(anyhow::anyhow!("it does not run")),
            pods: Ok(vec![status]),
        };
        let own = json!({ TIER_ANNOTATION: "full", "a": "b" });
        let mut list = json!({ "items": [
            { "metadata": { "namespace": "shop", "name": "web" } },
            { "metadata": { "namespace": "bank", "name": "web", "annotations": own } },
        ] });
        add_redirection(&mut list, &report);
        let annotations = |at: usize| &list["items"][at]["metadata"]["annotations"];
        assert_eq!(annotations(0)[TIER_ANNOTATION], "nft");
        assert_eq!(*annotations(1), json!({ "a": "b" }));
        let mut pod = json!({ "metadata": { "namespace": "shop", "name": "web" } });
        add_redirection(&mut pod, &report);
        assert_eq!(pod["metadata"]["annotations"][TIER_ANNOTATION], "nft");
        assert!(is_of_pods("/api/v1/namespaces/shop/pods/web"));
        assert!(!is_of_pods("/apis/apps/v1/namespaces/shop/deployments/web"));
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
