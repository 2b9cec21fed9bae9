//! Results of known samples, and the bounds of the store.

use std::fmt::Write as _;

use super::super::super::query::{Grouping, Matchers, Quantile, TimeWindow};
use super::*;

fn target(pod: &str) -> Target {
    let labels = [("namespace", "shop"), ("pod", pod), ("deployment", "web")];
    Target {
        pod: Name::new("shop", pod),
        addr: "10.1.0.1:4191".parse().unwrap(),
        labels: labels
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    }
}

fn window() -> TimeWindow {
    TimeWindow::parse("1m").unwrap()
}

/// Returns the values of a result, to six decimals, by the values of its labels.
fn results(store: &Store, query: &Query, now: f64) -> Vec<(String, f64)> {
    let samples = store.query(query, now).unwrap();
    let shown = samples.into_iter().map(|sample| {
        let labels: Vec<String> = sample.labels.into_values().collect();
        (labels.join(" "), (sample.value * 1e6).round() / 1e6)
    });
    shown.collect()
}

fn inbound() -> Matchers {
    Matchers::new()
        .equal("namespace", "shop")
        .equal("direction", "inbound")
}

/// Two proxies that respond to 2 and 1 requests per second. One in ten requests to the first proxy
/// fails.
fn store() -> Store {
    let mut store = Store::default();
    for at in 0..=12 {
        let time = f64::from(at) * 5.0;
        let (ok, failed) = (at * 9, at);
        let first = format!(
            "response_total{{direction=\"inbound\",classification=\"success\"}} {ok}
response_total{{direction=\"inbound\",classification=\"failure\"}} {failed}
response_total{{direction=\"outbound\",classification=\"success\"}} 700
tcp_open_connections{{direction=\"inbound\",peer=\"src\"}} 3
response_latency_ms_bucket{{direction=\"inbound\",le=\"1\"}} {ok}
response_latency_ms_bucket{{direction=\"inbound\",le=\"10\"}} {}
response_latency_ms_bucket{{direction=\"inbound\",le=\"+Inf\"}} {}
process_start_time_seconds 1700000000
request_total{{direction=\"inbound\"}} 7
",
            ok + failed,
            ok + failed,
        );
        let second = format!(
            "response_total{{direction=\"inbound\",classification=\"success\",namespace=\"other\"}} {}
tcp_open_connections{{direction=\"inbound\",peer=\"src\"}} 4
process_start_time_seconds 1700000005
",
            at * 5
        );
        assert_eq!(store.record(&target("web-1"), time, &first), 0);
        assert_eq!(store.record(&target("web-2"), time, &second), 0);
    }
    store
}

#[test]
fn results_are_those_of_the_samples() {
    let store = store();
    let by = Grouping::of(&["deployment", "classification"]);
    let responses = inbound().increase(Family::Responses, &window(), &by);
    // The first sample is at the start of the window, which is not part of it.
    let text = |deployment: &str, class: &str| format!("{class} {deployment}");
    assert_eq!(
        results(&store, &responses, 60.0),
        [
            (text("web", "failure"), 12.0),
            (text("web", "success"), 108.0 + 60.0)
        ]
    );
    let pods = Grouping::of(&["pod"]);
    let open = inbound().sum(Family::OpenConnections, &pods);
    let of_pods = |first, second| [("web-1".to_owned(), first), ("web-2".to_owned(), second)];
    assert_eq!(results(&store, &open, 60.0), of_pods(3.0, 4.0));
    let all = Grouping::of(&["namespace"]);
    let open = inbound().sum(Family::OpenConnections, &all);
    assert_eq!(results(&store, &open, 60.0), [("shop".to_owned(), 7.0)]);
    let started = Matchers::new().max(Family::ProcessStart, &all);
    let latest = 1_700_000_005.0;
    assert_eq!(
        results(&store, &started, 60.0),
        [("shop".to_owned(), latest)]
    );
    // Nine of ten observations are up to 1 ms, the others up to 10 ms.
    for (quantile, expected) in [(Quantile::P50, 0.555_556), (Quantile::P95, 5.5)] {
        let latency = inbound().quantile(quantile, Family::ResponseLatency, &window(), &pods);
        let found = results(&store, &latency, 60.0);
        assert_eq!(found, [("web-1".to_owned(), expected)]);
    }
}

#[test]
fn queries_have_no_samples_outside_of_their_window() {
    let store = store();
    let by = Grouping::of(&["classification"]);
    let short = TimeWindow::parse("15s").unwrap();
    let responses = inbound().increase(Family::Responses, &short, &by);
    let found = results(&store, &responses, 60.0);
    assert_eq!(
        found,
        [("failure".to_owned(), 3.0), ("success".to_owned(), 42.0)]
    );
    assert_eq!(results(&store, &responses, 80.0), []);
}

#[test]
fn proxies_that_are_not_scraped_have_no_current_values() {
    let mut store = store();
    let pods = Grouping::of(&["pod"]);
    let open = inbound().sum(Family::OpenConnections, &pods);
    store.record_failure(&Name::new("shop", "web-1"));
    assert_eq!(results(&store, &open, 60.0), [("web-2".to_owned(), 4.0)]);
    // The pod has gone, but its requests count until the window has passed.
    store.expire(60.0, |_| false);
    assert_eq!(results(&store, &open, 60.0), []);
    let responses = inbound().increase(Family::Responses, &window(), &pods);
    assert_eq!(results(&store, &responses, 60.0).len(), 2);
    // A series that the last scrape does not have has ended.
    store.record(
        &target("web-2"),
        65.0,
        "process_start_time_seconds 1700000005\n",
    );
    assert_eq!(results(&store, &open, 65.0), []);
}

#[test]
fn samples_are_kept_for_the_retention() {
    let mut store = store();
    let len = store.len();
    assert_eq!(len, 11);
    let retention = RETENTION.as_secs_f64();
    store.expire(60.0 + retention - 0.1, |_| true);
    assert_eq!(store.len(), len);
    let points = |store: &Store| {
        let series = store.proxies.values().flat_map(|it| it.series.values());
        series.map(|it| it.points.len()).max()
    };
    assert_eq!(points(&store), Some(1));
    for at in 0..2 * MAX_POINTS {
        let time = 60.0 + at as f64 / 10.0;
        store.record(&target("web-1"), time, "process_start_time_seconds 1\n");
    }
    assert_eq!(points(&store), Some(MAX_POINTS));
    store.expire(60.0 + 2.0 * retention, |_| true);
    assert_eq!((store.len(), store.proxies.len()), (0, 0));
}

/// Returns a scrape with this number of series.
fn scrape(series: usize) -> String {
    let mut text = String::new();
    for at in 0..series {
        writeln!(text, "response_total{{authority=\"{at}\"}} 1").unwrap();
    }
    text
}

#[test]
fn series_of_a_proxy_and_of_all_are_bounded() {
    let mut store = Store::default();
    let full = scrape(MAX_PROXY_SERIES);
    assert_eq!(store.record(&target("web-0"), 0.0, &full), 0);
    let beyond = scrape(MAX_PROXY_SERIES + 2);
    assert_eq!(store.record(&target("web-0"), 5.0, &beyond), 2);
    assert_eq!(store.len(), MAX_PROXY_SERIES);
    let proxies = MAX_SERIES / MAX_PROXY_SERIES;
    for at in 1..proxies {
        assert_eq!(store.record(&target(&format!("web-{at}")), 0.0, &full), 0);
    }
    assert_eq!(store.record(&target("more"), 0.0, &scrape(3)), 3);
    assert_eq!(store.len(), MAX_SERIES);
    // The store still updates the series that it has.
    let by = Grouping::of(&["pod"]);
    let responses = Matchers::new()
        .equal("pod", "web-0")
        .sum(Family::Responses, &by);
    let known = MAX_PROXY_SERIES as f64;
    assert_eq!(
        results(&store, &responses, 5.0),
        [("web-0".to_owned(), known)]
    );
}

#[test]
fn text_of_a_series_is_bounded_and_malformed_ones_are_left_out() {
    let mut store = Store::default();
    let series = |length: usize| {
        let frame = "response_total{a=\"\"}".len();
        format!("response_total{{a=\"{}\"}} 1\n", "x".repeat(length - frame))
    };
    let fits = series(MAX_SERIES_TEXT);
    assert_eq!(store.record(&target("web-1"), 0.0, &fits), 0);
    let long = series(MAX_SERIES_TEXT + 1);
    assert_eq!(store.record(&target("web-1"), 0.0, &long), 1);
    let malformed = "response_total{a} 1\nresponse_total{a=\"1\nresponse_total\n\u{0}\n{} 1\n";
    assert_eq!(store.record(&target("web-1"), 0.0, malformed), 1);
    assert_eq!(store.len(), 1);
}
