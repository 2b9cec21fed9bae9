//! A gateway: proxies of other clusters name Services in transport headers.

use std::net::SocketAddr;

use mesh_core::endpoint::{Endpoint, ProtocolHint};
use mesh_core::policy::outbound::TcpVerdict;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::answers::{Answers, detect, first, forward, http_route, service, tcp};
use super::app::{App, Client, Speaks, ask, expect, http2, message, rest, send, streams};
use super::world::{CLIENT, INBOUND_PORT, POD, Proxy, WEB, World, pod, run};
use crate::transport::Io;
use crate::transport::header::{SessionProtocol, TransportHeader};

const BOOKS: &str = "books.shop.svc.cluster.local:80";

struct Scene {
    world: World,
    answers: Answers,
    gateway: Proxy,
}

impl Scene {
    async fn new() -> Self {
        Self::with(&[("INBOUND_GATEWAY_SUFFIXES", Some("svc.cluster.local."))]).await
    }

    async fn with(vars: &[(&str, Option<&str>)]) -> Self {
        let (world, answers) = Answers::start().await;
        Self {
            gateway: world.proxy_with(WEB, vars),
            world,
            answers,
        }
    }

    /// Adds a Service with one endpoint.
    fn service(&self, app: SocketAddr) {
        let to = first(service(BOOKS));
        let protocol = detect(vec![http_route("all", &[], Vec::new(), to)], None);
        self.answers.policy(BOOKS, protocol);
        self.answers.endpoints(BOOKS, &[app]);
    }

    /// Adds the Service's mirror in the cluster of the client. Returns its address.
    async fn mirror(&self) -> SocketAddr {
        let addr = self.gateway.listen((POD, INBOUND_PORT).into()).await;
        let mirror: SocketAddr = (POD, 8080).into();
        let mut profile = pod(addr, ProtocolHint::Http2, Some(addr.port()));
        profile.endpoint = profile.endpoint.map(|endpoint| Endpoint {
            authority_override: Some(BOOKS.into()),
            ..endpoint
        });
        self.world.knows(mirror, profile.clone());
        self.answers.profile(mirror, profile);
        mirror
    }

    /// Connects as the proxy of another cluster does.
    async fn connect(&self, name: &str, session: SessionProtocol) -> Io {
        self.connect_as(CLIENT, name, session).await
    }

    async fn connect_as(&self, client: &str, name: &str, session: SessionProtocol) -> Io {
        connect(&self.world, &self.gateway, client, name, session).await
    }
}

async fn connect(
    world: &World,
    gateway: &Proxy,
    client: &str,
    name: &str,
    session: SessionProtocol,
) -> Io {
    let (host, port) = name.rsplit_once(':').unwrap();
    let header = TransportHeader {
        port: port.parse().unwrap(),
        name: Some(host.into()),
        session,
    };
    let tcp = gateway.inbound((POD, INBOUND_PORT).into()).await;
    world.connected_directly_as(client, tcp, &header).await
}

async fn ask_for_books(client: &mut Io) -> String {
    send(client, "GET /a HTTP/1.1\r\nhost: books.shop\r\n\r\n").await;
    message(client).await
}

#[test]
fn http_reaches_the_service_with_the_client_in_forwarded() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await;
        scene.service(app.addr);
        let mut client = scene.connect(BOOKS, SessionProtocol::Http1).await;
        send(
            &mut client,
            "GET /a HTTP/1.1\r\nhost: books.shop:80\r\nforwarded: by=other\r\n\r\n",
        )
        .await;
        let (mut server, request) = app.receive().await;
        let expected = format!(
            "GET /a HTTP/1.1\r\nhost: books.shop:80\r\nforwarded: by=other\r\n\
             forwarded: by={WEB};for={CLIENT};host=\"books.shop:80\";proto=https\r\n\
             l5d-client-id: {CLIENT}\r\n\r\n"
        );
        assert_eq!(request, expected);
        send(
            &mut server,
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        )
        .await;
        assert!(message(&mut client).await.ends_with("\r\n\r\nok"));

        let connected = scene.connect(BOOKS, SessionProtocol::Http2).await;
        let mut client = http2(connected).await;
        let request = http::Request::get("http://books.shop/a").body(()).unwrap();
        let _response = ask(&mut client, request);
        let mut calls = streams(app.accept().await).await;
        let (request, _respond) = calls.recv().await.unwrap();
        assert_eq!(request.uri(), "http://books.shop/a");
        let forwarded = format!("by={WEB};for={CLIENT};host=books.shop;proto=https");
        assert_eq!(request.headers()["forwarded"], forwarded.as_str());
        assert_eq!(scene.answers.lookups(BOOKS), 1);
    });
}

#[test]
fn opaque_connection_reaches_the_service() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await;
        let to = first(forward(app.addr));
        scene.answers.policy(BOOKS, tcp(to, TcpVerdict::Forward));
        let mut client = scene.connect(BOOKS, SessionProtocol::Opaque).await;
        client.write_all(b"hello").await.unwrap();
        client.flush().await.unwrap();
        let mut server = app.accept().await;
        let mut heard = [0; 5];
        server.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");
        server.write_all(b"bye").await.unwrap();
        drop(server);
        assert_eq!(rest(&mut client).await, "bye");
    });
}

#[test]
fn name_outside_of_the_gateways_domains_is_refused() {
    run(async || {
        let scene = Scene::new().await;
        for name in [
            "books.example.com:80",
            "books.shop.svc.cluster.local.example.com:80",
            "booksvc.cluster.local:80",
            "10.96.0.1:80",
            "a b.svc.cluster.local:80",
        ] {
            let mut client = scene.connect(name, SessionProtocol::Http1).await;
            let response = ask_for_books(&mut client).await;
            assert!(response.starts_with("HTTP/1.1 404 "), "{name}: {response}");
            let mut client = scene.connect(name, SessionProtocol::Opaque).await;
            assert_eq!(rest(&mut client).await, "", "{name}");
            assert_eq!(scene.answers.lookups(name), 0);
        }
        let errors = "inbound_http_errors_total{error=\"gateway domain invalid\"";
        assert_eq!(scene.gateway.metric(errors), 5);
        let errors = "inbound_tcp_errors_total{error=\"gateway domain invalid\"";
        assert_eq!(scene.gateway.metric(errors), 5);
    });
}

#[test]
fn request_that_has_passed_the_gateway_is_refused() {
    run(async || {
        let scene = Scene::new().await;
        scene.service(App::start().await.named("books"));
        let mut client = scene.connect(BOOKS, SessionProtocol::Http1).await;
        let request =
            format!("GET / HTTP/1.1\r\nhost: books\r\nforwarded: for=a, by={WEB}\r\n\r\n");
        send(&mut client, &request).await;
        expect(&mut client, 508).await;
        // The gateway itself is the client.
        let mut client = scene.connect_as(WEB, BOOKS, SessionProtocol::Http1).await;
        let response = ask_for_books(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 508 "), "{response}");
        let errors = "inbound_http_errors_total{error=\"gateway loop\"";
        assert_eq!(scene.gateway.metric(errors), 2);
        let mut client = scene.connect_as(WEB, BOOKS, SessionProtocol::Opaque).await;
        assert_eq!(rest(&mut client).await, "");
        assert_eq!(scene.answers.lookups(BOOKS), 0);
        // Another request of another connection is served.
        let mut client = scene.connect(BOOKS, SessionProtocol::Http1).await;
        assert!(ask_for_books(&mut client).await.ends_with("books"));
    });
}

#[test]
fn policy_of_the_inbound_port_decides_about_other_clusters() {
    run(async || {
        let world = World::new().await;
        let vars = [
            ("INBOUND_GATEWAY_SUFFIXES", Some("svc.cluster.local.")),
            ("INBOUND_DEFAULT_POLICY", Some("deny")),
        ];
        let gateway = world.proxy_with(WEB, &vars);
        let mut client = connect(&world, &gateway, CLIENT, BOOKS, SessionProtocol::Http1).await;
        let response = ask_for_books(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
        let mut client = connect(&world, &gateway, CLIENT, BOOKS, SessionProtocol::Opaque).await;
        assert_eq!(rest(&mut client).await, "");
        let denied = format!("inbound_http_authz_deny_total{{target_addr=\"{POD}:{INBOUND_PORT}\"");
        assert_eq!(gateway.metric(&denied), 1);
    });
}

#[test]
fn other_proxies_are_no_gateways() {
    run(async || {
        let scene = Scene::with(&[]).await;
        scene.service(App::start().await.named("books"));
        for session in [SessionProtocol::Http1, SessionProtocol::Opaque] {
            let mut client = scene.connect(BOOKS, session).await;
            assert_eq!(rest(&mut client).await, "");
        }
        assert_eq!(scene.answers.lookups(BOOKS), 0);
    });
}

#[test]
fn service_that_does_not_exist_is_unreachable_and_the_connection_stays_usable() {
    run(async || {
        let scene = Scene::new().await;
        let missing = "missing.shop.svc.cluster.local:80";
        scene.answers.no_policy(missing);
        let mut client = scene.connect(missing, SessionProtocol::Http1).await;
        let response = ask_for_books(&mut client).await;
        assert!(response.starts_with("HTTP/1.1 502 "), "{response}");
        let mut client = scene.connect(missing, SessionProtocol::Opaque).await;
        assert_eq!(rest(&mut client).await, "");
    });
}

/// The client's proxy sends the name by itself, as the destination service tells it.
#[test]
fn requests_pass_both_proxies_to_the_service_of_the_other_cluster() {
    Speaks::each(async |speaks| {
        let scene = Scene::new().await;
        scene.service(App::start().await.named("books"));
        let mirror = scene.mirror().await;
        let client = scene.world.proxy(CLIENT);
        let mut client = Client::new(client.outbound(mirror).await, speaks).await;
        assert_eq!(client.get().await, (200, "books".to_owned()), "{speaks:?}");
        assert_eq!(scene.answers.lookups(BOOKS), 1, "{speaks:?}");
    });
}

/// The application gets one `Host`: the name that its own cluster knows it by.
#[test]
fn host_of_http1_is_the_name_in_the_other_cluster() {
    run(async || {
        let scene = Scene::new().await;
        let app = App::start().await;
        scene.service(app.addr);
        let mirror = scene.mirror().await;
        let client = scene.world.proxy(CLIENT);
        let mut client = client.outbound(mirror).await;
        send(&mut client, "GET /a HTTP/1.1\r\nhost: web-east\r\n\r\n").await;
        let (_server, request) = app.receive().await;
        let expected = format!(
            "GET /a HTTP/1.1\r\nl5d-client-id: {CLIENT}\r\n\
             forwarded: by={WEB};for={CLIENT};host=\"{BOOKS}\";proto=https\r\n\
             host: {BOOKS}\r\n\r\n"
        );
        assert_eq!(request, expected);
    });
}
