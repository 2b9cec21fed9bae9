//! Gateways: the gateways of linked clusters, as their probes found them. Without linked clusters
//! there are none.

use std::collections::BTreeMap;

use mesh_api::linkerd2::viz::GatewaysRequest;
use mesh_api::linkerd2::viz::gateways_table::Row;
use mesh_objects::inventory::Inventory;
use mesh_objects::model::ListedKind;

use super::samples::{Measure, Measurement, Metric, latency_queries};
use crate::metrics::{Family, Grouping, Matchers, TimeWindow};

/// The labels of mirrored Services.
const MIRRORED_SERVICE: &str = "mirror.linkerd.io/mirrored-service";
const MIRRORED_GATEWAY: &str = "mirror.linkerd.io/mirrored-gateway";
const CLUSTER_NAME: &str = "mirror.linkerd.io/cluster-name";

/// The labels of a gateway.
const BY: [&str; 3] = ["gateway_namespace", "target_cluster_name", "gateway_name"];

pub(super) fn queries(request: &GatewaysRequest, window: &TimeWindow) -> Vec<Measure> {
    let mut matchers = Matchers::new();
    for (label, value) in [
        ("gateway_namespace", &request.gateway_namespace),
        ("target_cluster_name", &request.remote_cluster_name),
    ] {
        if !value.is_empty() {
            matchers = matchers.equal(label, &**value);
        }
    }
    let by = Grouping::of(&BY);
    let mut queries = vec![(Metric::Alive, matchers.sum(Family::GatewayAlive, &by))];
    queries.extend(latency_queries(
        &matchers,
        Family::GatewayLatency,
        window,
        &by,
    ));
    queries
}

/// Returns the number of mirrored Services of each cluster.
pub(super) fn paired_services(inventory: &Inventory) -> BTreeMap<String, u64> {
    let mut paired = BTreeMap::new();
    for service in inventory.in_namespace(ListedKind::Service, "") {
        let labels = &service.labels;
        if labels.contains_key(MIRRORED_SERVICE) && !labels.contains_key(MIRRORED_GATEWAY) {
            let cluster = labels.get(CLUSTER_NAME).cloned().unwrap_or_default();
            *paired.entry(cluster).or_default() += 1;
        }
    }
    paired
}

pub(super) fn rows(paired: &BTreeMap<String, u64>, results: Vec<Measurement>) -> Vec<Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for (metric, samples) in results {
        for sample in samples {
            let cluster = sample.label("target_cluster_name");
            let row = rows.entry(cluster.to_owned()).or_insert_with(|| Row {
                cluster_name: cluster.to_owned(),
                paired_services: paired.get(cluster).copied().unwrap_or_default(),
                ..Row::default()
            });
            let value = sample.count();
            match metric {
                Metric::Latency(0) => row.latency_ms_p50 = value,
                Metric::Latency(1) => row.latency_ms_p95 = value,
                Metric::Latency(_) => row.latency_ms_p99 = value,
                _ => row.alive = value > 0,
            }
        }
    }
    rows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use mesh_cluster::prometheus::Sample;

    use super::*;

    #[test]
    fn queries_and_rows_are_by_cluster() {
        let request = GatewaysRequest {
            remote_cluster_name: "east".to_owned(),
            ..GatewaysRequest::default()
        };
        let window = TimeWindow::parse("1m").unwrap();
        let queries = queries(&request, &window);
        assert_eq!(
            queries[0].1.to_string(),
            r#"sum(gateway_alive{target_cluster_name="east"}) by (gateway_namespace, target_cluster_name, gateway_name)"#
        );
        assert_eq!(
            queries[2].1.to_string(),
            r#"histogram_quantile(0.95, sum(irate(gateway_probe_latency_ms_bucket{target_cluster_name="east"}[1m])) by (le, gateway_namespace, target_cluster_name, gateway_name))"#
        );
        let sample = |value| Sample {
            labels: [("target_cluster_name".to_owned(), "east".to_owned())].into(),
            time: 0.0,
            value,
        };
        let results = vec![
            (Metric::Alive, vec![sample(1.0)]),
            (Metric::Latency(2), vec![sample(30.0)]),
        ];
        let rows = rows(&[("east".to_owned(), 3)].into(), results);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].alive, rows[0].paired_services), (true, 3));
        assert_eq!(rows[0].latency_ms_p99, 30);
        assert_eq!(super::rows(&BTreeMap::new(), Vec::new()), []);
    }
}
