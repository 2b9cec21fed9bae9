//! The filters of routes and backends, outbound and inbound.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    DefaultPolicy, HttpServer, InboundRule, ServerProtocol, default_http_route,
};
use mesh_core::policy::outbound::{OutboundPolicy, OutboundProtocol, RouteBackend};
use mesh_core::route::filter::{Filter, HeaderModifier, PathModifier, Ratio, Redirect, UrlRewrite};
use mesh_core::route::http::{HttpMatch, PathMatch};
use tokio::net::TcpStream;

use super::answers::{Answers, detect, first, forward, http_route, weighted};
use super::app::{App, Client, Speaks, ask, expect, http2, send, streams};
use super::world::{Proxy, WEB, World, run};

async fn routed(dst: SocketAddr, protocol: OutboundProtocol) -> (World, Answers, Proxy) {
    let (world, answers) = Answers::start().await;
    answers.policy(dst, protocol);
    let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
    (world, answers, proxy)
}

/// A policy with one rule for all requests.
fn all(filters: Vec<Filter>, backend: RouteBackend) -> OutboundProtocol {
    detect(vec![http_route("all", &[], filters, first(backend))], None)
}

fn field(name: &str, value: &str) -> (HeaderName, HeaderValue) {
    (name.parse().unwrap(), value.parse().unwrap())
}

fn modifier(add: &[(&str, &str)], set: &[(&str, &str)], remove: &[&str]) -> HeaderModifier {
    let fields = |list: &[(&str, &str)]| list.iter().map(|(n, v)| field(n, v)).collect();
    HeaderModifier {
        add: fields(add),
        set: fields(set),
        remove: remove.iter().map(|name| name.parse().unwrap()).collect(),
    }
}

async fn exchange(client: &mut TcpStream, app: &App, response: &str) -> (String, String) {
    let (mut server, request) = app.receive().await;
    send(&mut server, response).await;
    (request, expect(client, 200).await)
}

#[test]
fn header_modifiers_of_route_and_backend_are_applied() {
    run(async || {
        let app = App::start().await;
        let mut backend = forward(app.addr);
        backend.filters = vec![
            Filter::RequestHeaders(modifier(&[("x-path", "backend")], &[], &["x-route-only"])),
            Filter::ResponseHeaders(modifier(&[], &[("x-server", "hidden")], &[])),
        ];
        let filters = vec![
            Filter::RequestHeaders(modifier(
                &[("x-path", "route"), ("x-route-only", "1")],
                &[("x-env", "prod")],
                &["x-secret"],
            )),
            Filter::ResponseHeaders(modifier(&[("x-by", "route")], &[], &["x-internal"])),
        ];
        let (_world, _answers, proxy) = routed(app.addr, all(filters, backend)).await;
        let mut client = proxy.outbound(app.addr).await;
        send(
            &mut client,
            "GET /a HTTP/1.1\r\nhost: web\r\nx-secret: 1\r\nx-env: test\r\nx-path: client\r\n\r\n",
        )
        .await;
        let (request, response) = exchange(
            &mut client,
            &app,
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-internal: 1\r\nx-server: nginx\r\n\r\n",
        )
        .await;
        let path = ["client", "route", "backend"].map(|by| format!("x-path: {by}\r\n"));
        assert!(request.contains(&path.concat()), "{request}");
        assert!(request.contains("x-env: prod\r\n"), "{request}");
        for removed in ["x-secret", "test", "x-route-only"] {
            assert!(!request.contains(removed), "{request}");
        }
        assert!(response.contains("x-server: hidden\r\n"), "{response}");
        assert!(response.contains("x-by: route\r\n"), "{response}");
        assert!(!response.contains("x-internal"), "{response}");
    });
}

/// Message framing follows the body, whatever a filter does to the headers.
#[test]
fn header_modifiers_do_not_change_framing() {
    run(async || {
        let app = App::start().await;
        let framing = modifier(
            &[("transfer-encoding", "chunked")],
            &[],
            &["content-length"],
        );
        let filters = vec![Filter::RequestHeaders(framing)];
        let (_world, _answers, proxy) = routed(app.addr, all(filters, forward(app.addr))).await;
        let mut client = proxy.outbound(app.addr).await;
        let request = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 4\r\n\r\nbody";
        send(&mut client, request).await;
        let mut server = app.accept().await;
        let received = super::app::message(&mut server).await;
        let chunked = "transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
        let fixed = "content-length: 4\r\n\r\nbody";
        let is_framed = received.ends_with(chunked) != received.ends_with(fixed);
        assert!(is_framed, "{received}");
        assert_eq!(
            received.matches("transfer-encoding").count()
                + received.matches("content-length").count(),
            1,
            "{received}"
        );
    });
}

/// `host` is also the authority of HTTP/2.
#[test]
fn changed_host_is_forwarded_in_both_protocols() {
    run(async || {
        let app = App::start().await;
        let host = modifier(&[], &[("host", "internal.example:81")], &[]);
        let filters = vec![Filter::RequestHeaders(host)];
        let (_world, _answers, proxy) = routed(app.addr, all(filters, forward(app.addr))).await;

        let mut client = proxy.outbound(app.addr).await;
        send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (_server, request) = app.receive().await;
        assert!(request.starts_with("GET /a HTTP/1.1\r\n"), "{request}");
        assert!(
            request.contains("host: internal.example:81\r\n"),
            "{request}"
        );

        let mut client = http2(proxy.outbound(app.addr).await).await;
        let _response = ask(&mut client, super::app::get());
        let mut calls = streams(app.accept().await).await;
        let (request, _respond) = calls.recv().await.unwrap();
        assert_eq!(request.uri().authority().unwrap(), "internal.example:81");
    });
}

#[test]
fn modifier_that_leaves_no_single_host_fails_requests() {
    for bad in [
        modifier(&[], &[], &["host"]),
        modifier(&[("host", "second")], &[], &[]),
        modifier(&[], &[("host", "user@web")], &[]),
        modifier(&[], &[("host", "o pen")], &[]),
    ] {
        run(async || {
            let app = App::start().await;
            let filters = vec![Filter::RequestHeaders(bad.clone())];
            let (_world, _answers, proxy) = routed(app.addr, all(filters, forward(app.addr))).await;
            let mut client = proxy.outbound(app.addr).await;
            send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
            let response = expect(&mut client, 500).await;
            assert!(response.contains("exactly one valid host"), "{response}");
        });
    }
}

fn redirect() -> Filter {
    Filter::Redirect(Redirect {
        scheme: Some(http::uri::Scheme::HTTPS),
        host: Some("new.example".into()),
        path: Some(PathModifier::Prefix("/v2".into())),
        status: Some(StatusCode::PERMANENT_REDIRECT),
        ..Redirect::default()
    })
}

fn prefix(path: &str) -> Vec<HttpMatch> {
    vec![HttpMatch {
        path: Some(PathMatch::Prefix(path.to_owned())),
        ..HttpMatch::default()
    }]
}

#[test]
fn redirects_of_route_and_backend_answer_the_request() {
    run(async || {
        let app = App::start().await;
        let mut route = http_route("all", &[], vec![redirect()], first(forward(app.addr)));
        route.rules[0].matches = prefix("/v1");
        let mut by_backend = forward(app.addr);
        by_backend.filters = vec![redirect()];
        let mut second = http_route("all", &[], Vec::new(), first(by_backend));
        second.rules[0].matches = prefix("/old");
        let protocol = detect(vec![route, second], None);
        let (_world, _answers, proxy) = routed(app.addr, protocol).await;
        let mut client = proxy.outbound(app.addr).await;
        for old in ["/v1", "/old"] {
            let request = format!("GET {old}/a?q=1 HTTP/1.1\r\nhost: web\r\n\r\n");
            send(&mut client, &request).await;
            let response = expect(&mut client, 308).await;
            let location = "location: https://new.example/v2/a?q=1\r\n";
            assert!(response.contains(location), "{response}");
        }
    });
}

/// As in Linkerd, a filter's response does not count as an error in the statuses of the route and
/// of the backend with the filter.
#[test]
fn responses_of_filters_are_counted_by_their_status() {
    let failure = |status: u16| Filter::InjectHttpFailure {
        status: StatusCode::from_u16(status).unwrap(),
        message: "injected".into(),
        ratio: Ratio::ALL,
    };
    let invalid = Filter::RequestHeaders(modifier(&[], &[], &["host"]));
    for (filter, status, labels, errors) in [
        (redirect(), 308, "http_status=\"308\",error=\"\"", 0),
        (failure(403), 403, "http_status=\"403\",error=\"\"", 2),
        (failure(503), 503, "http_status=\"503\",error=\"\"", 2),
        // What the proxy cannot apply is its error.
        (invalid, 500, "http_status=\"\",error=\"UNKNOWN\"", 2),
    ] {
        run(async || {
            let app = App::start().await;
            let mut by_route =
                http_route("route", &[], vec![filter.clone()], first(forward(app.addr)));
            by_route.rules[0].matches = prefix("/v1");
            let mut backend = forward(app.addr);
            backend.filters = vec![filter.clone()];
            let mut by_backend = http_route("backend", &[], Vec::new(), first(backend));
            by_backend.rules[0].matches = prefix("/old");
            let protocol = detect(vec![by_route, by_backend], None);
            let (_world, _answers, proxy) = routed(app.addr, protocol).await;
            let mut client = proxy.outbound(app.addr).await;
            for path in ["/v1", "/old"] {
                let request = format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n");
                if status == 500 {
                    client = proxy.outbound(app.addr).await;
                }
                send(&mut client, &request).await;
                expect(&mut client, status).await;
            }
            let count = |family: &str, labels: &str| {
                let text = String::from_utf8(proxy.registry.encode()).unwrap();
                let mut lines = text.lines().filter(|line| line.starts_with(family));
                let found = lines.find(|line| line.contains(labels));
                found.map_or(0, |line| line.ends_with("} 1").into())
            };
            for route in ["route", "backend"] {
                let labels = format!("route_name=\"{route}\",hostname=\"\",{labels}");
                let family = "outbound_http_route_request_statuses_total{";
                assert_eq!(count(family, &labels), 1, "{labels}");
            }
            let family = "outbound_http_route_backend_response_statuses_total{";
            assert_eq!(count(family, labels), 1, "{labels}");
            assert_eq!(proxy.metric(family), 1);
            let family = "outbound_http_errors_total{error=\"unexpected\"}";
            assert_eq!(proxy.metric(family), errors, "{labels}");
            assert_eq!(
                proxy.metric("outbound_http_route_backend_requests_total{"),
                1
            );
        });
    }
}

fn rewrite(host: Option<&str>, path: Option<PathModifier>) -> Filter {
    Filter::UrlRewrite(UrlRewrite {
        host: host.map(Into::into),
        path,
    })
}

/// The control plane sends these filters in the extension of the policy.
#[test]
fn rewritten_url_is_forwarded_in_both_protocols() {
    run(async || {
        let app = App::start().await;
        let filters = vec![
            Filter::RequestHeaders(modifier(&[], &[("x-a", "1")], &[])),
            rewrite(
                Some("internal.example"),
                Some(PathModifier::Prefix("/v2".into())),
            ),
            Filter::ResponseHeaders(modifier(&[], &[("x-b", "2")], &[])),
        ];
        let mut route = http_route("all", &[], filters, first(forward(app.addr)));
        route.rules[0].matches = prefix("/v1");
        let (_world, _answers, proxy) = routed(app.addr, detect(vec![route], None)).await;

        let mut client = proxy.outbound(app.addr).await;
        send(
            &mut client,
            "GET /v1/a?q=/v1 HTTP/1.1\r\nhost: web:8080\r\n\r\n",
        )
        .await;
        let response = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let (request, response) = exchange(&mut client, &app, response).await;
        let start = "GET /v2/a?q=/v1 HTTP/1.1\r\n";
        assert!(request.starts_with(start), "{request}");
        assert!(request.contains("host: internal.example\r\n"), "{request}");
        assert!(request.contains("x-a: 1\r\n"), "{request}");
        assert!(!request.contains("web"), "{request}");
        assert!(response.contains("x-b: 2\r\n"), "{response}");

        let mut client = http2(proxy.outbound(app.addr).await).await;
        let mut request = super::app::get();
        *request.uri_mut() = "http://web:8080/v1".parse().unwrap();
        let _response = ask(&mut client, request);
        let mut calls = streams(app.accept().await).await;
        let (request, _respond) = calls.recv().await.unwrap();
        assert_eq!(request.uri().to_string(), "http://internal.example/v2");
    });
}

/// In the second list of the extension.
#[test]
fn url_is_rewritten_for_one_backend_only() {
    run(async || {
        let (plain, rewritten) = (App::start().await, App::start().await);
        let mut backend = forward(rewritten.addr);
        backend.filters = vec![rewrite(Some("internal.example"), None)];
        let split = weighted([(forward(plain.addr), 1), (backend, 1)]);
        let protocol = detect(vec![http_route("all", &[], Vec::new(), split)], None);
        let (_world, _answers, proxy) = routed(plain.addr, protocol).await;
        let mut seen = [false; 2];
        while seen != [true; 2] {
            let mut client = proxy.outbound(plain.addr).await;
            send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
            tokio::select! {
                (_, request) = plain.receive() => {
                    assert!(request.contains("host: web\r\n"), "{request}");
                    seen[0] = true;
                }
                (_, request) = rewritten.receive() => {
                    assert!(request.contains("host: internal.example\r\n"), "{request}");
                    seen[1] = true;
                }
            }
        }
    });
}

#[test]
fn request_without_rewritten_url_fails() {
    run(async || {
        let app = App::start().await;
        // The rule has no prefix match.
        let path = Some(PathModifier::Prefix("/v2".into()));
        let filters = vec![rewrite(None, path)];
        let (_world, _answers, proxy) = routed(app.addr, all(filters, forward(app.addr))).await;
        let mut client = proxy.outbound(app.addr).await;
        send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let response = expect(&mut client, 500).await;
        assert!(response.contains("matched no prefix"), "{response}");
    });
}

/// A redirect by prefix would use the length of the prefix that is no longer there.
#[test]
fn prefix_is_unknown_after_path_is_rewritten() {
    run(async || {
        let app = App::start().await;
        let path = Some(PathModifier::Prefix("/v2/long".into()));
        let mut by_backend = forward(app.addr);
        by_backend.filters = vec![redirect()];
        let mut route = http_route("all", &[], vec![rewrite(None, path)], first(by_backend));
        route.rules[0].matches = prefix("/v1");
        let (_world, _answers, proxy) = routed(app.addr, detect(vec![route], None)).await;
        let mut client = proxy.outbound(app.addr).await;
        send(&mut client, "GET /v1/a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let response = expect(&mut client, 500).await;
        assert!(response.contains("matched no prefix"), "{response}");
    });
}

/// Under the control plane of Linkerd there is no extension, and under one with an invalid
/// extension the standard part remains in force.
#[test]
fn rule_without_valid_extension_fails_its_requests_only() {
    for extension in [Vec::new(), vec![0xff; 5]] {
        run(async || {
            let app = App::start().await;
            let filters = vec![rewrite(Some("internal.example"), None)];
            let mut rewriting = http_route("new", &[], filters, first(forward(app.addr)));
            rewriting.rules[0].matches = prefix("/new");
            let usual = http_route("usual", &[], Vec::new(), first(forward(app.addr)));
            let policy = OutboundPolicy {
                parent: Meta::new_default("parent"),
                protocol: detect(vec![rewriting, usual], None),
            };
            let mut message = mesh_api::outbound::extended_to_proto(&policy);
            assert!(!message.extension.is_empty());
            message.extension.clone_from(&extension);
            let (world, answers) = Answers::start().await;
            answers.policy_message(app.addr, message);
            let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
            let addr = app.named("web");
            let mut client = proxy.outbound(addr).await;
            send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
            expect(&mut client, 200).await;
            send(&mut client, "GET /new HTTP/1.1\r\nhost: web\r\n\r\n").await;
            let response = expect(&mut client, 500).await;
            assert!(
                response.contains("URLRewrite is not supported"),
                "{response}"
            );
        });
    }
}

fn failure(status: u16, ratio: Ratio) -> Filter {
    Filter::InjectHttpFailure {
        status: StatusCode::from_u16(status).unwrap(),
        message: "injected".into(),
        ratio,
    }
}

#[test]
fn failures_are_injected_into_a_share_of_requests() {
    run(async || {
        let app = App::start().await;
        let half = Ratio {
            numerator: 1,
            denominator: 4,
        };
        let protocol = all(vec![failure(418, half)], forward(app.addr));
        let (_world, _answers, proxy) = routed(app.addr, protocol).await;
        let addr = app.named("web");
        let mut client = Client::new(proxy.outbound(addr).await, Speaks::Http1).await;
        let mut failed = 0;
        for _ in 0..1_000 {
            match client.get().await.0 {
                200 => {}
                418 => failed += 1,
                other => panic!("{other}"),
            }
        }
        // More than five standard deviations on either side.
        assert!((175..325).contains(&failed), "{failed}");
    });
}

#[test]
fn failure_of_backend_spares_other_backends() {
    run(async || {
        let app = App::start().await;
        let mut failing = forward(app.addr);
        failing.filters = vec![failure(502, Ratio::ALL)];
        let split = weighted([(failing, 1), (forward(app.addr), 1)]);
        let protocol = detect(vec![http_route("split", &[], Vec::new(), split)], None);
        let (_world, _answers, proxy) = routed(app.addr, protocol).await;
        let addr = app.named("web");
        let mut client = Client::new(proxy.outbound(addr).await, Speaks::Http1).await;
        let mut statuses = std::collections::BTreeSet::new();
        for _ in 0..100 {
            statuses.insert(client.get().await.0);
        }
        assert_eq!(statuses, [200, 502].into());
    });
}

#[test]
fn unknown_filter_fails_only_the_requests_of_its_rule() {
    run(async || {
        let app = App::start().await;
        let mut newer = http_route("newer", &[], Vec::new(), first(forward(app.addr)));
        newer.rules[0].matches = prefix("/newer");
        let usual = http_route("usual", &[], Vec::new(), first(forward(app.addr)));
        let policy = OutboundPolicy {
            parent: Meta::new_default("parent"),
            protocol: detect(vec![newer, usual], None),
        };
        let mut message = mesh_api::outbound::to_proto(&policy);
        {
            use mesh_api::proto::outbound::http_route;
            use mesh_api::proto::outbound::proxy_protocol::Kind;
            let kind = message.protocol.as_mut().unwrap().kind.as_mut();
            let Some(Kind::Detect(detect)) = kind else {
                panic!("it is detected");
            };
            let routes = &mut detect.http1.as_mut().unwrap().routes;
            routes[0].rules[0].filters = vec![http_route::Filter { kind: None }];
        }
        let (world, answers) = Answers::start().await;
        answers.policy_message(app.addr, message);
        let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
        let addr = app.named("web");
        let mut client = proxy.outbound(addr).await;
        send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        expect(&mut client, 200).await;
        send(&mut client, "GET /newer/a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let response = expect(&mut client, 500).await;
        assert!(response.contains("unsupported filter"), "{response}");
    });
}

/// An inbound policy with one rule for all requests. All clients are authorized.
fn inbound(filters: Vec<Filter>) -> mesh_api::proto::inbound::Server {
    let policy = DefaultPolicy::AllUnauthenticated;
    let mut policy = policy.server_policy(&[], Duration::from_secs(10), false);
    let mut route = default_http_route();
    for rule in &mut route.rules {
        rule.action = InboundRule {
            filters: filters.clone(),
            authorizations: Arc::clone(&policy.authorizations),
        };
    }
    policy.protocol = ServerProtocol::Detect {
        timeout: Duration::from_secs(10),
        http: HttpServer {
            routes: vec![route],
            rate_limit: None,
        },
    };
    mesh_api::inbound::to_proto(&policy)
}

/// A connection to an application whose port has these filters.
async fn filtered(
    app: &App,
    filters: Vec<Filter>,
) -> (World, Proxy, TcpStream, Box<dyn std::any::Any>) {
    let (world, mut control) = World::scripted().await;
    let proxy = world.proxy(WEB);
    let client = proxy.inbound(app.addr).await;
    let call = loop {
        let call = control.inbound.recv().await.unwrap();
        if call.request.port == u32::from(app.addr.port()) {
            break call;
        }
    };
    let stream = call.stream();
    stream.send(Ok(inbound(filters))).unwrap();
    (world, proxy, client, Box::new((control, stream)))
}

#[test]
fn inbound_filters_change_requests() {
    run(async || {
        let app = App::start().await;
        let filters = vec![Filter::RequestHeaders(modifier(
            &[],
            &[("host", "local"), ("x-in", "1")],
            &["x-out"],
        ))];
        let (_world, _proxy, mut client, _control) = filtered(&app, filters).await;
        send(
            &mut client,
            "GET / HTTP/1.1\r\nhost: web\r\nx-out: 1\r\n\r\n",
        )
        .await;
        let response = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let (request, _response) = exchange(&mut client, &app, response).await;
        assert!(request.contains("x-in: 1\r\n"), "{request}");
        assert!(request.contains("host: local\r\n"), "{request}");
        assert!(!request.contains("x-out"), "{request}");
    });
}

#[test]
fn inbound_redirects_and_failures_answer_the_request() {
    run(async || {
        let app = App::start().await;
        let to_https = Filter::Redirect(Redirect {
            scheme: Some(http::uri::Scheme::HTTPS),
            ..Redirect::default()
        });
        let errors = "inbound_http_errors_total{error=\"unexpected\"";
        let (_world, proxy, mut client, _control) = filtered(&app, vec![to_https]).await;
        send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let response = expect(&mut client, 301).await;
        assert!(
            response.contains("location: https://web/a\r\n"),
            "{response}"
        );
        assert_eq!(proxy.metric(errors), 0);

        let (_world, proxy, mut client, _control) =
            filtered(&app, vec![failure(418, Ratio::ALL)]).await;
        send(&mut client, "GET /a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        expect(&mut client, 418).await;
        assert_eq!(proxy.metric(errors), 1);
    });
}
