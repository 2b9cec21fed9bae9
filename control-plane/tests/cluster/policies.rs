//! Policies: new APIs, invalid objects, and removed APIs.

use kube::Api;
use kube::api::{DeleteParams, PostParams};
use mesh_api::inbound::server_policy;
use mesh_api::proto::inbound::PortSpec;
use mesh_api::proto::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use mesh_test_support::controller::{Controller, next};
use mesh_test_support::eventually::eventually_async as eventually;
use serde_json::json;

use crate::manifests::{ALLOW, SERVER, pod};
use crate::{Cluster, cluster, definitions, metric};

/// The kinds without which the controller does not respond.
const APIS: [(&str, &str, &str); 5] = [
    ("servers", "Server", "v1beta3"),
    ("serverauthorizations", "ServerAuthorization", "v1beta1"),
    ("authorizationpolicies", "AuthorizationPolicy", "v1alpha1"),
    (
        "meshtlsauthentications",
        "MeshTLSAuthentication",
        "v1alpha1",
    ),
    (
        "networkauthentications",
        "NetworkAuthentication",
        "v1alpha1",
    ),
];

async fn exist(cluster: &Cluster) -> bool {
    let definitions = definitions(&cluster.client);
    let found = definitions.get_opt("servers.policy.linkerd.io").await;
    found.unwrap().is_some()
}

/// Creates definitions that accept anything, so that objects may be invalid.
async fn define(cluster: &Cluster) {
    for (plural, kind, version) in APIS {
        let name = format!("{plural}.policy.linkerd.io");
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": name },
            "spec": {
                "group": "policy.linkerd.io",
                "scope": "Namespaced",
                "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind },
                "versions": [{
                    "name": version,
                    "served": true,
                    "storage": true,
                    "schema": { "openAPIV3Schema": schema },
                }],
            },
        });
        let definition = serde_json::from_value(definition).unwrap();
        cluster.created_definitions.lock().push(name);
        definitions(&cluster.client)
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn policies_follow_objects_and_apis_of_api_server() {
    let Some(cluster) = cluster("policies").await else {
        return;
    };
    if exist(&cluster).await {
        println!("skipped: the cluster already has Linkerd's APIs");
        return;
    }
    cluster.apply(&pod("web-1", "10.1.0.1")).await;
    let mut flags = cluster.flags();
    // Another test serves the webhook's port.
    flags.push("--admission-controller-disabled".to_owned());
    let controller = Controller::start("policy", "--grpc-addr", "--admin-addr", &flags);
    let line = controller.logged("servers.policy.linkerd.io").await;
    assert!(line.contains("does not serve a required API"), "{line}");
    let served = "source_kind_served{group=\"policy.linkerd.io\",kind=\"Server\"}";
    assert_eq!(metric(&controller, served).await, Some(0.0));
    define(&cluster).await;
    let controller = controller.ready().await;
    assert_eq!(metric(&controller, served).await, Some(1.0));

    let mut client = InboundServerPoliciesClient::new(controller.channel().await);
    let web = PortSpec {
        workload: format!("{{\"ns\":\"{}\",\"pod\":\"web-1\"}}", cluster.namespace),
        port: 8080,
    };
    let mut stream = client.watch_port(web.clone()).await.unwrap().into_inner();
    let mut policy = async || server_policy(next(&mut stream).await.unwrap()).unwrap();
    assert_eq!(policy().await.meta.name(), "all-unauthenticated");

    eventually("the API server to accept a Server", async || {
        let api: Api<mesh_k8s::crd::Server> = cluster.namespaced();
        api.list(&Default::default()).await.ok()
    })
    .await;
    cluster.apply(SERVER).await;
    let server = policy().await;
    assert_eq!(
        (server.meta.name(), server.authorizations.len()),
        ("web-http", 0)
    );
    cluster.apply(ALLOW).await;
    assert_eq!(policy().await.authorizations[0].meta.name(), "allow");

    // An invalid object is logged, and the watch of the kind continues.
    cluster
        .apply(&ALLOW.replace("kind: Server", "kind: Gadget"))
        .await;
    let line = controller.logged("last valid version").await;
    let object = format!("AuthorizationPolicy {}/allow", cluster.namespace);
    assert!(
        line.contains("ERROR") && line.contains(&object) && line.contains("spec.targetRef"),
        "{line}"
    );
    cluster
        .apply(
            &SERVER
                .replace("web-http", "bad")
                .replace("port: http", "port: 99999"),
        )
        .await;
    let line = controller.logged("it has no effect").await;
    assert!(
        line.contains("/bad") && line.contains("spec.port"),
        "{line}"
    );
    let broken = "source_broken_objects{group=\"policy.linkerd.io\",kind=\"Server\"}";
    assert_eq!(metric(&controller, broken).await, Some(1.0));
    cluster
        .apply(
            &SERVER
                .replace("web-http", "admin")
                .replace("port: http", "port: 9990"),
        )
        .await;
    let known = "source_kind_objects{group=\"policy.linkerd.io\",kind=\"Server\"}";
    eventually("the next valid object", async || {
        metric(&controller, known).await >= Some(2.0)
    })
    .await;

    // The APIs are removed with their objects, which stay in effect.
    let names = cluster.created_definitions.lock().clone();
    for name in names {
        definitions(&cluster.client)
            .delete(&name, &DeleteParams::default())
            .await
            .unwrap();
    }
    eventually("the removed API to be detected", async || {
        metric(&controller, served).await == Some(0.0)
    })
    .await;
    assert!(metric(&controller, known).await >= Some(2.0));
    let mut stream = client.watch_port(web).await.unwrap().into_inner();
    let kept = server_policy(next(&mut stream).await.unwrap()).unwrap();
    assert_eq!(kept.meta.name(), "web-http");
}
