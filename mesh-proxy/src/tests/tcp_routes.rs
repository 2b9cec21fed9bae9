//! Opaque connections by the route of their policy.

use std::net::SocketAddr;

use mesh_core::policy::outbound::{BackendTarget, Distribution, OutboundProtocol, TcpVerdict};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;

use super::answers::{Answers, backend, detect, first, forward, service, tcp, weighted};
use super::app::{App, rest};
use super::world::{Proxy, WEB, World, run, while_time_passes};

fn dst() -> SocketAddr {
    "10.0.0.7:5432".parse().unwrap()
}

async fn routed(protocol: OutboundProtocol) -> (World, Answers, Proxy) {
    let (world, answers) = Answers::start().await;
    answers.policy(dst(), protocol);
    let proxy = world.proxy_with(WEB, &[("DESTINATION_PROFILE_NETWORKS", Some(""))]);
    (world, answers, proxy)
}

/// Sends one byte to every client and closes.
fn greeting(app: App, byte: u8) -> SocketAddr {
    let addr = app.addr;
    spawn_local(async move {
        loop {
            let mut tcp = app.accept().await;
            let _closed = tcp.write_all(&[byte]).await;
        }
    });
    addr
}

async fn greeted(proxy: &Proxy) -> String {
    let mut client = proxy.outbound(dst()).await;
    while_time_passes(rest(&mut client)).await
}

#[test]
fn connections_are_split_by_weight() {
    run(async || {
        let split = weighted([(service("often.ns:1"), 90), (service("rare.ns:1"), 10)]);
        let (_world, answers, proxy) = routed(tcp(split, TcpVerdict::Forward)).await;
        answers.endpoints("often.ns:1", &[greeting(App::start().await, b'o')]);
        answers.endpoints("rare.ns:1", &[greeting(App::start().await, b'r')]);
        let mut rare = 0;
        const CONNECTIONS: u32 = 4_000;
        for _ in 0..CONNECTIONS {
            let mut client = proxy.outbound(dst()).await;
            if client.read_u8().await.unwrap() == b'r' {
                rare += 1;
            }
        }
        let share = f64::from(rare) / f64::from(CONNECTIONS);
        // Two per cent are more than four standard deviations.
        assert!((0.08..0.12).contains(&share), "{share}");
    });
}

#[test]
fn connections_use_available_backends_only() {
    run(async || {
        let ordered = Distribution::FirstAvailable(
            ["empty.ns:1", "full.ns:1"]
                .map(|name| std::sync::Arc::new(service(name)))
                .into(),
        );
        let split = weighted([(service("empty.ns:1"), 1000), (service("full.ns:1"), 1)]);
        for backends in [ordered, split] {
            let (_world, answers, proxy) = routed(tcp(backends, TcpVerdict::Forward)).await;
            answers.endpoints("empty.ns:1", &[]);
            answers.endpoints("full.ns:1", &[greeting(App::start().await, b'f')]);
            // The first connection waits for endpoints, until the fail-fast timeout.
            assert_eq!(greeted(&proxy).await, "");
            for _ in 0..20 {
                let mut client = proxy.outbound(dst()).await;
                assert_eq!(client.read_u8().await.unwrap(), b'f');
            }
            let failed = "outbound_tcp_errors_total";
            assert_eq!(proxy.metric(failed), 1);
        }
    });
}

#[test]
fn rejected_connections_close_without_waiting() {
    run(async || {
        let app = App::start().await;
        let mut rejecting = forward(app.addr);
        rejecting.verdict = TcpVerdict::Invalid("port 1 is not defined".into());
        let to_app = || first(forward(app.addr));
        for (protocol, error) in [
            (tcp(Distribution::Empty, TcpVerdict::Forbidden), "forbidden"),
            (tcp(to_app(), TcpVerdict::Forbidden), "forbidden"),
            (
                tcp(to_app(), TcpVerdict::Invalid("bad".into())),
                "invalid_policy",
            ),
            (tcp(first(rejecting), TcpVerdict::Forward), "invalid_policy"),
            (
                tcp(
                    first(backend("none", BackendTarget::None)),
                    TcpVerdict::Forward,
                ),
                "invalid_backend",
            ),
            (tcp(Distribution::Empty, TcpVerdict::Forward), "unexpected"),
        ] {
            let (_world, _answers, proxy) = routed(protocol.clone()).await;
            let mut client = proxy.outbound(dst()).await;
            assert_eq!(rest(&mut client).await, "", "{protocol:?}");
            let text = String::from_utf8(proxy.registry.encode()).unwrap();
            let line = text
                .lines()
                .find(|line| line.starts_with("outbound_tcp_route_close_total"))
                .unwrap();
            assert!(
                line.ends_with(&format!("error=\"{error}\"}} 1")),
                "{protocol:?}: {line}"
            );
            assert_eq!(proxy.metric("outbound_tcp_errors_total"), 1);
        }
    });
}

/// The proxy dials servers that may send first, but none that the policy forbids.
#[test]
fn silent_client_of_forbidden_route_is_counted_once() {
    run(async || {
        let app = App::start().await;
        let OutboundProtocol::Opaque(route) = tcp(first(forward(app.addr)), TcpVerdict::Forbidden)
        else {
            unreachable!()
        };
        let (_world, _answers, proxy) = routed(detect(Vec::new(), route)).await;
        assert_eq!(greeted(&proxy).await, "");
        assert_eq!(proxy.metric("outbound_tcp_route_open_total"), 1);
        assert_eq!(proxy.metric("outbound_tcp_route_close_total"), 1);
        assert_eq!(proxy.metric("outbound_tcp_errors_total"), 1);
    });
}
