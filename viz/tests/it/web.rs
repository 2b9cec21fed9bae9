//! The dashboard as a process, with a scripted metrics API and API server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use mesh_test_support::controller::Controller;
use mesh_test_support::eventually::eventually_async as eventually;
use mesh_test_support::kube_api;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use self::scripted::cluster::{Cluster, STEADY_REQUESTS};
use self::scripted::{Mesh, Pace};

mod policies;
mod profile;
pub(crate) mod scripted;
mod workload;

/// A dashboard and the mesh that it shows.
struct Web {
    controller: Controller,
    mesh: Arc<Mesh>,
    client: Client<HttpConnector, Empty<Bytes>>,
    _dir: TempDir,
}

/// A complete response.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

impl Web {
    async fn start() -> Self {
        Self::start_at(Pace::Steady).await
    }

    async fn start_at(pace: Pace) -> Self {
        Self::start_with(pace, &[]).await
    }

    /// Starts a dashboard with further flags.
    async fn start_with(pace: Pace, flags: &[String]) -> Self {
        let mesh = Mesh::new(pace);
        let metrics_api = mesh.clone().serve().await;
        let dir = tempfile::tempdir().unwrap();
        let kubeconfig = dir.path().join("config");
        kube_api::write_kubeconfig(&kubeconfig, Cluster::new(pace).serve().await);
        let mut args = vec![
            format!("--linkerd-metrics-api-addr={metrics_api}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--grafana-external-addr=https://grafana.example.com".to_owned(),
        ];
        args.extend_from_slice(flags);
        let controller = Controller::start("web", "--addr", "--metrics-addr", &args);
        Self {
            controller: controller.ready().await,
            mesh,
            client: Client::builder(TokioExecutor::new()).build_http(),
            _dir: dir,
        }
    }

    async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
    ) -> http::Response<Incoming> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.controller.grpc));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new()).unwrap();
        self.client.request(request).await.unwrap()
    }

    async fn request(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        let response = self.open(method, path, headers).await;
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    async fn get(&self, path: &str) -> Answer {
        self.request(Method::GET, path, &[]).await
    }

    async fn tap(
        &self,
        origin: Option<&str>,
    ) -> Result<WebSocketStream<TcpStream>, Box<SocketError>> {
        let addr = self.controller.grpc;
        let mut request = format!("ws://{addr}/api/tap")
            .into_client_request()
            .unwrap();
        if let Some(origin) = origin {
            request
                .headers_mut()
                .insert("origin", origin.parse().unwrap());
        }
        let stream = TcpStream::connect(addr).await.unwrap();
        let connected = tokio_tungstenite::client_async(request, stream).await;
        connected.map(|(socket, _)| socket).map_err(Box::new)
    }

    /// Returns the value of a metric, with its labels.
    fn metric(&self, series: &str) -> Option<f64> {
        let (_, body) = self.controller.admin_get("/metrics")?;
        let line = body.lines().find(|line| line.starts_with(series))?;
        line.rsplit(' ').next()?.parse().ok()
    }
}

fn rows(answer: &Answer) -> Vec<Value> {
    let json = answer.json();
    let tables = json["ok"]["statTables"].as_array().unwrap();
    let rows = tables.iter().map(|table| &table["podGroup"]["rows"]);
    rows.flat_map(|rows| rows.as_array().unwrap().clone())
        .collect()
}

/// Sends a tap request and returns the messages until the tap has sent `count`, or its end.
async fn messages(
    socket: &mut WebSocketStream<TcpStream>,
    count: usize,
) -> (Vec<Value>, Option<(CloseCode, String)>) {
    let mut messages = Vec::new();
    while messages.len() < count {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => messages.push(serde_json::from_str(&text).unwrap()),
            Some(Ok(Message::Close(Some(frame)))) => {
                return (messages, Some((frame.code, frame.reason.to_string())));
            }
            Some(Ok(_)) => {}
            ended => panic!("{ended:?}"),
        }
    }
    (messages, None)
}

#[tokio::test]
async fn json_api_has_the_shapes_of_linkerd() {
    let web = Web::start().await;
    let version = web.get("/api/version").await;
    assert_eq!(
        version.json(),
        json!({ "version": env!("CARGO_PKG_VERSION") })
    );
    assert_eq!(version.headers["content-type"], "application/json");

    let stats = web
        .get(
            "/api/tps-reports?namespace=shop&resource_type=deploy&resource_name=web&tcp_stats=true",
        )
        .await;
    let [row] = &rows(&stats)[..] else {
        panic!("{}", stats.body);
    };
    assert_eq!(row["stats"]["successCount"], "14400");
    assert_eq!(row["tcpStats"]["openConnections"], "4");
    assert_eq!(row["meshedPodCount"], "2");
    let callers = web
        .get(
            "/api/tps-reports?all_namespaces=true&to_type=deployment&to_name=web&to_namespace=shop",
        )
        .await;
    assert_eq!(rows(&callers)[0]["resource"]["name"], "ingress");

    let pods = web.get("/api/pods?namespace=bank").await.json();
    assert_eq!(pods["pods"].as_array().unwrap().len(), 8);
    assert_eq!(pods["pods"][0]["deployment"], "bank/ledger");
    let services = web.get("/api/services?namespace=edge").await.json();
    assert_eq!(
        services,
        json!({ "services": [{ "name": "ingress", "namespace": "edge" }] })
    );
    let edges = web
        .get("/api/edges?namespace=edge&resource_type=deployment")
        .await;
    assert_eq!(edges.json()["ok"]["edges"][0]["dst"]["name"], "web");
    let routes = web
        .get("/api/routes?namespace=shop&resource_name=web")
        .await;
    assert_eq!(
        routes.json()["ok"]["routes"][0]["rows"][0]["route"],
        "GET /products"
    );
    let gateways = web.get("/api/gateways").await.json();
    assert_eq!(
        gateways,
        json!({ "ok": { "gatewaysTable": { "rows": [] } } })
    );

    let extensions = web.get("/api/extensions").await.json();
    let list = extensions["extensions"].as_str().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(list).unwrap(),
        json!([{ "name": "linkerd-viz", "uid": "f00d" }])
    );
    let viz = web.get("/api/extensions?extension_name=viz").await.json();
    assert_eq!(
        viz,
        json!({ "extensionName": "viz", "namespace": "linkerd-viz" })
    );
    let none = web.get("/api/extensions?extension_name=none").await;
    assert_eq!(none.json(), json!({}));

    let yaml = web
        .get("/api/resource-definition?namespace=shop&resource_type=deployment&resource_name=web")
        .await;
    assert!(yaml.body.contains("replicas: 2") && !yaml.body.contains("managedFields"));
    assert!(yaml.body.contains("PASSWORD"), "{}", yaml.body);
    assert!(!yaml.body.contains("hunter2"), "{}", yaml.body);
    let check = web.get("/api/check").await.json();
    assert_eq!(check["success"], true, "{check}");
    assert!(check["results"]["linkerd-viz"].as_array().unwrap().len() >= 4);
}

#[tokio::test]
async fn hidden_definitions_are_refused() {
    let web = Web::start_with(Pace::Steady, &["--hide-definitions".to_owned()]).await;
    let path = "/api/resource-definition?namespace=shop&resource_type=deployment&resource_name=web";
    let answer = web.get(path).await;
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("dashboard.restrictPrivileges"), "{error}");
    let settings = web.get("/api/settings").await.json();
    assert_eq!(settings["definitions"], false);
}

#[tokio::test]
async fn topology_has_the_statistics_of_each_edge() {
    let web = Web::start().await;
    let graph = web
        .get("/api/topology?namespace=bank&resource_type=deployment")
        .await
        .json();
    let edges = graph["ok"]["edges"].as_array().unwrap();
    let names: Vec<String> = edges
        .iter()
        .map(|edge| {
            let end = |end: &str| edge[end]["name"].as_str().unwrap().to_owned();
            let requests = edge["stats"]["failureCount"].as_str().unwrap();
            format!("{}>{} {requests}", end("src"), end("dst"))
        })
        .collect();
    let expected = [
        "fraud-detection-of-card-payments>payments 0",
        "ledger>legacy 0",
        "payments>fraud-detection-of-card-payments 0",
        "payments>ledger 0",
        "checkout>payments 57",
    ];
    assert_eq!(names, expected);
    assert_eq!(graph["ok"]["sourcesWithoutStats"], 0);
    assert_eq!(edges[1]["serverId"], "");
}

#[tokio::test]
async fn topology_of_namespaces_has_statistics() {
    let web = Web::start().await;
    let graph = web
        .get("/api/topology?resource_type=namespace&all_namespaces=true")
        .await
        .json();
    let edges = graph["ok"]["edges"].as_array().unwrap();
    assert!(edges.len() > 2, "{graph}");
    for edge in edges {
        let requests = edge["stats"]["successCount"].as_str();
        assert!(requests.is_some_and(|count| count != "0"), "{edge}");
    }
}

#[tokio::test]
async fn errors_have_a_status_and_a_text() {
    let web = Web::start().await;
    let table = [
        ("/api/tps-reports?resource_type=secret", 400, "not a type"),
        (
            "/api/tps-reports?resource_type=cronjob",
            503,
            "scripted outage",
        ),
        (
            "/api/resource-definition?namespace=shop",
            400,
            "resource_name",
        ),
        (
            "/api/resource-definition?namespace=shop&resource_type=pod&resource_name=none",
            404,
            "there is none",
        ),
        ("/api/none", 404, "not found"),
        ("/api/stream", 400, "1 to 16"),
        ("/api/stream?q=check", 400, "cannot be streamed"),
        ("/api/tap", 426, "WebSocket"),
    ];
    for (path, status, problem) in table {
        let answer = web.get(path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(problem), "{path}: {error}");
    }
    // As in Linkerd, an invalid question to the metrics API is an error within the response.
    let inside = web.get("/api/tps-reports?resource_type=job").await;
    assert_eq!(inside.status, 200);
    assert_eq!(inside.json()["error"]["error"], "scripted error");
    assert_eq!(web.get("/none").await.status, 404);
}

#[tokio::test]
async fn foreign_hosts_origins_and_methods_are_refused() {
    let web = Web::start().await;
    let foreign = [("host", "evil.example")];
    for path in [
        "/",
        "/dist/app.js",
        "/api/version",
        "/api/stream?q=pods",
        "/api/tap",
    ] {
        let answer = web.request(Method::GET, path, &foreign).await;
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.body.contains("DNS rebinding"), "{}", answer.body);
    }
    for header in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "http://evil.example"),
    ] {
        for path in ["/api/version", "/api/stream?q=pods", "/api/tap"] {
            let answer = web.request(Method::GET, path, &[header]).await;
            assert_eq!(answer.status, 403, "{path} {header:?}");
        }
        // A link to the page from elsewhere works.
        assert_eq!(web.request(Method::GET, "/", &[header]).await.status, 200);
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let answer = web.request(method, "/api/version", &[]).await;
        assert_eq!(answer.status, 405);
        assert_eq!(answer.headers["allow"], "GET, HEAD");
    }
    assert!(web.tap(Some("http://evil.example")).await.is_err());
    let refused = |reason| {
        web.metric(&format!(
            "mesh_web_refused_requests_total{{reason=\"{reason}\"}}"
        ))
    };
    assert_eq!(refused("host"), Some(5.0));
    assert_eq!(refused("origin"), Some(10.0));
}

#[tokio::test]
async fn all_responses_have_the_headers_that_protect_users() {
    let web = Web::start().await;
    for path in [
        "/",
        "/namespaces/shop",
        "/dist/app.js",
        "/api/version",
        "/none",
    ] {
        let answer = web.get(path).await;
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'"), "{path}");
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    }
    let head = web.request(Method::HEAD, "/", &[]).await;
    assert_eq!((head.status, head.body.as_str()), (StatusCode::OK, ""));
}

#[tokio::test]
async fn viewers_of_one_question_share_its_calls_and_are_bounded() {
    const VIEWERS: usize = 256;
    let web = Web::start().await;
    let path = "/api/stream?q=tps-reports%3Fnamespace%3Dshop&q=pods";
    let mut viewers = Vec::new();
    for _ in 0..VIEWERS {
        let response = web.open(Method::GET, path, &[]).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        viewers.push(response.into_body());
    }
    let refused = web.get(path).await;
    assert_eq!(refused.status, 503);
    assert!(
        refused.json()["error"]
            .as_str()
            .unwrap()
            .contains("256 pages")
    );
    for viewer in &mut viewers {
        let mut text = String::new();
        while !(text.contains("\"query\":0") && text.contains("\"query\":1")) {
            let part = viewer.frame().await.unwrap().unwrap().into_data().unwrap();
            text.push_str(str::from_utf8(&part).unwrap());
        }
        assert!(text.contains("\"status\":200,\"body\":{\"ok\""), "{text}");
    }
    // One call in an interval of two seconds, however long this took.
    let calls = web.mesh.stat_calls.load(Ordering::Relaxed);
    assert!((1..VIEWERS / 4).contains(&calls), "{calls} calls");
    assert_eq!(web.metric("mesh_web_streams"), Some(VIEWERS as f64));
    drop(viewers);
    eventually("the streams and the feeds to end", async || {
        let is_zero = |name| web.metric(name) == Some(0.0);
        is_zero("mesh_web_streams") && is_zero("mesh_web_feeds")
    })
    .await;
}

#[tokio::test]
async fn stream_sends_responses_that_differ() {
    let web = Web::start_at(Pace::Moving).await;
    let path = "/api/stream?q=tps-reports%3Fnamespace%3Dshop";
    let mut viewer = web.open(Method::GET, path, &[]).await.into_body();
    let mut text = String::new();
    while text.matches("event: update").count() < 2 {
        let part = viewer.frame().await.unwrap().unwrap().into_data().unwrap();
        text.push_str(str::from_utf8(&part).unwrap());
    }
    let updates: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("data: "))
        .collect();
    assert_ne!(updates[0], updates[1]);
}

#[tokio::test]
async fn tap_sends_events_as_they_arrive() {
    let web = Web::start().await;
    let mut socket = web.tap(None).await.unwrap();
    let request = r#"{"id":"tap-web","resource":"deploy/web","namespace":"shop"}"#;
    socket.send(Message::text(request)).await.unwrap();
    let expected = 3 * STEADY_REQUESTS as usize;
    let (events, ending) = messages(&mut socket, expected).await;
    assert_eq!(ending, None);
    assert_eq!(
        events[0]["http"]["requestInit"]["path"], "/products",
        "{}",
        events[0]
    );
    assert_eq!(events[1]["http"]["responseInit"]["httpStatus"], 200);
    assert_eq!(
        events[2]["http"]["responseEnd"]["eos"],
        json!({ "grpcStatusCode": 0 })
    );
    assert_eq!(events[2]["proxyDirection"], "INBOUND");
    // The viewer may not send more.
    socket.send(Message::text(request)).await.unwrap();
    let (_, ending) = messages(&mut socket, 1).await;
    assert_eq!(ending.unwrap().0, CloseCode::Unsupported);
}

#[tokio::test]
async fn tap_that_cannot_start_is_closed_with_the_reason() {
    let web = Web::start().await;
    let long = format!("{{\"path\":\"{}\"}}", "x".repeat(20_000));
    let table = [
        (
            r#"{"resource":"deploy/forbidden"}"#,
            CloseCode::Policy,
            "missing authorization",
        ),
        (
            r#"{"resource":"deploy/missing"}"#,
            CloseCode::Error,
            "no pods to tap",
        ),
        (r#"{"resource":"secret/a"}"#, CloseCode::Error, "not a type"),
        ("{", CloseCode::Error, "not a tap request"),
        (long.as_str(), CloseCode::Size, "at most 16384 bytes"),
    ];
    for (request, code, reason) in table {
        let mut socket = web.tap(None).await.unwrap();
        socket.send(Message::text(request)).await.unwrap();
        let (_, ending) = messages(&mut socket, 1).await;
        let (found, text) = ending.unwrap();
        assert_eq!(found, code, "{text}");
        assert!(text.contains(reason), "{text}");
    }
    let mut socket = web.tap(None).await.unwrap();
    socket.send(Message::binary("a")).await.unwrap();
    let (_, ending) = messages(&mut socket, 1).await;
    assert_eq!(ending.unwrap().0, CloseCode::Unsupported);
    eventually("the permits to return", async || {
        web.metric("mesh_web_taps") == Some(0.0)
    })
    .await;
}

#[tokio::test]
async fn taps_are_bounded() {
    const TAPS: usize = 64;
    let web = Web::start().await;
    let mut open = Vec::new();
    for _ in 0..TAPS {
        let mut socket = web.tap(None).await.unwrap();
        let request = r#"{"resource":"deploy/web"}"#;
        socket.send(Message::text(request)).await.unwrap();
        open.push(socket);
    }
    let Err(error) = web.tap(None).await else {
        panic!("the limit was exceeded");
    };
    let SocketError::Http(response) = *error else {
        panic!("{error}");
    };
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(open);
    eventually("a permit to return", async || web.tap(None).await.ok()).await;
}

#[tokio::test]
async fn events_for_a_slow_viewer_are_dropped_and_counted() {
    let web = Web::start().await;
    let mut socket = web.tap(None).await.unwrap();
    let request = r#"{"resource":"deploy/flood","reportDrops":true}"#;
    socket.send(Message::text(request)).await.unwrap();
    eventually("events to be dropped", async || {
        web.metric("mesh_web_tap_events_dropped_total")
            .is_some_and(|dropped| dropped > 0.0)
    })
    .await;
    loop {
        let (messages, _) = messages(&mut socket, 1).await;
        if messages[0]["dropped"].as_u64().is_some_and(|it| it > 0) {
            return;
        }
    }
}

#[tokio::test]
async fn signal_ends_streams_and_taps_and_then_the_process() {
    let mut web = Web::start().await;
    let viewer = web.open(Method::GET, "/api/stream?q=pods", &[]).await;
    let mut silent = web.tap(None).await.unwrap();
    let mut running = web.tap(None).await.unwrap();
    let request = r#"{"resource":"deploy/web"}"#;
    running.send(Message::text(request)).await.unwrap();
    let (events, _) = messages(&mut running, 1).await;
    assert_eq!(events.len(), 1);
    web.controller.program.terminate();
    for socket in [&mut silent, &mut running] {
        let (_, ending) = messages(socket, usize::MAX).await;
        assert_eq!(ending.unwrap().0, CloseCode::Away);
    }
    // A body that was cut off would be an error.
    viewer.into_body().collect().await.unwrap();
    assert!(web.controller.program.exited().await.success());
}
