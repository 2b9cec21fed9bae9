//! HTTP through one and through two proxies.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::{HttpApp, Mesh, echo, policies, within};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-app: yes\r\n\r\nhello";
const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);

/// A client and a server, both meshed, and a Service `web` in front of the server's port 8080.
macro_rules! two_pods {
    ($mesh:ident, $client:ident, $server:ident) => {
        let Some($mesh) = Mesh::new() else { return };
        let $server = $mesh.pod("server").meshed().await;
        let $client = $mesh.pod("client").meshed().await;
        let endpoint = policies::meshed(&$server, 8080);
        $mesh.control.service(SERVICE, "web", [endpoint]);
    };
}

#[tokio::test]
async fn access_log_has_a_line_for_each_request() {
    let Some(mesh) = Mesh::new() else { return };
    let log = [("ACCESS_LOG", "apache")];
    let server = mesh.pod("server").meshed_with(&log).await;
    let client = mesh.pod("client").meshed().await;
    let endpoint = policies::meshed(&server, 8080);
    mesh.control.service(SERVICE, "web", [endpoint]);
    let _app = HttpApp::start(&server, 8080, OK).await;
    let request = "GET /a?b=c HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    let answer = client.exchange(SERVICE, request).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let line = server.access_logged("/a?b=c").await;
    let (from, rest) = line.split_once(" - [").unwrap();
    let (address, identity) = from.split_once(' ').unwrap();
    assert!(address.starts_with(&format!("{}:", client.ip)), "{line}");
    assert_eq!(identity, client.identity());
    assert!(
        rest.ends_with("] \"GET http://web/a?b=c HTTP/1.1\" 200"),
        "{line}"
    );
}

#[tokio::test]
async fn requests_cross_two_proxies_unchanged() {
    two_pods!(mesh, client, server);
    let mut app = HttpApp::start(&server, 8080, OK).await;
    let answer = client
        .exchange(
            SERVICE,
            "POST /a?b=c HTTP/1.1\r\nHost: web\r\nConnection: close\r\nL5d-Client-Id: forged\r\nX-Mine: 1\r\nContent-Length: 4\r\n\r\nbody",
        )
        .await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    assert!(answer.contains("x-app: yes\r\n"), "{answer}");
    assert!(!answer.contains("l5d-"), "{answer}");

    let request = app.received().await;
    assert_eq!(request.request_line(), "POST /a?b=c HTTP/1.1");
    assert_eq!(request.header("host"), ["web"]);
    assert_eq!(request.header("x-mine"), ["1"]);
    assert_eq!(request.header("l5d-client-id"), [client.identity()]);
    assert_eq!(request.header("l5d-orig-proto"), [""; 0]);
    assert_eq!(request.body, "body");

    let server_id = format!("server_id=\"{}\"", server.identity());
    let client_id = format!("client_id=\"{}\"", client.identity());
    let outbound = [
        "direction=\"outbound\"",
        "tls=\"true\"",
        &server_id,
        "dst_pod=\"server\"",
    ];
    let inbound = [
        "direction=\"inbound\"",
        "tls=\"true\"",
        &client_id,
        "srv_port=\"8080\"",
    ];
    for (pod, labels) in [(&client, outbound), (&server, inbound)] {
        let request = [&["request_total"][..], &labels].concat();
        assert_eq!(pod.metric(&request).await, 1.0);
        let success = [
            "response_total",
            "classification=\"success\"",
            "status_code=\"200\"",
        ];
        assert_eq!(pod.metric(&[&success[..], &labels].concat()).await, 1.0);
        assert_eq!(
            pod.metric(&[&["response_latency_ms_count"][..], &labels].concat())
                .await,
            1.0
        );
    }
}

#[tokio::test]
async fn chunked_bodies_old_versions_and_absolute_forms_survive() {
    two_pods!(mesh, client, server);
    let mut app = HttpApp::start(&server, 8080, OK).await;
    let chunked = "POST / HTTP/1.1\r\nHost: web\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    assert!(client.exchange(SERVICE, chunked).await.contains("200 OK"));
    let request = app.received().await;
    assert_eq!(request.header("transfer-encoding"), ["chunked"]);
    assert_eq!(request.body, "4\r\nbody\r\n0\r\n\r\n");

    let answer = client.exchange(SERVICE, "GET /x HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    let request = app.received().await;
    assert_eq!(request.request_line(), "GET /x HTTP/1.0");
    assert_eq!(request.header("host"), [""; 0]);

    let absolute = "GET http://other/x HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
    assert!(client.exchange(SERVICE, absolute).await.contains("200 OK"));
    assert_eq!(
        app.received().await.request_line(),
        "GET http://other/x HTTP/1.1"
    );
}

#[tokio::test]
async fn one_side_may_be_unmeshed() {
    let Some(mesh) = Mesh::new() else { return };
    let meshed = mesh.pod("meshed").meshed().await;
    let plain = mesh.pod("plain");
    let mut meshed_app = HttpApp::start(&meshed, 8080, OK).await;
    let mut plain_app = HttpApp::start(&plain, 8080, OK).await;

    assert!(
        plain
            .get(meshed.addr(8080), "a", "/in")
            .await
            .contains("200 OK")
    );
    let request = meshed_app.received().await;
    assert_eq!(request.request_line(), "GET /in HTTP/1.1");
    assert_eq!(request.header("l5d-client-id"), [""; 0]);

    // The control plane does not know the address, so the request goes to its original destination.
    assert!(
        meshed
            .get(plain.addr(8080), "a", "/out")
            .await
            .contains("200 OK")
    );
    assert_eq!(
        plain_app.received().await.request_line(),
        "GET /out HTTP/1.1"
    );
}

#[tokio::test]
async fn both_address_families() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    let outsider = mesh.pod("outsider");
    let mut app = HttpApp::start(&server, 8080, OK).await;
    let over6 = mesh_core::endpoint::Endpoint {
        addr: server.addr6(8080),
        ..policies::meshed(&server, 8080)
    };
    let service6: SocketAddr = "[fd96::1]:80".parse().unwrap();
    mesh.control.service(service6, "web", [over6]);

    for (pod, addr) in [
        (&outsider, server.addr(8080)),
        (&outsider, server.addr6(8080)),
        (&client, server.addr6(8080)),
        (&client, service6),
    ] {
        let answer = pod.get(addr, "web", "/").await;
        assert!(
            answer.contains("200 OK"),
            "{} to {addr}: {answer}",
            pod.name
        );
        let id = app.received().await.header("l5d-client-id").join(",");
        assert_eq!(id.is_empty(), addr != service6, "{addr}");
    }
    // An IPv4 client of the IPv6 listener is an IPv4 client.
    let target = format!("target_addr=\"{}\"", server.addr(8080));
    server.metric(&["request_total", &target]).await;
}

#[tokio::test]
async fn an_unauthenticated_peer_cannot_say_how_its_request_began() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed().await;
    let outsider = mesh.pod("outsider");
    let mut app = HttpApp::start(&server, 8080, OK).await;
    let request = "GET / HTTP/1.1\r\nHost: a\r\nL5d-Orig-Proto: HTTP/1.0\r\nL5d-Client-Id: root\r\nConnection: close\r\n\r\n";
    assert!(
        outsider
            .exchange(server.addr(8080), request)
            .await
            .contains("200 OK")
    );
    let request = app.received().await;
    assert_eq!(request.request_line(), "GET / HTTP/1.1");
    assert_eq!(request.header("l5d-orig-proto"), [""; 0]);
    assert_eq!(request.header("l5d-client-id"), [""; 0]);
}

#[tokio::test]
async fn upgrades_become_tunnels() {
    two_pods!(mesh, client, server);
    let switching =
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let serve = move |mut tcp: TcpStream| async move {
        let mut head = vec![0; 4096];
        let n = tcp.read(&mut head).await.unwrap();
        let head = String::from_utf8_lossy(&head[..n]).to_ascii_lowercase();
        assert!(head.contains("upgrade: echo\r\n"), "{head}");
        tcp.write_all(switching.as_bytes()).await.unwrap();
        echo(tcp).await;
    };
    server.listen(8080, serve).await;
    let request = "GET / HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    let echoed = client.spawn(async move {
        let connected = TcpStream::connect(SocketAddr::from(SERVICE)).await;
        let mut tcp = connected.unwrap();
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(tcp.read_u8().await.unwrap());
        }
        tcp.write_all(b"no HTTP at all").await.unwrap();
        tcp.shutdown().await.unwrap();
        let mut echo = Vec::new();
        tcp.read_to_end(&mut echo).await.unwrap();
        (String::from_utf8(seen).unwrap(), echo)
    });
    let (head, echo) = within("the echo", echoed).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert_eq!(echo, b"no HTTP at all");
}
