//! Inbound and outbound policies over gRPC with changing files.

use mesh_api::inbound::server_policy;
use mesh_api::mesh::service::outbound_policies_client::OutboundPoliciesClient;
use mesh_api::outbound::{extended_policy, traffic_spec};
use mesh_api::proto::inbound::PortSpec;
use mesh_api::proto::inbound::inbound_server_policies_client::InboundServerPoliciesClient;
use mesh_api::proto::outbound::TrafficSpec;
use mesh_core::policy::outbound::{OutboundProtocol, Target};
use mesh_test_support::controller::{Controller, ManifestDir, next};
use tonic::Code;

use crate::manifests::{ALLOW, SERVER, service};

const CLIENT: &str = "{\"ns\":\"shop\",\"pod\":\"client\"}\n";

fn port(workload: &str, port: u32) -> PortSpec {
    PortSpec {
        workload: workload.to_owned(),
        port,
    }
}

const WEB: &str = "{\"ns\":\"shop\",\"pod\":\"web-1\"}\n";

#[tokio::test]
async fn inbound_policy_follows_files() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::policy(&[&dir]).await;
    let mut client = InboundServerPoliciesClient::new(controller.channel().await);
    let mut stream = client
        .watch_port(port(WEB, 8080))
        .await
        .unwrap()
        .into_inner();
    let mut policy = async || {
        let message = next(&mut stream).await?;
        Some(server_policy(message).unwrap())
    };
    assert_eq!(policy().await.unwrap().meta.name(), "all-unauthenticated");
    dir.write("policy.yaml", SERVER);
    let server = policy().await.unwrap();
    assert_eq!(
        (server.meta.name(), server.authorizations.len()),
        ("web-http", 0)
    );
    dir.write("policy.yaml", &format!("{SERVER}{ALLOW}"));
    let allowed = policy().await.unwrap();
    assert_eq!(allowed.authorizations[0].meta.name(), "allow");
    // A policy stays in effect when its document becomes invalid.
    dir.write(
        "policy.yaml",
        &format!("{SERVER}{}", ALLOW.replace("kind: Server", "kind: Gadget")),
    );
    controller
        .logged("AuthorizationPolicy shop/allow: spec.targetRef")
        .await;
    dir.write("policy.yaml", "");
    assert_eq!(policy().await.unwrap().meta.name(), "all-unauthenticated");
    // The stream ends regularly when the pod is deleted.
    dir.write("web.yaml", &service(&[]));
    assert_eq!(policy().await, None);
}

#[tokio::test]
async fn policy_of_external_workload_ends_with_it() {
    let dir = ManifestDir::new();
    dir.write(
        "vm.yaml",
        "apiVersion: workload.linkerd.io/v1beta1
kind: ExternalWorkload
metadata: {name: vm, namespace: shop, annotations: {config.linkerd.io/default-inbound-policy: deny}}
spec: {meshTLS: {identity: vm.example, serverName: vm.example}}
",
    );
    let controller = Controller::policy(&[&dir]).await;
    let mut client = InboundServerPoliciesClient::new(controller.channel().await);
    let vm = "{\"ns\":\"shop\",\"external_workload\":\"vm\"}\n";
    let mut stream = client
        .watch_port(port(vm, 8080))
        .await
        .unwrap()
        .into_inner();
    let first = next(&mut stream).await.unwrap();
    assert_eq!(server_policy(first).unwrap().meta.name(), "deny");
    dir.delete("vm.yaml");
    assert_eq!(next(&mut stream).await, None);
    let status = client.get_port(port(vm, 8080)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn outbound_policy_follows_files() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::policy(&[&dir]).await;
    let mut client = OutboundPoliciesClient::new(controller.channel().await);
    let target = Target::Addr("10.96.0.1:80".parse().unwrap());
    let mut stream = client
        .watch(traffic_spec(CLIENT, &target))
        .await
        .unwrap()
        .into_inner();
    let mut routes = async || {
        let policy = extended_policy(next(&mut stream).await.unwrap())
            .unwrap()
            .policy;
        match policy.protocol {
            OutboundProtocol::Detect { http1, .. } => http1.routes,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(routes().await[0].meta.name(), "http");
    dir.write(
        "route.yaml",
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: split, namespace: shop}
spec:
  parentRefs: [{group: core, kind: Service, name: web, port: 80}]
  rules: [{backendRefs: [{name: web, port: 80}], timeouts: {request: 1s}}]
",
    );
    let split = routes().await;
    assert_eq!(split[0].meta.name(), "split");
    assert_eq!(
        split[0].rules[0].action.timeouts.request,
        Some(std::time::Duration::from_secs(1))
    );
    dir.delete("route.yaml");
    assert_eq!(routes().await[0].meta.name(), "http");
}

/// The stream of an address follows the EgressNetworks, and ends when an address of the cluster has
/// none any more.
#[tokio::test]
async fn egress_policy_follows_files() {
    let network = |policy: &str, cidr: &str| {
        format!(
            "apiVersion: policy.linkerd.io/v1alpha1
kind: EgressNetwork
metadata: {{name: outside, namespace: shop}}
spec: {{trafficPolicy: {policy}, networks: [{{cidr: {cidr}}}]}}
"
        )
    };
    let dir = ManifestDir::new();
    dir.write(
        "inside.yaml",
        &network("Deny", "10.9.0.0/16").replace("outside", "inside"),
    );
    let controller = Controller::policy(&[&dir]).await;
    let mut client = OutboundPoliciesClient::new(controller.channel().await);
    let mut watch = async |addr: &str| {
        let target = Target::Addr(addr.parse().unwrap());
        let stream = client.watch(traffic_spec(CLIENT, &target)).await;
        stream.unwrap().into_inner()
    };
    let mut outside = watch("203.0.113.1:443").await;
    let mut inside = watch("10.9.0.1:443").await;
    let mut parent = async || {
        let policy = extended_policy(next(&mut outside).await.unwrap())
            .unwrap()
            .policy;
        let OutboundProtocol::Detect { http1, .. } = policy.protocol else {
            panic!("{policy:?}");
        };
        (
            policy.parent.name().to_owned(),
            http1.routes[0].meta.name().to_owned(),
        )
    };
    let named = |parent: &str, route: &str| (parent.to_owned(), route.to_owned());
    let fallback = named("egress-fallback", "egress-fallback");
    assert_eq!(parent().await, fallback);
    dir.write("outside.yaml", &network("Allow", "203.0.113.0/24"));
    assert_eq!(parent().await, named("outside", "http-egress-allow"));
    dir.write("outside.yaml", &network("Deny", "203.0.113.0/24"));
    assert_eq!(parent().await, named("outside", "http-egress-deny"));
    dir.delete("outside.yaml");
    assert_eq!(parent().await, fallback);

    assert!(next(&mut inside).await.is_some());
    dir.delete("inside.yaml");
    assert!(next(&mut inside).await.is_none());
}

#[tokio::test]
async fn invalid_requests_have_status_codes_of_linkerd() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::policy(&[&dir]).await;
    let mut inbound = InboundServerPoliciesClient::new(controller.channel().await);
    for (workload, number, code) in [
        ("", 80, Code::InvalidArgument),
        ("{\"ns\":\"shop\"}", 80, Code::InvalidArgument),
        (WEB, 0, Code::InvalidArgument),
        (WEB, 65_536, Code::InvalidArgument),
        ("shop:gone", 80, Code::NotFound),
        (
            "{\"ns\":\"shop\",\"external_workload\":\"vm\"}",
            80,
            Code::NotFound,
        ),
    ] {
        let status = inbound
            .watch_port(port(workload, number))
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{workload} {number}");
        let status = inbound.get_port(port(workload, number)).await.unwrap_err();
        assert_eq!(status.code(), code, "{workload} {number}");
    }
    assert!(inbound.get_port(port("shop:web-1", 8080)).await.is_ok());

    let mut outbound = OutboundPoliciesClient::new(controller.channel().await);
    let addr = |addr: &str| Target::Addr(addr.parse().unwrap());
    let authority = |authority: &str| Target::Authority(authority.into());
    for (workload, target, code) in [
        ("", addr("10.96.0.1:80"), Code::InvalidArgument),
        (CLIENT, addr("10.96.0.1:0"), Code::InvalidArgument),
        (CLIENT, addr("10.99.0.1:80"), Code::NotFound),
        (CLIENT, authority("example.com:80"), Code::NotFound),
        (CLIENT, authority(""), Code::InvalidArgument),
    ] {
        let status = outbound
            .watch(traffic_spec(workload, &target))
            .await
            .unwrap_err();
        assert_eq!(status.code(), code, "{workload} {target:?}");
    }
    let nothing = TrafficSpec {
        source_workload: CLIENT.to_owned(),
        target: None,
    };
    let status = outbound.get(nothing).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    for target in [
        addr("192.0.2.1:80"),
        addr("10.96.0.1:99"),
        authority("gone.shop.svc.cluster.local"),
    ] {
        assert!(
            outbound.get(traffic_spec(CLIENT, &target)).await.is_ok(),
            "{target:?}"
        );
    }
}
