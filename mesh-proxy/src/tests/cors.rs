//! The filter CORS: preflight requests, the headers of other responses, and what applications set.

use std::sync::Arc;

use mesh_core::route::cors::{Cors, CorsSettings};
use mesh_core::route::filter::{Filter, HeaderModifier};

use super::answers::{Answers, detect, first, forward, http_route};
use super::app::{App, expect, send};
use super::world::{Proxy, WEB, World, run};

/// Allows `https://*.example` to send `PUT`.
fn filter() -> Filter {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let settings = CorsSettings {
        allow_origins: texts(&["https://*.example"]),
        allow_methods: texts(&["PUT"]),
        expose_headers: texts(&["x-count"]),
        max_age: 60,
        ..CorsSettings::default()
    };
    Filter::Cors(Arc::new(Cors::new(settings).unwrap()))
}

async fn proxied(app: &App, filters: Vec<Filter>) -> (World, Answers, Proxy) {
    let (world, answers) = Answers::start().await;
    let route = http_route("shared", &[], filters, first(forward(app.addr)));
    answers.policy(app.addr, detect(vec![route], None));
    let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
    (world, answers, proxy)
}

#[test]
fn preflight_request_is_answered_by_the_proxy() {
    run(async || {
        let app = App::start().await;
        let (_world, _answers, proxy) = proxied(&app, vec![filter()]).await;
        let mut client = proxy.outbound(app.addr).await;
        for (origin, is_allowed) in [("https://a.example", true), ("https://a.test", false)] {
            let request = format!(
                "OPTIONS /a HTTP/1.1\r\nhost: web\r\norigin: {origin}\r\n\
                 access-control-request-method: PUT\r\n\r\n"
            );
            send(&mut client, &request).await;
            let response = expect(&mut client, 200).await;
            assert!(response.contains("vary: origin\r\n"), "{response}");
            assert!(!response.contains("l5d-proxy-error"), "{response}");
            for allowed in [
                &*format!("access-control-allow-origin: {origin}\r\n"),
                "access-control-allow-methods: PUT\r\n",
                "access-control-max-age: 60\r\n",
            ] {
                assert_eq!(response.contains(allowed), is_allowed, "{response}");
            }
        }
        // Neither reached the application, nor counts as an error.
        let family = "outbound_http_route_request_statuses_total{";
        assert_eq!(proxy.metric(family), 2);
        assert_eq!(proxy.metric("outbound_http_errors_total"), 0);
    });
}

#[test]
fn response_to_an_allowed_origin_has_headers_in_place_of_those_of_the_application() {
    run(async || {
        let app = App::start().await;
        let modifier = HeaderModifier {
            remove: vec!["x-internal".parse().unwrap()],
            ..HeaderModifier::default()
        };
        let filters = vec![filter(), Filter::ResponseHeaders(modifier)];
        let (_world, _answers, proxy) = proxied(&app, filters).await;
        let mut client = proxy.outbound(app.addr).await;
        let mut server = None;
        let own = "access-control-allow-origin: https://own.test\r\n";
        for (request, expected) in [
            (
                "PUT / HTTP/1.1\r\nhost: web\r\norigin: https://a.example\r\ncontent-length: 0\r\n\r\n",
                "access-control-allow-origin: https://a.example\r\n",
            ),
            // `OPTIONS` without the method of another request is not a preflight request.
            (
                "OPTIONS / HTTP/1.1\r\nhost: web\r\norigin: https://a.example\r\n\r\n",
                "access-control-allow-origin: https://a.example\r\n",
            ),
            (
                "PUT / HTTP/1.1\r\nhost: web\r\norigin: https://a.test\r\ncontent-length: 0\r\n\r\n",
                own,
            ),
            ("GET / HTTP/1.1\r\nhost: web\r\n\r\n", own),
        ] {
            send(&mut client, request).await;
            let mut connection = match server.take() {
                Some(connection) => connection,
                None => app.accept().await,
            };
            let received = super::app::message(&mut connection).await;
            assert!(received.starts_with(&request[..4]), "{received}");
            let response = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-internal: 1\r\nvary: accept\r\n{own}\r\n"
            );
            send(&mut connection, &response).await;
            server = Some(connection);
            let response = expect(&mut client, 200).await;
            assert!(response.contains(expected), "{request} {response}");
            let origins = response.matches("access-control-allow-origin").count();
            assert_eq!(origins, 1, "{response}");
            let exposed = response.contains("access-control-expose-headers: x-count\r\n");
            assert_eq!(exposed, expected != own, "{response}");
            assert!(response.contains("vary: accept\r\n"), "{response}");
            let varies = response.contains("vary: origin\r\n");
            assert_eq!(varies, request.contains("origin: "), "{response}");
            assert!(!response.contains("x-internal"), "{response}");
        }
    });
}
