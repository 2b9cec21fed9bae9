//! Native histograms, as Prometheus reads them from `/metrics`.

use mesh_runtime::admin::{self, Admin, Readiness};
use mesh_runtime::metrics::{LATENCY_MS, Labels, Registry};
use mesh_test_support::command::are_installed;
use mesh_test_support::eventually::eventually;
use mesh_test_support::network::free_address;
use tokio::runtime::Runtime;

use crate::harness::prometheus::Prometheus;

/// How far a quantile is from the exact one at most: buckets are 9 % wide.
const PRECISION: f64 = 0.09;

#[test]
fn prometheus_that_asks_for_native_histograms_computes_precise_quantiles() {
    if !are_installed(&["prometheus", "curl"]) {
        return;
    }
    let registry = Registry::new();
    let family = registry.histogram_family("response_latency_ms", "Latency", LATENCY_MS);
    let latency = family.with(&Labels::new().with("direction", "inbound"));
    let runtime = Runtime::new().expect("a runtime");
    let address = free_address();
    let listener = runtime.block_on(admin::bind(address)).expect("a listener");
    runtime.spawn(admin::serve(
        listener,
        Admin::new(registry, Readiness::default()),
    ));
    let prometheus = Prometheus::start_with(
        &format!(
            "global: {{scrape_interval: 250ms, scrape_timeout: 250ms}}\nscrape_configs:\n- job_name: proxy\n  static_configs: [{{targets: ['{address}']}}]\n"
        ),
        &["--enable-feature=native-histograms"],
    );
    let number = |expression: &str| {
        let series = r#"response_latency_ms{direction="inbound"}"#;
        prometheus.number(&expression.replace("SERIES", series))
    };
    eventually("the histogram is scraped before its observations", || {
        (number("histogram_count(SERIES)")? == 0.0).then_some(())
    });

    // All between 101 and 200, one bucket of those that Linkerd's dashboards use.
    for value in 101..=200 {
        latency.observe(f64::from(value));
    }
    eventually("the observations are scraped", || {
        (number("histogram_count(SERIES)")? == 100.0).then_some(())
    });
    assert_eq!(number("histogram_sum(SERIES)"), Some(15_050.0));
    for (quantile, exact) in [(0.05, 105.0), (0.5, 150.0), (0.95, 195.0)] {
        let found = number(&format!("histogram_quantile({quantile}, SERIES)"));
        let found = found.expect("a quantile");
        let deviation = (found / exact - 1.0).abs();
        assert!(deviation <= PRECISION, "{found} instead of {exact}");
    }
}
