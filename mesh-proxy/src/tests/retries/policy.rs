//! Which requests are retried, how often, and where.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::FutureExt as _;
use mesh_core::resilience::Backoff;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::{Instant, advance};

use super::{Answer, GET, OTHER, Scene, ScriptedApp, WEB, http_policy, retry, rule, status_of};
use crate::tests::app::{self, App, Client, Speaks, http2, send, streams, try_message};
use crate::tests::world::{run, settle, while_time_passes};

/// Linkerd's documentation promises this for three retries.
#[test]
fn three_retries_hide_half_of_the_failures() {
    run(async || {
        let rng = RefCell::new(SmallRng::seed_from_u64(7));
        let answer = move |_| {
            let fails = rng.borrow_mut().random_bool(0.5);
            Answer::Status(if fails { 503 } else { 200 })
        };
        let app = ScriptedApp::start_with(answer).await;
        let scene = Scene::simple(rule(Some(retry(3)), &[WEB]), &app).await;
        let total = 400;
        let mut client = Client::new(scene.client().await, Speaks::Http1).await;
        let mut succeeded = 0;
        for _ in 0..total {
            let (status, _) = while_time_passes(client.get()).await;
            succeeded += usize::from(status == 200);
        }
        assert!(succeeded * 100 >= total * 93, "{succeeded} of {total}");
        let retries = app.count() - total;
        assert_eq!(scene.counted("requests"), retries as u64);
        let failed = (total - succeeded) as u64;
        assert_eq!(scene.counted("limit_exceeded"), failed);
        // Each attempt counts for the backend, and each request once for the route.
        let attempts = scene
            .proxy
            .metric("outbound_http_route_backend_requests_total{");
        assert_eq!(attempts, app.count() as u64);
        let responses = "outbound_http_route_request_statuses_total{";
        assert_eq!(scene.proxy.metric(responses), total as u64);
    });
}

#[test]
fn total_failure_costs_the_maximum_of_retries() {
    Speaks::each(async |speaks| {
        if speaks == Speaks::Http2 {
            return;
        }
        let app = ScriptedApp::start(&[Answer::Status(500)]).await;
        let scene = Scene::simple(rule(Some(retry(3)), &[WEB]), &app).await;
        for n in 1..=5 {
            assert_eq!(scene.get(speaks).await, 500);
            assert_eq!(app.count(), 4 * n);
        }
        assert_eq!(scene.counted("requests"), 15);
        assert_eq!(scene.counted("limit_exceeded"), 5);
        assert_eq!(scene.counted("successes"), 0);
    });
}

#[test]
fn responses_outside_conditions_and_rules_without_policy_are_not_retried() {
    for (retry, status) in [(Some(retry(3)), 404), (Some(retry(3)), 200), (None, 503)] {
        run(async || {
            let app = ScriptedApp::start(&[Answer::Status(status)]).await;
            let scene = Scene::simple(rule(retry.clone(), &[WEB]), &app).await;
            assert_eq!(scene.get(Speaks::Http1).await, status);
            assert_eq!(app.count(), 1);
            assert_eq!(scene.counted("requests"), 0);
        });
    }
}

#[test]
fn failed_request_is_sent_to_another_endpoint() {
    run(async || {
        let failing = ScriptedApp::start(&[Answer::Status(503)]).await;
        let working = ScriptedApp::start(&[Answer::Status(200)]).await;
        let policy = http_policy(rule(Some(retry(1)), &[WEB]));
        let endpoints = [(WEB, vec![failing.addr, working.addr])];
        let scene = Scene::new(policy, &endpoints).await;
        for _ in 0..20 {
            assert_eq!(scene.get(Speaks::Http1).await, 200);
        }
        assert_eq!(working.count(), 20);
        let retries = failing.count() as u64;
        assert!(retries > 0);
        assert_eq!(scene.counted("requests"), retries);
        assert_eq!(scene.counted("successes"), retries);
    });
}

/// The connections to the failing endpoint are reused.
#[test]
fn each_attempt_receives_the_request_of_the_application() {
    run(async || {
        let answers = [
            Answer::Status(503),
            Answer::Status(503),
            Answer::Status(200),
        ];
        let app = ScriptedApp::start(&answers).await;
        let scene = Scene::simple(rule(Some(retry(2)), &[WEB]), &app).await;
        let request = "GET /a?b HTTP/1.1\r\nhost: web\r\nx-field: one\r\nx-field: two\r\n\r\n";
        assert_eq!(status_of(&scene.ask(request).await), 200);
        assert_eq!(app.requests(), [request, request, request]);
        let opened = scene
            .proxy
            .metric("tcp_open_total{direction=\"outbound\",peer=\"dst\"");
        assert_eq!(opened, 1);
    });
}

#[test]
fn back_off_doubles_with_jitter() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let mut retry = retry(2);
        retry.backoff = Some(Backoff {
            min: Duration::from_secs(10),
            max: Duration::from_secs(100),
            jitter: 0.5,
        });
        let scene = Scene::simple(rule(Some(retry), &[WEB]), &app).await;
        let mut client = scene.client().await;
        send(&mut client, GET).await;
        for (count, before, rest) in [(1, 9, 7), (2, 12, 19)] {
            while app.count() < count {
                settle().await;
            }
            advance(Duration::from_secs(before)).await;
            settle().await;
            assert_eq!(app.count(), count, "the pause is over too early");
            advance(Duration::from_secs(rest)).await;
        }
        app::expect(&mut client, 503).await;
        assert_eq!(app.count(), 3);
    });
}

#[test]
fn attempt_that_times_out_is_repeated_and_the_last_one_is_not_limited() {
    run(async || {
        let hanging = ScriptedApp::start(&[Answer::Nothing]).await;
        let mut retry = retry(2);
        retry.timeout = Some(Duration::from_millis(300));
        let scene = Scene::simple(rule(Some(retry), &[WEB]), &hanging).await;
        let mut client = scene.client().await;
        send(&mut client, GET).await;
        let start = Instant::now();
        while_time_passes(async {
            while hanging.count() < 3 {
                settle().await;
            }
        })
        .await;
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(600), "{took:?}");
        advance(Duration::from_secs(60)).await;
        settle().await;
        assert_eq!(hanging.count(), 3);
        assert_eq!(scene.counted("requests"), 2);
        let timeouts = "outbound_http_route_backend_response_statuses_total{";
        let text = String::from_utf8(scene.proxy.registry.encode()).unwrap();
        let counted = text.lines().find(|line| {
            line.starts_with(timeouts) && line.contains("error=\"RESPONSE_HEADERS_TIMEOUT\"")
        });
        assert!(counted.is_some_and(|line| line.ends_with(" 2")), "{text}");
    });
}

/// The time that the client takes to send the request does not count.
#[test]
fn time_limit_of_an_attempt_begins_with_the_end_of_the_request() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(200)]).await;
        let mut retry = retry(2);
        retry.timeout = Some(Duration::from_millis(300));
        let scene = Scene::simple(rule(Some(retry), &[WEB]), &app).await;
        let mut client = scene.client().await;
        send(
            &mut client,
            "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 2\r\n\r\na",
        )
        .await;
        for _ in 0..20 {
            settle().await;
            advance(Duration::from_millis(100)).await;
        }
        send(&mut client, "b").await;
        app::expect(&mut client, 200).await;
        assert_eq!(app.count(), 1);
        assert_eq!(scene.counted("requests"), 0);
    });
}

#[test]
fn request_timeout_covers_all_attempts_and_is_not_retried() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503), Answer::Nothing]).await;
        let mut rule = rule(Some(retry(5)), &[WEB]);
        rule.timeouts.request = Some(Duration::from_secs(2));
        let scene = Scene::simple(rule, &app).await;
        let start = Instant::now();
        assert_eq!(scene.get(Speaks::Http1).await, 504);
        let took = start.elapsed();
        assert!(took < Duration::from_millis(2_500), "{took:?}");
        assert_eq!(app.count(), 2);
    });
}

/// The first backend has no endpoints, so that the request fails fast there.
#[test]
fn retry_may_go_to_another_backend_of_the_rule() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(200)]).await;
        let policy = http_policy(rule(Some(retry(1)), &[WEB, OTHER]));
        let endpoints = [(WEB, vec![]), (OTHER, vec![app.addr])];
        let scene = Scene::new(policy, &endpoints).await;
        // They are known before the request; time passes for the request.
        let known = scene.proxy.context.discovery.endpoints(&OTHER.into(), None);
        while known.borrow().endpoints.is_empty() {
            settle().await;
        }
        let response = scene.ask(GET).await;
        assert_eq!(status_of(&response), 200, "{response}");
        assert_eq!(scene.counted("requests"), 1);
        assert_eq!(scene.counted("successes"), 1);
    });
}

/// The client is told why there is no backend left, not that the next attempt had none.
#[test]
fn fail_fast_is_reported_when_no_other_backend_is_available() {
    run(async || {
        let policy = http_policy(rule(Some(retry(1)), &[WEB]));
        let scene = Scene::new(policy, &[(WEB, vec![])]).await;
        assert_eq!(scene.get(Speaks::Http1).await, 504);
    });
}

#[test]
fn client_that_leaves_during_back_off_ends_the_retries() {
    for speaks in [Speaks::Http1, Speaks::Http2] {
        run(async || {
            let (asked, mut calls) = mpsc::unbounded_channel();
            let app = App::start().await;
            let addr = app.addr;
            let mut retry = retry(3);
            retry.backoff = Some(Backoff {
                min: Duration::from_secs(5),
                max: Duration::from_secs(5),
                jitter: 0.0,
            });
            spawn_local(async move {
                if speaks == Speaks::Http2 {
                    let mut streams = streams(app.accept().await).await;
                    while let Some((_, mut respond)) = streams.recv().await {
                        let response = http::Response::builder().status(503).body(());
                        respond.send_response(response.unwrap(), true).unwrap();
                        asked.send(()).unwrap();
                    }
                }
                let mut tcp = app.accept().await;
                while try_message(&mut tcp).await.is_some() {
                    let response = "HTTP/1.1 503 Any\r\ncontent-length: 0\r\n\r\n";
                    send(&mut tcp, response).await;
                    asked.send(()).unwrap();
                }
            });
            let policy = http_policy(rule(Some(retry), &[WEB]));
            let scene = Scene::new(policy, &[(WEB, vec![addr])]).await;
            let mut client = Client::new(scene.client().await, speaks).await;
            {
                let asking = client.get();
                tokio::pin!(asking);
                tokio::select! {
                    _ = &mut asking => panic!("no response is expected"),
                    call = calls.recv() => call.unwrap(),
                }
            }
            settle().await;
            drop(client);
            settle().await;
            advance(Duration::from_secs(60)).await;
            settle().await;
            assert!(calls.try_recv().is_err(), "{speaks:?}");
            assert_eq!(scene.counted("requests"), 1);
        });
    }
}

#[test]
fn response_that_has_begun_is_not_retried() {
    run(async || {
        let app = App::start().await;
        let policy = http_policy(rule(Some(retry(3)), &[WEB]));
        let scene = Scene::new(policy, &[(WEB, vec![app.addr])]).await;
        let mut client = scene.client().await;
        send(&mut client, GET).await;
        let (mut served, _) = app.receive().await;
        send(&mut served, "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n").await;
        app::head(&mut client).await;
        drop(served);
        assert_eq!(app::rest(&mut client).await, "");
        settle().await;
        advance(Duration::from_secs(60)).await;
        settle().await;
        assert!(app.accept().now_or_never().is_none());
    });
}

/// Requests that are repeated without a policy are not repeated more often with one.
#[test]
fn lost_connections_are_not_retried_by_the_policy() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Then("")]).await;
        let scene = Scene::simple(rule(Some(retry(3)), &[WEB]), &app).await;
        let post = "POST / HTTP/1.1\r\nhost: web\r\ncontent-length: 2\r\n\r\nab";
        assert_eq!(status_of(&scene.ask(post).await), 502);
        assert_eq!(app.count(), 1);
        assert_eq!(scene.counted("requests"), 0);
    });
}

#[test]
fn upgrades_are_not_retried() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let scene = Scene::simple(rule(Some(retry(3)), &[WEB]), &app).await;
        let upgrade =
            "GET / HTTP/1.1\r\nhost: web\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        assert_eq!(status_of(&scene.ask(upgrade).await), 503);
        assert_eq!(app.count(), 1);
    });
}

const WITH_HEADERS: &str = "GET / HTTP/1.1\r\nhost: web\r\nl5d-retry-http: 5xx\r\n\
    l5d-retry-limit: 2\r\nl5d-retry-timeout: 1s\r\nl5d-retry-grpc: internal\r\n\r\n";

#[test]
fn request_headers_enable_retries_where_the_policy_allows_it() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let mut rule = rule(None, &[WEB]);
        rule.allow_request_headers = true;
        let scene = Scene::simple(rule, &app).await;
        assert_eq!(status_of(&scene.ask(WITH_HEADERS).await), 503);
        assert_eq!(app.requests(), [GET, GET, GET], "the headers are consumed");
        assert_eq!(scene.counted("limit_exceeded"), 1);
        // Without the headers there is no policy.
        assert_eq!(status_of(&scene.ask(GET).await), 503);
        assert_eq!(app.count(), 4);
    });
}

#[test]
fn request_headers_are_passed_through_where_the_policy_does_not_allow_them() {
    run(async || {
        let app = ScriptedApp::start(&[Answer::Status(503)]).await;
        let scene = Scene::simple(rule(None, &[WEB]), &app).await;
        assert_eq!(status_of(&scene.ask(WITH_HEADERS).await), 503);
        assert_eq!(app.requests(), [WITH_HEADERS]);
    });
}

/// The peer has not processed the request, so that one with a body is sent again too.
#[test]
fn refused_stream_with_body_is_retried() {
    run(async || {
        let app = App::start().await;
        let policy = http_policy(rule(Some(retry(1)), &[WEB]));
        let scene = Scene::new(policy, &[(WEB, vec![app.addr])]).await;
        let mut client = http2(scene.client().await).await;
        let request = http::Request::post("http://web/").body(()).unwrap();
        let (response, mut body) = client.send_request(request, false).unwrap();
        body.send_data("hello".into(), true).unwrap();
        let asking = spawn_local(response);
        let mut calls = streams(app.accept().await).await;
        let (_, mut respond) = calls.recv().await.unwrap();
        respond.send_reset(h2::Reason::REFUSED_STREAM);
        let (request, mut respond) = while_time_passes(calls.recv()).await.unwrap();
        assert_eq!(app::read(&mut request.into_body()).await, "hello");
        respond
            .send_response(http::Response::new(()), true)
            .unwrap();
        assert_eq!(asking.await.unwrap().unwrap().status(), 200);
    });
}
