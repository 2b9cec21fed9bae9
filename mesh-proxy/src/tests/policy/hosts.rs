//! Requests are authorized and routed by the one authority that the application reads, wherever a
//! request names it.

use http::Request;
use mesh_api::proto::inbound::Server;
use mesh_core::meta::Meta;
use mesh_core::policy::inbound::{
    DefaultPolicy, HttpServer, InboundRule, ServerProtocol, default_http_route,
};
use mesh_core::route::HostMatch;
use mesh_core::route::http::{HttpMatch, PathMatch};
use tokio::net::TcpStream;

use super::*;
use crate::tests::app::{Calls, Pending, ask, expect, http2, message, send, status_of, streams};

/// Allows only requests for the host `open`.
fn only_open() -> Server {
    only(None)
}

/// The same, with a match of the path.
fn only(path: Option<PathMatch>) -> Server {
    let policy = DefaultPolicy::AllUnauthenticated;
    let mut policy = policy.server_policy(&[], Duration::from_secs(10), false);
    let mut route = default_http_route();
    route.meta = Meta::new_default("open");
    route.hosts = vec![HostMatch::Exact("open".into())];
    for rule in &mut route.rules {
        rule.matches = vec![HttpMatch {
            path: path.clone(),
            ..HttpMatch::default()
        }];
        rule.action = InboundRule {
            authorizations: policy.authorizations.clone(),
            ..InboundRule::default()
        };
    }
    policy.protocol = ServerProtocol::Detect {
        timeout: Duration::from_secs(10),
        http: HttpServer {
            routes: vec![route],
            rate_limit: None,
        },
    };
    policy.authorizations = [].into();
    mesh_api::inbound::to_proto(&policy)
}

/// The policy is in force from the first connection on.
async fn guarded(app: SocketAddr) -> (Scene, MessageSender<Server>) {
    guarded_by(app, only_open()).await
}

async fn guarded_by(app: SocketAddr, server: Server) -> (Scene, MessageSender<Server>) {
    let mut scene = Scene::new(app).await;
    drop(scene.proxy.inbound(app).await);
    let policy = scene.asked().await;
    policy.send(Ok(server)).unwrap();
    (scene, policy)
}

/// The application may read such a target differently than the rules.
#[test]
fn target_beyond_the_syntax_of_uris_matches_no_rule_where_rules_match_paths() {
    for (path, matches_paths, status) in [
        ("/open", true, 200),
        ("/open<", true, 404),
        ("/open?<", true, 404),
        ("/open<", false, 200),
    ] {
        run(async || {
            let app = App::start().await.named("web");
            let prefix = matches_paths.then(|| PathMatch::Prefix("/open".to_owned()));
            let (scene, _policy) = guarded_by(app, only(prefix)).await;
            let mut client = scene.proxy.inbound(app).await;
            send(
                &mut client,
                &format!("GET {path} HTTP/1.1\r\nhost: open\r\n\r\n"),
            )
            .await;
            expect(&mut client, status).await;
        });
    }
}

const ABSOLUTE: &str = "GET http://open/ HTTP/1.1\r\nhost: shut\r\n\r\n";
const USER: &str = "GET http://shut@open/ HTTP/1.1\r\nhost: open\r\n\r\n";
const TWO_HOSTS: &str = "GET / HTTP/1.1\r\nhost: open\r\nhost: open\r\n\r\n";

/// The host in an HTTP/1 request, and what the application reads or how the request is refused.
const HTTP1: [(&str, Result<&str, u16>); 13] = [
    ("GET / HTTP/1.1\r\nhost: open\r\n\r\n", Ok("host: open\r\n")),
    ("GET / HTTP/1.1\r\nhost: shut\r\n\r\n", Err(404)),
    (ABSOLUTE, Ok("GET http://open/ HTTP/1.1\r\nhost: open\r\n")),
    ("GET http://shut/ HTTP/1.1\r\nhost: open\r\n\r\n", Err(404)),
    (USER, Err(400)),
    (TWO_HOSTS, Err(400)),
    ("GET / HTTP/1.1\r\nhost: shut@open\r\n\r\n", Err(400)),
    ("GET / HTTP/1.1\r\nhost: o pen\r\n\r\n", Err(400)),
    ("GET / HTTP/1.1\r\nhost: open:shut\r\n\r\n", Err(400)),
    (
        "GET http://open:shut/ HTTP/1.1\r\nhost: open\r\n\r\n",
        Err(400),
    ),
    ("GET http://:80/ HTTP/1.1\r\nhost: open\r\n\r\n", Err(400)),
    ("GET / HTTP/1.0\r\n\r\n", Err(404)),
    (
        "GET http://open/ HTTP/1.0\r\n\r\n",
        Ok("GET http://open/ HTTP/1.0\r\n"),
    ),
];

#[test]
fn http1_is_authorized_by_host_the_application_reads() {
    for (request, expected) in HTTP1 {
        run(async || {
            let app = App::start().await;
            let (scene, _policy) = guarded(app.addr).await;
            let mut client = scene.proxy.inbound(app.addr).await;
            send(&mut client, request).await;
            check_http1(&mut client, &app, request, expected).await;
        });
    }
}

async fn check_http1(
    client: &mut TcpStream,
    app: &App,
    request: &str,
    expected: Result<&str, u16>,
) {
    match expected {
        Ok(read) => {
            let forwarded = app.receive().await.1;
            assert!(forwarded.contains(read), "{request}: {forwarded}");
        }
        Err(status) => {
            let answer = message(client).await.replace("HTTP/1.0", "HTTP/1.1");
            let line = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&line), "{request}: {answer}");
        }
    }
}

/// `:authority` and every `host`, and what the application reads or how the request is refused.
type Named = (&'static str, &'static [&'static str]);

const HTTP2: [(Named, Result<Named, u16>); 9] = [
    (("open", &[]), Ok(("open", &[]))),
    (("open", &["open"]), Ok(("open", &["open"]))),
    (("open", &["shut"]), Ok(("open", &["open"]))),
    (("shut", &["open"]), Err(404)),
    (("open", &["open", "shut"]), Err(400)),
    (("open", &["open", "open"]), Err(400)),
    (("shut@open", &[]), Err(400)),
    ((":80", &["open"]), Err(400)),
    (("shut", &[]), Err(404)),
];

fn named((authority, hosts): Named) -> Request<()> {
    let mut request = Request::get(format!("http://{authority}/"));
    for host in hosts {
        request = request.header("host", *host);
    }
    request.body(()).unwrap()
}

fn names(request: &Request<h2::RecvStream>) -> (String, Vec<&str>) {
    let hosts = request.headers().get_all("host").iter();
    let authority = request.uri().authority().unwrap().to_string();
    let hosts = hosts.map(|host| host.to_str().unwrap());
    (authority, hosts.collect())
}

#[test]
fn http2_is_authorized_by_authority_the_application_reads() {
    for (request, expected) in HTTP2 {
        run(async || {
            let app = App::start().await;
            let (scene, _policy) = guarded(app.addr).await;
            let mut client = http2(scene.proxy.inbound(app.addr).await).await;
            let asking = ask(&mut client, named(request));
            check_http2(asking, &app, request, expected).await;
        });
    }
}

/// Without `:authority`, which requests that were HTTP/1 may lack.
#[test]
fn http2_without_authority_is_authorized_by_host() {
    let cases: [(&[&str], Result<(), u16>); 6] = [
        (&["open"], Ok(())),
        (&["shut"], Err(404)),
        (&["open", "shut"], Err(400)),
        (&["shut@open"], Err(400)),
        (&["o pen"], Err(400)),
        (&[""], Err(404)),
    ];
    for (hosts, expected) in cases {
        run(async || {
            let app = App::start().await;
            let (scene, _policy) = guarded(app.addr).await;
            let mut client = http2(scene.proxy.inbound(app.addr).await).await;
            let mut request = Request::get("/");
            for host in hosts {
                request = request.header("host", *host);
            }
            let request = request.body(()).unwrap();
            let asking = ask(&mut client, request);
            match expected {
                Ok(()) => {
                    let mut calls: Calls = streams(app.accept().await).await;
                    let (forwarded, _answer) = calls.recv().await.unwrap();
                    assert_eq!(names(&forwarded).0, "open", "{hosts:?}");
                }
                Err(status) => {
                    assert_eq!(status_of(asking).await, status, "{hosts:?}");
                }
            }
        });
    }
}

async fn check_http2(asking: Pending, app: &App, request: Named, expected: Result<Named, u16>) {
    match expected {
        Ok((authority, hosts)) => {
            let mut calls: Calls = streams(app.accept().await).await;
            let (forwarded, _answer) = calls.recv().await.unwrap();
            let read = names(&forwarded);
            assert_eq!(read, (authority.to_owned(), hosts.to_vec()), "{request:?}");
        }
        Err(status) => {
            assert_eq!(status_of(asking).await, status, "{request:?}");
        }
    }
}

#[test]
fn upgraded_http1_is_authorized_by_host_the_application_reads() {
    let origin = "HTTP/1.1";
    let absolute = "HTTP/1.1; absolute-form";
    let absolute_line = "GET http://open/ HTTP/1.1\r\n";
    let cases: [(&str, Named, Result<&str, u16>); 7] = [
        (origin, ("open", &["open"]), Ok("GET / HTTP/1.1\r\n")),
        (origin, ("open", &["shut"]), Ok("GET / HTTP/1.1\r\n")),
        (origin, ("shut", &["open"]), Err(404)),
        // The application would not receive it.
        (origin, ("open", &[]), Err(404)),
        (origin, ("open", &[""]), Err(404)),
        (absolute, ("open", &["shut"]), Ok(absolute_line)),
        (absolute, ("open", &["open", "open"]), Err(400)),
    ];
    for (was, request, expected) in cases {
        run(async || {
            let app = App::start().await;
            let (scene, _policy) = guarded(app.addr).await;
            let tcp = scene.proxy.inbound(app.addr).await;
            let mut client = http2(scene.world.connected(tcp).await).await;
            let mut carried = named(request);
            let was = was.parse().unwrap();
            carried.headers_mut().insert("l5d-orig-proto", was);
            let asking = ask(&mut client, carried);
            match expected {
                Ok(read) => {
                    let forwarded = app.receive().await.1;
                    let is_restored =
                        forwarded.starts_with(read) && forwarded.contains("host: open\r\n");
                    assert!(is_restored, "{request:?}: {forwarded}");
                }
                Err(status) => {
                    assert_eq!(status_of(asking).await, status, "{request:?}");
                }
            }
        });
    }
}

/// Outbound requests are routed by the host that is forwarded.
#[test]
fn outbound_requests_have_one_host() {
    for (request, expected) in HTTP1 {
        // Outbound requests are not authorized.
        let expected = match expected {
            Err(404) => continue,
            expected => expected,
        };
        run(async || {
            let world = World::new().await;
            let app = App::start().await;
            let proxy = world.proxy(WEB);
            let mut client = proxy.outbound(app.addr).await;
            send(&mut client, request).await;
            check_http1(&mut client, &app, request, expected).await;
        });
    }
    for (request, expected) in HTTP2 {
        if expected == Err(404) {
            continue;
        }
        run(async || {
            let world = World::new().await;
            let app = App::start().await;
            let proxy = world.proxy(WEB);
            let mut client = http2(proxy.outbound(app.addr).await).await;
            let asking = ask(&mut client, named(request));
            check_http2(asking, &app, request, expected).await;
        });
    }
}
