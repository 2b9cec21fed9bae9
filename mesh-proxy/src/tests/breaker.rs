//! Failure accrual of whole proxies: endpoints leave the rotation by their responses and return
//! after a probe.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Response};
use mesh_core::policy::outbound::{Distribution, HttpRoutes, OutboundProtocol};
use mesh_core::resilience::{Backoff, FailureAccrual, Timeouts};
use socket2::SockRef;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, advance};

use super::answers::{Answers, detect, first, http_route, service, weighted};
use super::app::{App, Client, Speaks, rest, send, try_head};
use super::world::{CLIENT, Proxy, run, settle, while_time_passes};

const SERVICE: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7)),
    80,
);
const AUTHORITY: &str = "web.shop.svc.cluster.local:80";
const OTHER: &str = "other.shop.svc.cluster.local:80";

fn backoff(min: u64) -> Backoff {
    Backoff {
        min: Duration::from_secs(min),
        max: Duration::from_secs(60),
        jitter: 0.0,
    }
}

/// As the policy controllers send it, but without jitter.
fn consecutive(min_backoff: u64) -> FailureAccrual {
    FailureAccrual::ConsecutiveFailures {
        max_failures: 7,
        backoff: backoff(min_backoff),
    }
}

/// An application that responds to each request as the test says.
#[derive(Clone)]
struct Server {
    addr: SocketAddr,
    state: Rc<ServerState>,
}

struct ServerState {
    status: Cell<u16>,
    fields: RefCell<Vec<(&'static str, String)>>,
    trailers: RefCell<Vec<(&'static str, String)>>,
    requests: Cell<u32>,
    is_silent: Cell<bool>,
}

impl Server {
    async fn start() -> Self {
        let app = App::start().await;
        let server = Self {
            addr: app.addr,
            state: Rc::new(ServerState {
                status: Cell::new(200),
                fields: RefCell::default(),
                trailers: RefCell::default(),
                requests: Cell::new(0),
                is_silent: Cell::new(false),
            }),
        };
        let state = server.state.clone();
        spawn_local(async move {
            loop {
                spawn_local(serve(app.accept().await, state.clone()));
            }
        });
        server
    }

    async fn failing() -> Self {
        let server = Self::start().await;
        server.state.status.set(500);
        server
    }

    fn recover(&self) {
        self.state.status.set(200);
        self.state.fields.borrow_mut().clear();
        self.state.trailers.borrow_mut().clear();
        self.state.is_silent.set(false);
    }

    fn requests(&self) -> u32 {
        self.state.requests.get()
    }
}

async fn serve(mut tcp: TcpStream, state: Rc<ServerState>) {
    // The preface of HTTP/2 begins with `PRI`, and a request may begin with `POST`.
    let mut first = [0; 2];
    if tcp.peek(&mut first).await.is_err() {
        return;
    }
    if first == *b"PR" {
        let mut connection = h2::server::handshake(tcp).await.unwrap();
        // Streams that are dropped would be reset.
        let mut kept = Vec::new();
        while let Some(Ok((_request, mut respond))) = connection.accept().await {
            state.requests.set(state.requests.get() + 1);
            if state.is_silent.get() {
                kept.push(respond);
                continue;
            }
            let mut response = Response::builder().status(state.status.get());
            for (name, value) in state.fields.borrow().iter() {
                response = response.header(*name, value);
            }
            let trailers = state.trailers.borrow().clone();
            let response = response.body(()).unwrap();
            let mut stream = respond
                .send_response(response, trailers.is_empty())
                .unwrap();
            if !trailers.is_empty() {
                let fields = trailers
                    .iter()
                    .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
                stream.send_trailers(fields.collect::<HeaderMap>()).unwrap();
            }
        }
        return;
    }
    while try_head(&mut tcp).await.is_some() {
        state.requests.set(state.requests.get() + 1);
        if state.is_silent.get() {
            std::future::pending::<()>().await;
        }
        let mut text = format!("HTTP/1.1 {} Status\r\n", state.status.get());
        for (name, value) in state.fields.borrow().iter() {
            text += &format!("{name}: {value}\r\n");
        }
        send(&mut tcp, &(text + "content-length: 0\r\n\r\n")).await;
    }
}

/// A pod that uses [`SERVICE`].
struct Scene {
    proxy: Proxy,
    speaks: Speaks,
}

impl Scene {
    /// With one backend.
    async fn new(speaks: Speaks, accrual: FailureAccrual, servers: &[&Server]) -> Self {
        let backends = first(service(AUTHORITY));
        Self::with(
            speaks,
            accrual,
            backends,
            Timeouts::default(),
            &[(AUTHORITY, servers)],
        )
        .await
    }

    async fn with(
        speaks: Speaks,
        accrual: FailureAccrual,
        backends: Distribution,
        timeouts: Timeouts,
        servers: &[(&str, &[&Server])],
    ) -> Self {
        let (world, answers) = Answers::start().await;
        let mut route = http_route("web", &[], Vec::new(), backends);
        route.rules[0].action.timeouts = timeouts;
        let mut protocol = detect(vec![route], None);
        if let OutboundProtocol::Detect { http1, http2, .. } = &mut protocol {
            let set = |routes: &mut HttpRoutes| routes.failure_accrual = Some(accrual);
            set(http1);
            set(http2);
        }
        answers.policy(SERVICE, protocol);
        for (authority, servers) in servers {
            let addrs: Vec<_> = servers.iter().map(|server| server.addr).collect();
            answers.endpoints(authority, &addrs);
        }
        let no_profiles = ("DESTINATION_PROFILE_NETWORKS", Some(""));
        let proxy = world.proxy_with(CLIENT, &[no_profiles]);
        Self { proxy, speaks }
    }

    /// Begins a request on a new connection.
    async fn ask(&self) -> JoinHandle<u16> {
        let (client, speaks) = (self.proxy.outbound(SERVICE).await, self.speaks);
        spawn_local(async move { Client::new(client, speaks).await.get().await.0 })
    }

    async fn get(&self) -> u16 {
        self.ask().await.await.unwrap()
    }

    /// Sends requests until the server has received `count`, at most fifty.
    async fn until(&self, server: &Server, count: u32) {
        for _ in 0..50 {
            if server.requests() >= count {
                break;
            }
            self.get().await;
        }
        assert_eq!(server.requests(), count, "{:?}", self.speaks);
    }

    /// Waits until `count` requests have asked for an endpoint.
    async fn acquired(&self, count: u64) {
        let family = "outbound_http_balancer_queue_requests_total";
        while self.proxy.metric(family) < count {
            settle().await;
        }
    }

    /// Returns the number of requests that wait for an endpoint.
    fn queued(&self) -> u64 {
        self.proxy.metric("outbound_http_balancer_queue_length{")
    }

    fn endpoints(&self, state: &str) -> u64 {
        let family = "outbound_http_balancer_endpoints{";
        let text = String::from_utf8(self.proxy.registry.encode()).unwrap();
        let state = format!("endpoint_state=\"{state}\"");
        let mut lines = text.lines().filter(|line| line.starts_with(family));
        let line = lines.find(|line| line.contains(&state)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn opened(&self, cause: &str) -> u64 {
        let family = "mesh_proxy_breaker_opened_total{";
        let text = String::from_utf8(self.proxy.registry.encode()).unwrap();
        let cause = format!("cause=\"{cause}\"");
        let mut lines = text.lines().filter(|line| line.starts_with(family));
        let line = lines.find(|line| line.contains(&cause)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

#[test]
fn endpoint_leaves_rotation_after_seven_failures_and_returns_after_probe() {
    Speaks::each(async |speaks| {
        let (bad, good) = (Server::failing().await, Server::start().await);
        let scene = Scene::new(speaks, consecutive(1), &[&bad, &good]).await;
        scene.until(&bad, 7).await;
        for _ in 0..20 {
            assert_eq!(scene.get().await, 200, "{speaks:?}");
        }
        assert_eq!(bad.requests(), 7, "{speaks:?}");
        assert_eq!(
            (scene.endpoints("ready"), scene.endpoints("pending")),
            (1, 1)
        );
        assert_eq!(scene.opened("consecutive_failures"), 1);

        advance(Duration::from_secs(1)).await;
        scene.until(&bad, 8).await;
        for _ in 0..20 {
            assert_eq!(scene.get().await, 200, "{speaks:?}");
        }
        assert_eq!(bad.requests(), 8, "one probe in a back-off, {speaks:?}");
        assert_eq!(scene.opened("failed_probe"), 1);

        bad.recover();
        advance(Duration::from_secs(2)).await;
        scene.until(&bad, 9).await;
        for _ in 0..100 {
            advance(Duration::from_millis(100)).await;
            assert_eq!(scene.get().await, 200, "{speaks:?}");
        }
        assert!(bad.requests() > 9, "{speaks:?}");
        assert_eq!(
            (scene.endpoints("ready"), scene.endpoints("pending")),
            (2, 0)
        );
    });
}

/// The endpoint is not at fault, and other clients of the pod need it.
#[test]
fn uploads_that_clients_break_off_are_no_failures_of_the_endpoint() {
    const LENGTH: &str = "content-length: 10\r\n\r\nhalf";
    const CHUNKS: &str = "transfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    run(async || {
        for body in [LENGTH, CHUNKS] {
            for end in ["reset", "close", "close its half", "break the rules"] {
                let server = Server::start().await;
                server.state.is_silent.set(true);
                let scene = Scene::new(Speaks::Http1, consecutive(60), &[&server]).await;
                for count in 1..=7 {
                    let mut client = scene.proxy.outbound(SERVICE).await;
                    send(
                        &mut client,
                        &format!("POST / HTTP/1.1\r\nhost: web\r\n{body}"),
                    )
                    .await;
                    while server.requests() < count {
                        settle().await;
                    }
                    match end {
                        "reset" => {
                            let linger = Some(Duration::ZERO);
                            SockRef::from(&client).set_linger(linger).unwrap();
                        }
                        "close" => {}
                        "close its half" => client.shutdown().await.unwrap(),
                        _ if body == LENGTH => continue,
                        _ => send(&mut client, "no size\r\n").await,
                    }
                    if end == "reset" || end == "close" {
                        drop(client);
                    } else {
                        while_time_passes(rest(&mut client)).await;
                    }
                    settle().await;
                }
                server.recover();
                let status = while_time_passes(scene.get()).await;
                assert_eq!(status, 200, "{end}, {body}");
                assert_eq!(scene.endpoints("pending"), 0, "{end}, {body}");
            }
        }
    });
}

#[test]
fn grpc_status_counts_in_headers_and_in_trailers() {
    run(async || {
        for in_trailers in [false, true] {
            for (code, counts) in [("14", true), ("2", true), ("8", false), ("0", false)] {
                let server = Server::start().await;
                let grpc = ("content-type", "application/grpc".to_owned());
                let status = ("grpc-status", code.to_owned());
                server.state.fields.borrow_mut().push(grpc);
                let place = if in_trailers {
                    &server.state.trailers
                } else {
                    &server.state.fields
                };
                place.borrow_mut().push(status);
                let scene = Scene::new(Speaks::Http2, consecutive(1), &[&server]).await;
                scene.until(&server, 7).await;
                let asking = scene.ask().await;
                scene.acquired(8).await;
                let expected = if counts { 7 } else { 8 };
                while server.requests() < expected {
                    settle().await;
                }
                let received = server.requests();
                assert_eq!(received, expected, "{code} in trailers: {in_trailers}");
                advance(Duration::from_secs(1)).await;
                assert_eq!(asking.await.unwrap(), 200);
            }
        }
    });
}

#[test]
fn requests_fail_fast_while_all_endpoints_are_out() {
    Speaks::each(async |speaks| {
        let server = Server::failing().await;
        let scene = Scene::new(speaks, consecutive(10), &[&server]).await;
        // The target stays as long as this connection, also while nothing is sent.
        let mut held = Client::new(scene.proxy.outbound(SERVICE).await, speaks).await;
        assert_eq!(held.get().await.0, 500, "{speaks:?}");
        scene.until(&server, 7).await;
        server.recover();
        let began = Instant::now();
        let waiting = [scene.ask().await, scene.ask().await];
        scene.acquired(9).await;
        for asking in waiting {
            assert_eq!(while_time_passes(asking).await.unwrap(), 504, "{speaks:?}");
        }
        assert_eq!(began.elapsed(), Duration::from_secs(3), "{speaks:?}");
        assert_eq!(scene.get().await, 503, "{speaks:?}");
        assert_eq!(server.requests(), 7, "{speaks:?}");
        advance(Duration::from_secs(7)).await;
        for expected in 8..12 {
            assert_eq!(scene.get().await, 200, "{speaks:?}");
            assert_eq!(server.requests(), expected, "{speaks:?}");
        }
    });
}

#[test]
fn other_backends_are_used_while_one_is_out() {
    Speaks::each(async |speaks| {
        let (bad, good) = (Server::failing().await, Server::start().await);
        let backends = weighted([(service(AUTHORITY), 1), (service(OTHER), 1)]);
        let servers: [(&str, &[&Server]); 2] = [(AUTHORITY, &[&bad]), (OTHER, &[&good])];
        let timeouts = Timeouts::default();
        let scene = Scene::with(speaks, consecutive(60), backends, timeouts, &servers).await;
        scene.until(&bad, 7).await;
        // One that waits for the endpoint fails; afterwards none waits.
        loop {
            let asking = scene.ask().await;
            // Only then: a request that has not asked for an endpoint in time fails without
            // waiting.
            while !asking.is_finished() && scene.queued() == 0 {
                settle().await;
            }
            if while_time_passes(asking).await.unwrap() == 504 {
                break;
            }
        }
        for _ in 0..20 {
            assert_eq!(scene.get().await, 200, "{speaks:?}");
        }
        assert_eq!(bad.requests(), 7, "{speaks:?}");
    });
}

#[test]
fn retry_after_lengthens_backoff_within_its_maximum() {
    for (hint, seconds) in [("30", 30), ("3600", 60)] {
        Speaks::each(async |speaks| {
            let accrual = FailureAccrual::Unified {
                success_rate_threshold: 0.8,
                window: Duration::from_secs(10),
                min_requests: 5,
                max_consecutive_failures: 0,
                backoff: backoff(1),
                honor_retry_after: true,
            };
            let (busy, other) = (Server::start().await, Server::start().await);
            busy.state.status.set(429);
            let field = ("retry-after", hint.to_owned());
            busy.state.fields.borrow_mut().push(field);
            let scene = Scene::new(speaks, accrual, &[&busy, &other]).await;
            scene.until(&busy, 5).await;
            assert_eq!(scene.opened("success_rate"), 1, "{speaks:?}");
            busy.recover();
            // Requests every second, so that the target is not idle.
            for _ in 1..seconds {
                advance(Duration::from_secs(1)).await;
                assert_eq!(scene.get().await, 200, "{speaks:?}");
            }
            assert_eq!(busy.requests(), 5, "{hint}, {speaks:?}");
            advance(Duration::from_secs(1)).await;
            scene.until(&busy, 6).await;
        });
    }
}

#[test]
fn time_limits_of_policy_count_as_failures() {
    Speaks::each(async |speaks| {
        let server = Server::start().await;
        server.state.is_silent.set(true);
        let timeouts = Timeouts {
            request: Some(Duration::from_millis(100)),
            ..Timeouts::default()
        };
        let backends = first(service(AUTHORITY));
        let servers: [(&str, &[&Server]); 1] = [(AUTHORITY, &[&server])];
        let scene = Scene::with(speaks, consecutive(1), backends, timeouts, &servers).await;
        for received in 1..=7 {
            let asking = scene.ask().await;
            while server.requests() < received {
                settle().await;
            }
            advance(Duration::from_millis(100)).await;
            assert_eq!(asking.await.unwrap(), 504, "{speaks:?}");
        }
        settle().await;
        assert_eq!(scene.opened("consecutive_failures"), 1, "{speaks:?}");
    });
}
