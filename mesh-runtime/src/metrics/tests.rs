//! The registry as a whole: the exposition text, and when a series ends.

use std::time::Duration;

use super::labels::Origin;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn text(registry: &Registry) -> String {
    String::from_utf8(registry.encode()).unwrap()
}

#[test]
fn family_prints_label_sets_in_their_own_order() {
    let registry = Registry::new();
    let requests = registry.counter_family("request_total", "Total count of HTTP requests");
    let inbound = requests.with(
        &Labels::new()
            .with("direction", "inbound")
            .with("authority", "a"),
    );
    let outbound = requests.with(&Labels::new().with("direction", "outbound").with("zone", ""));
    inbound.inc();
    outbound.inc_by(2);
    assert_eq!(
        text(&registry),
        "# HELP request_total Total count of HTTP requests\n\
         # TYPE request_total counter\n\
         request_total{direction=\"inbound\",authority=\"a\"} 1\n\
         request_total{direction=\"outbound\",zone=\"\"} 2\n\
         # EOF\n"
    );
}

#[test]
fn values_are_escaped_and_histograms_are_cumulative() {
    let registry = Registry::new();
    let latency = registry.histogram_family("latency_ms", "Latency", &[1.0, 2.5]);
    let handle = latency.with(&Labels::new().with("path", "a\"b\\c\nd"));
    for value in [0.5, 2.0, 9.0] {
        handle.observe(value);
    }
    assert_eq!(
        text(&registry),
        "# HELP latency_ms Latency\n\
         # TYPE latency_ms histogram\n\
         latency_ms_bucket{path=\"a\\\"b\\\\c\\nd\",le=\"1\"} 1\n\
         latency_ms_bucket{path=\"a\\\"b\\\\c\\nd\",le=\"2.5\"} 2\n\
         latency_ms_bucket{path=\"a\\\"b\\\\c\\nd\",le=\"+Inf\"} 3\n\
         latency_ms_sum{path=\"a\\\"b\\\\c\\nd\"} 11.5\n\
         latency_ms_count{path=\"a\\\"b\\\\c\\nd\"} 3\n\
         # EOF\n"
    );
}

#[test]
fn formats_have_series_of_the_same_names() {
    let registry = Registry::new();
    let labels = Labels::new().with("a", "b\"");
    let counters = ["x_total", "span_exports", "open_total"];
    let counters = counters.map(|name| registry.counter_family(name, "X").with(&labels));
    counters.iter().for_each(Counter::inc);
    let gauges = ["open", "info", "cached_total"];
    let gauges = gauges.map(|name| registry.gauge_family(name, "X").with(&labels));
    let latency = registry.histogram_family_with("latency", "Latency", LATENCY_MS, Exemplars::Kept);
    let exemplar = Exemplar {
        trace_id: 1,
        span_id: 2,
        at: std::time::SystemTime::now(),
    };
    let handle = latency.with(&labels);
    handle.observe_with(3.0, Some(&exemplar));
    registry.export_process();

    let series = |format| {
        let text = String::from_utf8(registry.encode_as(format)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let names = lines.map(|line| {
            let (series, _value) = line.split_once("} ").unwrap_or((line, ""));
            let name = series.split([' ', '{']).next().unwrap().to_owned();
            let bound = series.split_once("le=\"").map(|(_, bound)| bound);
            // Only the form of whole numbers differs.
            (name, bound.map(|bound| bound.replace(".0\"", "\"")))
        });
        names.collect::<Vec<_>>()
    };
    let text = series(Format::Text);
    assert_eq!(text.len(), 6 + LATENCY_MS.len() + 3 + 11);
    assert_eq!(series(Format::OpenMetrics), text);
    drop((counters, gauges, handle));
}

#[test]
fn samples_of_one_name_are_one_family() {
    let registry = Registry::new();
    registry.on_scrape(|scrape| {
        for zone in ["a", "b"] {
            scrape.gauge("open", "Open", &Labels::new().with("zone", zone), 1.0);
            scrape.counter("x_total", "X", &Labels::new().with("zone", zone), 2.0);
        }
    });
    let expected = "# HELP open Open\n# TYPE open gauge\nopen{zone=\"a\"} 1\nopen{zone=\"b\"} 1\n\
        # HELP x_total X\n# TYPE x_total counter\nx_total{zone=\"a\"} 2\nx_total{zone=\"b\"} 2\n# EOF\n";
    assert_eq!(text(&registry), expected);
}

#[test]
fn same_name_and_labels_return_the_same_series() {
    let registry = Registry::new();
    let labels = Labels::new().with("a", "b");
    registry.counter_family("x_total", "X").with(&labels).inc();
    let again = registry
        .clone()
        .counter_family("x_total", "X")
        .with(&labels);
    again.inc();
    assert_eq!(again.value(), 2);
}

#[test]
#[should_panic(expected = "x_total is already a counter")]
fn same_name_with_another_kind_panics() {
    let registry = Registry::new();
    registry.counter_family("x_total", "X");
    registry.gauge_family("x_total", "X");
}

#[tokio::test(start_paused = true)]
async fn counter_is_retained_after_its_last_handle() {
    let registry = Registry::with_retention(Duration::from_secs(600));
    let family = registry.counter_family("x_total", "X");
    let handle = family.with(&Labels::new());
    handle.inc();

    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(
        text(&registry).contains("x_total 1"),
        "held: never removed, however idle"
    );
    drop(handle);
    assert!(
        text(&registry).contains("x_total 1"),
        "this scrape sees that it is orphaned"
    );
    tokio::time::advance(Duration::from_secs(599)).await;
    assert!(text(&registry).contains("x_total 1"));
    drop(family.with(&Labels::new()));
    tokio::time::advance(Duration::from_secs(2)).await;
    assert!(
        text(&registry).contains("x_total 1"),
        "being resolved again restarts the time"
    );
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(text(&registry), "# EOF\n");
}

#[test]
fn gauge_ends_with_its_last_handle() {
    let registry = Registry::new();
    let handle = registry
        .gauge_family("open", "Open")
        .with(&Labels::new().with("peer", "src"));
    handle.add(3);
    handle.dec();
    assert!(text(&registry).contains("open{peer=\"src\"} 2\n"));
    drop(handle);
    assert_eq!(text(&registry), "# EOF\n");
}

#[tokio::test(start_paused = true)]
async fn unscraped_family_is_swept_when_it_grows() {
    let registry = Registry::with_retention(Duration::from_secs(600));
    let family = registry.counter_family("x_total", "X");
    let kept = family.with(&Labels::new().with("n", "kept"));
    kept.inc();
    for n in 0..20_000 {
        family.with(&Labels::new().with("n", n.to_string())).inc();
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    let lines = text(&registry).lines().count();
    assert!(lines < 1_000, "{lines} lines");
    assert!(text(&registry).contains("x_total{n=\"kept\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn outside_values_beyond_the_limit_are_counted_together() {
    let registry = Registry::new();
    let opened = registry.counter_family("open_total", "Opened");
    let labels = |name: &str, status: &'static str| {
        let mut labels = Labels::new().with("direction", "inbound");
        labels.push_outside("sni", name);
        labels.with("status", status)
    };
    for n in 0..2 * MAX_OUTSIDE {
        opened.with(&labels(&format!("{n}.test"), "200")).inc();
        // Another value of an unmarked label does not count.
        opened.with(&labels(&format!("{n}.test"), "500")).inc();
    }
    let lines = |registry: &Registry| {
        let text = text(registry);
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        lines.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&registry).len(), 2 * MAX_OUTSIDE + 2);
    for status in ["200", "500"] {
        let rest = format!(
            r#"open_total{{direction="inbound",sni="(other)",status="{status}"}} {MAX_OUTSIDE}"#
        );
        assert!(lines(&registry).contains(&rest), "{rest}");
    }
    // Values with a series keep it, and unused ones are removed.
    opened.with(&labels("0.test", "200")).inc();
    let kept = opened.with(&labels("1.test", "200"));
    kept.inc();
    tokio::time::advance(RETAIN_IDLE + SECOND).await;
    opened.with(&labels("new.test", "200")).inc();
    let lines = lines(&registry);
    for line in [
        r#"open_total{direction="inbound",sni="1.test",status="200"} 2"#,
        r#"open_total{direction="inbound",sni="new.test",status="200"} 1"#,
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}: {lines:?}");
    }
    drop(kept);
}

/// Neither kind of values takes places of the other.
#[tokio::test(start_paused = true)]
async fn identities_beyond_their_limit_are_counted_together() {
    let registry = Registry::new();
    let opened = registry.counter_family("open_total", "Opened");
    let labels = |port: usize, client: usize| {
        let mut labels = Labels::new();
        labels.push_outside("port", port.to_string());
        labels.push_identity("client_id", format!("{client}.test"));
        labels
    };
    for n in 0..MAX_OUTSIDE {
        opened.with(&labels(n, 0)).inc();
    }
    for n in 0..2 * MAX_IDENTITIES {
        opened.with(&labels(0, n)).inc();
    }
    opened.with(&labels(MAX_OUTSIDE, 1)).inc();
    opened.with(&labels(MAX_OUTSIDE, MAX_IDENTITIES)).inc();
    let text = text(&registry);
    let series = MAX_OUTSIDE + (MAX_IDENTITIES - 1) + 3;
    let lines = text.lines().filter(|line| line.starts_with("open_total{"));
    assert_eq!(lines.count(), series);
    for (labels, count) in [
        (r#"port="0",client_id="(other)""#, MAX_IDENTITIES),
        (r#"port="(other)",client_id="1.test""#, 1),
        (r#"port="(other)",client_id="(other)""#, 1),
    ] {
        let line = format!("open_total{{{labels}}} {count}");
        assert!(text.lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn outside_marks_are_kept_in_derived_sets() {
    let mut labels = Labels::new().with("a", "1");
    labels.push_outside("sni", "x.test");
    labels.push_identity("client_id", "y.test");
    let derived = labels.clone().with("b", "2");
    let mut extended = Labels::new().with("error", "none");
    extended.extend(&derived);
    for (set, expected) in [
        (labels, "a=1 sni=(other) client_id=(other)"),
        (derived, "a=1 sni=(other) client_id=(other) b=2"),
        (extended, "error=none a=1 sni=(other) client_id=(other) b=2"),
    ] {
        let set = set.without_values_of(Origin::Outside);
        assert_eq!(set.values_of(Origin::Identity), ["y.test".into()]);
        let set = set.without_values_of(Origin::Identity);
        for origin in Origin::ALL {
            let is_empty = set.values_of(origin).is_empty();
            assert!(is_empty, "it takes no place of theirs");
        }
        let pairs: Vec<_> = set
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(pairs.join(" "), expected);
    }
}
