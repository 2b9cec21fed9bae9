//! Rates and quantiles of panels, compared with the load generator's.

use mesh_test_support::command::are_installed;
use mesh_test_support::eventually::eventually;
use mesh_test_support::require_root;

use super::dashboards::proxy;
use super::panels::queries;
use crate::harness::mesh::Mesh;
use crate::harness::prometheus::Prometheus;
use crate::mesh::manifests;

/// A delay of the application in milliseconds, each within another bucket of the histogram, and the
/// number of requests with it. The median has the first one, the 95th percentile the second one,
/// the 99th the last one.
const DELAYS: [(u32, u32); 3] = [(14, 60), (140, 36), (700, 4)];

/// Seconds of the range in the place of `$__rate_interval`.
const RANGE: u32 = 60;

/// The instants at which panels are evaluated: every scrape of the last minutes. A slow machine may
/// look at a panel when the requests are no longer in its range.
const INSTANTS: &str = "[5m:250ms]";

#[test]
fn panels_show_the_rates_and_quantiles_of_a_load_generator() {
    require_root!();
    if !are_installed(&["prometheus", "curl", "h2load", "python3"]) {
        return;
    }
    let shop = manifests::namespace("shop", true)
        + &manifests::client("shop")
        + &manifests::sleeper("shop");
    let mesh = Mesh::up(&[("shop.yaml", &shop)]);
    let prometheus = Prometheus::start(&configuration(&mesh));
    // A counter that appears with its first increment has no rate before the next one.
    send(&mesh, 1, 1);
    eventually("the first request is scraped", || {
        let count = r#"sum(response_total{direction="outbound", deployment="client"})"#;
        (prometheus.number(count)? == 1.0).then_some(())
    });

    let mut latencies: Vec<f64> = DELAYS
        .into_iter()
        .flat_map(|(delay, count)| send(&mesh, delay, count))
        .collect();
    latencies.sort_by(f64::total_cmp);
    let requests: u32 = DELAYS.into_iter().map(|(_, count)| count).sum();
    assert_eq!(latencies.len(), requests as usize, "{latencies:?}");

    // The rate is extrapolated to parts of the range that have no samples. The share of these falls
    // with each scrape.
    for (deployment, direction) in [("client", "outbound"), ("sleeper", "inbound")] {
        let panel = Panel {
            prometheus: &prometheus,
            deployment,
            direction,
            requests,
        };
        panel.assert_rate();
        for quantile in [0.5, 0.95, 0.99] {
            panel.assert_quantile(quantile, &latencies);
        }
    }
}

/// Sends requests, one after the other, and returns the latency of each in milliseconds.
fn send(mesh: &Mesh, delay: u32, count: u32) -> Vec<f64> {
    let line =
        format!("h2load --h1 -n {count} -c 1 --log-file=/dev/stdout http://sleeper.shop/{delay}");
    let output = mesh.exec("shop/client", line);
    let latency = |line: &str| {
        let [_start, "204", microseconds] = line.split('\t').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(microseconds.parse::<f64>().ok()? / 1000.0)
    };
    output.lines().filter_map(latency).collect()
}

/// The panels of the dashboard of Deployments, in one direction.
struct Panel<'a> {
    prometheus: &'a Prometheus,
    deployment: &'a str,
    direction: &'a str,
    /// The requests of the load generator.
    requests: u32,
}

impl Panel<'_> {
    /// Returns the query of a panel that begins with these words.
    fn query(&self, title: &str, start: &str) -> String {
        let variables = [
            ("job", ".+"),
            ("namespace", "shop"),
            ("deployment", self.deployment),
        ];
        let direction = format!("direction=\"{}\", target_port", self.direction);
        let mut queries = queries(&variables).into_iter();
        let query = queries.find(|query| {
            let expression = &query.expression;
            query.dashboard == "linkerd-deployment"
                && query.panel == title
                && expression.starts_with(start)
                && expression.contains(&direction)
        });
        query
            .unwrap_or_else(|| panic!("no panel {title} begins with {start}"))
            .expression
    }

    /// Returns an expression with a value at the instants whose range has all requests, by the
    /// counter of the panel.
    fn complete(&self) -> String {
        let rate = self.query("Requests", "sum (rate(request_total{");
        let counter = |offset: &str| {
            let counter = rate.replace("rate(", "(");
            counter.replace("[1m]", offset)
        };
        let (total, before) = (counter(""), counter(&format!(" offset {RANGE}s")));
        // One request was sent before these.
        let sent = self.requests + 1;
        format!("({total} == {sent} unless {before} > 1)")
    }

    /// Asserts that the rate is the number of requests in the range, within 2 %. Prometheus adds up
    /// to one interval between scrapes.
    fn assert_rate(&self) {
        let rate = self.query("Requests", "sum (rate(request_total{");
        let (complete, requests) = (self.complete(), self.requests);
        let matches = format!("abs(({rate}) * {RANGE} / {requests} - 1) <= 0.02 and {complete}");
        eventually(&matches, || {
            self.prometheus
                .number(&format!("count_over_time(({matches}){INSTANTS})"))
        });
    }

    /// Asserts that the quantile is in the bucket of the load generator's own, or in one beside it.
    fn assert_quantile(&self, quantile: f64, sorted: &[f64]) {
        let query = self.query("Latency", &format!("histogram_quantile({quantile}, "));
        let complete = self.complete();
        let query = format!("max_over_time((({query}) and on() {complete}){INSTANTS})");
        let shown = self.prometheus.number(&query).expect("a quantile");
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index of the list"
        )]
        let rank = (quantile * sorted.len() as f64).ceil() as usize;
        let sent = sorted[rank - 1];
        let buckets = self.buckets();
        let bucket = |latency: f64| buckets.iter().filter(|bound| **bound < latency).count();
        assert!(
            bucket(shown).abs_diff(bucket(sent)) <= 1,
            "{query} is {shown} ms, the load generator measured {sent} ms"
        );
    }

    /// Returns the upper bounds of the buckets in milliseconds.
    fn buckets(&self) -> Vec<f64> {
        let bounds = self
            .prometheus
            .query("count by (le) (response_latency_ms_bucket)")
            .expect("the buckets");
        let bounds = bounds
            .iter()
            .filter_map(|bound| bound["metric"]["le"].as_str());
        bounds.filter_map(|bound| bound.parse().ok()).collect()
    }
}

/// Scrapes the two proxies.
fn configuration(mesh: &Mesh) -> String {
    let proxies = ["client", "sleeper"].map(|name| proxy(mesh, name));
    format!(
        "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\nscrape_configs:\n- job_name: linkerd-proxy\n  static_configs: [{}]\n",
        proxies.join(", ")
    )
}
