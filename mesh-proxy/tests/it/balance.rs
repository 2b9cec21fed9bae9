//! Several endpoints behind one Service.

use crate::harness::{HttpApp, Mesh, policies};

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);

fn answer(name: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{name}")
}

#[tokio::test]
async fn a_dead_endpoint_fails_no_request() {
    let Some(mesh) = Mesh::new() else { return };
    let one = mesh.pod("one").meshed().await;
    let two = mesh.pod("two").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let endpoints = [&one, &two].map(|pod| policies::meshed(pod, 8080));
    mesh.control.service(SERVICE, "web", endpoints);
    let _one_app = HttpApp::start(&one, 8080, &answer("1")).await;
    let _two_app = HttpApp::start(&two, 8080, &answer("2")).await;

    let mut seen = [0; 2];
    for _ in 0..40 {
        let answer = client.get(SERVICE, "web", "/").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        seen[usize::from(answer.ends_with('2'))] += 1;
    }
    assert!(seen.iter().all(|&n| n > 0), "both are used: {seen:?}");

    // The proxy and its application exit, and the client's proxy is not notified.
    drop((one, _one_app));
    for _ in 0..40 {
        let answer = client.get(SERVICE, "web", "/").await;
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.ends_with('2'),
            "{answer}"
        );
    }
}
