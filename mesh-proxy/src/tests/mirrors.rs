//! Requests that are mirrored to other backends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mesh_core::policy::outbound::{HttpRoute, RouteBackend};
use mesh_core::resilience::Retry;
use mesh_core::route::filter::{
    Filter, HeaderModifier, PathModifier, Ratio, RequestMirror, UrlRewrite,
};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::answers::{Answers, detect, first, forward, http_route, service};
use super::app::{
    App, Calls, Client, Speaks, expect, http2, message, read, respond, send, streams,
};
use super::world::{Proxy, WEB, World, run, settle, while_time_passes};

const SHADOW: &str = "shadow.shop.svc.cluster.local:80";
const OTHER: &str = "other.shop.svc.cluster.local:80";

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn mirror(authority: &str, ratio: Ratio) -> Filter {
    Filter::RequestMirror(RequestMirror {
        backend: Arc::new(service(authority).backend),
        ratio,
    })
}

fn header(name: &str) -> Filter {
    Filter::RequestHeaders(HeaderModifier {
        set: vec![(name.parse().unwrap(), "1".parse().unwrap())],
        ..HeaderModifier::default()
    })
}

/// The proxy of a client, with a route whose requests have one application and some mirrors.
struct Scene {
    _world: World,
    proxy: Proxy,
    dst: SocketAddr,
}

impl Scene {
    async fn new(app: SocketAddr, filters: Vec<Filter>, shadows: &[(&str, SocketAddr)]) -> Self {
        let route = http_route("all", &[], filters, first(forward(app)));
        Self::with(app, route, shadows, &[]).await
    }

    async fn with(
        dst: SocketAddr,
        route: HttpRoute,
        shadows: &[(&str, SocketAddr)],
        changes: &[(&str, Option<&str>)],
    ) -> Self {
        let (world, answers) = Answers::start().await;
        for (authority, addr) in shadows {
            answers.endpoints(authority, &[*addr]);
        }
        answers.policy(dst, detect(vec![route], None));
        let changes = [&[("DESTINATION_PROFILE_NETWORKS", Some(""))], changes].concat();
        let proxy = world.proxy_with(WEB, &changes);
        Self {
            _world: world,
            proxy,
            dst,
        }
    }

    async fn client(&self) -> TcpStream {
        self.proxy.outbound(self.dst).await
    }

    /// The mirrors that ended with a result.
    fn ended(&self, result: &str) -> u64 {
        let text = String::from_utf8(self.proxy.registry.encode()).unwrap();
        let label = format!("result=\"{result}\"");
        let lines = text.lines().filter(|line| {
            line.starts_with("mesh_proxy_mirrored_requests_total{") && line.contains(&label)
        });
        let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        values.sum()
    }
}

#[test]
fn mirrors_receive_the_request_and_their_responses_are_ignored() {
    run(async || {
        let (app, shadow, other) = (App::start().await, App::start().await, App::start().await);
        let rewrite = Filter::UrlRewrite(UrlRewrite {
            host: None,
            path: Some(PathModifier::Full("/new".into())),
        });
        let filters = vec![
            header("x-before"),
            mirror(SHADOW, Ratio::ALL),
            rewrite,
            mirror(OTHER, Ratio::ALL),
            header("x-after"),
        ];
        let shadows = [(SHADOW, shadow.addr), (OTHER, other.addr)];
        let scene = Scene::new(app.addr, filters, &shadows).await;
        let mut client = scene.client().await;
        let request = "POST /a?q HTTP/1.1\r\nhost: web:8080\r\ncontent-length: 5\r\n\r\nhello";
        send(&mut client, request).await;
        let mut servers = [shadow.accept().await, other.accept().await];
        let mut received = Vec::new();
        for server in &mut servers {
            received.push(message(server).await);
        }
        let mut primary = app.accept().await;
        let request = message(&mut primary).await;
        for text in [&request, &received[0], &received[1]] {
            assert!(text.ends_with("\r\n\r\nhello"), "{text}");
            assert!(text.contains("content-length: 5\r\n"), "{text}");
            assert!(text.contains("host: web:8080\r\n"), "{text}");
            assert!(text.contains("x-before: 1\r\n"), "{text}");
        }
        assert!(request.starts_with("POST /new?q "), "{request}");
        assert!(request.contains("x-after: 1\r\n"), "{request}");
        assert!(received[0].starts_with("POST /a?q "), "{}", received[0]);
        assert!(received[1].starts_with("POST /new?q "), "{}", received[1]);
        assert!(!received.concat().contains("x-after"));
        let bad = "HTTP/1.1 500 Oh\r\nx-shadow: 1\r\ncontent-length: 3\r\n\r\nbad";
        send(&mut servers[0], bad).await;
        drop(servers);
        settle().await;
        assert_eq!((scene.ended("completed"), scene.ended("failed")), (1, 1));
        send(&mut primary, OK).await;
        let response = expect(&mut client, 200).await;
        assert!(!response.contains("x-shadow"), "{response}");
        let backend = "outbound_http_route_backend_requests_total{";
        assert_eq!(scene.proxy.metric(backend), 3);
    });
}

#[test]
fn mirrored_call_of_http2_has_body_and_trailers() {
    run(async || {
        let (app, shadow) = (App::start().await, App::start().await);
        let filters = vec![mirror(SHADOW, Ratio::ALL)];
        let scene = Scene::new(app.addr, filters, &[(SHADOW, shadow.addr)]).await;
        let mut client = http2(scene.client().await).await;
        let request = http::Request::post("http://web/a").body(()).unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        let response = spawn_local(response);
        body.send_data("hello".into(), false).unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        body.send_trailers(trailers).unwrap();
        for app in [shadow, app] {
            let mut calls = streams(app.accept().await).await;
            let (request, to) = calls.recv().await.unwrap();
            assert_eq!(request.uri().to_string(), "http://web/a");
            let mut body = request.into_body();
            assert_eq!(read(&mut body).await, "hello");
            assert_eq!(body.trailers().await.unwrap().unwrap()["x-sum"], "1");
            respond(to).send_data(Bytes::new(), true).unwrap();
            settle().await;
        }
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
        assert_eq!(scene.ended("completed"), 1);
    });
}

/// The mirror accepts connections and is silent, refuses them, or has no endpoint.
#[test]
fn mirror_that_does_not_respond_neither_fails_nor_delays_requests() {
    for speaks in [Speaks::Http1, Speaks::Http2] {
        run(async || {
            let silent = App::start().await;
            let refused = super::app::unused_addr().await;
            let filters = ["a", "b", "c"].map(|name| mirror(&format!("{name}:80"), Ratio::ALL));
            let shadows = [("a:80", silent.addr), ("b:80", refused)];
            let app = App::start().await.named("web");
            let scene = Scene::new(app, filters.to_vec(), &shadows).await;
            let mut client = Client::new(scene.client().await, speaks).await;
            // Time does not pass.
            for _ in 0..3 {
                assert_eq!(client.get().await, (200, "web".to_owned()));
            }
            while_time_passes(async {
                tokio::time::sleep(Duration::from_secs(16)).await;
            })
            .await;
            assert_eq!(scene.ended("timed_out"), 3);
            assert_eq!(scene.ended("failed"), 6);
            assert_eq!(client.get().await.0, 200);
        });
    }
}

/// An upload through HTTP/2. The mirror reads nothing of it.
#[test]
fn mirror_that_reads_too_slowly_is_given_up_and_the_request_is_not() {
    run(async || {
        const MIB: usize = 1 << 20;
        let (app, shadow) = (App::start().await, App::start().await);
        let filters = vec![mirror(SHADOW, Ratio::ALL)];
        let scene = Scene::new(app.addr, filters, &[(SHADOW, shadow.addr)]).await;
        let mut client = http2(scene.client().await).await;
        // The connection of the mirror is open before the upload.
        let asking = super::app::ask(&mut client, super::app::get());
        let mut mirrored: Calls = streams(shadow.accept().await).await;
        let mut calls: Calls = streams(app.accept().await).await;
        for calls in [&mut mirrored, &mut calls] {
            let (_request, to) = calls.recv().await.unwrap();
            respond(to).send_data(Bytes::new(), true).unwrap();
        }
        assert_eq!(super::app::status_of(asking).await, 200);
        let request = http::Request::post("http://web/").body(()).unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        let response = spawn_local(response);
        body.send_data(vec![b'x'; MIB].into(), true).unwrap();
        let (request, to) = calls.recv().await.unwrap();
        assert_eq!(read(&mut request.into_body()).await.len(), MIB);
        respond(to).send_data(Bytes::new(), true).unwrap();
        assert_eq!(response.await.unwrap().unwrap().status(), 200);
        settle().await;
        assert_eq!(scene.ended("too_slow"), 1);
        let (request, _to) = mirrored.recv().await.unwrap();
        let mut received = request.into_body();
        let mut length = 0;
        let error = loop {
            match received.data().await.unwrap() {
                Ok(data) => length += data.len(),
                Err(error) => break error,
            }
        };
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
        assert!(length < MIB, "{length}");
        let semaphore = &scene.proxy.context.shared.limits.mirrors_in_flight;
        assert_eq!(semaphore.available_permits(), 512);
    });
}

#[test]
fn mirrors_beyond_the_limit_are_not_sent() {
    run(async || {
        let shadow = App::start().await;
        let app = App::start().await.named("web");
        let filters = vec![mirror(SHADOW, Ratio::ALL)];
        let route = http_route("all", &[], filters, first(forward(app)));
        let limit = [("MESH_PROXY_MAX_MIRRORS", Some("2"))];
        let scene = Scene::with(app, route, &[(SHADOW, shadow.addr)], &limit).await;
        let mut client = Client::new(scene.client().await, Speaks::Http1).await;
        for _ in 0..5 {
            assert_eq!(client.get().await.0, 200);
        }
        settle().await;
        assert_eq!(scene.ended("too_many"), 3);
        for _ in 0..2 {
            let (mut server, _request) = shadow.receive().await;
            send(&mut server, OK).await;
        }
        settle().await;
        assert_eq!(scene.ended("completed"), 2);
        assert_eq!(client.get().await.0, 200);
        assert_eq!(scene.ended("too_many"), 3);
    });
}

/// An upload may last for hours.
#[test]
fn mirror_that_has_answered_makes_room_for_others_while_its_request_goes_on() {
    for speaks in [Speaks::Http1, Speaks::Http2] {
        run(async || {
            let (app, shadow) = (App::start().await, App::start().await);
            let filters = vec![mirror(SHADOW, Ratio::ALL)];
            let scene = Scene::new(app.addr, filters, &[(SHADOW, shadow.addr)]).await;
            let semaphore = &scene.proxy.context.shared.limits.mirrors_in_flight;
            let tcp = scene.client().await;
            let _held: Box<dyn std::any::Any> = if speaks == Speaks::Http2 {
                let mut client = http2(tcp).await;
                let request = http::Request::post("http://web/").body(()).unwrap();
                let (response, mut upload) = client.send_request(request, false).unwrap();
                upload.send_data("begin".into(), false).unwrap();
                let mut calls = streams(shadow.accept().await).await;
                let (request, mut to) = calls.recv().await.unwrap();
                let mut body = request.into_body();
                assert_eq!(body.data().await.unwrap().unwrap(), "begin");
                assert_eq!(semaphore.available_permits(), 511);
                to.send_response(http::Response::new(()), true).unwrap();
                Box::new((client, response, upload, calls, body, to))
            } else {
                let mut tcp = tcp;
                let request = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 10\r\n\r\nbegin";
                send(&mut tcp, request).await;
                let (mut served, _) = shadow.receive().await;
                assert_eq!(semaphore.available_permits(), 511);
                send(&mut served, OK).await;
                Box::new((tcp, served))
            };
            while scene.ended("completed") == 0 {
                settle().await;
            }
            settle().await;
            assert_eq!(semaphore.available_permits(), 512);
        });
    }
}

#[test]
fn share_of_requests_is_mirrored() {
    run(async || {
        let quarter = Ratio {
            numerator: 1,
            denominator: 4,
        };
        let none = Ratio {
            numerator: 0,
            denominator: 100,
        };
        let shadow = App::start().await.named("shadow");
        let app = App::start().await.named("web");
        let filters = vec![mirror(SHADOW, quarter), mirror(OTHER, none)];
        let scene = Scene::new(app, filters, &[(SHADOW, shadow), (OTHER, shadow)]).await;
        let mut client = Client::new(scene.client().await, Speaks::Http1).await;
        for _ in 0..1_000 {
            assert_eq!(client.get().await.0, 200);
        }
        settle().await;
        // More than five standard deviations on either side.
        let count = scene.ended("completed");
        assert!((175..325).contains(&count), "{count}");
        assert_eq!(scene.ended("failed"), 0);
    });
}

/// The copy of the body for the mirror and that for retries have the same source.
#[test]
fn retries_are_not_mirrored() {
    run(async || {
        let (app, shadow) = (App::start().await, App::start().await);
        let filters = vec![mirror(SHADOW, Ratio::ALL)];
        let mut route = http_route("all", &[], filters, first(forward(app.addr)));
        route.rules[0].action.retry = Some(Retry {
            max_retries: 2,
            max_request_bytes: 64 * 1024,
            conditions: vec![500..=599],
            timeout: None,
            backoff: None,
        });
        let scene = Scene::with(app.addr, route, &[(SHADOW, shadow.addr)], &[]).await;
        let mut client = scene.client().await;
        let request = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 5\r\n\r\nhello";
        send(&mut client, request).await;
        let mut mirrored = shadow.accept().await;
        let received = message(&mut mirrored).await;
        assert!(received.ends_with("hello"), "{received}");
        send(&mut mirrored, OK).await;
        let mut server = app.accept().await;
        for status in [503, 503, 200] {
            let received = message(&mut server).await;
            assert!(received.ends_with("hello"), "{received}");
            let response = format!("HTTP/1.1 {status} S\r\ncontent-length: 0\r\n\r\n");
            send(&mut server, &response).await;
        }
        expect(&mut client, 200).await;
        settle().await;
        assert_eq!(scene.ended("completed"), 1);
        let retries = "outbound_http_route_retry_requests_total{";
        assert_eq!(scene.proxy.metric(retries), 2);
    });
}

#[test]
fn request_that_a_filter_responds_to_or_that_opens_a_tunnel_is_not_mirrored() {
    run(async || {
        let (app, shadow) = (App::start().await, App::start().await);
        let failure = Filter::InjectHttpFailure {
            status: http::StatusCode::IM_A_TEAPOT,
            message: "injected".into(),
            ratio: Ratio::ALL,
        };
        let all = mirror(SHADOW, Ratio::ALL);
        let shadows = [(SHADOW, shadow.addr)];
        let scene = Scene::new(app.addr, vec![all.clone(), failure], &shadows).await;
        let mut client = scene.client().await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        expect(&mut client, 418).await;

        let scene = Scene::new(app.addr, vec![all], &shadows).await;
        let mut client = scene.client().await;
        let upgrade =
            "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        send(&mut client, upgrade).await;
        let (mut server, _request) = app.receive().await;
        let response =
            "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        send(&mut server, response).await;
        expect(&mut client, 101).await;
        settle().await;
        let results = ["completed", "failed", "timed_out", "cancelled", "too_many"];
        assert_eq!(results.map(|result| scene.ended(result)), [0; 5]);
        let requests = "outbound_http_route_backend_requests_total{";
        assert_eq!(scene.proxy.metric(requests), 1);
    });
}

/// A mirror that fails must not take endpoints out of rotation for requests to the same Service.
#[test]
fn mirror_has_its_own_balancer() {
    run(async || {
        let dead = super::app::unused_addr().await;
        let backend: RouteBackend = service(SHADOW);
        let filters = vec![mirror(SHADOW, Ratio::ALL)];
        let route = http_route("all", &[], filters, first(backend));
        let shadow = App::start().await.named("shadow");
        let scene = Scene::with(dead, route, &[(SHADOW, shadow)], &[]).await;
        let mut client = Client::new(scene.client().await, Speaks::Http1).await;
        assert_eq!(client.get().await, (200, "shadow".to_owned()));
        settle().await;
        assert_eq!(scene.ended("completed"), 1);
        // One connection of each.
        let opened = "tcp_open_total{direction=\"outbound\",peer=\"dst\"";
        assert_eq!(scene.proxy.metric(opened), 2);
    });
}
