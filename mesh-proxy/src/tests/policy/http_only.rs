//! Ports that serve HTTP only: no client goes round the routes by being silent, by sending
//! something else, or by declaring an opaque session (docs/adr/0161).

use futures_util::FutureExt as _;
use mesh_api::proto::inbound::Server;
use mesh_core::meta::{Meta, Resource};
use mesh_core::policy::inbound::{
    DefaultPolicy, HttpRoute, HttpServer, PROBE_ROUTE, RateLimit, ServerProtocol,
    default_http_route,
};
use mesh_core::route::HostMatch;

use super::*;
use crate::tests::app::{Stream, expect, send};
use crate::tests::world::{INBOUND_PORT, while_time_passes};
use crate::transport::Io;
use crate::transport::header::{SessionProtocol, TransportHeader};

/// Refused by [`open_route`].
const SHUT: &str = "GET / HTTP/1.1\r\nhost: shut\r\n\r\n";

/// How a client reaches the port.
#[derive(Clone, Copy, Debug)]
enum Reaches {
    Unmeshed,
    Meshed,
    /// With a transport header that declares an opaque session.
    Directly,
}

const ALL: [Reaches; 3] = [Reaches::Unmeshed, Reaches::Meshed, Reaches::Directly];

/// A route of a user for the host `open`.
fn open_route() -> HttpRoute {
    let user = Resource::new("policy.linkerd.io", "HTTPRoute", "shop", "open");
    HttpRoute {
        meta: Meta::Resource(user),
        hosts: vec![HostMatch::Exact("open".into())],
        ..default_http_route()
    }
}

fn detect(routes: Vec<HttpRoute>, rate_limit: Option<RateLimit>) -> ServerProtocol {
    ServerProtocol::Detect {
        timeout: Duration::from_secs(10),
        http: HttpServer { routes, rate_limit },
    }
}

fn http1() -> ServerProtocol {
    ServerProtocol::Http1(HttpServer {
        routes: vec![open_route()],
        rate_limit: None,
    })
}

fn all_clients(protocol: ServerProtocol) -> Server {
    let policy = DefaultPolicy::AllUnauthenticated;
    let mut policy = policy.server_policy(&[], Duration::from_secs(10), false);
    policy.protocol = protocol;
    mesh_api::inbound::to_proto(&policy)
}

/// An application whose port has this policy, and the scene.
async fn scene(protocol: ServerProtocol) -> (App, Scene, MessageSender<Server>) {
    under(all_clients(protocol)).await
}

/// Accepts the connection that made the proxy ask for the policy.
async fn drop_asking(app: &App) {
    let asking = rest(&mut app.accept().await).await;
    assert_eq!(asking, "");
}

impl Scene {
    async fn reached(&self, reaches: Reaches) -> Io {
        let dst = match reaches {
            Reaches::Directly => (POD, INBOUND_PORT).into(),
            Reaches::Unmeshed | Reaches::Meshed => self.app,
        };
        let tcp = self.proxy.inbound(dst).await;
        match reaches {
            Reaches::Unmeshed => Io::plain(tcp),
            Reaches::Meshed => self.world.connected(tcp).await,
            Reaches::Directly => {
                let header = TransportHeader {
                    port: self.app.port(),
                    name: None,
                    session: SessionProtocol::Opaque,
                };
                self.world.connected_directly(tcp, &header).await
            }
        }
    }
}

async fn time_passes() {
    for _ in 0..120 {
        advance(Duration::from_millis(100)).await;
        settle().await;
    }
}

/// Whether the proxy has connected to the application.
fn is_reached(app: &App) -> bool {
    app.accept().now_or_never().is_some()
}

#[test]
fn silent_client_gets_no_tunnel_where_users_attached_routes() {
    run(async || {
        for reaches in ALL {
            let (app, scene, _policy) = scene(detect(vec![open_route()], None)).await;
            let _silent = scene.reached(reaches).await;
            time_passes().await;
            assert!(!is_reached(&app), "{reaches:?}");
        }
    });
}

#[test]
fn request_that_pauses_beyond_detection_is_routed() {
    run(async || {
        for protocol in [detect(vec![open_route()], None), http1()] {
            for reaches in ALL {
                let (app, scene, _policy) = scene(protocol.clone()).await;
                let mut client = scene.reached(reaches).await;
                let (begin, rest) = SHUT.split_at(2);
                send(&mut client, begin).await;
                time_passes().await;
                send(&mut client, rest).await;
                expect(&mut client, 404).await;
                assert!(!is_reached(&app), "{reaches:?}");
            }
        }
    });
}

#[test]
fn bytes_that_are_not_http_are_refused_where_users_attached_routes_or_limits() {
    run(async || {
        let limit = RateLimit {
            meta: Meta::Resource(Resource::new(
                "policy.linkerd.io",
                "HTTPLocalRateLimitPolicy",
                "shop",
                "limit",
            )),
            total: Some(100),
            identity: None,
            overrides: Vec::new(),
        };
        for protocol in [
            detect(vec![open_route()], None),
            detect(vec![], Some(limit)),
            http1(),
        ] {
            for reaches in ALL {
                let (app, scene, _policy) = scene(protocol.clone()).await;
                let mut client = scene.reached(reaches).await;
                send(&mut client, "\0hello\r\n\r\n").await;
                expect(&mut client, 400).await;
                assert!(!is_reached(&app), "{reaches:?}");
            }
        }
    });
}

#[test]
fn declared_opaque_session_is_read_as_http_and_routed() {
    run(async || {
        for protocol in [detect(vec![open_route()], None), http1()] {
            let (app, scene, _policy) = scene(protocol).await;
            let mut client = scene.reached(Reaches::Directly).await;
            send(&mut client, SHUT).await;
            expect(&mut client, 404).await;
            send(&mut client, "GET / HTTP/1.1\r\nhost: open\r\n\r\n").await;
            let (mut app, _request) = app.receive().await;
            send(&mut app, "HTTP/1.1 204 No Content\r\n\r\n").await;
            expect(&mut client, 204).await;
        }
    });
}

#[test]
fn opaque_tls_is_refused_where_users_attached_routes() {
    run(async || {
        let (app, scene, _policy) = scene(detect(vec![open_route()], None)).await;
        let tcp = scene.proxy.inbound(scene.app).await;
        let other = scene.world.connected_to("other.test", WEB, tcp);
        // The proxy closes the connection instead of forwarding the handshake.
        let refused = std::panic::AssertUnwindSafe(other).catch_unwind();
        assert!(while_time_passes(refused).await.is_err());
        assert!(!is_reached(&app));
    });
}

#[test]
fn tunnel_ends_when_routes_are_attached() {
    run(async || {
        let default = [default_http_route(), {
            let mut probe = default_http_route();
            probe.meta = Meta::new_default(PROBE_ROUTE);
            probe
        }];
        let (app, scene, policy) = scene(detect(default.into(), None)).await;
        drop_asking(&app).await;
        let mut client = scene.reached(Reaches::Unmeshed).await;
        send(&mut client, "\0hello").await;
        let mut server = app.accept().await;
        expect_bytes(&mut server, b"\0hello").await;
        let routed = detect(vec![open_route()], None);
        policy.send(Ok(all_clients(routed))).unwrap();
        assert_eq!(rest(&mut client).await, "");
    });
}

/// An Instant that such a duration is added to overflows.
#[test]
fn detection_without_an_effective_limit_waits_for_the_client() {
    run(async || {
        let protocol = ServerProtocol::Detect {
            timeout: Duration::MAX,
            http: HttpServer::default(),
        };
        let (app, scene, _policy) = scene(protocol).await;
        drop_asking(&app).await;
        let mut client = scene.reached(Reaches::Meshed).await;
        time_passes().await;
        send(&mut client, SHUT).await;
        // The first connection belongs to detection, which waits for the server's bytes.
        let _unused = app.accept().await;
        let (_app, request) = app.receive().await;
        assert!(request.starts_with("GET / HTTP/1.1\r\n"), "{request}");
    });
}

async fn expect_bytes(stream: &mut impl Stream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    tokio::io::AsyncReadExt::read_exact(stream, &mut bytes)
        .await
        .unwrap();
    assert_eq!(bytes, expected);
}
