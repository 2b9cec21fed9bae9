//! Certificates that cannot be renewed, and certificates of clocks that differ.

use mesh_test_support::campaign::measured;

use crate::harness::{HttpApp, Issuing, Mesh, Pod, eventually, policies};

/// Opaque: each connection of a client is a handshake between the proxies.
const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 2], 80);
const PORT: u16 = 8081;
const OK: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

/// The clock skew that the identity service allows for in every certificate.
const ALLOWED_SKEW: i64 = 20;
const HOUR: i64 = 3600;

async fn is_answered(client: &Pod) -> bool {
    let answer = client.get(SERVICE, "web", "/").await;
    answer.starts_with("HTTP/1.1 200")
}

fn serve(mesh: &Mesh, server: &Pod) {
    let policy = policies::opaque_service("tcp", SERVICE.1);
    mesh.control.outbound(SERVICE, policy);
    let endpoint = policies::meshed_opaque(server, PORT);
    let authority = policies::authority("tcp", SERVICE.1);
    mesh.control.endpoints(&authority, vec![endpoint]);
}

/// Linkerd's proxies do not recover from this without a restart.
#[tokio::test]
async fn expired_certificates_end_new_connections_until_identity_is_back() {
    let Some(mesh) = Mesh::new() else { return };
    mesh.control.issue(Issuing::Valid(-60, 4));
    let often = [
        ("IDENTITY_MIN_REFRESH", "1s"),
        ("IDENTITY_MAX_REFRESH", "1s"),
    ];
    let server = mesh.pod("server").meshed_with(&often).await;
    let client = mesh.pod("client").meshed_with(&often).await;
    let _app = HttpApp::start(&server, PORT, OK).await;
    serve(&mesh, &server);
    let mut before = 0;
    while before < 20 {
        assert!(is_answered(&client).await, "after {before} connections");
        before += 1;
    }
    mesh.control.issue(Issuing::Refused);
    for pod in [&server, &client] {
        let expired = "Failed to renew the expired certificate; peers reject this proxy";
        pod.proxy().logged(expired).await;
    }
    // The last second of a certificate is part of its life.
    eventually("new connections fail", async || !is_answered(&client).await).await;
    // Each of them a new handshake, which no session of earlier ones may shorten.
    for number in 0..5 {
        assert!(!is_answered(&client).await, "connection {number} succeeded");
    }
    mesh.control.issue(Issuing::Valid(-60, HOUR));
    eventually("the proxies recover", async || is_answered(&client).await).await;
    let mut after = 0;
    while after < 20 {
        assert!(is_answered(&client).await, "after {after} connections");
        after += 1;
    }
    measured(format!(
        "{before} of {before} connections before, 0 of 5 with expired certificates, {after} of {after} after"
    ));
}

/// The clock of the identity service differs from the proxy's by this number of seconds.
#[tokio::test]
async fn clock_skew_beyond_the_allowed_is_named_and_ends_when_the_clock_is_right() {
    let Some(mesh) = Mesh::new() else { return };
    let valid = |skew: i64| Issuing::Valid(skew - ALLOWED_SKEW, skew + HOUR);
    for skew in [-ALLOWED_SKEW, 0, ALLOWED_SKEW - 1, -300] {
        mesh.control.issue(valid(skew));
        let pod = mesh.pod("good").meshed().await;
        pod.proxy().logged("Certified identity").await;
    }
    for skew in [300, 26 * HOUR, -26 * HOUR] {
        mesh.control.issue(valid(skew));
        let pod = mesh.pod("bad").with_proxy(&[]).await;
        let line = pod.proxy().logged("Failed to certify identity").await;
        assert!(line.contains("certificate"), "{line}");
        let failed = ["control_identity_cert_refreshes_total", "result=\"error\""];
        assert!(pod.metric(&failed).await >= 1.0);
        mesh.control.issue(valid(0));
        pod.wait_for_proxy("/ready").await;
    }
    measured("skews of -20, 0, 19 and -300 s certified, of 300 s and 26 h refused until set right");
}
