//! Endpoints and profiles over gRPC with changing files.

use mesh_api::destination::{LEVEL_HEADER, profile};
use mesh_api::proto::destination::destination_client::DestinationClient;
use mesh_api::proto::destination::{DestinationProfile, Update};
use mesh_core::profile::Profile;
use mesh_test_support::controller::{Controller, ManifestDir, next, next_where};
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::manifests::service;
use crate::messages::{request, update};

const WEB: &str = "web.shop.svc.cluster.local:80";

async fn get(client: &mut DestinationClient<Channel>) -> Streaming<Update> {
    client.get(request(WEB)).await.unwrap().into_inner()
}

/// Returns the first profile of an address or a name, and the stream of the next ones.
async fn first_profile(
    client: &mut DestinationClient<Channel>,
    path: &str,
) -> (Profile, Streaming<DestinationProfile>) {
    let response = client.get_profile(request(path)).await;
    let mut stream = response.unwrap().into_inner();
    let message = next(&mut stream).await.unwrap();
    (profile(message).unwrap(), stream)
}

#[tokio::test]
async fn endpoints_follow_files() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::destination(&[&dir]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut stream = get(&mut client).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    dir.write(
        "web.yaml",
        &service(&[("web-1", "10.1.0.1"), ("web-2", "10.1.0.2")]),
    );
    assert_eq!(update(&mut stream).await, "+10.1.0.2:8080");
    dir.write("web.yaml", &service(&[("web-3", "10.1.0.3")]));
    assert_eq!(update(&mut stream).await, "+10.1.0.3:8080");
    assert_eq!(update(&mut stream).await, "-10.1.0.1:8080 10.1.0.2:8080");
    // After the Service is deleted, its endpoints are removed and the stream stays open.
    dir.delete("web.yaml");
    assert_eq!(update(&mut stream).await, "-10.1.0.3:8080");
    dir.write("web.yaml", &service(&[("web-4", "10.1.0.4")]));
    assert_eq!(update(&mut stream).await, "+10.1.0.4:8080");
}

/// The client is on the node `a`.
#[tokio::test]
async fn response_names_the_level_of_locality_that_its_endpoints_are_of() {
    let node = "---\napiVersion: v1\nkind: Node\nmetadata: {name: a, labels: {topology.kubernetes.io/zone: east}}\n";
    let web = service(&[("web-1", "10.1.0.1"), ("web-2", "10.1.0.2")]);
    let in_zone = web.replacen(
        "addresses: ['10.1.0.1']",
        "addresses: ['10.1.0.1'], zone: east",
        1,
    );
    assert_ne!(in_zone, web);
    let with = |levels: &str| {
        let annotated = format!(
            "{{name: web, namespace: shop, annotations: {{locality.linkerd.io/failover: '{levels}'}}}}"
        );
        in_zone.replacen("{name: web, namespace: shop}", &annotated, 1) + node
    };
    for (objects, expected, level) in [
        (web.clone() + node, "+10.1.0.1:8080 10.1.0.2:8080", None),
        (with("zone"), "+10.1.0.1:8080", Some("zone")),
        (
            with("zone=2"),
            "+10.1.0.1:8080 10.1.0.2:8080",
            Some("cluster"),
        ),
    ] {
        let dir = ManifestDir::new();
        dir.write("web.yaml", &objects);
        let controller = Controller::destination(&[&dir]).await;
        let mut client = DestinationClient::new(controller.channel().await);
        let response = client.get(request(WEB)).await.unwrap();
        let found = response.metadata().get(LEVEL_HEADER);
        assert_eq!(found.map(|level| level.to_str().unwrap()), level);
        assert_eq!(update(&mut response.into_inner()).await, expected);
    }
}

#[tokio::test]
async fn invalid_object_is_logged_and_keeps_last_valid_version() {
    let (dir, later) = (ManifestDir::new(), ManifestDir::new());
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::destination(&[&dir, &later]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut stream = get(&mut client).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    let broken = service(&[("web-1", "10.1.0.1")]).replace("port: 80}", "port: eighty}");
    dir.write("web.yaml", &broken);
    let line = controller.logged("Invalid object").await;
    for part in [
        "ERROR",
        "web.yaml",
        "line=5",
        "Service shop/web: spec.ports[0].port",
        "last valid version",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    // The object stays, and another directory can override it.
    assert_eq!(update(&mut get(&mut client).await).await, "+10.1.0.1:8080");
    later.write(
        "web.yaml",
        &service(&[("web-1", "10.1.0.1"), ("web-9", "10.1.0.9")]),
    );
    assert_eq!(update(&mut stream).await, "+10.1.0.9:8080");
}

#[tokio::test]
async fn service_profile_stays_while_its_file_is_invalid_and_ends_with_it() {
    let dir = ManifestDir::new();
    let web = service(&[("web-1", "10.1.0.1")]);
    dir.write("web.yaml", &web);
    let written = |condition: &str| {
        format!(
            "apiVersion: linkerd.io/v1alpha2\nkind: ServiceProfile\n\
             metadata: {{name: web.shop.svc.cluster.local, namespace: shop}}\n\
             spec: {{routes: [{{name: a, condition: {condition}}}]}}\n"
        )
    };
    dir.write("profile.yaml", &written("{pathRegex: /a}"));
    let controller = Controller::destination(&[&dir]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let (first, mut stream) = first_profile(&mut client, WEB).await;
    assert_eq!(first.routes[0].labels["route"], "a");
    let source = first.source.unwrap();
    assert_eq!(
        (source.kind(), source.namespace()),
        ("ServiceProfile", "shop")
    );

    dir.write("profile.yaml", &written("{pathRegex: '('}"));
    let line = controller
        .logged("spec.routes[0].condition.pathRegex")
        .await;
    assert!(line.contains("profile.yaml"), "{line}");
    assert!(line.contains("is not a regular expression"), "{line}");
    let opaque = web.replace(
        "metadata: {name: web, namespace: shop}",
        "metadata: {name: web, namespace: shop, annotations: {config.linkerd.io/opaque-ports: '80'}}",
    );
    dir.write("web.yaml", &opaque);
    let message = next_where(&mut stream, |profile| profile.opaque_protocol).await;
    assert_eq!(message.routes.len(), 1);

    dir.delete("profile.yaml");
    next_where(&mut stream, |profile| profile.routes.is_empty()).await;
}

#[tokio::test]
async fn slow_reader_does_not_block_others_and_skips_states() {
    let dir = ManifestDir::new();
    let at = |last: u16| {
        let pods = (0..200).map(|n| (format!("web-{n}"), format!("10.{}.0.{n}", last + 1)));
        let pods: Vec<(String, String)> = pods.collect();
        let pods = pods.iter().map(|(name, ip)| (&**name, &**ip));
        service(&pods.collect::<Vec<_>>())
    };
    dir.write("web.yaml", &at(0));
    let controller = Controller::destination(&[&dir]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut slow = get(&mut client).await;
    assert!(update(&mut slow).await.starts_with("+10.1.0.0:8080"));
    let mut fast = get(&mut client).await;
    let prefix = |last: u16| format!("+10.{}.0.0:8080", last + 1);
    for last in 1..=5 {
        dir.write("web.yaml", &at(last));
        while !update(&mut fast).await.starts_with(&prefix(last)) {}
    }
    while !update(&mut slow).await.starts_with(&prefix(5)) {}
}

#[tokio::test]
async fn profiles_of_services_pods_and_unknown_addresses() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::destination(&[&dir]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut first = async |path: &str| first_profile(&mut client, path).await;
    let (by_ip, mut stream) = first("10.96.0.1:80").await;
    assert_eq!(by_ip.fqn.as_deref(), Some("web.shop.svc.cluster.local"));
    let (by_name, _) = first(WEB).await;
    assert_eq!(by_name, by_ip);
    let (pod, _) = first("10.1.0.1:8080").await;
    let tls = pod.endpoint.unwrap().tls.unwrap();
    assert_eq!(
        tls.id.as_str(),
        "web.shop.serviceaccount.identity.linkerd.cluster.local"
    );
    let (unknown, _) = first("192.0.2.1:3306").await;
    assert!(unknown.opaque && unknown.endpoint.unwrap().tls.is_none());
    dir.write(
        "web.yaml",
        &service(&[("web-1", "10.1.0.1")]).replace(
            "metadata: {name: web, namespace: shop}",
            "metadata: {name: web, namespace: shop, annotations: {config.linkerd.io/opaque-ports: '80'}}",
        ),
    );
    next_where(&mut stream, |profile| profile.opaque_protocol).await;
}

#[tokio::test]
async fn profile_stream_of_unknown_address_ends_when_pod_appears() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[]));
    let controller = Controller::destination(&[&dir]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut first = async |path: &str| first_profile(&mut client, path).await;
    let (unknown, mut stream) = first("10.1.0.1:8080").await;
    assert_eq!(unknown.endpoint.unwrap().tls, None);
    dir.write("web.yaml", &service(&[("web-2", "10.1.0.2")]));
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    assert_eq!(next(&mut stream).await, None, "the stream ends regularly");
    let (pod, _) = first("10.1.0.1:8080").await;
    assert!(pod.endpoint.unwrap().tls.is_some());
}

#[tokio::test]
async fn streams_over_limit_are_shared() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let args = [
        format!("--source-dir={}", dir.path().display()),
        "--max-streams=4".to_owned(),
    ];
    let controller = Controller::start("destination", "--addr", "--metrics-addr", &args);
    let controller = controller.ready().await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut open = Vec::new();
    for _ in 0..4 {
        let stream = client.get_profile(request(WEB)).await.unwrap();
        open.push(stream.into_inner());
    }
    // All clients without identity count as one, which has all streams now.
    let rejected = client.get(request(WEB)).await.unwrap_err();
    assert_eq!(rejected.code(), Code::ResourceExhausted);
    assert!(rejected.message().contains("--max-streams"), "{rejected}");
    let mut identified = tonic::Request::new(request(WEB));
    let id = "web.shop.serviceaccount.identity.linkerd.cluster.local";
    let id = id.parse().unwrap();
    identified.metadata_mut().insert("l5d-client-id", id);
    let mut stream = client.get(identified).await.unwrap().into_inner();
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    // The latest of the others has ended regularly.
    let mut last = open.pop().unwrap();
    assert!(next(&mut last).await.is_some());
    assert!(next(&mut last).await.is_none());
}

#[tokio::test]
async fn invalid_requests_have_status_codes_of_linkerd() {
    let dir = ManifestDir::new();
    let external = "---
apiVersion: v1
kind: Service
metadata: {name: out, namespace: shop}
spec: {type: ExternalName, externalName: example.com, ports: [{port: 80}]}
";
    let twin = "---
apiVersion: v1
kind: Service
metadata: {name: twin, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
";
    dir.write("web.yaml", &(service(&[]) + external + twin));
    let controller = Controller::destination(&[&dir]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    for (path, code, message) in [
        ("web", Code::InvalidArgument, "Invalid authority: web"),
        (
            "web.shop.svc.cluster.local.:80",
            Code::InvalidArgument,
            "Invalid authority",
        ),
        ("10.96.0.1:80", Code::InvalidArgument, "IP queries"),
        (
            "gone.shop.svc.cluster.local:80",
            Code::NotFound,
            "shop/gone",
        ),
        (
            "out.shop.svc.cluster.local:80",
            Code::InvalidArgument,
            "ExternalName",
        ),
    ] {
        let status = client.get(request(path)).await.unwrap_err();
        assert_eq!(status.code(), code, "{path}");
        assert!(status.message().contains(message), "{status}");
    }
    for (path, code) in [
        ("web", Code::InvalidArgument),
        ("10.96.0.1:80", Code::FailedPrecondition),
        ("gone.shop.svc.cluster.local:80", Code::Unknown),
        ("out.shop.svc.cluster.local:80", Code::InvalidArgument),
        ("web-0.web.shop.svc.cluster.local:80", Code::NotFound),
    ] {
        let status = client.get_profile(request(path)).await.unwrap_err();
        assert_eq!(status.code(), code, "{path}");
    }
    let (_, metrics) = controller.admin_get("/metrics").unwrap();
    let expect = "grpc_server_handled_total{grpc_service=\"io.linkerd.proxy.destination.Destination\",grpc_method=\"GetProfile\",grpc_code=\"FailedPrecondition\"} 1";
    assert!(metrics.contains(expect), "{metrics}");
}
