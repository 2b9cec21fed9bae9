//! Discovery responses and their effect on requests, for each HTTP protocol.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mesh_api::outbound::ExtendedPolicy;
use mesh_api::proto::destination::Update;
use mesh_core::endpoint::Endpoint;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Backend, BackendTarget, Distribution, HttpRoute, HttpRoutes, OutboundPolicy, OutboundProtocol,
    OutboundRule, RouteBackend, TcpVerdict,
};
use mesh_core::resilience::{PeakEwma, Queue, Timeouts};
use mesh_core::route::Rule;
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, advance};
use tonic::Status;

use super::app::{App, Client, Speaks, send, unused_addr};
use super::world::{CLIENT, Proxy, World, add, none, run, settle, while_time_passes};
use crate::tests::fake_control_plane::{ControlPlane, MessageSender};

/// The service's address, which has no listener.
const SERVICE: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)),
    80,
);
const AUTHORITY: &str = "web.shop.svc.cluster.local:80";

/// Balances over the endpoints of [`AUTHORITY`].
fn policy() -> ExtendedPolicy {
    let meta = Meta::new_default("web");
    let backend = RouteBackend {
        backend: Backend {
            meta: meta.clone(),
            target: BackendTarget::Balance {
                authority: AUTHORITY.into(),
                load: PeakEwma::default(),
                queue: Queue::default(),
            },
        },
        filters: Vec::new(),
        verdict: TcpVerdict::Forward,
    };
    let rule = OutboundRule {
        filters: Vec::new(),
        backends: Distribution::FirstAvailable(vec![Arc::new(backend)]),
        timeouts: Timeouts::default(),
        retry: None,
        allow_request_headers: false,
    };
    let routes = HttpRoutes {
        routes: vec![HttpRoute {
            meta: meta.clone(),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: Vec::new(),
                action: rule,
            }],
        }],
        failure_accrual: None,
    };
    mesh_api::outbound::extended_to_proto(&OutboundPolicy {
        parent: meta,
        protocol: OutboundProtocol::Detect {
            timeout: Duration::from_secs(10),
            opaque: None,
            http1: routes.clone(),
            http2: routes,
        },
    })
}

/// A pod that uses [`SERVICE`], and the requests that its control plane received.
struct Scene {
    proxy: Proxy,
    control: ControlPlane,
    speaks: Speaks,
    policies: MessageSender<ExtendedPolicy>,
    endpoints: MessageSender<Update>,
    /// A pending request.
    asking: tokio::task::JoinHandle<(u16, String)>,
}

impl Scene {
    /// A first request waits for endpoints.
    async fn new(speaks: Speaks) -> Self {
        let (world, mut control) = World::scripted().await;
        let no_profiles = ("DESTINATION_PROFILE_NETWORKS", Some(""));
        let proxy = world.proxy_with(CLIENT, &[no_profiles]);
        let client = proxy.outbound(SERVICE).await;
        let asking =
            tokio::task::spawn_local(async move { Client::new(client, speaks).await.get().await });
        let call = control.outbound.recv().await.unwrap();
        let policies = call.stream();
        policies.send(Ok(policy())).unwrap();
        let call = control.endpoints.recv().await.unwrap();
        assert_eq!(call.request.path, AUTHORITY);
        Self {
            proxy,
            control,
            speaks,
            policies,
            endpoints: call.stream(),
            asking,
        }
    }

    fn say(&self, update: Update) {
        self.endpoints.send(Ok(update)).unwrap();
    }

    /// The response to the first request.
    async fn answer(&mut self) -> (u16, String) {
        (&mut self.asking).await.unwrap()
    }

    /// A request on a new connection.
    async fn get(&self) -> (u16, String) {
        let client = self.proxy.outbound(SERVICE).await;
        Client::new(client, self.speaks).await.get().await
    }

    /// The response to a request without an endpoint, and its latency.
    async fn refused_after(&self) -> (u16, Duration) {
        let start = Instant::now();
        let (status, _) = while_time_passes(self.get()).await;
        (status, start.elapsed())
    }

    /// Waits until the destination is unused for so long that nothing watches it.
    async fn forget(&mut self) {
        advance(Duration::from_secs(60)).await;
        // A request to another destination lets the data thread drop what it does not use.
        let mut other = self.proxy.outbound(unused_addr().await).await;
        send(&mut other, "GET / HTTP/1.1\r\nhost: other\r\n\r\n").await;
        let call = self.control.outbound.recv().await.unwrap();
        call.refuse(Status::not_found("no service"));
        settle().await;
        drop(other);
        let closed = async { tokio::join!(self.policies.closed(), self.endpoints.closed()) };
        while_time_passes(closed).await;
    }

    /// Fails the endpoint stream, and returns the reopened one.
    async fn reconnect(&mut self) {
        self.endpoints.send(Err(away())).unwrap();
        let call = while_time_passes(self.control.endpoints.recv()).await;
        self.endpoints = call.unwrap().stream();
    }
}

fn away() -> Status {
    Status::unavailable("restarting")
}

fn answered(name: &str) -> (u16, String) {
    (200, name.to_owned())
}

async fn endpoint(name: &'static str) -> Endpoint {
    Endpoint::plain(App::start().await.named(name))
}

#[test]
fn destination_is_looked_up_once() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(speaks).await;
        scene.say(add(&[endpoint("a").await]));
        assert_eq!(scene.answer().await, answered("a"), "{speaks:?}");
        assert_eq!(scene.get().await, answered("a"), "{speaks:?}");
        assert!(scene.control.outbound.try_recv().is_err(), "{speaks:?}");
        assert!(scene.control.endpoints.try_recv().is_err(), "{speaks:?}");
    });
}

#[test]
fn requests_succeed_while_endpoint_stream_is_reopened() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(speaks).await;
        scene.say(add(&[endpoint("a").await]));
        assert_eq!(scene.answer().await, answered("a"), "{speaks:?}");
        scene.reconnect().await;
        assert_eq!(scene.get().await, answered("a"), "{speaks:?}");
        scene.say(add(&[endpoint("b").await]));
        while scene.get().await != answered("b") {}
    });
}

#[test]
fn destination_without_endpoints_fails_fast() {
    for exists in [true, false] {
        Speaks::each(async |speaks| {
            let mut scene = Scene::new(speaks).await;
            scene.say(none(exists));
            settle().await;
            advance(Duration::from_secs(3)).await;
            assert_eq!(scene.answer().await.0, 504, "{speaks:?}");
            // Later requests do not wait in fail-fast.
            let (status, after) = scene.refused_after().await;
            assert_eq!((status, after), (503, Duration::ZERO), "{speaks:?}");
            scene.say(add(&[endpoint("a").await]));
            while scene.get().await != answered("a") {}
        });
    }
}

#[test]
fn endpoints_are_removed_when_reopened_stream_lacks_them() {
    for exists in [true, false] {
        Speaks::each(async |speaks| {
            let mut scene = Scene::new(speaks).await;
            scene.say(add(&[endpoint("a").await]));
            assert_eq!(scene.answer().await, answered("a"), "{speaks:?}");
            scene.reconnect().await;
            scene.say(none(exists));
            settle().await;
            let (status, after) = scene.refused_after().await;
            assert_eq!(status, 504, "{speaks:?}");
            assert!(after <= Duration::from_secs(3), "{speaks:?}: {after:?}");
        });
    }
}

#[test]
fn request_fails_when_control_plane_never_responds() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(speaks).await;
        settle().await;
        assert!(!scene.asking.is_finished(), "{speaks:?}");
        advance(Duration::from_secs(3)).await;
        assert_eq!(scene.answer().await.0, 504, "{speaks:?}");
    });
}

#[test]
fn connection_is_reset_when_control_plane_never_responds() {
    run(async || {
        let (world, _control) = World::scripted().await;
        let proxy = world.proxy(CLIENT);
        let mut client = proxy.outbound(unused_addr().await).await;
        let mut bytes = Vec::new();
        let ended = while_time_passes(client.read_to_end(&mut bytes)).await;
        let reset = ended.map_err(|error| error.kind());
        assert_eq!(reset, Err(std::io::ErrorKind::ConnectionReset));
    });
}

/// As of a client that sends a request a minute, each on a new connection.
#[test]
fn unused_destination_is_reachable_while_control_plane_is_away() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(speaks).await;
        scene.say(add(&[endpoint("a").await]));
        assert_eq!(scene.answer().await, answered("a"), "{speaks:?}");
        scene.forget().await;
        // It accepts calls and responds to none.
        let start = Instant::now();
        let answer = while_time_passes(scene.get()).await;
        assert_eq!(answer, answered("a"), "{speaks:?}");
        let took = start.elapsed();
        assert!(took <= Duration::from_secs(3), "{speaks:?}: {took:?}");

        scene.policies = scene.control.outbound.recv().await.unwrap().stream();
        scene.policies.send(Ok(policy())).unwrap();
        scene.endpoints = scene.control.endpoints.recv().await.unwrap().stream();
        scene.say(add(&[endpoint("b").await]));
        while scene.get().await != answered("b") {}
    });
}

#[test]
fn unused_destination_is_reachable_at_once_when_control_plane_refuses() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(speaks).await;
        scene.say(add(&[endpoint("a").await]));
        assert_eq!(scene.answer().await, answered("a"), "{speaks:?}");
        scene.forget().await;
        let (proxy, control) = (&scene.proxy, &mut scene.control);
        let asking = async {
            let client = proxy.outbound(SERVICE).await;
            Client::new(client, speaks).await.get().await
        };
        tokio::pin!(asking);
        // No time passes.
        let answer = loop {
            tokio::select! {
                answer = &mut asking => break answer,
                Some(call) = control.outbound.recv() => call.refuse(away()),
                Some(call) = control.endpoints.recv() => call.refuse(away()),
            }
        };
        assert_eq!(answer, answered("a"), "{speaks:?}");
    });
}

#[test]
fn unknown_destinations_are_forwarded_to_original_address() {
    let no_service = Status::not_found("no service");
    for no_profile in [no_service.clone(), Status::invalid_argument("no address")] {
        Speaks::each(async |speaks| {
            let (world, mut control) = World::scripted().await;
            let proxy = world.proxy(CLIENT);
            let app = App::start().await.named("itself");
            let mut client = Client::new(proxy.outbound(app).await, speaks).await;
            let (response, ()) = tokio::join!(client.get(), async {
                let call = control.outbound.recv().await.unwrap();
                call.refuse(no_service.clone());
                let call = control.profiles.recv().await.unwrap();
                call.refuse(no_profile.clone());
            });
            assert_eq!(response, answered("itself"), "{speaks:?}");
        });
    }
}

#[test]
fn unreachable_endpoint_is_tried_again() {
    Speaks::each(async |speaks| {
        let mut scene = Scene::new(speaks).await;
        let addr = unused_addr().await;
        scene.say(add(&[Endpoint::plain(addr)]));
        settle().await;
        assert!(!scene.asking.is_finished(), "{speaks:?}");
        App::start_at(addr).await.named("late");
        advance(Duration::from_secs(1)).await;
        assert_eq!(scene.answer().await, answered("late"), "{speaks:?}");
    });
}

/// <https://github.com/linkerd/linkerd2/issues/2550>
#[test]
fn requests_wait_for_replacement_of_removed_endpoint() {
    run(async || {
        let mut scene = Scene::new(Speaks::Http2).await;
        let gone = App::start().await;
        scene.say(add(&[Endpoint::plain(gone.addr)]));
        let (first, addr) = (gone.accept().await, gone.addr);
        drop((first, gone));
        // Keeps the port from the listeners of other tests.
        let reserved = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let reserved = reserved.unwrap();
        reserved.set_reuse_address(true).unwrap();
        reserved.bind(&addr.into()).unwrap();
        settle().await;
        assert!(!scene.asking.is_finished());
        scene.say(add(&[endpoint("new").await]));
        assert_eq!(scene.answer().await, answered("new"));
    });
}

/// The address may belong to a Service, or to a proxy that expects TLS.
#[test]
fn opaque_connections_without_route_are_closed() {
    run(async || {
        let (world, mut control) = World::scripted().await;
        let no_profiles = ("DESTINATION_PROFILE_NETWORKS", Some(""));
        let proxy = world.proxy_with(CLIENT, &[no_profiles]);
        let app = App::start().await.named("itself");
        let mut client = proxy.outbound(app).await;
        let policies = control.outbound.recv().await.unwrap().stream();
        let without = OutboundPolicy {
            parent: Meta::new_default("web"),
            protocol: OutboundProtocol::Opaque(None),
        };
        let without = mesh_api::outbound::extended_to_proto(&without);
        policies.send(Ok(without)).unwrap();
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let mut answer = Vec::new();
        // A close or a reset.
        let _closed = client.read_to_end(&mut answer).await;
        assert_eq!(answer, b"");
    });
}
