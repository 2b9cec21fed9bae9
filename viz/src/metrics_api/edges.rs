//! Edges: pairs of objects with connections between them, and the identities at both ends.

use std::collections::BTreeMap;

use mesh_api::linkerd2::viz::{Edge, EdgesRequest};
use mesh_cluster::prometheus::Sample;
use mesh_objects::inventory::Inventory;
use mesh_objects::model::{ListedKind, ListedObject, Name, PodPhase};

use super::resource::{Target, TargetKind};
use crate::metrics::{Family, Grouping, Matchers, Query};

pub(super) fn parse(request: &EdgesRequest) -> Result<Target, String> {
    let selector = request.selector.as_ref();
    let Some(resource) = selector.and_then(|selector| selector.resource.as_ref()) else {
        return Err("Edges request missing Selector Resource".to_owned());
    };
    Target::parse(resource)
}

pub(super) fn query(kind: TargetKind) -> Query {
    let (source, destination) = (kind.label(), kind.dst_label());
    let matchers = Matchers::new()
        .equal("direction", "outbound")
        .not_empty(source)
        .not_empty(&*destination);
    let by = Grouping::of(&[
        source,
        &destination,
        "pod",
        "server_id",
        "namespace",
        "dst_namespace",
        "no_tls_reason",
    ]);
    matchers.sum(Family::OpenConnections, &by)
}

/// Returns the edges with an end in the target's namespace, sorted by namespaces and names.
/// `identity` returns the identity of a client's pod.
pub(super) fn edges(
    target: &Target,
    samples: &[Sample],
    identity: impl Fn(&Name) -> Option<String>,
) -> Vec<Edge> {
    let (source, destination) = (target.kind.label(), target.kind.dst_label());
    let resource = |namespace: &str, name: &str| {
        let mut resource = target.resource(namespace, name);
        source.clone_into(&mut resource.r#type);
        resource
    };
    let mut edges = BTreeMap::new();
    for sample in samples {
        let (from, to) = (sample.label("namespace"), sample.label("dst_namespace"));
        let within = [from, to].contains(&&*target.namespace);
        if sample.value == 0.0 || !(target.namespace.is_empty() || within) {
            continue;
        }
        let (client, server) = (sample.label(source), sample.label(&destination));
        let key = (from, to, client, server);
        if edges.contains_key(&key) {
            continue;
        }
        // A pod that no longer runs has no connections.
        let Some(client_id) = identity(&Name::new(from, sample.label("pod"))) else {
            continue;
        };
        let edge = Edge {
            src: Some(resource(from, client)),
            dst: Some(resource(to, server)),
            client_id,
            server_id: sample.label("server_id").to_owned(),
            no_identity_msg: no_identity_message(sample.label("no_tls_reason")).to_owned(),
        };
        edges.insert(key, edge);
    }
    edges.into_values().collect()
}

/// Returns the identity of a running pod: its ServiceAccount and namespace.
pub(super) fn identity(inventory: &Inventory, pod: &Name) -> Option<String> {
    let object: &ListedObject = inventory.get(ListedKind::Pod, pod)?;
    let detail = object.pod()?;
    (detail.phase == PodPhase::Running)
        .then(|| format!("{}.{}", detail.service_account, pod.namespace))
}

fn no_identity_message(reason: &str) -> &'static str {
    match reason {
        "disabled" => "Disabled",
        "loopback" => "Loopback",
        "no_authority_in_http_request" => "No Authority In HTTP Request",
        "not_http" => "Not HTTP",
        "not_provided_by_remote" => "Not Provided By Remote",
        "not_provided_by_service_discovery" => "Not Provided By Service Discovery",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use mesh_api::linkerd2::viz::{Resource, ResourceSelection};

    use super::*;

    fn target(kind: &str, namespace: &str) -> Target {
        parse(&EdgesRequest {
            selector: Some(ResourceSelection {
                resource: Some(Resource {
                    namespace: namespace.to_owned(),
                    r#type: kind.to_owned(),
                    name: String::new(),
                }),
                label_selector: String::new(),
            }),
        })
        .unwrap()
    }

    #[test]
    fn query_has_text_of_linkerd() {
        assert_eq!(
            query(target("deployment", "").kind).to_string(),
            r#"sum(tcp_open_connections{deployment!="", direction="outbound", dst_deployment!=""}) by (deployment, dst_deployment, pod, server_id, namespace, dst_namespace, no_tls_reason)"#
        );
        assert_eq!(
            query(target("job", "").kind).to_string(),
            r#"sum(tcp_open_connections{direction="outbound", dst_k8s_job!="", k8s_job!=""}) by (k8s_job, dst_k8s_job, pod, server_id, namespace, dst_namespace, no_tls_reason)"#
        );
        let error = parse(&EdgesRequest::default()).unwrap_err();
        assert_eq!(error, "Edges request missing Selector Resource");
    }

    #[test]
    fn edges_are_of_running_pods_and_of_the_namespace() {
        let sample = |from: &str, pod: &str, to: &str, value| Sample {
            labels: [
                ("namespace", from),
                ("deployment", "client"),
                ("pod", pod),
                ("dst_namespace", to),
                ("dst_deployment", "web"),
                ("server_id", "web.shop"),
            ]
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .into(),
            time: 0.0,
            value,
        };
        let samples = [
            sample("shop", "client-gone", "shop", 1.0),
            sample("shop", "client-1", "shop", 1.0),
            sample("shop", "client-2", "shop", 1.0),
            sample("bank", "client-1", "shop", 0.0),
            sample("bank", "client-1", "other", 2.0),
        ];
        let identity = |pod: &Name| (&*pod.name != "client-gone").then(|| pod.to_string());
        let found = |namespace: &str| {
            let edges = edges(&target("deployment", namespace), &samples, identity);
            edges
                .into_iter()
                .map(|edge| (edge.client_id, edge.dst.unwrap().namespace))
                .collect::<Vec<_>>()
        };
        let pair = |client: &str, to: &str| (client.to_owned(), to.to_owned());
        assert_eq!(found("shop"), [pair("shop/client-1", "shop")]);
        assert_eq!(
            found(""),
            [
                pair("bank/client-1", "other"),
                pair("shop/client-1", "shop")
            ]
        );
    }
}
