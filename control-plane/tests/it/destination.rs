//! Endpoints and profiles over gRPC, while files change.

use mesh_api::{
    destination::{endpoint_update, profile},
    proto::destination::{GetDestination, Update, destination_client::DestinationClient},
};
use mesh_core::endpoint::EndpointUpdate;
use tonic::{Code, Streaming, transport::Channel};

use crate::{
    controller::{Controller, Folder, next, next_where},
    manifests::service,
};

const WEB: &str = "web.shop.svc.cluster.local:80";

pub(crate) fn ask(path: &str) -> GetDestination {
    GetDestination {
        scheme: "k8s".to_owned(),
        path: path.to_owned(),
        context_token: "{\"ns\":\"shop\",\"nodeName\":\"a\",\"pod\":\"client\"}\n".to_owned(),
    }
}

async fn get(client: &mut DestinationClient<Channel>) -> Streaming<Update> {
    client.get(ask(WEB)).await.unwrap().into_inner()
}

pub(crate) async fn update(stream: &mut Streaming<Update>) -> String {
    let message = next(stream).await.expect("the stream ended");
    let update = endpoint_update(message).unwrap();
    assert_eq!(update.skipped, []);
    match update.update {
        EndpointUpdate::Add { endpoints, .. } => {
            let addrs: Vec<String> = endpoints.iter().map(|e| e.addr.to_string()).collect();
            format!("+{}", addrs.join(" "))
        }
        EndpointUpdate::Remove(addrs) => {
            let addrs: Vec<String> = addrs.iter().map(ToString::to_string).collect();
            format!("-{}", addrs.join(" "))
        }
        EndpointUpdate::Empty { .. } => panic!("never sent"),
    }
}

#[tokio::test]
async fn endpoints_follow_the_files() {
    let folder = Folder::new();
    folder.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::destination(&[&folder]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut stream = get(&mut client).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    folder.write(
        "web.yaml",
        &service(&[("web-1", "10.1.0.1"), ("web-2", "10.1.0.2")]),
    );
    assert_eq!(update(&mut stream).await, "+10.1.0.2:8080");
    folder.write("web.yaml", &service(&[("web-3", "10.1.0.3")]));
    assert_eq!(update(&mut stream).await, "+10.1.0.3:8080");
    assert_eq!(update(&mut stream).await, "-10.1.0.1:8080 10.1.0.2:8080");
    // The Service goes: what was sent is taken back, and the stream stays for what may come.
    folder.delete("web.yaml");
    assert_eq!(update(&mut stream).await, "-10.1.0.3:8080");
    folder.write("web.yaml", &service(&[("web-4", "10.1.0.4")]));
    assert_eq!(update(&mut stream).await, "+10.1.0.4:8080");
}

#[tokio::test]
async fn a_broken_file_is_reported_and_changes_nothing() {
    let (folder, later) = (Folder::new(), Folder::new());
    folder.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::destination(&[&folder, &later]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut stream = get(&mut client).await;
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
    let broken = service(&[("web-1", "10.1.0.1")]).replace("port: 80}", "port: eighty}");
    folder.write("web.yaml", &broken);
    let line = controller.logged("Cannot use an object").await;
    for part in [
        "ERROR",
        "web.yaml",
        "line=5",
        "Service shop/web: spec.ports[0].port",
        "last good version",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    // The object lives on, others change, and another folder can take it over.
    assert_eq!(update(&mut get(&mut client).await).await, "+10.1.0.1:8080");
    later.write(
        "web.yaml",
        &service(&[("web-1", "10.1.0.1"), ("web-9", "10.1.0.9")]),
    );
    assert_eq!(update(&mut stream).await, "+10.1.0.9:8080");
}

/// Who does not read holds nobody up, and then sees the last state instead of all that were in
/// between.
#[tokio::test]
async fn a_slow_reader_skips_to_the_last_state() {
    let folder = Folder::new();
    let at = |last: u16| {
        let ips: Vec<(String, String)> = (0..200)
            .map(|n| (format!("web-{n}"), format!("10.{}.0.{n}", last + 1)))
            .collect();
        service(
            &ips.iter()
                .map(|(name, ip)| (&**name, &**ip))
                .collect::<Vec<_>>(),
        )
    };
    folder.write("web.yaml", &at(0));
    let controller = Controller::destination(&[&folder]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut slow = get(&mut client).await;
    assert!(update(&mut slow).await.starts_with("+10.1.0.0:8080"));
    let mut fast = get(&mut client).await;
    let prefix = |last: u16| format!("+10.{}.0.0:8080", last + 1);
    for last in 1..=5 {
        folder.write("web.yaml", &at(last));
        loop {
            if update(&mut fast).await.starts_with(&prefix(last)) {
                break;
            }
        }
    }
    loop {
        if update(&mut slow).await.starts_with(&prefix(5)) {
            break;
        }
    }
}

#[tokio::test]
async fn profiles_of_services_pods_and_strangers() {
    let folder = Folder::new();
    folder.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let controller = Controller::destination(&[&folder]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut first = async |path: &str| {
        let mut stream = client.get_profile(ask(path)).await.unwrap().into_inner();
        let message = next(&mut stream).await.unwrap();
        (profile(message).unwrap(), stream)
    };
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
    let (stranger, _) = first("192.0.2.1:3306").await;
    assert!(stranger.opaque && stranger.endpoint.unwrap().tls.is_none());
    folder.write(
        "web.yaml",
        &service(&[("web-1", "10.1.0.1")]).replace(
            "metadata: {name: web, namespace: shop}",
            "metadata: {name: web, namespace: shop, annotations: {config.linkerd.io/opaque-ports: '80'}}",
        ),
    );
    next_where(&mut stream, |profile| profile.opaque_protocol).await;
}

#[tokio::test]
async fn an_address_that_was_unknown_is_asked_about_again_when_its_pod_appears() {
    let folder = Folder::new();
    folder.write("web.yaml", &service(&[]));
    let controller = Controller::destination(&[&folder]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut first = async |path: &str| {
        let mut stream = client.get_profile(ask(path)).await.unwrap().into_inner();
        let message = next(&mut stream).await.unwrap();
        (profile(message).unwrap(), stream)
    };
    let (stranger, mut stream) = first("10.1.0.1:8080").await;
    assert_eq!(stranger.endpoint.unwrap().tls, None);
    folder.write("web.yaml", &service(&[("web-2", "10.1.0.2")]));
    folder.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    assert_eq!(next(&mut stream).await, None, "the stream ends well");
    let (pod, _) = first("10.1.0.1:8080").await;
    assert!(pod.endpoint.unwrap().tls.is_some());
}

#[tokio::test]
async fn more_streams_than_allowed_are_refused() {
    let folder = Folder::new();
    folder.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let args = [
        format!("--source-dir={}", folder.path().display()),
        "--max-streams=4".to_owned(),
    ];
    let controller = Controller::start("destination", "--addr", "--metrics-addr", &args);
    let controller = controller.ready().await;
    let mut client = DestinationClient::new(controller.channel().await);
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(client.get_profile(ask(WEB)).await.unwrap());
    }
    // All clients without an identity are one, and one has half of what there is.
    let refused = client.get(ask(WEB)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("--max-streams"), "{refused}");
    let mut identified = tonic::Request::new(ask(WEB));
    let id = "web.shop.serviceaccount.identity.linkerd.cluster.local";
    let id = id.parse().unwrap();
    identified.metadata_mut().insert("l5d-client-id", id);
    let mut stream = client.get(identified).await.unwrap().into_inner();
    assert_eq!(update(&mut stream).await, "+10.1.0.1:8080");
}

#[tokio::test]
async fn codes_of_refusals() {
    let folder = Folder::new();
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
    folder.write("web.yaml", &(service(&[]) + external + twin));
    let controller = Controller::destination(&[&folder]).await;
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
        let status = client.get(ask(path)).await.unwrap_err();
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
        let status = client.get_profile(ask(path)).await.unwrap_err();
        assert_eq!(status.code(), code, "{path}");
    }
    let (_, metrics) = controller.admin_get("/metrics").await.unwrap();
    let expect = "grpc_server_handled_total{grpc_service=\"io.linkerd.proxy.destination.Destination\",grpc_method=\"GetProfile\",grpc_code=\"FailedPrecondition\"} 1";
    assert!(metrics.contains(expect), "{metrics}");
}
