//! The filters of backends, which change one attempt and nothing of the next.

use std::sync::Arc;
use std::time::Duration;

use mesh_core::policy::outbound::{Distribution, OutboundProtocol, OutboundRule, RouteBackend};
use mesh_core::resilience::HttpRetry;
use mesh_core::route::filter::{Filter, HeaderModifier, PathModifier, Ratio, UrlRewrite};
use mesh_core::route::http::{HttpMatch, PathMatch};
use tokio::time::Instant;

use super::{Answer, OTHER, Scene, ScriptedApp, WEB, http_policy, retry, rule, status_of};
use crate::tests::world::{run, settle};

/// Filters of a backend, which change each part of the head of a request.
fn filters_of_a_backend() -> Vec<Filter> {
    let fields = |value: &str| vec![("x-by".parse().unwrap(), value.parse().unwrap())];
    vec![
        Filter::RequestHeaders(HeaderModifier {
            add: fields("backend"),
            remove: vec!["x-remove".parse().unwrap()],
            ..HeaderModifier::default()
        }),
        Filter::UrlRewrite(UrlRewrite {
            host: Some("new.example".into()),
            path: Some(PathModifier::Prefix("/new".into())),
        }),
        Filter::ResponseHeaders(HeaderModifier {
            add: fields("backend"),
            ..HeaderModifier::default()
        }),
    ]
}

/// A policy whose rule matches the prefix `/old`.
fn with_prefix(rule: OutboundRule<HttpRetry>) -> OutboundProtocol {
    let mut protocol = http_policy(rule);
    if let OutboundProtocol::Detect { http1, http2, .. } = &mut protocol {
        for routes in [http1, http2] {
            routes.routes[0].rules[0].matches = vec![HttpMatch {
                path: Some(PathMatch::Prefix("/old".to_owned())),
                ..HttpMatch::default()
            }];
        }
    }
    protocol
}

fn backend_of(rule: &mut OutboundRule<HttpRetry>, n: usize) -> &mut RouteBackend {
    match &mut rule.backends {
        Distribution::FirstAvailable(backends) => Arc::make_mut(&mut backends[n]),
        _ => unreachable!(),
    }
}

#[test]
fn filters_of_a_backend_are_applied_to_each_attempt_anew() {
    run(async || {
        let answers = [
            Answer::Status(503),
            Answer::Status(503),
            Answer::Status(200),
        ];
        let app = ScriptedApp::start(&answers).await;
        let mut rule = rule(Some(retry(2)), &[WEB]);
        backend_of(&mut rule, 0).filters = filters_of_a_backend();
        let scene = Scene::new(with_prefix(rule), &[(WEB, vec![app.addr])]).await;
        let request = "GET /old/a?b HTTP/1.1\r\nhost: web\r\nx-by: client\r\nx-remove: 1\r\n\r\n";
        let response = scene.ask(request).await;
        assert_eq!(status_of(&response), 200, "{response}");
        assert_eq!(response.matches("x-by: backend").count(), 1, "{response}");
        let sent = "GET /new/a?b HTTP/1.1\r\nhost: new.example\r\nx-by: client\r\n\
            x-by: backend\r\n\r\n";
        assert_eq!(app.requests(), [sent, sent, sent]);
    });
}

/// The first backend has no endpoints, so that its attempt fails after its filters were applied.
#[test]
fn filters_of_one_backend_do_not_affect_the_attempt_at_another() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(200)]).await;
        let mut rule = rule(Some(retry(1)), &[WEB, OTHER]);
        backend_of(&mut rule, 0).filters = filters_of_a_backend();
        let path = Some(PathModifier::Prefix("/other".into()));
        let rewrite = Filter::UrlRewrite(UrlRewrite { host: None, path });
        backend_of(&mut rule, 1).filters = vec![rewrite];
        let endpoints = [(WEB, vec![]), (OTHER, vec![app.addr])];
        let scene = Scene::new(with_prefix(rule), &endpoints).await;
        let known = scene.proxy.context.discovery.endpoints(&OTHER.into(), None);
        while known.borrow().endpoints.is_empty() {
            settle().await;
        }
        let request = "GET /old/a HTTP/1.1\r\nhost: web\r\nx-remove: 1\r\n\r\n";
        let response = scene.ask(request).await;
        assert_eq!(status_of(&response), 200, "{response}");
        assert!(!response.contains("x-by"), "{response}");
        assert_eq!(app.requests(), [request.replace("/old/", "/other/")]);
    });
}

#[test]
fn delay_of_a_rule_holds_once_and_delay_of_a_backend_each_attempt() {
    run(async || {
        let answers = [
            Answer::Status(503),
            Answer::Status(503),
            Answer::Status(200),
        ];
        let app = ScriptedApp::start(&answers).await;
        let delay = Filter::Delay {
            duration: Duration::from_secs(10),
            ratio: Ratio::ALL,
        };
        let mut retry = retry(2);
        retry.backoff = None;
        let mut rule = rule(Some(retry), &[WEB]);
        rule.filters = vec![delay.clone()];
        backend_of(&mut rule, 0).filters = vec![delay];
        let scene = Scene::new(http_policy(rule), &[(WEB, vec![app.addr])]).await;
        let started = Instant::now();
        let response = scene.ask("GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        assert_eq!(status_of(&response), 200, "{response}");
        // The clock moves in steps.
        let seconds = started.elapsed().as_secs();
        assert!((40..45).contains(&seconds), "{seconds}");
    });
}
