//! Startup, readiness and shutdown.

use std::process::Command;

use mesh_api::proto::destination::GetDestination;
use mesh_api::proto::destination::destination_client::DestinationClient;
use mesh_test_support::controller::{Controller, ManifestDir, next};
use mesh_test_support::program::Program;

use crate::manifests::service;

#[tokio::test]
async fn signal_ends_streams_regularly_and_then_process() {
    let dir = ManifestDir::new();
    dir.write("web.yaml", &service(&[("web-1", "10.1.0.1")]));
    let mut controller = Controller::destination(&[&dir]).await;
    let mut client = DestinationClient::new(controller.channel().await);
    let request = GetDestination {
        path: "web.shop.svc.cluster.local".to_owned(),
        ..GetDestination::default()
    };
    let mut stream = client.get(request).await.unwrap().into_inner();
    assert!(next(&mut stream).await.is_some());
    controller.program.terminate();
    assert_eq!(next(&mut stream).await, None);
    assert!(controller.program.exited().await.success());
}

#[tokio::test]
async fn container_of_a_gateway_pauses_until_a_signal() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
    let mut program = Program::start(command.arg("pause"));
    program.logged("Waiting for a signal").await;
    assert!(program.exit_status().is_none());
    program.terminate();
    assert!(program.exited().await.success());
}

#[tokio::test]
async fn readiness_waits_for_the_source() {
    let dir = ManifestDir::new();
    let controller = Controller::start(
        "policy",
        "--grpc-addr",
        "--admin-addr",
        &[format!("--source-dir={}", dir.path().display())],
    );
    let controller = controller.ready().await;
    let (status, body) = controller.admin_get("/live").unwrap();
    assert_eq!((status, &*body), (200, "live\n"));
    let (_, metrics) = controller.admin_get("/metrics").unwrap();
    for name in [
        "controller_build_info",
        "process_start_time_seconds",
        "inbound_index_watched 0",
    ] {
        assert!(metrics.contains(name), "{name} in {metrics}");
    }
}

#[tokio::test]
async fn error_names_port_in_use() {
    let dir = ManifestDir::new();
    let first = Controller::policy(&[&dir]).await;
    let mut second = Command::new(env!("CARGO_BIN_EXE_mesh-controller"));
    let output = second
        .arg("policy")
        .arg(format!("--source-dir={}", dir.path().display()))
        .arg(format!("--grpc-addr={}", first.grpc))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let log = String::from_utf8_lossy(&output.stdout);
    let expect = format!("cannot listen on {} for gRPC", first.grpc);
    assert!(log.contains(&expect), "{log}");
}
