//! Connections that the proxies must refuse, and silent ones that they must not mind.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{HttpApp, Mesh, Pod, eventually, sample, within};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// Returns the response to a request, or an empty string when the connection is refused.
async fn answer(pod: &Pod, addr: SocketAddr) -> String {
    let Ok(mut tcp) = pod.connect(addr).await else {
        return String::new();
    };
    let mut answer = String::new();
    // A reset, which may come before the request, counts as no response.
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
    if tcp.write_all(request).await.is_ok() {
        let _ = within("the end of the connection", tcp.read_to_string(&mut answer)).await;
    }
    answer
}

#[tokio::test]
async fn the_proxys_own_ports_lead_nowhere() {
    let Some(mesh) = Mesh::new() else { return };
    let pod = mesh.pod("pod").meshed().await;
    let outsider = mesh.pod("outsider");
    // From outside: the outbound port by way of the inbound one, and the inbound port without a
    // peer's TLS.
    for port in [4140, 4143] {
        assert_eq!(answer(&outsider, pod.addr(port)).await, "", "{port}");
    }
    // From inside: directly, and by the pod's own address.
    let loopback = ([127, 0, 0, 1], 4140).into();
    for addr in [loopback, pod.addr(4140), pod.addr(4143)] {
        assert_eq!(answer(&pod, addr).await, "", "{addr}");
    }
    let metrics = pod.metrics().await;
    let errors = |direction: &str| {
        sample(
            &metrics,
            &[
                &format!("{direction}_tcp_errors_total"),
                "error=\"unexpected\"",
            ],
        )
    };
    assert!(
        errors("inbound").is_some() && errors("outbound").is_some(),
        "{metrics}"
    );
    let open = [
        "tcp_open_connections",
        "direction=\"outbound\"",
        "peer=\"src\"",
    ];
    eventually("nothing is left", || async {
        sample(&pod.metrics().await, &open).unwrap_or(0.0) == 0.0
    })
    .await;
}

/// With this setting, connections from outside get nothing, do not reach the application, and are
/// counted so.
async fn assert_refused(setting: (&str, &str), counted: &[&str]) {
    let Some(mesh) = Mesh::new() else { return };
    let pod = mesh.pod("pod").meshed_with(&[setting]).await;
    let outsider = mesh.pod("outsider");
    let mut app = HttpApp::start(&pod, 8080, OK).await;
    assert_eq!(outsider.get(pod.addr(8080), "a", "/").await, "");
    assert!(app.is_untouched());
    pod.metric(counted).await;
}

/// No proxy gets along with so little, so that every connection is one too many; requests to the
/// proxy itself get a response.
#[tokio::test]
async fn connections_are_refused_while_memory_is_short() {
    let counted = [
        "mesh_proxy_refused_total",
        "direction=\"inbound\"",
        "protocol=\"tcp\"",
        "reason=\"memory\"",
    ];
    assert_refused(("MESH_PROXY_MAX_MEMORY", "8388608"), &counted).await;
}

/// Each client holds 60 KB of the proxy's memory, and it takes hundreds until memory is short.
#[tokio::test]
async fn connections_are_accepted_again_when_the_clients_that_held_the_memory_have_gone() {
    const MOST: usize = 4000;
    let Some(mesh) = Mesh::new() else { return };
    let limit = ("MESH_PROXY_MAX_MEMORY", "100663296");
    let pod = mesh.pod("pod").meshed_with(&[limit]).await;
    let outsider = mesh.pod("outsider");
    let _app = HttpApp::start(&pod, 8080, OK).await;
    let addr = pod.addr(8080);
    let is_served = async || {
        let answer = outsider.get(addr, "a", "/").await;
        answer.starts_with("HTTP/1.1 200 ")
    };
    assert!(is_served().await);
    // A request target without an end.
    let begin = ["GET /", &"x".repeat(60_000)].concat();
    let mut clients = Vec::new();
    loop {
        assert!(clients.len() < MOST, "memory is never short");
        let Ok(mut client) = outsider.connect(addr).await else {
            break;
        };
        if client.write_all(begin.as_bytes()).await.is_err() {
            break;
        }
        clients.push(client);
        if clients.len().is_multiple_of(50) && !is_served().await {
            break;
        }
    }
    assert!(clients.len() >= 100, "{}", clients.len());
    drop(clients);
    eventually("connections are accepted", is_served).await;
    let counted = ["mesh_proxy_refused_total", "reason=\"memory\""];
    pod.metric(&counted).await;
}

/// A connection that was HTTP once is still a connection, until it ends.
#[tokio::test]
async fn tunnels_count_among_the_connections() {
    const SWITCHING: &[u8] =
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let Some(mesh) = Mesh::new() else { return };
    let pod = mesh
        .pod("pod")
        .meshed_with(&[("MESH_PROXY_INBOUND_MAX_CONNECTIONS", "1")])
        .await;
    let outsider = mesh.pod("outsider");
    let serve = |mut tcp: TcpStream| async move {
        let _ = tcp.read(&mut [0; 4096]).await;
        let _ = tcp.write_all(SWITCHING).await;
        // Until the peer has closed.
        let _ = tcp.read(&mut [0; 1]).await;
    };
    pod.listen(8080, serve).await;
    let mut tunnel = outsider.connect(pod.addr(8080)).await.unwrap();
    let asked = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    tunnel.write_all(asked).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"\r\n\r\n") {
        seen.push(within("the switch", tunnel.read_u8()).await.unwrap());
    }
    assert_eq!(answer(&outsider, pod.addr(8080)).await, "");
    drop(tunnel);
    eventually("the place is free", || async {
        !answer(&outsider, pod.addr(8080)).await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn foreign_addresses_are_refused() {
    let counted = [
        "inbound_tcp_errors_total",
        "error=\"unexpected\"",
        "target_port=\"8080\"",
    ];
    assert_refused(("INBOUND_IPS", "10.99.9.9"), &counted).await;
}

#[tokio::test]
async fn silent_and_slow_clients_do_not_block_others() {
    let Some(mesh) = Mesh::new() else { return };
    let pod = mesh.pod("pod").meshed().await;
    let outsider = mesh.pod("outsider");
    let mut app = HttpApp::start(&pod, 8080, OK).await;
    let _silent = outsider.connect(pod.addr(8080)).await.unwrap();
    let mut slow = outsider.connect(pod.addr(8080)).await.unwrap();
    slow.write_all(b"G").await.unwrap();
    assert!(
        outsider
            .get(pod.addr(8080), "a", "/fast")
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(app.received().await.request_line(), "GET /fast HTTP/1.1");
    // A request that comes byte by byte is a request.
    for byte in b"ET /slow HTTP/1.1\r\nhost: a\r\n\r\n" {
        slow.write_u8(*byte).await.unwrap();
    }
    assert_eq!(app.received().await.request_line(), "GET /slow HTTP/1.1");
    let mut answer = [0; 12];
    within("the answer", slow.read_exact(&mut answer))
        .await
        .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}
