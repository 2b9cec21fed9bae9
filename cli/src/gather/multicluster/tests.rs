//! The facts of a cluster with scripted API servers: its own, and the one of a target.

use std::convert::Infallible;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use kube::client::Body;
use mesh_test_support::certificates::TestCa;
use mesh_test_support::kube_api;
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::facts::{Environment, Mode};

const TIMEOUT: Duration = Duration::from_secs(30);

/// A request of the command.
struct Asked {
    path: String,
    query: String,
    body: Value,
}

/// Returns the object at a path, or the response to a review.
type Respond = fn(&Asked, SocketAddr) -> Option<Value>;

/// Returns a cluster whose API server responds like this; `target` is the address of another one.
fn cluster(respond: Respond, target: SocketAddr) -> Cluster {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let asked = Asked {
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let is_read = parts.method == Method::GET;
        assert!(
            is_read || asked.path.contains("review"),
            "{} {}",
            parts.method,
            asked.path
        );
        Ok::<_, Infallible>(kube_api::found(respond(&asked, target)))
    });
    Cluster::played(kube::Client::new(service, "default"))
}

fn list(items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items })
}

fn review(allowed: bool) -> Value {
    json!({ "metadata": {}, "spec": {}, "status": { "allowed": allowed } })
}

/// A cluster with a valid and an invalid Link, and the controller of the valid one.
fn linked(asked: &Asked, target: SocketAddr) -> Option<Value> {
    let labels = json!({ "mirror.linkerd.io/cluster-name": "east" });
    let named = |namespace: &str, name: &str| json!({ "metadata": { "name": name, "namespace": namespace, "labels": labels } });
    Some(match &*asked.path {
        "/api/v1/namespaces" => list(&[named("", "mc")]),
        "/api/v1/namespaces/linkerd/configmaps" => list(&[]),
        "/apis/multicluster.linkerd.io/v1alpha3/links" => {
            let mut east = named("links", "east");
            east["spec"] = json!({
                "targetClusterName": "east", "targetClusterDomain": "cluster.local",
                "targetClusterLinkerdNamespace": "linkerd",
                "clusterCredentialsSecret": "cluster-credentials-east",
                "remoteDiscoverySelector": { "matchLabels": { "a": "b" } },
            });
            let mut west = named("mc", "west");
            west["spec"] = json!({ "gatewayPort": 4143 });
            list(&[east, west])
        }
        "/apis/apps/v1/deployments" => {
            let mut controller = named("links", "controller-east");
            let pod = json!({ "serviceAccountName": "controller-east", "containers": [
                { "name": "controller", "args": ["--enable-namespace-creation=true"] },
            ] });
            controller["spec"] = json!({ "selector": {}, "template": { "spec": pod } });
            list(&[controller])
        }
        "/api/v1/services"
            if asked
                .query
                .contains("%21mirror.linkerd.io%2Fmirrored-service") =>
        {
            list(&[named("links", "probe-east")])
        }
        "/api/v1/services" => list(&[named("shop", "web-east")]),
        "/api/v1/endpoints" => list(&[named("shop", "web-east")]),
        "/api/v1/namespaces/linkerd/secrets" if asked.query.contains("fieldSelector") => list(&[]),
        "/api/v1/namespaces/linkerd/secrets" => {
            let label = json!({ "multicluster.linkerd.io/cluster-name": "east" });
            let annotation = json!({ "multicluster.linkerd.io/trust-domain": "east.example" });
            list(&[json!({
                "metadata": { "name": "c", "labels": label, "annotations": annotation },
            })])
        }
        "/api/v1/namespaces/links/pods" | "/api/v1/namespaces/mc/pods" => {
            let namespace = asked.path.split('/').nth(4).unwrap();
            list(&[named(namespace, "controller-east-0")])
        }
        "/apis/coordination.k8s.io/v1/namespaces/links/leases" => list(&[]),
        "/apis/coordination.k8s.io/v1/namespaces/mc/leases" => list(&[]),
        "/api/v1/namespaces/links/secrets/cluster-credentials-east" => {
            let kubeconfig = format!(
                "{{clusters: [{{name: east, cluster: {{server: 'http://{target}'}}}}], \
                 users: [{{name: m, user: {{token: secret}}}}], \
                 contexts: [{{name: east, context: {{cluster: east, user: m}}}}], \
                 current-context: east}}"
            );
            json!({ "metadata": {}, "data": { "kubeconfig": STANDARD.encode(kubeconfig) } })
        }
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            let spec = &asked.body["spec"];
            assert_eq!(spec["user"], "system:serviceaccount:links:controller-east");
            let attributes = &spec["resourceAttributes"];
            let denied = attributes["verb"] == "delete" && attributes["resource"] == "endpoints"
                || attributes["verb"] == "create" && attributes["resource"] == "namespaces"
                || attributes["subresource"] == "status"
                || attributes["resource"] == "secrets"
                    && attributes["name"] != "cluster-credentials-east"
                || attributes["resource"] == "leases"
                    && attributes["verb"] != "create"
                    && attributes["name"] != "service-mirror-write-east";
            review(!denied)
        }
        _ => return None,
    })
}

/// Serves the target cluster. Of the ConfigMaps it has the ones with these names.
async fn target(maps: &'static [(&'static str, &'static str, String)]) -> SocketAddr {
    kube_api::start(move |request: Request<Incoming>| async move {
        let authorization = request.headers()[http::header::AUTHORIZATION].clone();
        assert_eq!(authorization, "Bearer secret");
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let object = match path.as_str() {
            "/version" => Some(json!({
                "major": "1", "minor": "34", "gitVersion": "v1.34.1", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            })),
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" => {
                let asked: Value = serde_json::from_slice(&body).unwrap();
                let verb = &asked["spec"]["resourceAttributes"]["verb"];
                Some(review(verb != "watch"))
            }
            "/api/v1/services" | "/api/v1/namespaces/mc/services" => {
                let annotation = json!({ "mirror.linkerd.io/gateway-identity": "gateway.example" });
                let gateway = json!({ "metadata": {
                    "name": "linkerd-gateway", "namespace": "mc", "annotations": annotation,
                } });
                let web = json!({ "metadata": { "name": "web", "namespace": "shop" } });
                let is_whole = path.contains("/mc/");
                let services = if is_whole { vec![gateway] } else { vec![web, gateway] };
                Some(list(&services))
            }
            path => maps.iter().find_map(|(name, key, text)| {
                let map = json!({ "metadata": { "name": name }, "data": { *key: text } });
                let at = format!("/api/v1/namespaces/linkerd/configmaps/{name}");
                (path == at).then_some(map)
            }),
        };
        let response: Response<Full<Bytes>> = kube_api::found(object);
        response
    })
    .await
}

fn facts(cluster: &Cluster, timeout: Duration) -> impl Future<Output = Facts> {
    Box::pin(async move {
        let mode = Mode::Multicluster { timeout };
        let mut facts = Facts::new(Environment::Cluster, mode, "linkerd", Scope::All);
        query(cluster, &mut facts, timeout).await;
        facts
    })
}

fn maps(
    maps: Vec<(&'static str, &'static str, String)>,
) -> &'static [(&'static str, &'static str, String)] {
    Vec::leak(maps)
}

#[tokio::test]
async fn link_is_known_with_its_target_and_controller() {
    let anchor = TestCa::new().anchor_pem().to_owned();
    let roots = maps(vec![(
        "linkerd-identity-trust-roots",
        "ca-bundle.crt",
        anchor,
    )]);
    let facts = facts(&cluster(linked, target(roots).await), TIMEOUT).await;
    let known = &facts.multicluster;
    assert_eq!(known.namespaces, Ok(vec!["mc".to_owned()]));
    let services = known.services.as_ref().unwrap();
    let names: Vec<String> = services.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["web-east", "probe-east"]);
    let [credentials] = known.discovered.as_deref().unwrap() else {
        panic!("{:?}", known.discovered)
    };
    assert_eq!((&*credentials.cluster, &*credentials.secret), ("east", "c"));
    assert_eq!(credentials.trust_domain.as_deref(), Some("east.example"));
    assert!(!credentials.is_followed, "it has another type");
    assert_eq!(facts.objects.pods.as_ref().unwrap().len(), 2);
    let [east, west] = known.links.as_deref().unwrap() else {
        panic!("{:?}", known.links)
    };
    let problem = west.link.as_ref().unwrap_err();
    assert!(problem.contains("integer `4143`"), "{problem}");
    let target = east.target.as_ref().unwrap();
    assert_eq!(target.version, "v1.34.1");
    let denied = [
        "watch services",
        "watch endpointslices.discovery.k8s.io",
        "watch pods",
        "watch replicasets.apps",
        "watch jobs.batch",
        "watch servers.policy.linkerd.io",
    ];
    assert_eq!(target.denied.as_deref().unwrap(), denied);
    assert!(target.clock_ahead.unwrap().abs() < 60);
    let [gateway] = target.gateways.as_deref().unwrap() else {
        panic!("{:?}", target.gateways)
    };
    assert_eq!(gateway.name_any(), "linkerd-gateway");
    assert_eq!(target.anchors.as_ref().unwrap().len(), 1);
    let denied = [
        "create namespaces",
        "delete endpoints",
        "patch links/status.multicluster.linkerd.io",
    ];
    assert_eq!(east.denied.as_deref().unwrap(), denied);
    let gateway = east.gateway.as_ref().unwrap_err();
    assert!(
        gateway.contains("no controller holds Lease service-mirror-write-east"),
        "{gateway}"
    );
}

#[tokio::test]
async fn anchors_of_values_are_used_where_the_others_are_not_readable() {
    let anchor = TestCa::new().anchor_pem().to_owned();
    let values = serde_json::to_string(&json!({
        "identityTrustAnchorsPEM": anchor, "clusterDomain": "east.example",
    }))
    .unwrap();
    let config = maps(vec![("linkerd-config", "values", values)]);
    let facts = facts(&cluster(linked, target(config).await), TIMEOUT).await;
    let links = facts.multicluster.links.unwrap();
    let known = links[0].target.as_ref().unwrap();
    assert_eq!(known.anchors.as_ref().unwrap().len(), 1);
    let mesh = known.mesh.as_ref().unwrap();
    assert_eq!(mesh.cluster_domain, "east.example");
    assert_eq!(mesh.trust_domain, "east.example", "the default");

    let config = maps(vec![("linkerd-config", "values", "{}".to_owned())]);
    let facts = self::facts(&cluster(linked, target(config).await), TIMEOUT).await;
    let links = facts.multicluster.links.unwrap();
    let unknown = links[0]
        .target
        .as_ref()
        .unwrap()
        .anchors
        .as_ref()
        .unwrap_err();
    assert!(
        unknown.contains("no ConfigMap linkerd-identity-trust-roots"),
        "{unknown}"
    );
}

#[tokio::test]
async fn target_that_does_not_respond_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let facts = facts(
        &cluster(linked, silent.local_addr().unwrap()),
        Duration::ZERO,
    )
    .await;
    let links = facts.multicluster.links.unwrap();
    let reason = links[0].target.as_ref().unwrap_err();
    assert!(reason.starts_with("no response of http://"), "{reason}");
}

/// The user may lack the right to forward ports, which only the bundles need.
#[tokio::test]
async fn running_replicas_of_the_identity_service_are_asked_if_there_are_trust_bundles() {
    fn respond(asked: &Asked, target: SocketAddr) -> Option<Value> {
        let labelled = asked.query.contains("trust-bundle-of");
        let pod = |name: &str, phase: &str| json!({ "metadata": { "name": name }, "status": { "phase": phase } });
        Some(match &*asked.path {
            "/api/v1/namespaces/linkerd/configmaps" if labelled => {
                list(&[json!({ "metadata": { "name": "linkerd-trust-bundle-east" } })])
            }
            "/api/v1/namespaces/linkerd/pods" => {
                let label = "labelSelector=linkerd.io%2Fcontrol-plane-component%3Didentity";
                assert!(asked.query.contains(label), "{}", asked.query);
                let mut deleted = pod("c", "Running");
                deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                list(&[pod("a", "Running"), pod("b", "Failed"), deleted])
            }
            _ => return linked(asked, target),
        })
    }
    let closed = "127.0.0.1:1".parse().unwrap();
    let asked = facts(&cluster(respond, closed), TIMEOUT).await;
    let [replica] = asked.multicluster.replicas.as_deref().unwrap() else {
        panic!("{:?}", asked.multicluster.replicas)
    };
    assert_eq!(replica.pod, "a");
    let reason = replica.metrics.as_ref().unwrap_err();
    assert!(reason.contains("port 9990 of pod linkerd/a"), "{reason}");
    let without = facts(&cluster(linked, closed), TIMEOUT).await;
    without.multicluster.replicas.unwrap_err();
}

/// A kubeconfig that names a program would run it with the rights of the user.
#[tokio::test]
async fn kubeconfig_with_a_program_is_refused() {
    fn respond(asked: &Asked, target: SocketAddr) -> Option<Value> {
        let mut object = linked(asked, target)?;
        if let Some(data) = object.get_mut("data") {
            let kubeconfig = "{users: [{name: m, user: {exec: {command: /bin/sh}}}]}";
            data["kubeconfig"] = json!(STANDARD.encode(kubeconfig));
        }
        Some(object)
    }
    let closed = "127.0.0.1:1".parse().unwrap();
    let facts = facts(&cluster(respond, closed), TIMEOUT).await;
    let links = facts.multicluster.links.unwrap();
    let reason = links[0].target.as_ref().unwrap_err();
    assert!(
        reason.contains("exec of user \"m\" is not supported"),
        "{reason}"
    );
}
