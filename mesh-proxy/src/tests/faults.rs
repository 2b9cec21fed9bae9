//! Faults of rules and backends.

use std::time::Duration;

use futures_util::FutureExt as _;
use http::StatusCode;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    GrpcRoute, GrpcRoutes, HttpRoute, OutboundProtocol, OutboundRule,
};
use mesh_core::resilience::Timeouts;
use mesh_core::route::Rule;
use mesh_core::route::filter::{Filter, HeaderModifier, Ratio};
use tokio::net::TcpStream;
use tokio::time::{Instant, advance};

use super::answers::{Answers, detect, first, forward, http_route};
use super::app::{App, Client, Speaks, ask, expect, get, http2, send};
use super::world::{Proxy, WEB, World, run, settle};

const NONE: Ratio = Ratio {
    numerator: 0,
    denominator: 1_000_000,
};

fn abort(status: u16, ratio: Ratio) -> Filter {
    Filter::InjectHttpFailure {
        status: StatusCode::from_u16(status).unwrap(),
        message: "fault broken".into(),
        ratio,
    }
}

fn route(app: &App, filters: Vec<Filter>) -> HttpRoute {
    http_route("all", &[], filters, first(forward(app.addr)))
}

async fn routed(app: &App, protocol: OutboundProtocol) -> (World, Answers, Proxy) {
    let (world, answers) = Answers::start().await;
    answers.policy(app.addr, protocol);
    let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
    (world, answers, proxy)
}

#[test]
fn aborts_of_no_and_of_all_requests_need_no_luck() {
    Speaks::each(async |speaks| {
        let app = App::start().await;
        let all = vec![abort(503, NONE), abort(429, Ratio::ALL)];
        let (_world, _answers, proxy) = routed(&app, detect(vec![route(&app, all)], None)).await;
        let mut client = Client::new(proxy.outbound(app.addr).await, speaks).await;
        for _ in 0..100 {
            assert_eq!(client.get().await, (429, String::new()), "{speaks:?}");
        }
    });
}

/// The extension carries the filters of a gRPC route with one that the API lacks.
#[test]
fn call_is_aborted_with_a_grpc_status_by_both_parts_of_the_policy() {
    let headers = Filter::ResponseHeaders(HeaderModifier::default());
    for others in [vec![], vec![headers]] {
        run(async || {
            let app = App::start().await;
            let mut filters = others.clone();
            filters.push(Filter::InjectGrpcFailure {
                code: 14,
                message: "fault broken".into(),
                ratio: Ratio::ALL,
            });
            let rule = Rule {
                matches: Vec::new(),
                action: OutboundRule {
                    filters,
                    backends: first(forward(app.addr)),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_request_headers: false,
                },
            };
            let protocol = OutboundProtocol::Grpc(GrpcRoutes {
                routes: vec![GrpcRoute {
                    meta: Meta::new_default("all"),
                    hosts: Vec::new(),
                    rules: vec![rule],
                }],
                failure_accrual: None,
            });
            let (_world, _answers, proxy) = routed(&app, protocol).await;
            let mut client = http2(proxy.outbound(app.addr).await).await;
            let call = http::Request::post("http://web/a.Service/Method")
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let response = ask(&mut client, call).await.unwrap().unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["grpc-status"], "14");
            let message = response.headers()["grpc-message"].to_str().unwrap();
            assert!(message.ends_with(": fault broken"), "{message}");
        });
    }
}

fn delay(seconds: u64, ratio: Ratio) -> Filter {
    Filter::Delay {
        duration: Duration::from_secs(seconds),
        ratio,
    }
}

/// A connection of the application to a proxy with these filters. `limit` is the time limit of
/// requests.
async fn delaying(
    app: &App,
    filters: Vec<Filter>,
    limit: Option<Duration>,
) -> (World, Answers, Proxy, TcpStream) {
    let mut route = route(app, filters);
    route.rules[0].action.timeouts.request = limit;
    let (world, answers, proxy) = routed(app, detect(vec![route], None)).await;
    let client = proxy.outbound(app.addr).await;
    (world, answers, proxy, client)
}

/// Waits until a number of requests take places among those in flight.
async fn in_flight(proxy: &Proxy, requests: usize) {
    let all = proxy.context.config.outbound.max_in_flight;
    let free = || {
        proxy
            .context
            .shared
            .limits
            .outbound_in_flight
            .available_permits()
    };
    while free() != all - requests {
        settle().await;
    }
}

/// Whether the application has received nothing, not even a connection.
async fn is_idle(app: &App) -> bool {
    settle().await;
    app.accept().now_or_never().is_none()
}

const GET: &str = "GET / HTTP/1.1\r\nhost: web\r\n\r\n";

#[test]
fn delayed_request_is_sent_after_its_delay() {
    run(async || {
        let app = App::start().await;
        let delays = vec![delay(1, Ratio::ALL), delay(9, NONE), delay(1, Ratio::ALL)];
        let (_world, _answers, proxy, mut client) = delaying(&app, delays, None).await;
        send(&mut client, GET).await;
        in_flight(&proxy, 1).await;
        advance(Duration::from_millis(1_999)).await;
        assert!(is_idle(&app).await);
        advance(Duration::from_millis(1)).await;
        let (mut server, _request) = app.receive().await;
        send(&mut server, "HTTP/1.1 204 No Content\r\n\r\n").await;
        expect(&mut client, 204).await;
        in_flight(&proxy, 0).await;
    });
}

#[test]
fn time_limit_of_requests_includes_the_delay() {
    run(async || {
        let app = App::start().await;
        let limit = Some(Duration::from_secs(1));
        let filters = vec![delay(5, Ratio::ALL), abort(503, Ratio::ALL)];
        let (_world, _answers, proxy, mut client) = delaying(&app, filters, limit).await;
        send(&mut client, GET).await;
        in_flight(&proxy, 1).await;
        advance(Duration::from_secs(1)).await;
        expect(&mut client, 504).await;
        advance(Duration::from_secs(10)).await;
        assert!(is_idle(&app).await);
    });
}

#[test]
fn cancelled_request_is_not_sent_after_its_delay() {
    run(async || {
        let app = App::start().await;
        let filters = vec![delay(5, Ratio::ALL)];
        let (_world, _answers, proxy, client) = delaying(&app, filters, None).await;
        let mut client = http2(client).await;
        let (response, _) = client.send_request(get(), true).unwrap();
        in_flight(&proxy, 1).await;
        drop(response);
        in_flight(&proxy, 0).await;
        advance(Duration::from_secs(10)).await;
        assert!(is_idle(&app).await);
    });
}

#[test]
fn filters_reply_before_and_after_a_delay_by_their_order() {
    run(async || {
        let app = App::start().await;
        let filters = vec![abort(429, Ratio::ALL), delay(5, Ratio::ALL)];
        let (_world, _answers, _proxy, mut client) = delaying(&app, filters, None).await;
        send(&mut client, GET).await;
        // The clock stands still.
        expect(&mut client, 429).await;
    });
    run(async || {
        let app = App::start().await;
        let filters = vec![delay(5, Ratio::ALL), abort(503, Ratio::ALL)];
        let (_world, _answers, proxy, mut client) = delaying(&app, filters, None).await;
        send(&mut client, GET).await;
        in_flight(&proxy, 1).await;
        let started = Instant::now();
        advance(Duration::from_secs(5)).await;
        expect(&mut client, 503).await;
        assert_eq!(started.elapsed(), Duration::from_secs(5));
    });
}
