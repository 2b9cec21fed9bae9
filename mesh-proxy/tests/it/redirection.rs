//! A proxy that is told to check redirection, in a pod whose connections are redirected late.

use crate::harness::{Mesh, Pod, eventually, sample};

const CHECK: &str = "192.0.2.1:20001";

async fn ready(pod: &Pod) -> String {
    pod.get(([127, 0, 0, 1], 4191), "admin", "/ready").await
}

#[tokio::test]
async fn a_pod_that_is_not_redirected_is_not_ready() {
    let Some(mesh) = Mesh::new() else { return };
    let pod = mesh
        .pod("pod")
        .with_proxy(&[("MESH_PROXY_REDIRECT_CHECK", CHECK)])
        .await;
    pod.proxy().logged("Certified identity").await;
    pod.proxy()
        .logged("Connections of this pod are not redirected to the proxy")
        .await;
    let answer = ready(&pod).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    let why = "waiting for connections of this pod to be redirected to the proxy (is the mesh agent running on this node?)\n";
    assert!(answer.ends_with(why), "{answer}");
    assert_eq!(pod.metric(&["mesh_proxy_redirection_verified"]).await, 0.0);

    pod.redirect();
    eventually("the proxy is ready", || async {
        ready(&pod).await.starts_with("HTTP/1.1 200")
    })
    .await;
    assert_eq!(pod.metric(&["mesh_proxy_redirection_verified"]).await, 1.0);
    // An application that connects there receives nothing and does not count as traffic.
    let address: std::net::SocketAddr = CHECK.parse().unwrap();
    assert_eq!(pod.get(address, "a", "/").await, "");
    let metrics = pod.metrics().await;
    for name in ["tcp_open_total", "outbound_", "request_total"] {
        assert_eq!(sample(&metrics, &[name, "192.0.2.1"]), None, "{metrics}");
        assert_eq!(
            sample(&metrics, &[name, "direction=\"outbound\""]),
            None,
            "{metrics}"
        );
    }
}

#[tokio::test]
async fn redirection_without_the_check_address_is_not_ready() {
    let Some(mesh) = Mesh::new() else { return };
    let pod = mesh
        .pod("pod")
        .with_proxy(&[("MESH_PROXY_REDIRECT_CHECK", "192.0.2.2:20001")])
        .await;
    // The rules redirect the application, but not the proxy when it goes there.
    pod.redirect();
    pod.proxy()
        .logged("Connections of this pod are not redirected to the proxy")
        .await;
    assert!(ready(&pod).await.starts_with("HTTP/1.1 503"));
}
