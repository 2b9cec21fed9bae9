//! Bounds of the state that unauthorized clients can create, with server names and ports of their
//! choice.

use std::collections::BTreeSet;

use mesh_core::meta::Meta;
use mesh_core::policy::outbound::{
    Distribution, OutboundPolicy, OutboundProtocol, TcpVerdict, TlsRoute,
};
use mesh_runtime::metrics::{MAX_IDENTITIES, MAX_OUTSIDE, OTHER};
use mesh_test_support::tls::client_hello;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::spawn_local;

use super::app::{self, App, expect};
use super::world::{POD, Proxy, WEB, World, run, while_time_passes};
use crate::inbound::MAX_SNI_ENFORCERS;

/// Sends bytes to a port of the pod, and waits until the proxy has closed.
async fn send(proxy: &Proxy, port: u16, bytes: &[u8]) {
    let mut tcp = proxy.inbound((POD, port).into()).await;
    tcp.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A close or a reset: both mean that the connection was refused.
    let _closed = while_time_passes(tcp.read_to_end(&mut answer)).await;
    assert_eq!(answer, b"");
}

/// The values of a label of one family.
fn values(proxy: &Proxy, family: &str, label: &str) -> BTreeSet<String> {
    let text = String::from_utf8(proxy.registry.encode()).unwrap();
    let begin = format!("{label}=\"");
    let of_line = |line: &str| {
        let (_, value) = line.split_once(&begin)?;
        Some(value.split_once('"')?.0.to_owned())
    };
    let lines = text.lines().filter(|line| line.starts_with(family));
    lines.filter_map(of_line).collect()
}

#[test]
fn series_of_client_server_names_are_bounded() {
    run(async || {
        let world = World::new().await;
        let changes = [
            ("INBOUND_DEFAULT_POLICY", Some("deny")),
            ("INBOUND_PORTS", Some("443")),
        ];
        let proxy = world.proxy_with(WEB, &changes);
        let count = MAX_SNI_ENFORCERS + 200;
        for n in 0..count {
            let name = format!("{n}.{}.{}.test", "a".repeat(60), "b".repeat(60));
            send(&proxy, 443, &client_hello(&name)).await;
        }
        for family in [
            "tcp_open_total",
            "tcp_close_total",
            "inbound_tcp_authz_deny_total",
        ] {
            let names = values(&proxy, family, "sni");
            assert_eq!(names.len(), MAX_OUTSIDE + 1, "{family}");
            assert!(names.contains(OTHER), "{family}");
            assert_eq!(
                proxy.metric(&format!("{family}{{")),
                count as u64,
                "every connection is counted"
            );
        }
        assert!(proxy.registry.encode().len() < 2 << 20);
        assert!(proxy.enforcers() <= MAX_SNI_ENFORCERS + 2);
        // Invalid names are treated as absent.
        let before = values(&proxy, "tcp_open_total", "sni");
        send(&proxy, 443, &client_hello(&"a.".repeat(30_000))).await;
        send(&proxy, 443, &client_hello("not a name")).await;
        let mut after = values(&proxy, "tcp_open_total", "sni");
        assert!(after.remove(""));
        assert_eq!(after, before);
    });
}

#[test]
fn series_of_undeclared_ports_are_bounded() {
    run(async || {
        let world = World::new().await;
        let changes = [
            ("INBOUND_DEFAULT_POLICY", Some("deny")),
            ("INBOUND_PORTS", Some("80")),
        ];
        let proxy = world.proxy_with(WEB, &changes);
        for n in 0..MAX_OUTSIDE as u16 + 50 {
            send(&proxy, 10_000 + n, b"hello\r\n").await;
        }
        send(&proxy, 80, b"hello\r\n").await;
        for family in ["tcp_open_total", "inbound_tcp_authz_deny_total"] {
            let ports = values(&proxy, family, "target_port");
            assert_eq!(ports.len(), MAX_OUTSIDE + 2, "{family}");
            assert!(ports.contains("80") && ports.contains(OTHER), "{family}");
        }
    });
}

/// A tenant has any number of identities, one for each ServiceAccount.
#[test]
fn series_of_client_identities_are_bounded() {
    run(async || {
        let world = World::new().await;
        let changes = [
            ("INBOUND_DEFAULT_POLICY", Some("deny")),
            ("INBOUND_PORTS", Some("9,80")),
        ];
        let proxy = world.proxy_with(WEB, &changes);
        let connect = async |name: &str| {
            let tcp = proxy.inbound((POD, 80).into()).await;
            let mut client = world.connected_as(name, tcp).await;
            client.write_all(b"\0hello").await.unwrap();
            let ended = client.read_to_end(&mut Vec::new()).await;
            assert!(ended.is_err(), "{name} is refused");
        };
        connect("first.tenant.test").await;
        let _clients = proxy.hold_enforcers(MAX_IDENTITIES - 1);
        for name in [
            "first.tenant.test",
            "second.tenant.test",
            "third.tenant.test",
        ] {
            connect(name).await;
        }
        for family in ["tcp_open_total", "tcp_read_bytes_total"] {
            let identities = values(&proxy, family, "client_id");
            assert_eq!(identities.len(), MAX_IDENTITIES + 1, "{family}");
            for name in ["first.tenant.test", OTHER] {
                assert!(identities.contains(name), "{family}: {name}");
            }
        }
        assert_eq!(
            proxy.metric("tcp_open_total{"),
            4,
            "every connection is counted"
        );
        assert_eq!(proxy.metric("inbound_tcp_authz_deny_total"), 4);
    });
}

/// With the label enabled, and authorized clients.
#[test]
fn series_of_request_authorities_are_bounded() {
    run(async || {
        let world = World::new().await;
        let changes = [("INBOUND_METRICS_AUTHORITY_LABELS", Some("unsafe"))];
        let proxy = world.proxy_with(WEB, &changes);
        let app = App::start().await.named("web");
        let mut client = proxy.inbound(app).await;
        let mut get = async |host: &str| {
            let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
            app::send(&mut client, &request).await;
            expect(&mut client, 200).await;
        };
        // Neither a name nor an address.
        get("a..b").await;
        assert_eq!(
            values(&proxy, "request_total", "authority"),
            [OTHER.to_owned()].into()
        );
        for n in 0..MAX_OUTSIDE + 50 {
            get(&format!("{n}.test")).await;
        }
        let authorities = values(&proxy, "request_total", "authority");
        assert!(authorities.len() <= MAX_OUTSIDE + 1);
        assert!(authorities.contains("0.test") && authorities.contains(OTHER));
    });
}

/// The application chooses the names, possibly on behalf of its own clients.
#[test]
fn series_of_tls_route_server_names_are_bounded() {
    run(async || {
        let (world, mut control) = World::scripted().await;
        let no_profiles = ("DESTINATION_PROFILE_NETWORKS", Some(""));
        let proxy = world.proxy_with(WEB, &[no_profiles]);
        let route = TlsRoute {
            meta: Meta::new_default("any"),
            snis: Vec::new(),
            backends: Distribution::Empty,
            verdict: TcpVerdict::Forward,
        };
        let policy = OutboundPolicy {
            parent: Meta::new_default("egress"),
            protocol: OutboundProtocol::Tls(vec![route]),
        };
        let policies = spawn_local(async move {
            let policies = control.outbound.recv().await.unwrap().stream();
            let policy = mesh_api::outbound::extended_to_proto(&policy);
            policies.send(Ok(policy)).unwrap();
            (policies, control)
        });
        for n in 0..MAX_OUTSIDE + 50 {
            let mut tcp = proxy.outbound(([10, 0, 0, 7], 443).into()).await;
            tcp.write_all(&client_hello(&format!("{n}.test")))
                .await
                .unwrap();
            let _closed = tcp.read_to_end(&mut Vec::new()).await;
        }
        drop(policies.await.unwrap());
        for family in [
            "outbound_tls_route_open_total",
            "outbound_tls_route_close_total",
        ] {
            let names = values(&proxy, family, "hostname");
            assert_eq!(names.len(), MAX_OUTSIDE + 1, "{family}");
            assert!(names.contains(OTHER), "{family}");
        }
    });
}
