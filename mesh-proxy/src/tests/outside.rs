//! Clients that nothing authorizes, and what they can make the proxy remember: server names and
//! ports of their choice.

use std::collections::BTreeSet;

use mesh_runtime::metrics::{MAX_OUTSIDE, OTHER};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::world::{POD, Proxy, WEB, World, run, while_time_passes};
use crate::inbound::MAX_NAMED_JUDGES;

/// Sends bytes to a port of the pod, and waits until the proxy has closed.
async fn send(proxy: &Proxy, port: u16, bytes: &[u8]) {
    let mut tcp = proxy.inbound((POD, port).into()).await;
    tcp.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // An end or a reset: both say that the connection was refused.
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
fn server_names_of_unauthorized_clients_have_a_limited_number_of_series() {
    run(async || {
        let world = World::new().await;
        let changes = [
            ("INBOUND_DEFAULT_POLICY", Some("deny")),
            ("INBOUND_PORTS", Some("443")),
        ];
        let proxy = world.proxy_with(WEB, &changes);
        let count = MAX_NAMED_JUDGES + 200;
        for n in 0..count {
            let name = format!("{n}.{}.{}.test", "a".repeat(60), "b".repeat(60));
            send(&proxy, 443, &hello(&name)).await;
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
        assert!(proxy.judges() <= MAX_NAMED_JUDGES + 2);
        // What cannot be a name is none.
        let before = values(&proxy, "tcp_open_total", "sni");
        send(&proxy, 443, &hello(&"a.".repeat(30_000))).await;
        send(&proxy, 443, &hello("not a name")).await;
        let mut after = values(&proxy, "tcp_open_total", "sni");
        assert!(after.remove(""));
        assert_eq!(after, before);
    });
}

#[test]
fn undeclared_ports_have_a_limited_number_of_series_and_declared_ones_keep_theirs() {
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

/// A ClientHello with this server name and nothing else of interest.
fn hello(name: &str) -> Vec<u8> {
    let prefixed = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let entry = [&[0][..], &prefixed(name.as_bytes())].concat();
    let extensions = [&[0, 0][..], &prefixed(&prefixed(&entry))].concat();
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.push(0);
    body.extend(prefixed(&[0x13, 1]));
    body.extend([1, 0]);
    body.extend(prefixed(&extensions));
    let length = (body.len() as u32).to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    let record = |part: &[u8]| [&[22, 3, 1][..], &prefixed(part)].concat();
    message.chunks(1 << 14).flat_map(record).collect()
}
