//! The service mirror with this cluster as its target: a Service has a mirror beside it.

use std::net::SocketAddr;
use std::process::Command;

use k8s_openapi::api::core::v1::{Endpoints, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use mesh_k8s::crd::Link;
use mesh_test_support::eventually::eventually_async as eventually;
use mesh_test_support::http;
use mesh_test_support::network::free_address;
use mesh_test_support::program::Program;
use serde_json::{Value, json};

use crate::links::kubeconfig;
use crate::{Cluster, cluster, definitions, web};

/// Defines Links, unless the cluster has an extension that does.
async fn define(cluster: &Cluster) {
    let name = "links.multicluster.linkerd.io";
    let definitions = definitions(&cluster.client);
    if definitions.get_opt(name).await.unwrap().is_some() {
        return;
    }
    let definition = serde_json::to_value(Link::crd()).unwrap();
    let definition = serde_json::from_value(definition).unwrap();
    cluster.created_definitions.lock().push(name.to_owned());
    let params = PostParams::default();
    definitions.create(&params, &definition).await.unwrap();
    eventually("Links to be served", async || {
        let links: Api<Link> = cluster.namespaced();
        links.list(&ListParams::default()).await.map(drop)
    })
    .await;
}

/// Links the cluster with itself. Other tests' Services are not selected.
async fn link(cluster: &Cluster) {
    let secrets: Api<Secret> = cluster.namespaced();
    let secret = json!({
        "type": "mirror.linkerd.io/remote-kubeconfig",
        "metadata": { "name": "cluster-credentials-self" },
        "stringData": { "kubeconfig": kubeconfig(cluster) },
    });
    let secret = serde_json::from_value(secret).unwrap();
    let created = secrets.create(&PostParams::default(), &secret).await;
    created.unwrap();
    let links: Api<Link> = cluster.namespaced();
    let link = json!({
        "apiVersion": "multicluster.linkerd.io/v1alpha3",
        "kind": "Link",
        "metadata": { "name": "self" },
        "spec": {
            "targetClusterName": &cluster.namespace,
            "targetClusterDomain": "cluster.local",
            "targetClusterLinkerdNamespace": "linkerd",
            "clusterCredentialsSecret": "cluster-credentials-self",
            "gatewayAddress": "192.0.2.2,192.0.2.1",
            "gatewayPort": "4143",
            "gatewayIdentity": "gateway.example",
            "selector": { "matchLabels": { "mesh-it-exported": &cluster.namespace } },
        },
    });
    let link = serde_json::from_value(link).unwrap();
    let created = links.create(&PostParams::default(), &link).await;
    created.unwrap();
}

struct Mirror {
    program: Program,
    admin: SocketAddr,
}

impl Mirror {
    /// Starts a replica, and waits until it writes.
    async fn start(cluster: &Cluster) -> Self {
        let admin = free_address();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
        command
            .arg("service-mirror")
            .args(cluster.flags())
            .arg(format!("--metrics-addr={admin}"))
            .arg(format!("--namespace={}", cluster.namespace))
            .arg("--log-level=debug,h2=info,tower=info,hyper=info")
            .arg("self");
        let mirror = Self {
            program: Program::start(&mut command),
            admin,
        };
        let held = "mesh_lease_held{lease=\"service-mirror-write-self\"} 1";
        eventually("the replica to write", async || {
            let response = http::request(mirror.admin, "GET /metrics").ok()?;
            response.lines().any(|line| line == held).then_some(())
        })
        .await;
        mirror
    }
}

async fn patch(services: &Api<Service>, name: &str, change: Value) {
    let params = PatchParams::default();
    let patched = services.patch(name, &params, &Patch::Merge(&change)).await;
    patched.unwrap();
}

#[tokio::test]
async fn mirror_follows_its_service_and_keeps_what_users_add() {
    let Some(cluster) = cluster("mirrors").await else {
        return;
    };
    define(&cluster).await;
    cluster.apply(&web(&[("web-1", "10.1.0.1")])).await;
    let services: Api<Service> = cluster.namespaced();
    let exported = json!({ "metadata": { "labels": {
        "mesh-it-exported": &cluster.namespace,
        "tier": "front",
    }}});
    patch(&services, "web", exported).await;
    link(&cluster).await;
    let mut first = Mirror::start(&cluster).await;
    let mirror = format!("web-{}", cluster.namespace);

    let created = eventually("the mirror", async || services.get(&mirror).await).await;
    let address = created.spec.as_ref().unwrap().cluster_ip.clone();
    assert!(address.is_some_and(|address| address != "None"));
    let all_endpoints: Api<Endpoints> = cluster.namespaced();
    let endpoints = eventually("its Endpoints", async || {
        let endpoints = all_endpoints.get(&mirror).await;
        let subset = endpoints.ok()?.subsets?.into_iter().next()?;
        subset.addresses
    })
    .await;
    let ips: Vec<_> = endpoints.iter().map(|address| &*address.ip).collect();
    assert_eq!(ips, ["192.0.2.1", "192.0.2.2"]);
    // What the destination controller reads.
    let slices: Api<EndpointSlice> = cluster.namespaced();
    let of_mirror = ListParams::default().labels(&format!("kubernetes.io/service-name={mirror}"));
    eventually("its EndpointSlice", async || {
        let slice = slices.list(&of_mirror).await.ok()?.items.pop()?;
        let annotations = slice.annotations();
        let fqn = annotations.get("mirror.linkerd.io/remote-svc-fq-name");
        let expected = format!("web.{}.svc.cluster.local", cluster.namespace);
        (fqn == Some(&expected)).then_some(())
    })
    .await;
    let links: Api<Link> = cluster.namespaced();
    eventually("the status", async || {
        let status = links.get("self").await.ok()?.status?;
        let condition = status.mirror_services.first()?.conditions.first()?.clone();
        (condition.reason == "Mirrored").then_some(())
    })
    .await;

    // Users add a label, and the Service loses one and gets another port.
    let added = json!({ "metadata": { "labels": { "added": "yes" } } });
    patch(&services, &mirror, added).await;
    let changed = json!({
        "metadata": { "labels": { "tier": null } },
        "spec": { "ports": [{ "name": "http", "port": 81 }] },
    });
    patch(&services, "web", changed).await;
    let followed = eventually("the mirror to follow", async || {
        let found = services.get(&mirror).await.ok()?;
        let port = found.spec.as_ref()?.ports.as_ref()?.first()?.port;
        (port == 81 && !found.labels().contains_key("tier")).then_some(found)
    })
    .await;
    assert_eq!(
        followed.labels().get("added").map(String::as_str),
        Some("yes")
    );
    assert_eq!(followed.uid(), created.uid());

    // Another replica takes over, and has nothing to write but the mirror of another Service.
    first.program.terminate();
    assert!(first.program.exited().await.success());
    let _second = Mirror::start(&cluster).await;
    let other = json!({
        "metadata": {
            "name": "db",
            "labels": { "mesh-it-exported": &cluster.namespace },
        },
        "spec": { "ports": [{ "port": 5432 }] },
    });
    let other = serde_json::from_value(other).unwrap();
    let created = services.create(&PostParams::default(), &other).await;
    created.unwrap();
    let of_other = format!("db-{}", cluster.namespace);
    eventually("the mirror of the other", async || {
        services.get(&of_other).await
    })
    .await;
    let unchanged = services.get(&mirror).await.unwrap();
    assert_eq!(unchanged.resource_version(), followed.resource_version());

    let unexported = json!({ "metadata": { "labels": { "mesh-it-exported": null } } });
    patch(&services, "web", unexported).await;
    eventually("the mirror to be removed", async || {
        let service = services.get_opt(&mirror).await.ok()?;
        let endpoints = all_endpoints.get_opt(&mirror).await.ok()?;
        (service.is_none() && endpoints.is_none()).then_some(())
    })
    .await;
}
