//! Which failures exclude an endpoint from a Service: only those that show that it cannot be
//! reached. What an endpoint does to one request says nothing about others.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_core::endpoint::{Endpoint, ProtocolHint};
use mesh_core::policy::outbound::TcpVerdict;
use tokio::io::AsyncWriteExt as _;
use tokio::task::spawn_local;
use tokio::time::{Instant, advance};

use super::answers::{Answers, detect, first, http_route, service, tcp};
use super::app::{App, message, rest, send, try_message, unused_addr};
use super::world::{CLIENT, Proxy, World, pod, run, settle, while_time_passes};

const SERVICE: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)),
    80,
);
const AUTHORITY: &str = "web.shop.svc.cluster.local:80";

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";
const BROKEN: &str = "GET /broken HTTP/1.1\r\nhost: web\r\n\r\n";
const POST_BROKEN: &str = "POST /broken HTTP/1.1\r\nhost: web\r\ncontent-length: 2\r\n\r\nhi";

/// An application that responds to one path with these bytes and closes the connection, and serves
/// all others.
async fn partly_broken(bytes: &'static str) -> SocketAddr {
    let app = App::start().await;
    let addr = app.addr;
    spawn_local(async move {
        loop {
            let mut tcp = app.accept().await;
            spawn_local(async move {
                while let Some(request) = try_message(&mut tcp).await {
                    if request.contains("/broken") {
                        let _closed = tcp.write_all(bytes.as_bytes()).await;
                        return;
                    }
                    send(&mut tcp, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                }
            });
        }
    });
    addr
}

/// The proxy of a client of a Service.
struct Scene {
    world: World,
    answers: Answers,
    proxy: Proxy,
}

impl Scene {
    async fn new() -> Self {
        let (world, answers) = Answers::start().await;
        let route = http_route("all", &[], Vec::new(), first(service(AUTHORITY)));
        answers.policy(SERVICE, detect(vec![route], None));
        let changes = [
            ("DESTINATION_PROFILE_NETWORKS", Some("")),
            ("OUTBOUND_CONNECT_EXP_BACKOFF_MIN", Some("100ms")),
            ("OUTBOUND_CONNECT_EXP_BACKOFF_MAX", Some("60s")),
        ];
        let proxy = world.proxy_with(CLIENT, &changes);
        Self {
            world,
            answers,
            proxy,
        }
    }

    async fn with(endpoints: Vec<Endpoint>) -> Self {
        let scene = Self::new().await;
        scene.answers.described_endpoints(AUTHORITY, endpoints);
        scene
    }

    async fn status(&self, request: &str) -> u16 {
        let mut client = self.proxy.outbound(SERVICE).await;
        send(&mut client, request).await;
        message(&mut client).await[9..12].parse().unwrap()
    }
}

/// No time passes.
async fn assert_other_paths_are_served(scene: &Scene) {
    for _ in 0..7 {
        assert_eq!(scene.status(BROKEN).await, 502);
        assert_eq!(scene.status(POST_BROKEN).await, 502);
    }
    assert_eq!(scene.status(GET).await, 200);
}

#[test]
fn endpoint_that_breaks_off_or_garbles_some_responses_serves_other_requests() {
    for response in [
        "",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ] {
        run(async || {
            let addr = partly_broken(response).await;
            let scene = Scene::with(vec![Endpoint::plain(addr)]).await;
            assert_other_paths_are_served(&scene).await;
        });
    }
}

/// Nor are they a reason for the client's proxy to close its connection to the application's proxy.
#[test]
fn application_behind_its_proxy_that_breaks_off_some_responses_serves_other_requests() {
    run(async || {
        let scene = Scene::new().await;
        let (_web, addr) = scene.world.meshed(partly_broken("").await).await;
        let endpoint = pod(addr, ProtocolHint::Http2, None).endpoint.unwrap();
        scene.answers.described_endpoints(AUTHORITY, vec![endpoint]);
        assert_other_paths_are_served(&scene).await;
    });
}

/// Also if the request cannot be sent again.
#[test]
fn endpoint_whose_proxy_reports_a_request_as_unsent_is_excluded() {
    run(async || {
        let scene = Scene::new().await;
        let (_web, addr) = scene.world.meshed(unused_addr().await).await;
        let endpoint = pod(addr, ProtocolHint::Http2, None).endpoint.unwrap();
        scene.answers.described_endpoints(AUTHORITY, vec![endpoint]);
        let post = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 2\r\n\r\nhi";
        assert_eq!(scene.status(post).await, 502);
        let mut client = scene.proxy.outbound(SERVICE).await;
        send(&mut client, post).await;
        settle().await;
        let waiting = message(&mut client);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none(), "it waits");
        let response = while_time_passes(waiting).await;
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
    });
}

/// Its back-off has grown to many seconds.
#[test]
fn endpoint_that_can_be_reached_again_is_found_within_100_ms() {
    run(async || {
        let addr = unused_addr().await;
        let scene = Scene::with(vec![Endpoint::plain(addr)]).await;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            assert!(while_time_passes(scene.status(GET)).await >= 500);
            advance(Duration::from_millis(100)).await;
        }
        App::start_at(addr).await.named("web");
        advance(Duration::from_millis(100)).await;
        assert_eq!(scene.status(GET).await, 200);
    });
}

#[test]
fn opaque_connection_finds_an_endpoint_that_can_be_reached_again_within_100_ms() {
    run(async || {
        let addr = unused_addr().await;
        let scene = Scene::with(vec![Endpoint::plain(addr)]).await;
        let opaque = tcp(first(service(AUTHORITY)), TcpVerdict::Forward);
        scene.answers.policy(SERVICE, opaque);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            let mut client = scene.proxy.outbound(SERVICE).await;
            assert_eq!(while_time_passes(rest(&mut client)).await, "");
            advance(Duration::from_millis(100)).await;
        }
        App::start_at(addr).await.named("web");
        advance(Duration::from_millis(100)).await;
        assert_eq!(scene.status(GET).await, 200);
    });
}
