//! Revoked access ends requests and connections in flight. The clock is paused, so nothing waits
//! for a timer.

use h2::Reason;
use http::{HeaderName, HeaderValue, Request};
use mesh_core::policy::inbound::{ServerProtocol, default_http_route};
use mesh_core::route::http::{HeaderMatch, HeaderValueMatch, HttpMatch, PathMatch};

use super::*;
use crate::tests::app::{ask, expect, get, head, http2, message, respond, rest, send, streams};

/// Allows requests that match.
fn only(matches: HttpMatch) -> Server {
    let policy = DefaultPolicy::AllUnauthenticated;
    let mut policy = policy.server_policy(&[], Duration::from_secs(10), false);
    let mut route = default_http_route();
    for rule in &mut route.rules {
        rule.matches = vec![matches.clone()];
        rule.action.authorizations = policy.authorizations.clone();
    }
    if let ServerProtocol::Detect { http, .. } = &mut policy.protocol {
        http.routes = vec![route, default_http_route()];
    }
    policy.authorizations = [].into();
    mesh_api::inbound::to_proto(&policy)
}

/// Allows requests whose path begins with `/open/`.
fn only_open_paths() -> Server {
    only(HttpMatch {
        path: Some(PathMatch::Prefix("/open".to_owned())),
        ..HttpMatch::default()
    })
}

/// Allows requests with this header.
fn only_with(name: &'static str) -> Server {
    only(HttpMatch {
        headers: vec![HeaderMatch {
            name: HeaderName::from_static(name),
            value: HeaderValueMatch::Exact(HeaderValue::from_static("yes")),
        }],
        ..default_http_route().rules[0].matches[0].clone()
    })
}

/// The same rule, on a server that allows every client.
fn any_with(name: &'static str) -> Server {
    Server {
        authorizations: all_unauthenticated().authorizations,
        ..only_with(name)
    }
}

fn terminated(scene: &Scene) -> u64 {
    scene.proxy.metric("mesh_proxy_inbound_terminated_total")
}

#[test]
fn revoked_request_without_response_is_refused() {
    run(async || {
        let (scene, app, mut client, policy) = allowed().await;
        send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (mut app, _) = app.receive().await;
        policy.send(Ok(deny())).unwrap();
        expect(&mut client, 403).await;
        // The application's connection ends.
        assert_eq!(rest(&mut app).await, "");
        assert_eq!(terminated(&scene), 1);
    });
}

#[test]
fn revoked_response_in_flight_is_aborted() {
    for length in ["transfer-encoding: chunked", "content-length: 100"] {
        run(async || {
            let (_scene, app, mut client, policy) = allowed().await;
            send(&mut client, "GET / HTTP/1.1\r\nhost: web\r\n\r\n").await;
            let (mut app, _) = app.receive().await;
            let begun = format!("HTTP/1.1 200 OK\r\n{length}\r\n\r\n2\r\nok\r\n");
            send(&mut app, &begun).await;
            let answer = head(&mut client).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            policy.send(Ok(deny())).unwrap();
            let body = rest(&mut client).await;
            assert!(!body.contains("\r\n0\r\n"), "it is not complete: {body}");
            assert_eq!(rest(&mut app).await, "");
        });
    }
}

/// `Upgrade` and `CONNECT`.
#[test]
fn revoked_tunnels_close_both_connections() {
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
    for (request, answer) in [
        (
            format!("GET /chat HTTP/1.1\r\nhost: web\r\n{upgrade}\r\n"),
            format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}\r\n"),
        ),
        (
            "CONNECT web:80 HTTP/1.1\r\nhost: web:80\r\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        ),
    ] {
        run(async || {
            let (scene, app, mut client, policy) = allowed().await;
            send(&mut client, &request).await;
            let (mut app, _) = app.receive().await;
            send(&mut app, &format!("{answer}\r\n\r\n")).await;
            head(&mut client).await;
            // Opaque bytes from here on.
            head(&mut client).await;
            send(&mut client, "ping\r\n\r\n").await;
            assert_eq!(head(&mut app).await, "ping\r\n\r\n");
            policy.send(Ok(deny())).unwrap();
            assert_eq!(rest(&mut client).await, "");
            assert_eq!(rest(&mut app).await, "");
            assert_eq!(terminated(&scene), 1);
        });
    }
}

#[test]
fn revoked_streams_are_reset_and_others_continue() {
    run(async || {
        let (scene, app, client, policy) = allowed().await;
        let mut client = http2(client).await;
        let mut open = |path: &str| {
            let request = Request::post(format!("http://web{path}")).body(()).unwrap();
            client.send_request(request, false).unwrap()
        };
        let (shut, mut shut_upload) = open("/shut/stream");
        let (kept, mut kept_upload) = open("/open/stream");
        let shut = spawn_local(shut);
        let kept = spawn_local(kept);
        let mut calls = streams(app.accept().await).await;
        let (mut shut_call, mut kept_call) = (None, None);
        for _ in 0..2 {
            let (request, answer) = calls.recv().await.unwrap();
            let is_kept = request.uri().path().starts_with("/open");
            let mut body = respond(answer);
            body.send_data("begun".into(), false).unwrap();
            let call = Some((request, body));
            if is_kept {
                kept_call = call;
            } else {
                shut_call = call;
            }
        }
        let mut shut = shut.await.unwrap().unwrap().into_body();
        let mut kept = kept.await.unwrap().unwrap().into_body();
        assert_eq!(shut.data().await.unwrap().unwrap(), "begun");
        assert_eq!(kept.data().await.unwrap().unwrap(), "begun");
        shut_upload.send_data("up".into(), false).unwrap();

        policy.send(Ok(only_open_paths())).unwrap();
        let error = shut.data().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::INADEQUATE_SECURITY));
        let (mut request, _body) = shut_call.unwrap();
        while let Some(Ok(_)) = request.body_mut().data().await {}
        assert_eq!(terminated(&scene), 1);

        let (mut request, mut body) = kept_call.unwrap();
        kept_upload.send_data("up".into(), true).unwrap();
        assert_eq!(request.body_mut().data().await.unwrap().unwrap(), "up");
        body.send_data("end".into(), true).unwrap();
        assert_eq!(kept.data().await.unwrap().unwrap(), "end");
        assert!(kept.data().await.is_none());
        assert_eq!(terminated(&scene), 1);
    });
}

#[test]
fn revoked_streams_of_stalled_clients_are_reset() {
    run(async || {
        let (scene, app, client, policy) = allowed().await;
        let mut client = http2(client).await;
        let response = ask(&mut client, get());
        let mut calls = streams(app.accept().await).await;
        let (_, answer) = calls.recv().await.unwrap();
        let mut body = respond(answer);
        body.send_data(vec![0; 1 << 20].into(), false).unwrap();
        let mut unread = response.await.unwrap().unwrap().into_body();
        settle().await;
        policy.send(Ok(deny())).unwrap();
        let reset = std::future::poll_fn(|cx| body.poll_reset(cx)).await;
        // The application receives the reset.
        assert_eq!(reset.unwrap(), Reason::CANCEL);
        while let Some(Ok(data)) = unread.data().await {
            unread.flow_control().release_capacity(data.len()).unwrap();
        }
        assert_eq!(terminated(&scene), 1);
    });
}

#[test]
fn policy_change_without_revocation_ends_nothing() {
    run(async || {
        let (scene, app, mut client, policy) = allowed().await;
        send(&mut client, "GET /open/a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        let (mut app, _) = app.receive().await;
        policy.send(Ok(only_open_paths())).unwrap();
        settle().await;
        send(&mut app, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        let answer = message(&mut client).await;
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        // The policy is in force.
        send(&mut client, "GET /shut/a HTTP/1.1\r\nhost: web\r\n\r\n").await;
        expect(&mut client, 403).await;
        assert_eq!(terminated(&scene), 0);
    });
}

/// The headers were not kept, because no rule matched any when the requests were authorized.
#[test]
fn requests_without_kept_headers_continue_only_if_server_allows_client() {
    for (then, ends) in [(only_with("x-a"), true), (any_with("x-a"), false)] {
        run(async || {
            let (scene, app, mut client, policy) = allowed().await;
            let text = "GET / HTTP/1.1\r\nhost: web\r\nx-a: yes\r\n\r\n";
            send(&mut client, text).await;
            let _served = app.receive().await;
            policy.send(Ok(then.clone())).unwrap();
            settle().await;
            assert_eq!(terminated(&scene), u64::from(ends), "{then:?}");
        });
    }
}

/// The headers were kept, because rules matched headers when the requests were authorized.
#[test]
fn requests_with_kept_headers_are_authorized_again() {
    for (then, ends) in [(only_with("x-b"), true), (only_with("x-c"), false)] {
        run(async || {
            let (scene, app, mut client, policy) = allowed().await;
            policy.send(Ok(only_with("x-a"))).unwrap();
            settle().await;
            let headers = "host: web\r\nx-a: yes\r\nx-c: yes\r\n";
            send(&mut client, &format!("GET / HTTP/1.1\r\n{headers}\r\n")).await;
            let _served = app.receive().await;
            policy.send(Ok(then.clone())).unwrap();
            settle().await;
            assert_eq!(terminated(&scene), u64::from(ends), "{then:?}");
        });
    }
}

/// The tunnel outlives its connection, and keeps the policy of its port watched.
#[test]
fn long_lived_tunnel_is_closed_on_revocation() {
    run(async || {
        let (_scene, app, mut client, policy) = allowed().await;
        let text = "CONNECT web:80 HTTP/1.1\r\nhost: web:80\r\n\r\n";
        send(&mut client, text).await;
        let (mut app, _) = app.receive().await;
        send(&mut app, "HTTP/1.1 200 OK\r\n\r\n").await;
        head(&mut client).await;
        for _ in 0..20 {
            advance(Duration::from_secs(30)).await;
            settle().await;
        }
        policy.send(Ok(deny())).unwrap();
        assert_eq!(rest(&mut client).await, "");
        assert_eq!(rest(&mut app).await, "");
    });
}
