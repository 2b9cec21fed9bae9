//! The rows as JSON, with Linkerd's keys.

use serde::Serialize;

use super::table::{has_connections, meshed};
use crate::clients::metrics_api::StatRow;

/// A value without requests is null.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
    namespace: &'a str,
    kind: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    meshed: Option<String>,
    success: Option<f64>,
    rps: Option<f64>,
    latency_ms_p50: Option<u64>,
    latency_ms_p95: Option<u64>,
    latency_ms_p99: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_open_connections: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_read_bytes_rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_write_bytes_rate: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unauthorized: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    apex: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaf: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<&'a str>,
}

pub(super) fn entries(rows: &[StatRow]) -> Vec<Entry<'_>> {
    rows.iter().map(Entry::new).collect()
}

impl<'a> Entry<'a> {
    fn new(row: &'a StatRow) -> Self {
        let requests = row.requests;
        let tcp = row.tcp.filter(|_| has_connections(&row.kind));
        let split = row.split.as_ref();
        Self {
            namespace: &row.namespace,
            kind: &row.kind,
            name: &row.name,
            meshed: meshed(row),
            success: requests.map(|it| it.success_rate),
            rps: requests.map(|it| it.rps),
            latency_ms_p50: requests.map(|it| it.latency_ms_p50),
            latency_ms_p95: requests.map(|it| it.latency_ms_p95),
            latency_ms_p99: requests.map(|it| it.latency_ms_p99),
            tcp_open_connections: tcp.map(|tcp| tcp.open_connections),
            tcp_read_bytes_rate: tcp.map(|tcp| tcp.read_bytes_rate),
            tcp_write_bytes_rate: tcp.map(|tcp| tcp.write_bytes_rate),
            server: row.server.as_ref().map(|server| &*server.name),
            unauthorized: row.unauthorized,
            apex: split.map(|split| &*split.apex),
            leaf: split.map(|split| &*split.leaf),
            weight: split.map(|split| &*split.weight),
        }
    }
}
