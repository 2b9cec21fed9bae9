//! Connections that are no HTTP.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use mesh_core::policy::inbound::ServerProtocol;

use crate::harness::{Mesh, Pod, policies, within};

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 7000);

/// Greets every connection, then echoes it.
async fn server_first(pod: &Pod, port: u16) {
    let listener = pod
        .spawn(TcpListener::bind(("0.0.0.0", port)))
        .await
        .unwrap();
    pod.start(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                tcp.write_all(b"hello\n").await.unwrap();
                let (mut from, mut to) = tcp.split();
                // The client may go away.
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
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
        .outbound(SERVICE, policies::service("db", 7000));
    let endpoints = vec![policies::meshed(&server, 7000)];
    mesh.control
        .endpoints(&policies::authority("db", 7000), endpoints);
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
    assert_eq!(
        crate::harness::sample(&client.metrics().await, &[results, "read_timeout"]),
        None
    );
}

#[tokio::test]
async fn foreign_tls_passes_untouched() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let outsider = mesh.pod("outsider");
    let hello = client_hello("example.com");
    let listener = server
        .spawn(TcpListener::bind(("0.0.0.0", 443)))
        .await
        .unwrap();
    let expect = hello.clone();
    server.start(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut got = vec![0; expect.len()];
            tcp.read_exact(&mut got).await.unwrap();
            assert!(got == expect, "the hello was changed");
            tcp.write_all(b"seen").await.unwrap();
        }
    });
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

/// A ClientHello with this server name and nothing else of interest.
fn client_hello(name: &str) -> Vec<u8> {
    let prefixed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let entry = [&[0][..], &prefixed(name.as_bytes())].concat();
    let extensions = [&[0, 0][..], &prefixed(&prefixed(&entry))].concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend(prefixed(&[0x13, 1]));
    body.extend([1, 0]);
    body.extend(prefixed(&extensions));
    let length = (body.len() as u32).to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    [&[22, 3, 1][..], &prefixed(&message)].concat()
}
