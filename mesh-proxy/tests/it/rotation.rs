//! Trust anchors and certificates that change under load: no request fails, and no proxy is started
//! again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{HttpApp, Mesh, Pod, eventually, policies};

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
/// An opaque one: each connection of a client is a handshake between the proxies.
const OPAQUE: ([u8; 4], u16) = ([10, 96, 0, 2], 80);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

const CLOSE: &str = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";

/// How many certificates the proxy has been given.
async fn certified(pod: &Pod) -> f64 {
    pod.metric(&["control_identity_cert_refreshes_total", "result=\"ok\""])
        .await
}

async fn until_certified_anew(pods: &[&Pod]) {
    for pod in pods {
        // One that was asked for before may still come; the second was asked for after.
        let wanted = certified(pod).await + 2.0;
        eventually("two more certificates", || async {
            certified(pod).await >= wanted
        })
        .await;
    }
}

#[tokio::test]
async fn roots_are_exchanged_under_load_and_no_request_fails() {
    let Some(mesh) = Mesh::new() else { return };
    let environment = [
        // A new certificate every second.
        ("IDENTITY_MIN_REFRESH", "1s"),
        ("IDENTITY_MAX_REFRESH", "1s"),
    ];
    let server = mesh.pod("server").meshed_with(&environment).await;
    let client = mesh.pod("client").meshed_with(&environment).await;
    let both = [&server, &client];
    let _app = HttpApp::start(&server, 8080, OK).await;
    let endpoint = policies::meshed(&server, 8080);
    mesh.control.service(SERVICE, "web", [endpoint]);
    let opaque = policies::opaque_service("tcp", 80);
    mesh.control.outbound(OPAQUE, opaque);
    let _closing = HttpApp::start(&server, 8081, CLOSE).await;
    let endpoint = policies::meshed_opaque(&server, 8081);
    mesh.control
        .endpoints(&policies::authority("tcp", 80), vec![endpoint]);

    let over = AtomicBool::new(false);
    let load = async {
        let mut runs = 0;
        while !over.load(Ordering::Relaxed) {
            let load = "h2load --h1 -n 400 -c 4 --rps 50 http://10.96.0.1/";
            let report = client.run(load).await;
            let all = "400 succeeded, 0 failed, 0 errored, 0 timeout";
            assert!(report.contains(all), "{report}");
            assert!(report.contains("400 2xx"), "{report}");
            runs += 1;
        }
        runs
    };
    let handshakes = async {
        let mut made = 0.0;
        while !over.load(Ordering::Relaxed) {
            let answer = client.get(OPAQUE, "web", "/").await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            made += 1.0;
        }
        made
    };
    let story = async {
        let old = mesh.control.anchors();
        let new = mesh.control.rotate();
        // Proxies refuse certificates of the new root until the bundle has it, first of all the
        // proxy that received one: it keeps its current certificate.
        let united = format!("{old}{new}");
        mesh.control.send_anchors(7, &united);
        for pod in both {
            pod.proxy()
                .logged("Received trust anchors anchors=2 number=7")
                .await;
        }
        until_certified_anew(&both).await;
        mesh.control.send_anchors(8, &new);
        for pod in both {
            pod.proxy()
                .logged("Received trust anchors anchors=1 number=8")
                .await;
        }
        until_certified_anew(&both).await;
        // A replica that is behind does not bring back the anchor that was withdrawn.
        mesh.control.send_anchors(7, &united);
        for pod in both {
            pod.proxy()
                .logged("its number 7 is lower than 8, the number of the anchors in use")
                .await;
        }
        over.store(true, Ordering::Relaxed);
    };
    let (runs, made, ()) = tokio::join!(load, handshakes, story);
    assert!(runs > 0);
    let name = server.identity();
    let opened = client
        .metric(&["tcp_open_total", "peer=\"dst\"", &name])
        .await;
    assert!(made > 1.0 && opened > made, "{opened} opened for {made}");
}

#[tokio::test]
async fn pod_with_the_old_root_is_ready_through_the_cross_certificate() {
    let Some(mesh) = Mesh::new() else { return };
    let old = mesh.control.anchors();
    let server = mesh.pod("server").meshed().await;
    let _app = HttpApp::start(&server, 8080, OK).await;
    let endpoint = policies::meshed(&server, 8080);
    mesh.control.service(SERVICE, "web", [endpoint]);
    mesh.control.cross_sign();
    // As a container that is started again in a pod from before the rotation.
    let environment = [("IDENTITY_TRUST_ANCHORS", &*old)];
    let client = mesh.pod("client").meshed_with(&environment).await;
    let answer = client.get(SERVICE, "web", "/").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let united = format!("{old}{}", mesh.control.anchors());
    mesh.control.send_anchors(1, &united);
    client
        .proxy()
        .logged("Received trust anchors anchors=2 number=1")
        .await;
    // The service has to authenticate itself to both proxies by the new anchors.
    eventually("each proxy opens the stream of anchors again", || async {
        mesh.control.bundle_streams() >= 2
    })
    .await;
}
