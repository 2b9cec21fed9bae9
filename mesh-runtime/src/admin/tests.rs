//! The admin interface without sockets, and once through a socket.

use std::io::Read as _;

use flate2::read::GzDecoder;
use http::header::ACCEPT;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::*;
use crate::metrics::Labels;

fn admin() -> (Admin, Condition) {
    let readiness = Readiness::new();
    let condition = readiness.condition("identity");
    (Admin::new(Registry::new(), readiness), condition)
}

async fn send(admin: &Admin, request: http::request::Builder) -> (http::response::Parts, Bytes) {
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let peer = "127.0.0.1:9".parse().unwrap();
    let (head, body) = admin.respond(request, peer).await.into_parts();
    (head, body.collect().await.unwrap().to_bytes())
}

async fn get(admin: &Admin, path: &str) -> (StatusCode, Bytes) {
    let (head, body) = send(admin, Request::get(path)).await;
    (head.status, body)
}

#[tokio::test]
async fn ready_probe_reports_missing_conditions() {
    let (admin, identity) = admin();
    assert_eq!(
        get(&admin, "/live").await,
        (StatusCode::OK, "live\n".into())
    );
    assert_eq!(
        get(&admin, "/ready").await,
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready\nwaiting for identity\n".into()
        )
    );
    identity.set(true);
    assert_eq!(
        get(&admin, "/ready").await,
        (StatusCode::OK, "ready\n".into())
    );
    assert_eq!(get(&admin, "/other").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_are_compressed_if_accepted() {
    let (admin, _identity) = admin();
    let requests = admin.inner.registry.counter_family("x_total", "X");
    requests.with(&Labels::new()).inc();

    let (head, body) = send(&admin, Request::get("/metrics")).await;
    assert_eq!(head.headers[CONTENT_TYPE], "text/plain");
    assert!(body.ends_with(b"x_total 1\n# EOF\n"));

    let request = Request::get("/metrics").header(ACCEPT_ENCODING, "br, gzip;q=0.5");
    let (head, packed) = send(&admin, request).await;
    assert_eq!(head.headers[CONTENT_ENCODING], "gzip");
    let mut unpacked = Vec::new();
    GzDecoder::new(&packed[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    assert_eq!(unpacked, body);
}

#[tokio::test]
async fn metrics_are_sent_in_the_preferred_format() {
    let (admin, _identity) = admin();
    let requests = admin.inner.registry.counter_family("x_total", "X");
    requests.with(&Labels::new()).inc();
    let prefers = |request: http::request::Builder| {
        request.header(ACCEPT, "text/plain;q=0.5, application/openmetrics-text")
    };

    let (head, body) = send(&admin, prefers(Request::get("/metrics"))).await;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(head.headers[CONTENT_TYPE], content_type);
    assert_eq!(
        body,
        "# HELP x X\n# TYPE x counter\nx_total 1\n# EOF\n".as_bytes()
    );

    let request = Request::get("/metrics").header(ACCEPT_ENCODING, "gzip");
    let (head, packed) = send(&admin, prefers(request)).await;
    assert_eq!(head.headers[CONTENT_TYPE], content_type);
    let mut unpacked = Vec::new();
    GzDecoder::new(&packed[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    assert_eq!(unpacked, body);
}

#[tokio::test]
async fn added_route_receives_method_and_peer() {
    let (admin, _identity) = admin();
    let admin = admin.route("/echo", async |call: Call| {
        text(
            StatusCode::OK,
            format!("{} local={}", call.method, call.is_local()),
        )
    });
    assert_eq!(get(&admin, "/echo").await.1, "GET local=true");

    let mapped = "[::ffff:127.0.0.1]:9".parse().unwrap();
    let remote = "192.0.2.1:9".parse().unwrap();
    for (peer, expect) in [(mapped, "POST local=true"), (remote, "POST local=false")] {
        let request = Request::post("/echo")
            .body(Full::<Bytes>::default())
            .unwrap();
        let body = admin.respond(request, peer).await.into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes(), expect);
    }
}

#[tokio::test]
async fn body_beyond_the_limit_is_rejected() {
    let (admin, _identity) = admin();
    let admin = admin.route("/x", async |_| empty(StatusCode::OK));
    let request = Request::put("/x")
        .body(Full::from(vec![0; MAX_BODY + 1]))
        .unwrap();
    let response = admin.respond(request, "127.0.0.1:9".parse().unwrap()).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn admin_responds_on_a_socket() {
    let (admin, _identity) = admin();
    let listener = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, admin));

    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/live").body(Empty::<Bytes>::new()).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "live\n"
    );
}

#[tokio::test]
async fn bind_error_names_the_address() {
    let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = first.local_addr().unwrap();
    let error = bind(addr).await.unwrap_err().to_string();
    assert!(error.contains(&addr.to_string()), "{error}");
}

#[tokio::test]
async fn log_filter_is_accessible_to_local_callers_only() {
    let (layer, filter) = crate::log::reloadable("warn", &[]).unwrap();
    let (admin, _identity) = admin();
    let handle = filter.clone();
    let admin = admin.route("/log-level", move |call| {
        let response = log_level::respond(&handle, &call);
        async { response }
    });
    let send = async |method: &str, body: &'static str, peer: &str| {
        let request = Request::builder().method(method).uri("/log-level");
        let request = request.body(Full::from(body)).unwrap();
        let response = admin.respond(request, peer.parse().unwrap()).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head, String::from_utf8(body.to_vec()).unwrap())
    };

    assert_eq!(send("GET", "", "127.0.0.1:9").await.1, "warn");
    let (head, _) = send("PUT", "debug", "192.0.2.1:9").await;
    assert_eq!(head.status, StatusCode::FORBIDDEN);
    let (head, body) = send("PUT", "mesh=loud", "[::1]:9").await;
    assert_eq!(head.status, StatusCode::BAD_REQUEST);
    assert!(body.contains("\"mesh=loud\""), "{body}");
    assert_eq!(filter.current(), "warn");
    let (head, _) = send("PUT", "mesh=debug\n", "[::1]:9").await;
    assert_eq!(head.status, StatusCode::NO_CONTENT);
    assert_eq!(filter.current(), "mesh=debug");
    let (head, _) = send("DELETE", "", "[::1]:9").await;
    assert_eq!(head.status, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(head.headers.get_all(http::header::ALLOW).iter().count(), 2);
    drop(layer);
}
