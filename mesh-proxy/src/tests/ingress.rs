//! Ingress mode: requests select their destination with `l5d-dst-override`.

use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::endpoint::ProtocolHint;
use mesh_core::policy::outbound::{OutboundProtocol, TcpVerdict};
use mesh_core::profile::Profile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::advance;

use super::answers::{Answers, detect, first, forward, http_route, service, tcp};
use super::app::{App, ask, expect, http2, message, rest, send, status_of, streams, unused_addr};
use super::world::{Proxy, WEB, World, pod, run, while_time_passes};

const BOOKS: &str = "books.shop.svc.cluster.local:80";
const MUSIC: &str = "music.shop.svc.cluster.local:8080";

struct Scene {
    _world: World,
    answers: Answers,
    proxy: Proxy,
    /// The original destination of the ingress controller's connections.
    dst: SocketAddr,
}

impl Scene {
    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn with(vars: &[(&str, Option<&str>)]) -> Self {
        let (world, answers) = Answers::start().await;
        let mode = ("INGRESS_MODE", Some("true"));
        let vars = [&[mode, ("DESTINATION_PROFILE_NETWORKS", Some(""))], vars].concat();
        let proxy = world.proxy_with(WEB, &vars);
        Self {
            _world: world,
            answers,
            proxy,
            dst: unused_addr().await,
        }
    }

    /// Adds a Service with one endpoint.
    fn service(&self, authority: &str, app: SocketAddr) {
        let to = first(service(authority));
        let protocol = detect(vec![http_route("all", &[], Vec::new(), to)], None);
        self.answers.policy(authority, protocol);
        self.answers.endpoints(authority, &[app]);
    }

    async fn client(&self) -> TcpStream {
        self.proxy.outbound(self.dst).await
    }
}

async fn request(client: &mut TcpStream, name: &str) {
    let request =
        format!("GET /a HTTP/1.1\r\nhost: shop.example\r\nl5d-dst-override: {name}\r\n\r\n");
    send(client, &request).await;
}

async fn body_of(client: &mut TcpStream, name: &str) -> String {
    request(client, name).await;
    let response = expect(client, 200).await;
    response.split_once("\r\n\r\n").unwrap().1.to_owned()
}

async fn status(client: &mut TcpStream, name: &str) -> u16 {
    request(client, name).await;
    let response = message(client).await;
    response[9..12].parse().unwrap()
}

#[test]
fn each_request_is_sent_to_the_name_in_its_header() {
    run(async || {
        let scene = Scene::new().await;
        scene.service(BOOKS, App::start().await.named("books"));
        scene.service(MUSIC, App::start().await.named("music"));
        let mut client = scene.client().await;
        for (name, app) in [
            (BOOKS, "books"),
            (MUSIC, "music"),
            // The default port, upper case and a final dot.
            ("Books.shop.svc.cluster.local.", "books"),
            (MUSIC, "music"),
        ] {
            assert_eq!(body_of(&mut client, name).await, app);
        }
        assert_eq!(scene.answers.lookups(BOOKS), 1);
        assert_eq!(scene.answers.lookups(MUSIC), 1);
        let original = scene.answers.lookups(&scene.dst.to_string());
        assert_eq!(original, 0, "the original destination is not looked up");
    });
}

#[test]
fn header_is_removed_and_the_rest_is_unchanged() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await;
        scene.service(BOOKS, app.addr);
        let mut client = scene.client().await;
        request(&mut client, BOOKS).await;
        let (_server, received) = app.receive().await;
        assert_eq!(received, "GET /a HTTP/1.1\r\nhost: shop.example\r\n\r\n");

        let mut client = http2(scene.client().await).await;
        let request = http::Request::get("http://shop.example/a")
            .header("l5d-dst-override", BOOKS)
            .body(())
            .unwrap();
        let _response = ask(&mut client, request);
        let mut calls = streams(app.accept().await).await;
        let (request, _respond) = calls.recv().await.unwrap();
        assert_eq!(request.uri(), "http://shop.example/a");
        assert!(!request.headers().contains_key("l5d-dst-override"));
    });
}

/// In other modes the header is the application's own.
#[test]
fn header_is_forwarded_without_ingress_mode() {
    run(async || {
        let scene = Scene::with(&[("INGRESS_MODE", Some("false"))]).await;
        let app = App::start().await;
        let mut client = scene.proxy.outbound(app.addr).await;
        request(&mut client, BOOKS).await;
        let received = app.receive().await.1;
        let header = format!("l5d-dst-override: {BOOKS}\r\n");
        assert!(received.contains(&header), "{received}");
        assert_eq!(scene.answers.lookups(BOOKS), 0);
    });
}

#[test]
fn invalid_header_is_rejected_and_the_connection_stays_open() {
    run(async || {
        let scene = Scene::new().await;
        scene.service(BOOKS, App::start().await.named("books"));
        let mut client = scene.client().await;
        for invalid in ["", "10.0.0.1:80", "books:http", "a b", "books:0"] {
            request(&mut client, invalid).await;
            let response = expect(&mut client, 400).await;
            assert!(!response.contains("l5d-proxy-error"), "{response}");
        }
        let twice = format!("{BOOKS}\r\nl5d-dst-override: {MUSIC}");
        assert_eq!(status(&mut client, &twice).await, 400);
        assert_eq!(body_of(&mut client, BOOKS).await, "books");

        let mut client = http2(scene.client().await).await;
        let request = http::Request::get("http://shop.example/a")
            .header("l5d-dst-override", "books:http")
            .body(())
            .unwrap();
        assert_eq!(status_of(ask(&mut client, request)).await, 400);
    });
}

#[test]
fn request_without_header_goes_to_original_destination() {
    run(async || {
        let mut scene = Scene::new().await;
        scene.service(BOOKS, App::start().await.named("books"));
        scene.dst = App::start().await.named("original");
        let mut client = scene.client().await;
        assert_eq!(body_of(&mut client, BOOKS).await, "books");
        let plain = "GET / HTTP/1.1\r\nhost: books.shop.svc.cluster.local\r\n\r\n";
        send(&mut client, plain).await;
        assert!(expect(&mut client, 200).await.ends_with("original"));
        assert_eq!(body_of(&mut client, BOOKS).await, "books");
    });
}

#[test]
fn name_without_policy_is_balanced_by_its_profile() {
    run(async || {
        let scene = Scene::new().await;
        let fqn = BOOKS.split_once(':').unwrap().0;
        let profile = Profile {
            fqn: Some(fqn.into()),
            ..Profile::default()
        };
        scene.answers.profile(BOOKS, profile);
        let app = App::start().await.named("books");
        scene.answers.endpoints(BOOKS, &[app]);
        let mut client = scene.client().await;
        assert_eq!(body_of(&mut client, BOOKS).await, "books");
    });
}

/// The destination service is asked only for names with a configured suffix.
#[test]
fn name_outside_profile_suffixes_needs_a_policy() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await.named("external");
        scene
            .answers
            .profile("api.example:80", pod(app, ProtocolHint::Unknown, None));
        let mut client = scene.client().await;
        assert_eq!(status(&mut client, "api.example").await, 502);
    });
}

#[test]
fn unknown_name_fails_without_another_lookup_until_five_seconds_later() {
    run(async || {
        let scene = Scene::new().await;
        for _ in 0..3 {
            let mut client = scene.client().await;
            assert_eq!(status(&mut client, BOOKS).await, 502);
            // As for other errors of this kind.
            assert_eq!(rest(&mut client).await, "");
        }
        assert_eq!(scene.answers.lookups(BOOKS), 1);
        scene.service(BOOKS, App::start().await.named("books"));
        advance(Duration::from_secs(5)).await;
        let mut client = scene.client().await;
        assert_eq!(body_of(&mut client, BOOKS).await, "books");
        assert_eq!(scene.answers.lookups(BOOKS), 2);
    });
}

#[test]
fn changed_policy_applies_to_open_connection() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await.named("books");
        scene.service(BOOKS, app);
        let mut client = scene.client().await;
        assert_eq!(body_of(&mut client, BOOKS).await, "books");
        scene.answers.policy(BOOKS, detect(Vec::new(), None));
        while status(&mut client, BOOKS).await != 404 {}
    });
}

#[test]
fn other_protocols_go_to_original_destination() {
    run(async || {
        let mut scene = Scene::new().await;
        let app = App::start().await;
        scene.dst = app.addr;
        let mut client = scene.client().await;
        client.write_all(b"\x00binary").await.unwrap();
        let mut server = app.accept().await;
        let mut received = [0; 7];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"\x00binary");

        // A server that sends first.
        let client = spawn_local({
            let mut client = scene.client().await;
            async move { client.read_u8().await.unwrap() }
        });
        let mut server = while_time_passes(app.accept()).await;
        server.write_all(b"!").await.unwrap();
        assert_eq!(while_time_passes(client).await.unwrap(), b'!');
    });
}

#[test]
fn opaque_policy_of_original_destination_decides_about_its_connections_and_requests() {
    run(async || {
        let mut scene = Scene::new().await;
        let app = App::start().await;
        scene.dst = app.addr;
        let to_app = || first(forward(app.addr));
        let opaque = tcp(to_app(), TcpVerdict::Forward);
        scene.answers.policy(scene.dst, opaque);
        let mut client = scene.client().await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let received = app.receive().await.1;
        assert_eq!(received, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");

        for (verdict, code) in [
            (TcpVerdict::Forbidden, 403),
            (TcpVerdict::Invalid("bad".into()), 500),
        ] {
            let scene = Scene::new().await;
            let OutboundProtocol::Opaque(Some(mut route)) = tcp(to_app(), TcpVerdict::Forward)
            else {
                unreachable!()
            };
            route.verdict = verdict;
            let opaque = OutboundProtocol::Opaque(Some(route));
            scene.answers.policy(scene.dst, opaque);
            let mut client = scene.client().await;
            client.write_all(b"\x00binary").await.unwrap();
            assert_eq!(while_time_passes(rest(&mut client)).await, "");
            let mut client = scene.client().await;
            send(&mut client, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
            expect(&mut client, code).await;
        }
    });
}
