//! Authorization of clients.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use mesh_core::policy::inbound::{HttpServer, RateLimit, ServerProtocol};

use crate::harness::{HttpApp, Mesh, echo, eventually, policies, within};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);

#[tokio::test]
async fn requests_are_judged_by_the_newest_policy() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh
        .pod("server")
        .meshed_with(&[("INBOUND_PORTS", "8080")])
        .await;
    let client = mesh.pod("client").meshed().await;
    let outsider = mesh.pod("outsider");
    mesh.control
        .service(SERVICE, "web", [policies::meshed(&server, 8080)]);
    let mut app = HttpApp::start(&server, 8080, OK).await;
    let answer = client.get(SERVICE, "web", "/").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    app.received().await;

    let only_other = policies::only("other.test.serviceaccount.identity.linkerd.cluster.local");
    let denying = policies::server(policies::detect(), vec![only_other]);
    mesh.control.server("server", 8080, denying);
    let denied = eventually("the policy takes effect", || async {
        let answer = client.get(SERVICE, "web", "/").await;
        answer.starts_with("HTTP/1.1 403").then_some(answer)
    })
    .await;
    assert!(!denied.contains("l5d-"), "{denied}");
    while !app.is_untouched() {}
    let answer = outsider.get(server.addr(8080), "web", "/").await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(
        !answer.contains("l5d-"),
        "outsiders are told nothing: {answer}"
    );
    assert!(app.is_untouched());
    let client_id = format!("client_id=\"{}\"", client.identity());
    for who in [client_id.as_str(), "no_tls_reason=\"no_tls_from_remote\""] {
        let denials = [
            "inbound_http_authz_deny_total",
            "srv_name=\"server\"",
            "route_name=\"default\"",
            who,
        ];
        assert!(server.metric(&denials).await >= 1.0);
    }

    let allowing = policies::server(policies::detect(), vec![policies::only(&client.identity())]);
    mesh.control.server("server", 8080, allowing);
    eventually("the policy takes effect", || async {
        let answer = client.get(SERVICE, "web", "/").await;
        answer.starts_with("HTTP/1.1 200")
    })
    .await;
    let answer = outsider.get(server.addr(8080), "web", "/").await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    server
        .metric(&[
            "inbound_http_authz_allow_total",
            "authz_name=\"only\"",
            &client_id,
        ])
        .await;
}

#[tokio::test]
async fn a_connection_ends_when_its_grant_does() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh
        .pod("server")
        .meshed_with(&[("INBOUND_PORTS", "7000")])
        .await;
    let outsider = mesh.pod("outsider");
    let open = policies::server(ServerProtocol::Opaque, vec![policies::every_client()]);
    mesh.control.server("server", 7000, open);
    server.listen(7000, echo).await;
    let mut tcp = outsider.connect(server.addr(7000)).await.unwrap();
    tcp.write_all(b"ping").await.unwrap();
    let mut echo = [0; 4];
    within("the echo", tcp.read_exact(&mut echo)).await.unwrap();

    mesh.control.server(
        "server",
        7000,
        policies::server(ServerProtocol::Opaque, Vec::new()),
    );
    let ended = within("the connection ends", tcp.read(&mut echo)).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert_eq!(
        server.metric(&["inbound_tcp_authz_terminate_total"]).await,
        1.0
    );
    // The reset may arrive before `connect` returns.
    if let Ok(mut refused) = outsider.connect(server.addr(7000)).await {
        let ended = within("the connection ends", refused.read(&mut echo)).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    }
    assert_eq!(server.metric(&["inbound_tcp_authz_deny_total"]).await, 1.0);
}

#[tokio::test]
async fn rate_limits_answer_429() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh
        .pod("server")
        .meshed_with(&[("INBOUND_PORTS", "8080")])
        .await;
    let outsider = mesh.pod("outsider");
    let limited = ServerProtocol::Http1(HttpServer {
        rate_limit: Some(RateLimit {
            meta: mesh_core::meta::Meta::new_default("limit"),
            total: Some(1),
            identity: None,
            overrides: Vec::new(),
        }),
        ..HttpServer::default()
    });
    mesh.control.server(
        "server",
        8080,
        policies::server(limited, vec![policies::every_client()]),
    );
    let _app = HttpApp::start(&server, 8080, OK).await;
    eventually("a request is refused", || async {
        let answer = outsider.get(server.addr(8080), "web", "/").await;
        answer.starts_with("HTTP/1.1 429")
    })
    .await;
    let refused = [
        "inbound_http_local_ratelimit_total",
        "ratelimit_scope=\"total\"",
        "srv_name=\"server\"",
    ];
    assert!(server.metric(&refused).await >= 1.0);
}
