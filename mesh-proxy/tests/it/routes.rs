//! The decisions of the outbound proxy about a request: the rule, the backend, its time limit, and
//! the application's response when it fails.

use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::endpoint::Endpoint;
use mesh_core::policy::outbound::{HttpRoute, OutboundPolicy, OutboundProtocol};
use mesh_core::route::filter::{Filter, Redirect};
use mesh_core::route::http::{HttpMatch, PathMatch};
use tokio::net::TcpListener;

use crate::harness::{HttpApp, Mesh, Pod, eventually, policies};

const SERVICE: ([u8; 4], u16) = ([10, 96, 0, 1], 80);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The policy of `name`, with its one HTTP route changed.
fn service(name: &str, change: impl FnOnce(&mut HttpRoute)) -> OutboundPolicy {
    let mut policy = policies::service(name, 80);
    if let OutboundProtocol::Detect { http1, http2, .. } = &mut policy.protocol {
        change(&mut http1.routes[0]);
        *http2 = http1.clone();
    }
    policy
}

/// An unmeshed pod whose port 8080 answers `ok`.
async fn pod_with_app(mesh: &Mesh) -> Pod {
    let pod = mesh.pod("server");
    // The application runs on the pod's thread; the test ignores what it receives.
    drop(HttpApp::start(&pod, 8080, OK).await);
    pod
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("")
}

/// `GET` without asking for the connection's end, so that the proxy's own wish shows.
async fn get(client: &Pod, to: impl Into<SocketAddr>) -> String {
    client
        .exchange(to, "GET / HTTP/1.1\r\nhost: web\r\n\r\n")
        .await
}

#[tokio::test]
async fn a_service_without_endpoints_fails_fast_and_recovers() {
    let Some(mesh) = Mesh::new() else { return };
    let server = pod_with_app(&mesh).await;
    let client = mesh.pod("client").meshed().await;
    mesh.control.service(SERVICE, "web", []);

    let first = get(&client, SERVICE).await;
    assert_eq!(status(&first), "504", "{first}");
    assert!(first.contains("l5d-proxy-error: logical service 10.96.0.1:80: route default.http: backend Service.test.web:80: service in fail-fast\r\n"), "{first}");
    assert!(first.contains("connection: close\r\n"), "{first}");
    let second = get(&client, SERVICE).await;
    assert_eq!(status(&second), "503", "{second}");
    assert!(second.contains("service unavailable\r\n"), "{second}");
    for reason in ["failfast", "loadshed"] {
        let label = format!("error=\"{reason}\"");
        assert_eq!(
            client.metric(&["outbound_http_errors_total", &label]).await,
            1.0
        );
    }

    let endpoint = Endpoint::plain(server.addr(8080));
    let authority = policies::authority("web", 80);
    mesh.control.endpoints(&authority, vec![endpoint]);
    eventually("the service is back", || async {
        status(&client.get(SERVICE, "web", "/").await) == "200"
    })
    .await;
}

#[tokio::test]
async fn an_address_without_a_server_gives_502() {
    let Some(mesh) = Mesh::new() else { return };
    let silent = mesh.pod("silent");
    let client = mesh.pod("client").meshed().await;
    let answer = get(&client, silent.addr(8080)).await;
    assert_eq!(status(&answer), "502", "{answer}");
    let error = format!("endpoint {}: ", silent.addr(8080));
    assert!(answer.contains(&error), "{answer}");
    assert!(
        answer.contains("l5d-proxy-connection: close\r\n"),
        "{answer}"
    );
    assert!(answer.contains("connection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn an_application_that_is_gone_gives_502_without_the_peers_headers() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server").meshed().await;
    let client = mesh.pod("client").meshed().await;
    mesh.control
        .service(SERVICE, "web", [policies::meshed(&server, 8080)]);
    let answer = client.get(SERVICE, "web", "/").await;
    assert_eq!(status(&answer), "502", "{answer}");
    assert!(!answer.contains("l5d-"), "{answer}");
    client.proxy().logged("Remote proxy error").await;
}

#[tokio::test]
async fn rules_choose_redirect_and_refuse() {
    let Some(mesh) = Mesh::new() else { return };
    let server = pod_with_app(&mesh).await;
    let client = mesh.pod("client").meshed().await;
    let policy = service("web", |route| {
        let prefix = |path: &str| HttpMatch {
            path: Some(PathMatch::Prefix(path.to_owned())),
            ..HttpMatch::default()
        };
        route.rules[0].matches = vec![prefix("/app")];
        let mut moved = route.rules[0].clone();
        moved.matches = vec![prefix("/app/old")];
        moved.action.filters = vec![Filter::Redirect(Redirect {
            host: Some("new.example".into()),
            ..Redirect::default()
        })];
        route.rules.push(moved);
    });
    mesh.control
        .service(SERVICE, "web", [Endpoint::plain(server.addr(8080))]);
    mesh.control.outbound(SERVICE, policy);
    let answer = client.get(SERVICE, "web", "/app/a").await;
    assert_eq!(status(&answer), "200", "{answer}");
    let answer = client.get(SERVICE, "web", "/app/old/a").await;
    assert_eq!(status(&answer), "301", "{answer}");
    assert!(
        answer.contains("location: http://new.example/app/old/a\r\n"),
        "{answer}"
    );
    let answer = client.get(SERVICE, "web", "/other").await;
    assert_eq!(status(&answer), "404", "{answer}");
}

#[tokio::test]
async fn an_overrun_request_gives_504_and_keeps_the_connection() {
    let Some(mesh) = Mesh::new() else { return };
    let server = mesh.pod("server");
    let client = mesh.pod("client").meshed().await;
    // Accepts into its backlog and never answers.
    let _silent = server
        .spawn(TcpListener::bind(("0.0.0.0", 8080)))
        .await
        .unwrap();
    let policy = service("web", |route| {
        route.rules[0].action.timeouts.request = Some(Duration::from_millis(200));
    });
    mesh.control
        .service(SERVICE, "web", [Endpoint::plain(server.addr(8080))]);
    mesh.control.outbound(SERVICE, policy);
    // Two on one connection: the first timeout does not end it.
    let twice = "GET / HTTP/1.1\r\nhost: web\r\n\r\nGET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    let answers = client.exchange(SERVICE, twice).await;
    assert_eq!(answers.matches("HTTP/1.1 504 ").count(), 2, "{answers}");
    assert!(
        answers.contains("timed out waiting for response headers: request timeout: 200ms"),
        "{answers}"
    );
}
