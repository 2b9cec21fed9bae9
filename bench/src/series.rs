//! `mesh-bench series`: the series of the proxies of many pods, for one Prometheus. They have the
//! form that they have after relabelling, with a proxy's labels: the metrics API queries that form.
//!
//! Every counter grows with the time since the start, by an amount that differs between pods.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::{print_error, print_event};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    population: Population,
}

/// Deployments with pods of the same number each.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Population {
    /// Number of Deployments
    #[arg(long)]
    pub(crate) workloads: u32,
    /// Pods of each Deployment
    #[arg(long)]
    pub(crate) pods: u32,
}

pub(crate) const NAMESPACE: &str = "shop";

/// The bounds of the latency histograms of proxies, which are Linkerd's.
#[rustfmt::skip] // a table
const BUCKETS: [u32; 25] = [
    1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100, 200, 300, 400, 500,
    1_000, 2_000, 3_000, 4_000, 5_000, 10_000, 20_000, 30_000, 40_000, 50_000,
];
/// The share of the requests that a bucket and those below it have, in percent: half of them take
/// less than 5 ms, all less than 100 ms.
const BELOW: [u32; 10] = [5, 15, 30, 40, 50, 70, 85, 93, 97, 99];

/// Larger than the request of a scrape.
const REQUEST: usize = 8192;

/// Returns the name of a Deployment.
pub(crate) fn workload_name(workload: u32) -> String {
    format!("web-{workload}")
}

/// Returns the name of a pod of a Deployment.
pub(crate) fn pod_name(workload: u32, pod: u32) -> String {
    format!("{}-7d9c6b5f4-{pod:05}", workload_name(workload))
}

/// Serves until the process exits. Prometheus makes one scrape at a time.
pub(crate) fn serve(options: &Options) -> anyhow::Result<()> {
    let listener = TcpListener::bind(options.listen)
        .with_context(|| format!("listen on {}", options.listen))?;
    print_event(&json!({ "listening": options.listen.to_string() }))?;
    let begun = Instant::now();
    for tcp in listener.incoming() {
        let tcp = tcp.context("accept a scrape")?;
        if let Err(error) = respond(tcp, options.population, begun.elapsed()) {
            print_error(&error.context("respond to a scrape"));
        }
    }
    Ok(())
}

fn respond(mut tcp: TcpStream, population: Population, age: Duration) -> anyhow::Result<()> {
    // Prometheus sends a request in one segment.
    let _length = tcp.read(&mut [0; REQUEST])?;
    let body = exposition(population, age);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\nconnection: close";
    write!(tcp, "{head}\r\ncontent-length: {}\r\n\r\n", body.len())?;
    tcp.write_all(body.as_bytes())?;
    Ok(())
}

/// Returns the series of all pods.
fn exposition(population: Population, age: Duration) -> String {
    let mut text = String::new();
    for workload in 0..population.workloads {
        for pod in 0..population.pods {
            // One to twenty requests a second.
            let requests = age.as_millis() as u64 * u64::from(1 + (workload + pod) % 20) / 1000;
            for direction in ["inbound", "outbound"] {
                let labels = labels(workload, pod, direction);
                pod_series(&mut text, &labels, direction, requests);
            }
        }
    }
    text
}

fn labels(workload: u32, pod: u32, direction: &str) -> String {
    let name = workload_name(workload);
    let (peer, server) = match direction {
        "inbound" => (
            "client_id",
            "srv_group=\"\",srv_kind=\"default\",srv_name=\"all-unauthenticated\"",
        ),
        _ => (
            "server_id",
            "dst_namespace=\"shop\",dst_deployment=\"web-0\",dst_service=\"web-0\"",
        ),
    };
    format!(
        "namespace=\"{NAMESPACE}\",deployment=\"{name}\",pod=\"{}\",control_plane_ns=\"linkerd\",workload_ns=\"{NAMESPACE}\",serviceaccount=\"{name}\",direction=\"{direction}\",tls=\"true\",{peer}=\"{name}.{NAMESPACE}.serviceaccount.identity.linkerd.cluster.local\",{server}",
        pod_name(workload, pod)
    )
}

/// Appends the series of one direction of a proxy.
fn pod_series(text: &mut String, labels: &str, direction: &str, requests: u64) {
    let peer = match direction {
        "inbound" => "src",
        _ => "dst",
    };
    // Writing to a string does not fail.
    let mut line = |metric: &str, more: &str, value: u64| {
        let _written = writeln!(text, "{metric}{{{labels}{more}}} {value}");
    };
    let target = ",authority=\"web.shop.svc.cluster.local:8080\",target_addr=\"10.0.0.1:8080\"";
    let response = format!(
        "{target},status_code=\"200\",classification=\"success\",grpc_status=\"\",error=\"\""
    );
    line("request_total", target, requests);
    line("response_total", &response, requests);
    for (index, bound) in BUCKETS.iter().enumerate() {
        let share = BELOW.get(index).copied().unwrap_or(100);
        let bucket = format!("{target},status_code=\"200\",le=\"{bound}\"");
        line(
            "response_latency_ms_bucket",
            &bucket,
            requests * u64::from(share) / 100,
        );
    }
    let all = format!("{target},status_code=\"200\",le=\"+Inf\"");
    line("response_latency_ms_bucket", &all, requests);
    let latency = format!("{target},status_code=\"200\"");
    line("response_latency_ms_sum", &latency, requests * 8);
    line("response_latency_ms_count", &latency, requests);
    let connection = format!(",peer=\"{peer}\"");
    line("tcp_open_connections", &connection, 3);
    line("tcp_open_total", &connection, requests / 100);
    line("tcp_read_bytes_total", &connection, requests * 100);
    line("tcp_write_bytes_total", &connection, requests * 200);
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_pod_has_its_series_in_both_directions() {
        let population = Population {
            workloads: 3,
            pods: 2,
        };
        let text = exposition(population, Duration::from_secs(10));
        let series: HashSet<&str> = text
            .lines()
            .filter_map(|line| Some(line.rsplit_once(' ')?.0))
            .collect();
        assert_eq!(series.len(), text.lines().count(), "no series twice");
        assert_eq!(series.len(), 3 * 2 * 2 * (BUCKETS.len() + 9));
        let pod = format!("pod=\"{}\"", pod_name(2, 1));
        let of_pod = |line: &&str| line.starts_with("response_total{") && line.contains(&pod);
        let lines: Vec<&str> = text.lines().filter(of_pod).collect();
        assert_eq!(lines.len(), 2);
        // Workload 2, pod 1: four requests a second.
        assert!(lines.iter().all(|line| line.ends_with(" 40")), "{lines:?}");
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let population = Population {
            workloads: 1,
            pods: 1,
        };
        let text = exposition(population, Duration::from_secs(1000));
        let buckets = text.lines().filter(|line| {
            line.starts_with("response_latency_ms_bucket{") && line.contains("\"inbound\"")
        });
        let counts: Vec<u64> = buckets
            .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
            .collect();
        assert_eq!(counts.len(), BUCKETS.len() + 1);
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!(counts.last(), Some(&1000));
    }
}
