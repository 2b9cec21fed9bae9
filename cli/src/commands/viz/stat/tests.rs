//! Tables and JSON of scripted rows.

use super::table::{Layout, render};
use super::*;
use crate::clients::metrics_api::{PolicyObject, Requests, Tcp};

fn row(kind: &str, name: &str) -> StatRow {
    StatRow {
        namespace: "shop".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        ..StatRow::default()
    }
}

fn busy(kind: &str, name: &str) -> StatRow {
    StatRow {
        meshed: 2,
        running: 3,
        requests: Some(Requests {
            success_rate: 0.975,
            rps: 12.34,
            latency_ms_p50: 1,
            latency_ms_p95: 20,
            latency_ms_p99: 300,
        }),
        tcp: Some(Tcp {
            open_connections: 4,
            read_bytes_rate: 1024.0,
            write_bytes_rate: 0.5,
        }),
        ..row(kind, name)
    }
}

const NARROW: Layout = Layout {
    with_namespace: false,
    is_wide: false,
};

#[test]
fn missing_values_are_dashes_and_numbers_are_aligned() {
    let rows = vec![busy("deployment", "web"), row("deployment", "idle")];
    assert_eq!(
        render(rows, NARROW),
        "\
NAME  MESHED  SUCCESS   RPS  LATENCY_P50  LATENCY_P95  LATENCY_P99  TCP_CONN
idle     0/0        -     -            -            -            -         -
web      2/3   97.50%  12.3          1ms         20ms        300ms         4
"
    );
}

#[test]
fn wide_table_has_bytes_and_all_namespaces_their_name() {
    let layout = Layout {
        with_namespace: true,
        is_wide: true,
    };
    let mut pod = busy("pod", "web-0");
    pod.status = "Running".to_owned();
    let text = render(vec![pod], layout);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    assert_eq!(lines[0][..4], ["NAMESPACE", "NAME", "STATUS", "MESHED"]);
    assert_eq!(
        lines[0][9..],
        ["TCP_CONN", "READ_BYTES/SEC", "WRITE_BYTES/SEC"]
    );
    assert_eq!(lines[1][..4], ["shop", "web-0", "Running", "2/3"]);
    assert_eq!(lines[1][9..], ["4", "1024.0", "0.5"]);
}

#[test]
fn each_kind_has_its_table_and_its_columns() {
    let mut server = row("server", "web-http");
    server.unauthorized = Some(1.5);
    let mut route = row("httproute", "get");
    route.unauthorized = Some(0.0);
    route.server = Some(PolicyObject {
        kind: "server".to_owned(),
        name: "web-http".to_owned(),
    });
    let text = render(
        vec![server, route, busy("authority", "web:\u{7}80")],
        NARROW,
    );
    let tables: Vec<Vec<&str>> = text.split("\n\n").map(|it| it.lines().collect()).collect();
    let words = |line: &str| {
        line.split_whitespace()
            .take(3)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let shown: Vec<String> = tables.iter().flatten().map(|line| words(line)).collect();
    assert_eq!(
        shown,
        [
            "NAME UNAUTHORIZED SUCCESS",
            "srv/web-http 1.5 -",
            "NAME SERVER UNAUTHORIZED",
            "httproute/get web-http 0.0",
            "NAME SUCCESS RPS",
            "au/web:\\u{7}80 97.50% 12.3",
        ]
    );
    assert!(!tables[2][0].contains("TCP_CONN"), "{text}");
}

#[test]
fn json_has_keys_of_linkerd() {
    let rows = [busy("deployment", "web"), row("authority", "web:80")];
    let json = serde_json::to_value(json::entries(&rows)).unwrap();
    assert_eq!(
        json,
        serde_json::json!([
            {
                "namespace": "shop",
                "kind": "deployment",
                "name": "web",
                "meshed": "2/3",
                "success": 0.975,
                "rps": 12.34,
                "latency_ms_p50": 1,
                "latency_ms_p95": 20,
                "latency_ms_p99": 300,
                "tcp_open_connections": 4,
                "tcp_read_bytes_rate": 1024.0,
                "tcp_write_bytes_rate": 0.5,
            },
            {
                "namespace": "shop",
                "kind": "authority",
                "name": "web:80",
                "success": null,
                "rps": null,
                "latency_ms_p50": null,
                "latency_ms_p95": null,
                "latency_ms_p99": null,
            },
        ])
    );
}
