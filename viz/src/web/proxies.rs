//! `/api/proxies`: the proxies of a workload, each with its node, the node's redirection tier, its
//! identity and the expiry of its certificate.
//!
//! Objects have the node and the identity. The expiry and the tier are metrics of the proxies and
//! of the node agents, so that they are missing where these are not queried from Prometheus or
//! scraped, and `metricsProblem` says why. On a local node the pods themselves have the tier.

use std::collections::BTreeMap;

use futures_util::try_join;
use k8s_openapi::api::core::v1::Pod;
use mesh_api::linkerd2::viz::Resource;
use mesh_cluster::prometheus::Sample;
use mesh_core::node::{TIER_ANNOTATION, TIER_REASON_ANNOTATION};
use mesh_k8s::pod::{
    INIT_CONTAINER, PROXY_CONTAINER, annotation, containers, plain_env, service_account,
};
use serde_json::{Value, json};

use super::client::Failure;
use super::pods::{self, PodsOf, pods_of};
use super::sources::{Place, Sources};
use crate::metrics::{Family, Grouping, Matchers, Query, SourceError, quote_regex};

/// The values of metrics of proxies and nodes.
#[derive(Debug, Default, PartialEq)]
struct Measured {
    /// By pod, in seconds since 1970.
    expiries: BTreeMap<String, i64>,
    /// Tier and reason, by node.
    tiers: BTreeMap<String, (String, String)>,
}

/// The environment variable of a proxy's identity.
const LOCAL_NAME: &str = "LINKERD2_PROXY_IDENTITY_LOCAL_NAME";

/// Returns `pods`, `podsOmitted` and `metricsProblem`.
pub(super) async fn proxies(sources: &Sources, resource: &Resource) -> Result<Value, Failure> {
    let PodsOf { pods, omitted } = pods_of(sources, resource).await?;
    let measured = measure(sources, &resource.namespace, &pods).await;
    let (measured, problem) = match measured {
        Ok(measured) => (measured, None),
        Err(problem) => (Measured::default(), Some(problem)),
    };
    let rows = pods.iter().map(|pod| proxy(pod, &measured, sources.place));
    Ok(json!({
        "pods": rows.collect::<Value>(),
        "podsOmitted": omitted,
        "metricsProblem": problem,
    }))
}

async fn measure(sources: &Sources, namespace: &str, pods: &[Pod]) -> Result<Measured, String> {
    if pods.is_empty() {
        return Ok(Measured::default());
    }
    let queried = sources.queried()?;
    let expiry = expiry_query(namespace, pods);
    let tier = tier_query(pods);
    let answers = try_join!(queried.query(&expiry), queried.query(&tier));
    let (expiries, tiers) = answers.map_err(|error: SourceError| error.to_string())?;
    Ok(Measured {
        expiries: expiries.iter().map(expiry_of).collect(),
        tiers: tiers.iter().map(tier_of).collect(),
    })
}

fn expiry_query(namespace: &str, pods: &[Pod]) -> Query {
    let selected = Matchers::new()
        .equal("namespace", namespace)
        .regex("pod", any_of(pods.iter().map(pods::name)));
    selected.max(Family::CertificateExpiry, &Grouping::of(&["pod"]))
}

fn tier_query(pods: &[Pod]) -> Query {
    let selected = Matchers::new().regex("node", any_of(pods.iter().map(node)));
    let by = Grouping::of(&["node", "tier", "reason"]);
    selected.max(Family::RedirectionTier, &by)
}

/// Returns a regular expression for these names.
fn any_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = names.map(quote_regex).collect();
    names.sort_unstable();
    names.dedup();
    names.join("|")
}

fn expiry_of(sample: &Sample) -> (String, i64) {
    // Saturates, and is 0 for NaN.
    (sample.label("pod").to_owned(), sample.value as i64)
}

fn tier_of(sample: &Sample) -> (String, (String, String)) {
    let label = |name| sample.label(name).to_owned();
    (label("node"), (label("tier"), label("reason")))
}

fn proxy(pod: &Pod, measured: &Measured, place: Place) -> Value {
    let name = pods::name(pod);
    json!({
        "name": name,
        "node": node(pod),
        "meshed": pods::is_meshed(pod),
        "identity": identity(pod),
        "certificateExpires": measured.expiries.get(name),
        "redirection": redirection(pod, measured, place),
    })
}

fn node(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    name.unwrap_or_default()
}

/// Returns the identity that the injector has given to the proxy, whose name contains the service
/// account and the namespace of the pod as variables.
fn identity(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let proxy = containers(spec).find(|container| container.name == PROXY_CONTAINER)?;
    let pattern = *plain_env(proxy).get(LOCAL_NAME)?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pattern
        .replace("$(_pod_sa)", service_account(pod))
        .replace("$(_pod_ns)", namespace);
    Some(name)
}

fn redirection(pod: &Pod, measured: &Measured, place: Place) -> Value {
    if !pods::is_meshed(pod) {
        return Value::Null;
    }
    let mut all = pod.spec.iter().flat_map(containers);
    if all.any(|container| container.name == INIT_CONTAINER) {
        return json!({
            "tier": "init container",
            "reason": "linkerd-init writes the rules of a packet filter when the pod starts",
        });
    }
    // On a cluster, any user who may create pods could write these.
    if place == Place::LocalNode
        && let Some(tier) = annotation(pod, TIER_ANNOTATION)
    {
        let reason = annotation(pod, TIER_REASON_ANNOTATION).unwrap_or_default();
        return json!({ "tier": tier, "reason": reason });
    }
    let found = measured.tiers.get(node(pod));
    found.map_or(
        Value::Null,
        |(tier, reason)| json!({ "tier": tier, "reason": reason }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web.1", "namespace": "shop",
                "labels": { "linkerd.io/control-plane-ns": "linkerd" },
            },
            "spec": {
                "nodeName": "n1", "serviceAccountName": "web", "containers": [],
                "initContainers": containers,
            },
        }))
        .unwrap()
    }

    fn measured() -> Measured {
        Measured {
            expiries: BTreeMap::from([("web.1".to_owned(), 1_800_000_000)]),
            tiers: BTreeMap::from([("n1".to_owned(), ("full".to_owned(), "tested".to_owned()))]),
        }
    }

    #[test]
    fn proxy_has_its_identity_certificate_and_tier() {
        // A native sidecar is an init container.
        let name = "$(_pod_sa).$(_pod_ns).serviceaccount.identity.linkerd.cluster.local";
        let env = json!([{ "name": LOCAL_NAME, "value": name }]);
        let pod = pod(json!([{ "name": PROXY_CONTAINER, "env": env }]));
        let expected = json!({
            "name": "web.1", "node": "n1", "meshed": true,
            "identity": "web.shop.serviceaccount.identity.linkerd.cluster.local",
            "certificateExpires": 1_800_000_000_i64,
            "redirection": { "tier": "full", "reason": "tested" },
        });
        assert_eq!(proxy(&pod, &measured(), Place::Cluster), expected);
        let unknown = proxy(&pod, &Measured::default(), Place::Cluster);
        assert!(unknown["certificateExpires"].is_null() && unknown["redirection"].is_null());
    }

    #[test]
    fn pod_with_the_init_container_does_not_depend_on_the_node() {
        let pod = pod(json!([{ "name": INIT_CONTAINER }]));
        let row = proxy(&pod, &measured(), Place::Cluster);
        assert_eq!(row["redirection"]["tier"], "init container");
        assert!(row["identity"].is_null());
    }

    #[test]
    fn only_pods_of_a_local_node_have_their_own_tier() {
        let mut pod = pod(json!([]));
        let annotations = [(TIER_ANNOTATION, "nft"), (TIER_REASON_ANNOTATION, "forced")];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
        pod.metadata.annotations = Some(annotations.into());
        let row = proxy(&pod, &Measured::default(), Place::LocalNode);
        assert_eq!(
            row["redirection"],
            json!({ "tier": "nft", "reason": "forced" })
        );
        let row = proxy(&pod, &measured(), Place::Cluster);
        assert_eq!(row["redirection"]["tier"], "full");
    }

    #[test]
    fn queries_select_names_and_not_patterns() {
        let pods = [pod(json!([])), pod(json!([]))];
        assert_eq!(
            expiry_query("shop", &pods).to_string(),
            "max(control_identity_cert_expiration_timestamp_seconds{namespace=\"shop\", pod=~\"web\\\\.1\"}) by (pod)"
        );
        assert_eq!(
            tier_query(&pods).to_string(),
            "max(mesh_agent_tier_info{node=~\"n1\"}) by (node, tier, reason)"
        );
    }
}
