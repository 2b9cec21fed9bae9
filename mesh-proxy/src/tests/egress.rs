//! HTTP to addresses outside the mesh: routes of an EgressNetwork forward to the original address,
//! or deny.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use http::StatusCode;
use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Distribution, GrpcRoute, GrpcRoutes, HttpRoute, OutboundProtocol, OutboundRule,
};
use mesh_core::resilience::Timeouts;
use mesh_core::route::Rule;
use mesh_core::route::filter::{Filter, Ratio};
use mesh_runtime::metrics::{MAX_OUTSIDE, OTHER};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::answers::{Answers, detect, first, forward, http_route};
use super::app::{App, Client, Speaks, ask, expect, get, head, http2, message, send, status_of};
use super::world::{Proxy, WEB, World, run};

/// The response of a control plane's deny policy.
fn denied() -> Filter {
    Filter::InjectHttpFailure {
        status: StatusCode::FORBIDDEN,
        message: "traffic not allowed".into(),
        ratio: Ratio::ALL,
    }
}

async fn routed(
    dst: SocketAddr,
    protocol: OutboundProtocol,
    vars: &[(&str, &str)],
) -> (World, Answers, Proxy) {
    let (world, answers) = Answers::start().await;
    answers.policy(dst, protocol);
    let vars: Vec<_> = [("DESTINATION_PROFILE_NETWORKS", "")]
        .iter()
        .chain(vars)
        .map(|(name, value)| (*name, Some(*value)))
        .collect();
    let proxy = world.proxy_with(WEB, &vars);
    (world, answers, proxy)
}

fn deny_route(hosts: &[&str]) -> HttpRoute {
    http_route("deny", hosts, vec![denied()], Distribution::Empty)
}

async fn request(client: &mut TcpStream, host: &str) {
    send(client, &format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
}

/// Responds to all requests, and reports the connection and host of each.
fn recording(app: App) -> tokio::sync::mpsc::UnboundedReceiver<(usize, String)> {
    let (record, recorded) = tokio::sync::mpsc::unbounded_channel();
    spawn_local(async move {
        for connection in 0.. {
            let mut tcp = app.accept().await;
            let record = record.clone();
            spawn_local(async move {
                loop {
                    let request = head(&mut tcp).await;
                    let host = request.lines().find_map(|line| line.strip_prefix("host: "));
                    let _ended = record.send((connection, host.unwrap().to_owned()));
                    let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    tcp.write_all(response).await.unwrap();
                }
            });
        }
    });
    recorded
}

#[test]
fn denied_request_is_answered_and_not_forwarded() {
    Speaks::each(async |speaks| {
        let app = App::start().await;
        let (_world, _answers, proxy) =
            routed(app.addr, detect(vec![deny_route(&[])], None), &[]).await;
        let mut client = Client::new(proxy.outbound(app.addr).await, speaks).await;
        for _ in 0..2 {
            assert_eq!(client.get().await, (403, String::new()), "{speaks:?}");
        }
    });
}

#[test]
fn denial_names_its_reason() {
    run(async || {
        let app = App::start().await;
        let (_world, _answers, proxy) =
            routed(app.addr, detect(vec![deny_route(&[])], None), &[]).await;
        let mut client = proxy.outbound(app.addr).await;
        request(&mut client, "a.example").await;
        let response = expect(&mut client, 403).await;
        assert!(response.contains("traffic not allowed"), "{response}");
        let text = String::from_utf8(proxy.registry.encode()).unwrap();
        let statuses = "outbound_http_route_request_statuses_total";
        let mut lines = text.lines().filter(|line| line.starts_with(statuses));
        let line = lines.next().unwrap();
        assert!(
            line.ends_with("http_status=\"403\",error=\"\"} 1"),
            "{line}"
        );
        assert_eq!(lines.next(), None);
    });
}

#[test]
fn denied_grpc_call_has_status_permission_denied() {
    run(async || {
        let app = App::start().await;
        let route = GrpcRoute {
            meta: Meta::new_default("deny"),
            hosts: Vec::new(),
            rules: vec![Rule {
                matches: Vec::new(),
                action: OutboundRule {
                    filters: vec![Filter::InjectGrpcFailure {
                        code: 7,
                        message: "traffic not allowed".into(),
                        ratio: Ratio::ALL,
                    }],
                    backends: first(forward(app.addr)),
                    timeouts: Timeouts::default(),
                    retry: None,
                    allow_request_headers: false,
                },
            }],
        };
        let grpc = OutboundProtocol::Grpc(GrpcRoutes {
            routes: vec![route],
            failure_accrual: None,
        });
        let (_world, _answers, proxy) = routed(app.addr, grpc, &[]).await;
        let mut client = http2(proxy.outbound(app.addr).await).await;
        let call = http::Request::post("http://web/a.Service/Method")
            .header("content-type", "application/grpc")
            .body(())
            .unwrap();
        let response = ask(&mut client, call).await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "7");
        let message = response.headers()["grpc-message"].to_str().unwrap();
        assert!(message.ends_with("traffic not allowed"), "{message}");
        let text = String::from_utf8(proxy.registry.encode()).unwrap();
        let family = "outbound_grpc_route_request_statuses_total{";
        let line = text.lines().find(|line| line.starts_with(family));
        let labels = "grpc_status=\"PERMISSION_DENIED\",error=\"\"} 1";
        assert!(line.is_some_and(|line| line.ends_with(labels)), "{text}");
    });
}

/// One connection of the client, whose requests name hosts of different routes.
#[test]
fn requests_are_routed_by_their_own_host() {
    run(async || {
        let app = App::start().await;
        let dst = app.addr;
        let routes = vec![
            deny_route(&[]),
            http_route("api", &["api.example"], Vec::new(), first(forward(dst))),
            http_route("sub", &["*.cdn.example"], Vec::new(), first(forward(dst))),
        ];
        let (_world, _answers, proxy) = routed(dst, detect(routes, None), &[]).await;
        let mut recorded = recording(app);
        let mut client = proxy.outbound(dst).await;
        for (host, status) in [
            ("other.example", 403),
            ("API.Example", 200),
            ("other.example", 403),
            ("api.example:8080", 200),
            ("cdn.example", 403),
            ("x.y.cdn.example", 200),
        ] {
            request(&mut client, host).await;
            expect(&mut client, status).await;
            if status == 200 {
                assert_eq!(recorded.recv().await.unwrap().1, host);
            }
        }
    });
}

#[test]
fn connections_are_not_shared_between_hosts_of_different_routes() {
    run(async || {
        let app = App::start().await;
        let dst = app.addr;
        let to = || first(forward(dst));
        let routes = vec![
            http_route("a", &["a.example"], Vec::new(), to()),
            http_route("b", &["b.example", "c.example"], Vec::new(), to()),
        ];
        let (_world, _answers, proxy) = routed(dst, detect(routes, None), &[]).await;
        let mut recorded = recording(app);
        let mut client = proxy.outbound(dst).await;
        let mut hosts = std::collections::BTreeMap::<usize, BTreeSet<String>>::new();
        for host in [
            "a.example",
            "b.example",
            "a.example",
            "c.example",
            "b.example",
        ] {
            request(&mut client, host).await;
            expect(&mut client, 200).await;
            let (connection, host) = recorded.recv().await.unwrap();
            hosts.entry(connection).or_default().insert(host);
        }
        let of = |hosts: &[&str]| hosts.iter().map(|host| (*host).to_owned()).collect();
        let expected = [of(&["a.example"]), of(&["b.example", "c.example"])];
        assert_eq!(hosts.into_values().collect::<Vec<_>>(), expected);
    });
}

#[test]
fn changed_route_applies_to_open_connection() {
    run(async || {
        let app = App::start().await;
        let dst = app.addr;
        let allowed = vec![http_route("any", &[], Vec::new(), first(forward(dst)))];
        let (_world, answers, proxy) = routed(dst, detect(allowed, None), &[]).await;
        let mut recorded = recording(app);
        let mut client = proxy.outbound(dst).await;
        request(&mut client, "a.example").await;
        expect(&mut client, 200).await;
        assert_eq!(recorded.recv().await.unwrap().1, "a.example");
        answers.policy(dst, detect(vec![deny_route(&[])], None));
        loop {
            request(&mut client, "a.example").await;
            match &message(&mut client).await[9..12] {
                "200" => assert_eq!(recorded.recv().await.unwrap().1, "a.example"),
                status => break assert_eq!(status, "403"),
            }
        }
    });
}

fn hostnames(proxy: &Proxy) -> BTreeSet<String> {
    let text = String::from_utf8(proxy.registry.encode()).unwrap();
    let lines = text
        .lines()
        .filter(|line| line.starts_with("outbound_http_route_request_statuses_total"));
    let value = |line: &str| {
        let (_, value) = line.split_once("hostname=\"")?;
        Some(value.split_once('"')?.0.to_owned())
    };
    lines.filter_map(value).collect()
}

#[test]
fn hostname_label_is_empty_unless_enabled() {
    run(async || {
        let dst = "10.0.0.7:80".parse().unwrap();
        let (_world, _answers, proxy) = routed(dst, detect(vec![deny_route(&[])], None), &[]).await;
        let mut client = http2(proxy.outbound(dst).await).await;
        assert_eq!(status_of(ask(&mut client, get())).await, 403);
        assert_eq!(hostnames(&proxy), [String::new()].into());
    });
}

#[test]
fn hostname_labels_are_those_of_requests_and_bounded() {
    run(async || {
        let dst = "10.0.0.7:80".parse().unwrap();
        let vars = [("OUTBOUND_METRICS_HOSTNAME_LABELS", "true")];
        let (_world, _answers, proxy) =
            routed(dst, detect(vec![deny_route(&[])], None), &vars).await;
        let mut client = proxy.outbound(dst).await;
        for host in ["API.example", "api.example:8080", "[::1]", "a..b"] {
            request(&mut client, host).await;
            expect(&mut client, 403).await;
        }
        assert_eq!(
            hostnames(&proxy),
            [String::new(), "api.example".to_owned()].into()
        );
        let api = "outbound_http_route_request_statuses_total{";
        assert_eq!(proxy.metric(api), 4);
        for n in 0..MAX_OUTSIDE + 50 {
            request(&mut client, &format!("{n}.example")).await;
            expect(&mut client, 403).await;
        }
        let names = hostnames(&proxy);
        assert!(names.len() <= MAX_OUTSIDE + 2, "{}", names.len());
        assert!(names.contains(OTHER));
        assert_eq!(proxy.metric(api), 4 + MAX_OUTSIDE as u64 + 50);
    });
}
