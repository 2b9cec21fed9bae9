//! Connections that are not HTTP.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use mesh_core::policy::inbound::ServerProtocol;
use mesh_test_support::tls::client_hello;

use crate::harness::{Mesh, Pod, echo, policies, sample, within};

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 7000);

/// Greets every connection, then echoes it.
async fn server_first(pod: &Pod, port: u16) {
    let serve = |mut tcp: TcpStream| async move {
        tcp.write_all(b"hello\n").await.unwrap();
        echo(tcp).await;
    };
    pod.listen(port, serve).await;
}

/// Waits for the greeting before it says anything, and returns the echo.
async fn talk(pod: &Pod, addr: impl Into<std::net::SocketAddr>) -> Vec<u8> {
    let addr = addr.into();
    let talked = pod.spawn(async move {
        let mut tcp = TcpStream::connect(addr).await.unwrap();
        let mut greeting = [0; 6];
        tcp.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"hello\n");
        tcp.write_all(b"GET is not always HTTP\n").await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut echo = Vec::new();
        tcp.read_to_end(&mut echo).await.unwrap();
        echo
    });
    within("the greeting and the echo", talked).await
}

#[tokio::test]
async fn a_server_may_speak_first_on_an_opaque_port() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let opaque = policies::server(
        ServerProtocol::Opaque,
        vec![policies::only(&client.identity())],
    );
    mesh.control.server("server", 7000, opaque);
    mesh.control
        .outbound(SERVICE, policies::opaque_service("db", 7000));
    let endpoints = vec![policies::meshed_opaque(&server, 7000)];
    mesh.control
        .endpoints(&policies::authority("db", 7000), endpoints);
    server_first(&server, 7000).await;

    // The first connection to a port may be judged by the default policy; this one makes the proxy
    // ask for the port's own.
    server
        .metric(&["tcp_open_connections", "peer=\"src\""])
        .await;
    assert_eq!(talk(&client, SERVICE).await, b"GET is not always HTTP\n");
    let client_id = format!("client_id=\"{}\"", client.identity());
    server
        .metric(&[
            "inbound_tcp_authz_allow_total",
            "target_port=\"7000\"",
            &client_id,
        ])
        .await;
    server
        .metric(&[
            "inbound_tcp_transport_header_connections_total",
            "target_port=\"7000\"",
            &client_id,
        ])
        .await;
    client
        .metric(&[
            "tcp_open_total",
            "peer=\"dst\"",
            "tls=\"true\"",
            "dst_pod=\"server\"",
        ])
        .await;
    let echoed = b"hello\nGET is not always HTTP\n".len() as f64;
    let read = [
        "tcp_read_bytes_total",
        "direction=\"outbound\"",
        "peer=\"dst\"",
    ];
    assert_eq!(client.metric(&read).await, echoed);
    client
        .metric(&["outbound_tcp_route_open_total", "parent_name=\"db\""])
        .await;
    client
        .metric(&[
            "outbound_tcp_route_close_total",
            "parent_name=\"db\"",
            "error=\"\"",
        ])
        .await;
}

#[tokio::test]
async fn a_server_may_speak_first_where_protocols_are_detected() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let outsider = mesh.pod("outsider");
    mesh.control
        .service(SERVICE, "db", [policies::meshed(&server, 7000)]);
    server_first(&server, 7000).await;

    for _ in 0..2 {
        assert_eq!(talk(&client, SERVICE).await, b"GET is not always HTTP\n");
        assert_eq!(
            talk(&outsider, server.addr(7000)).await,
            b"GET is not always HTTP\n"
        );
    }
    // It was the greeting that decided, not a timeout.
    let results = "outbound_tcp_detect_http_results_total";
    assert_eq!(client.metric(&[results, "result=\"not_http\""]).await, 2.0);
    let metrics = client.metrics().await;
    assert_eq!(sample(&metrics, &[results, "read_timeout"]), None);
}

#[tokio::test]
async fn foreign_tls_passes_untouched() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let outsider = mesh.pod("outsider");
    let hello = client_hello("example.com");
    let expected = hello.clone();
    let serve = move |mut tcp: TcpStream| {
        let expected = expected.clone();
        async move {
            let mut got = vec![0; expected.len()];
            tcp.read_exact(&mut got).await.unwrap();
            assert!(got == expected, "the hello was changed");
            tcp.write_all(b"seen").await.unwrap();
        }
    };
    server.listen(443, serve).await;
    for pod in [&client, &outsider] {
        let answer = pod.exchange(server.addr(443), hello.clone()).await;
        assert_eq!(answer, "seen", "from {}", pod.name);
    }
    let accepted = [
        "tcp_open_total",
        "direction=\"inbound\"",
        "tls=\"opaque\"",
        "sni=\"example.com\"",
    ];
    assert_eq!(server.metric(&accepted).await, 2.0);
}
