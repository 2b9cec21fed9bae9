//! Routes of ServiceProfiles, whose budget bounds the retries of all requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use mesh_core::profile::{Profile, ProfileRoute, RequestMatch, ResponseClass, ResponseMatch};
use mesh_core::resilience::RetryBudget;
use mesh_core::route::AnchoredRegex;
use tokio::task::spawn_local;
use tokio::time::{Instant, advance, timeout};

use super::{Answer, GET, Scene, ScriptedApp, WEB, http_policy, rule, status_of};
use crate::tests::app::{App, Speaks, http2, read, streams};
use crate::tests::world::{run, while_time_passes};

const BUDGET: RetryBudget = RetryBudget {
    ttl: Duration::from_secs(10),
    min_per_second: 10,
    ratio: 0.2,
};

fn route(retryable: bool) -> ProfileRoute {
    ProfileRoute {
        condition: RequestMatch::Path(AnchoredRegex::new("/.*").unwrap()),
        response_classes: Vec::new(),
        labels: BTreeMap::from([("route".to_owned(), "all".to_owned())]),
        retryable,
        timeout: None,
    }
}

fn profile(route: ProfileRoute, retry_budget: Option<RetryBudget>) -> Profile {
    Profile {
        fqn: Some("web.shop.svc.cluster.local".into()),
        routes: vec![route].into(),
        retry_budget,
        ..Profile::default()
    }
}

/// A client of the Service whose only endpoint has this address.
async fn scene(profile: Profile, app: SocketAddr) -> Scene {
    let policy = http_policy(rule(None, &[WEB]));
    Scene::scripted(policy, profile, &[(WEB, vec![app])], &[]).await
}

/// The sum of the series of a family that have this label.
fn sum(scene: &Scene, family: &str, label: &str) -> f64 {
    let text = String::from_utf8(scene.proxy.registry.encode()).unwrap();
    let begins = format!("{family}{{");
    let lines = text
        .lines()
        .filter(|line| line.starts_with(&begins) && line.contains(label));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn failures_of_retryable_route_are_retried_and_counted() {
    run(async || {
        let answers = [
            Answer::Status(503),
            Answer::Status(500),
            Answer::Status(200),
        ];
        let app = ScriptedApp::start(&answers).await;
        let scene = scene(profile(route(true), Some(BUDGET)), app.addr).await;
        let post = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 2\r\n\r\nab";
        assert_eq!(status_of(&scene.ask(post).await), 200);
        assert_eq!(app.count(), 3);
        assert!(app.requests().iter().all(|request| request.ends_with("ab")));
        let labels =
            "direction=\"outbound\",dst=\"web.shop.svc.cluster.local:80\",rt_route=\"all\"";
        for (family, label, expected) in [
            ("route_request_total", "", 1.0),
            ("route_response_total", "classification=\"success\"", 1.0),
            ("route_response_total", "classification=\"failure\"", 0.0),
            (
                "route_response_latency_ms_count",
                "status_code=\"200\"",
                1.0,
            ),
            ("route_actual_request_total", "", 3.0),
            ("route_actual_response_total", "status_code=\"503\"", 1.0),
            (
                "route_actual_response_total",
                "classification=\"failure\"",
                2.0,
            ),
            (
                "route_actual_response_total",
                "classification=\"success\"",
                1.0,
            ),
            ("route_retryable_total", "", 2.0),
            ("route_retryable_total", "skipped", 0.0),
        ] {
            assert_eq!(sum(&scene, family, label), expected, "{family} {label}");
            let all = sum(&scene, family, "");
            assert_eq!(sum(&scene, family, labels), all, "{family}");
        }
    });
}

/// 20 requests within the time to live allow 4 retries more than the minimum of 10.
#[test]
fn budget_bounds_the_load_of_a_total_failure() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let budget = RetryBudget {
            min_per_second: 1,
            ..BUDGET
        };
        let scene = scene(profile(route(true), Some(budget)), app.addr).await;
        let mut client = scene.client().await;
        for _ in 0..20 {
            crate::tests::app::send(&mut client, GET).await;
            crate::tests::app::expect(&mut client, 503).await;
        }
        assert_eq!(app.count(), 20 + 14);
        assert_eq!(
            sum(&scene, "route_retryable_total", "rt_route=\"all\"} "),
            14.0
        );
        // The first request had its own maximum of retries, all others used up the budget.
        assert_eq!(
            sum(&scene, "route_retryable_total", "skipped=\"no_budget\""),
            19.0
        );
        advance(Duration::from_secs(11)).await;
        crate::tests::app::send(&mut client, GET).await;
        crate::tests::app::expect(&mut client, 503).await;
        assert_eq!(app.count(), 34 + 11, "the budget is full again");
    });
}

#[test]
fn one_request_is_retried_ten_times_at_most() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let scene = scene(profile(route(true), Some(BUDGET)), app.addr).await;
        assert_eq!(scene.get(Speaks::Http1).await, 503);
        assert_eq!(app.count(), 11);
    });
}

/// The proxy treats a budget that is out of range as none, as `mesh_api` tests.
#[test]
fn requests_without_budget_or_permission_are_not_retried() {
    let invalid = RetryBudget {
        ttl: Duration::from_secs(61),
        ..BUDGET
    };
    for (retryable, budget) in [(false, Some(BUDGET)), (true, None), (true, Some(invalid))] {
        run(async || {
            let app = ScriptedApp::start(&[Answer::Status(503)]).await;
            let scene = scene(profile(route(retryable), budget), app.addr).await;
            assert_eq!(scene.get(Speaks::Http1).await, 503);
            assert_eq!(app.count(), 1, "{retryable} {budget:?}");
        });
    }
}

#[test]
fn response_classes_decide_what_is_retried_and_how_it_is_counted() {
    run(async || {
        let class = |status, is_failure| ResponseClass {
            condition: ResponseMatch::Status {
                min: status,
                max: status,
            },
            is_failure,
        };
        let answers = [Answer::Status(404), Answer::Status(500)];
        let app = ScriptedApp::start(&answers).await;
        let route = ProfileRoute {
            response_classes: vec![class(404, true), class(500, false)],
            ..route(true)
        };
        let scene = scene(profile(route, Some(BUDGET)), app.addr).await;
        assert_eq!(scene.get(Speaks::Http1).await, 500);
        assert_eq!(app.count(), 2);
        let failures = "classification=\"failure\"";
        assert_eq!(sum(&scene, "route_response_total", failures), 0.0);
        assert_eq!(sum(&scene, "route_actual_response_total", failures), 1.0);
    });
}

#[test]
fn timeout_of_the_route_covers_its_retries() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503), Answer::Nothing]).await;
        let route = ProfileRoute {
            timeout: Some(Duration::from_millis(300)),
            ..route(true)
        };
        let scene = scene(profile(route, Some(BUDGET)), app.addr).await;
        let start = Instant::now();
        assert_eq!(scene.get(Speaks::Http1).await, 504);
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!(app.count(), 2);
    });
}

#[test]
fn grpc_call_is_retried_by_the_status_in_its_trailers() {
    run(async || {
        let app = App::start().await;
        let scene = scene(profile(route(true), Some(BUDGET)), app.addr).await;
        let mut client = http2(scene.client().await).await;
        let call = http::Request::post("http://web/shop.Cart/Add")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let (response, mut request) = client.send_request(call, false).unwrap();
        request.send_data("message".into(), true).unwrap();
        let asking = spawn_local(response);
        let mut calls = streams(app.accept().await).await;
        for status in ["14", "0"] {
            let (request, mut respond) = while_time_passes(calls.recv()).await.unwrap();
            assert_eq!(read(&mut request.into_body()).await, "message");
            let mut body = respond
                .send_response(http::Response::new(()), false)
                .unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            body.send_trailers(trailers).unwrap();
        }
        let mut body = asking.await.unwrap().unwrap().into_body();
        assert_eq!(read(&mut body).await, "");
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(
            sum(&scene, "route_actual_response_total", "grpc_status=\"14\""),
            1.0
        );
        assert_eq!(
            sum(&scene, "route_response_total", "grpc_status=\"0\""),
            1.0
        );
    });
}

/// The trailers of gRPC are waited for, and no others.
#[test]
fn response_of_http_is_forwarded_before_its_body_is_complete() {
    run(async || {
        let app = App::start().await;
        let scene = scene(profile(route(true), Some(BUDGET)), app.addr).await;
        let mut client = http2(scene.client().await).await;
        let get = http::Request::get("http://web/").body(()).unwrap();
        let (response, _) = client.send_request(get, true).unwrap();
        let asking = spawn_local(response);
        let mut calls = streams(app.accept().await).await;
        let (_, mut respond) = while_time_passes(calls.recv()).await.unwrap();
        let mut body = respond
            .send_response(http::Response::new(()), false)
            .unwrap();
        let response = while_time_passes(timeout(Duration::from_secs(60), asking)).await;
        let mut answer = response.expect("the headers").unwrap().unwrap().into_body();
        body.send_data("late".into(), true).unwrap();
        assert_eq!(read(&mut answer).await, "late");
    });
}
