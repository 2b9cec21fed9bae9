//! What `meshctl viz stat-inbound` and `stat-outbound` share: flags, queries and counts.

use mesh_core::labels::workload_label;

use super::resources::{self, Window};
use super::source::{Extension, scope_without_cluster};
use crate::clients::metrics_api::{Target, TimeWindow};
use crate::clients::prometheus_api::Sample;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::prometheus_server::Prometheus;
use crate::output::{Format, figures};
use crate::resource::{Resource, ResourceKind};

#[derive(Debug, clap::Args)]
pub(super) struct TrafficArgs {
    /// KIND, KIND/NAME or KIND NAME: cj, ds, deploy, job, ns, po, rs, rc, sts
    #[arg(required = true, num_args = 1..=2, value_name = "RESOURCE")]
    resource: Vec<String>,
    #[command(flatten)]
    pub(super) window: Window,
    /// URL of a Prometheus to query without the API server [default: the viz extension's
    /// Prometheus]
    #[arg(long, alias = "prometheusURL", value_name = "URL")]
    prometheus_url: Option<String>,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(super) output: Format,
}

/// The series of a resource's proxies.
pub(super) struct Series {
    prometheus: Prometheus,
    target: Target,
    window: TimeWindow,
}

/// Requests, and the quantiles of their latency in milliseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) successes: f64,
    pub(super) failures: f64,
    pub(super) timeouts: f64,
    pub(super) latency_ms: [Option<f64>; 3],
}

/// The quantiles of the tables.
pub(super) const QUANTILES: [&str; 3] = ["0.5", "0.95", "0.99"];

impl TrafficArgs {
    pub(super) async fn series(
        &self,
        extension: &Extension,
        global: &Global,
    ) -> anyhow::Result<Series> {
        let resource = Resource::parse_one(&self.resource)?;
        if !resource.kind.has_pods() {
            return Err(Failure::Input(format!(
                "{} have no proxies: expected a workload, a pod or a namespace",
                resource.kind.plural()
            ))
            .into());
        }
        let (prometheus, scope) = match &self.prometheus_url {
            Some(url) => (Prometheus::from_url(url)?, scope_without_cluster(global)),
            None => extension.prometheus(global).await?,
        };
        Ok(Series {
            prometheus,
            target: resources::target(&resource, &scope, global)?,
            window: self.window.time_window.clone(),
        })
    }
}

impl Series {
    /// Returns the increase of a counter within the window, by labels and object.
    pub(super) async fn increase(
        &self,
        metric: &str,
        matchers: &[(&str, &str)],
        by: &str,
    ) -> anyhow::Result<Vec<Sample>> {
        let query = increase(&self.target, &self.window, metric, matchers, by);
        self.prometheus.query(&query).await
    }

    /// Returns the quantiles of a histogram, by labels and object.
    pub(super) async fn quantiles(
        &self,
        metric: &str,
        matchers: &[(&str, &str)],
        by: &str,
    ) -> anyhow::Result<[Vec<Sample>; 3]> {
        let query = |quantile: &str| {
            let query = quantile_query(&self.target, &self.window, quantile, metric, matchers, by);
            async move { self.prometheus.query(&query).await }
        };
        let [p50, p95, p99] = QUANTILES;
        let (p50, p95, p99) = tokio::try_join!(query(p50), query(p95), query(p99))?;
        Ok([p50, p95, p99])
    }

    /// Returns the namespace and the name of the object that exports a series.
    pub(super) fn object(&self, sample: &Sample) -> (String, String) {
        let name = sample.label(workload_label(self.target.resource.kind.as_str()));
        (sample.label("namespace").to_owned(), name.to_owned())
    }

    pub(super) fn is_of_all_namespaces(&self) -> bool {
        let is_namespace = self.target.resource.kind == ResourceKind::Namespace;
        self.target.namespace.is_none() && !is_namespace
    }

    pub(super) fn window(&self) -> &TimeWindow {
        &self.window
    }
}

impl Counts {
    pub(super) fn add(&mut self, value: f64, is_success: bool) {
        if is_success {
            self.successes += value;
        } else {
            self.failures += value;
        }
    }

    pub(super) fn total(&self) -> f64 {
        self.successes + self.failures
    }

    /// Returns a share of the requests, 0 to 1, unless there were none.
    pub(super) fn share(&self, part: f64) -> Option<f64> {
        let total = self.total();
        (total > 0.0).then(|| part / total)
    }

    /// Returns the cells of success rate, requests per second and latencies.
    pub(super) fn cells(&self, window: &TimeWindow) -> Vec<String> {
        let mut cells = vec![
            figures::percent(self.share(self.successes)),
            figures::rate(Some(window.rate(self.total()))),
        ];
        cells.extend(self.latency_ms.map(figures::millis));
        cells
    }
}

fn increase(
    target: &Target,
    window: &TimeWindow,
    metric: &str,
    matchers: &[(&str, &str)],
    by: &str,
) -> String {
    let selector = selector(target, matchers);
    let by = grouping(target, by);
    format!("sum(increase({metric}{selector}[{window}])) by ({by})")
}

fn quantile_query(
    target: &Target,
    window: &TimeWindow,
    quantile: &str,
    metric: &str,
    matchers: &[(&str, &str)],
    by: &str,
) -> String {
    let selector = selector(target, matchers);
    let by = grouping(target, by);
    format!(
        "histogram_quantile({quantile}, sum(irate({metric}{selector}[{window}])) by (le, {by}))"
    )
}

fn selector(target: &Target, matchers: &[(&str, &str)]) -> String {
    let kind = target.resource.kind;
    let is_namespace = kind == ResourceKind::Namespace;
    let name = target
        .resource
        .name
        .as_deref()
        .map(|name| (workload_label(kind.as_str()), name));
    let namespace = target.namespace.as_deref().filter(|_| !is_namespace);
    let namespace = namespace.map(|namespace| ("namespace", namespace));
    let matchers = matchers.iter().copied().chain(name).chain(namespace);
    // Objects of another kind have no such label.
    let is_named = target.resource.name.is_some();
    let any = (!is_named).then(|| format!("{}!=\"\"", workload_label(kind.as_str())));
    let texts = matchers.map(|(label, value)| format!("{label}={}", quoted(value)));
    let texts: Vec<String> = texts.chain(any).collect();
    format!("{{{}}}", texts.join(", "))
}

fn grouping(target: &Target, by: &str) -> String {
    match target.resource.kind {
        ResourceKind::Namespace => format!("{by}, namespace"),
        kind => format!("{by}, namespace, {}", workload_label(kind.as_str())),
    }
}

/// Returns a string of PromQL.
fn quoted(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("\"{escaped}\"")
}

/// Returns the name of a policy object as the tables show it.
pub(super) fn shown_name(name: &str, is_default: bool) -> String {
    if is_default {
        "[default]".to_owned()
    } else {
        name.to_owned()
    }
}

/// Returns the kind of a route; empty for the default one.
pub(super) fn route_type(sample: &Sample) -> String {
    match sample.label("route_kind") {
        "default" => String::new(),
        kind => kind.to_owned(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::resource::Scope;

    pub(in crate::commands::viz) fn sample(labels: &[(&str, &str)], value: f64) -> Sample {
        let labels = labels
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        Sample {
            labels: labels.collect(),
            value,
        }
    }

    fn target(resource: &str, scope: &Scope) -> Target {
        Target {
            resource: Resource::parse(resource).unwrap(),
            namespace: scope.namespace().map(str::to_owned),
        }
    }

    #[test]
    fn queries_select_the_object() {
        let window = TimeWindow::parse("1m").unwrap();
        let shop = Scope::Namespace("shop".to_owned());
        let inbound = [("direction", "inbound")];
        for (resource, scope, selector, by) in [
            (
                "deploy/web",
                &shop,
                r#"{direction="inbound", deployment="web", namespace="shop"}"#,
                "srv_name, namespace, deployment",
            ),
            (
                "job",
                &Scope::All,
                r#"{direction="inbound", k8s_job!=""}"#,
                "srv_name, namespace, k8s_job",
            ),
            (
                "ns/a\"b",
                &shop,
                r#"{direction="inbound", namespace="a\"b"}"#,
                "srv_name, namespace",
            ),
        ] {
            let target = target(resource, scope);
            assert_eq!(
                increase(&target, &window, "response_total", &inbound, "srv_name"),
                format!("sum(increase(response_total{selector}[1m])) by ({by})")
            );
            assert_eq!(
                quantile_query(&target, &window, "0.5", "a_bucket", &inbound, "srv_name"),
                format!(
                    "histogram_quantile(0.5, sum(irate(a_bucket{selector}[1m])) by (le, {by}))"
                )
            );
        }
    }
}
