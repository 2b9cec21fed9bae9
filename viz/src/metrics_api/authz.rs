//! Authz: the requests of an object by the Server, route and authorization that applied to them.

use std::collections::BTreeMap;

use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::{AuthzRequest, BasicStats};

use super::resource::Target;
use super::samples::{
    Measure, Measurement, Metric, add_requests, authorization_queries, request_queries,
    server_stats,
};
use crate::metrics::{Grouping, TimeWindow};

/// The labels of a row.
const LABELS: [&str; 6] = [
    "route_kind",
    "route_name",
    "authz_kind",
    "authz_name",
    "srv_kind",
    "srv_name",
];

pub(super) fn parse(request: &AuthzRequest) -> Result<(Target, TimeWindow), String> {
    let Some(resource) = &request.resource else {
        return Err("AuthzRequest missing resource".to_owned());
    };
    let window = TimeWindow::parse(&request.time_window).map_err(|error| error.to_string())?;
    Ok((Target::parse(resource)?, window))
}

pub(super) fn queries(target: &Target, window: &TimeWindow) -> Vec<Measure> {
    let by = Grouping::of(&LABELS);
    let matchers = target.matchers();
    let inbound = matchers.clone().equal("direction", "inbound");
    let mut queries = request_queries(&inbound, window, &by);
    // These series have no direction.
    queries.extend(authorization_queries(&matchers, window, &by));
    queries
}

pub(super) fn rows(
    request: &AuthzRequest,
    window: &TimeWindow,
    results: Vec<Measurement>,
) -> Vec<Row> {
    let mut rows: BTreeMap<[String; 6], Row> = BTreeMap::new();
    for (metric, samples) in results {
        for sample in samples {
            let key = LABELS.map(|label| sample.label(label).to_owned());
            let row = rows.entry(key).or_insert_with(|| Row {
                resource: request.resource.clone(),
                time_window: window.to_string(),
                stats: Some(BasicStats::default()),
                srv_stats: Some(server_stats(&sample, "")),
                ..Row::default()
            });
            let server = row.srv_stats.get_or_insert_default();
            match metric {
                Metric::Allowed => server.allowed_count = sample.count(),
                Metric::Denied => server.denied_count = sample.count(),
                _ => add_requests(row.stats.get_or_insert_default(), metric, &sample),
            }
        }
    }
    rows.into_values().collect()
}

#[cfg(test)]
mod tests {
    use mesh_api::linkerd2::viz::Resource;

    use super::*;

    #[test]
    fn queries_have_text_of_linkerd() {
        let request = AuthzRequest {
            resource: Some(Resource {
                namespace: "shop".to_owned(),
                r#type: "deployment".to_owned(),
                name: "web".to_owned(),
            }),
            time_window: "30s".to_owned(),
        };
        let (target, window) = parse(&request).unwrap();
        let queries: Vec<String> = queries(&target, &window)
            .into_iter()
            .map(|(_, query)| query.to_string())
            .collect();
        let by = "route_kind, route_name, authz_kind, authz_name, srv_kind, srv_name";
        let inbound = r#"{deployment="web", direction="inbound", namespace="shop"}"#;
        let all = r#"{deployment="web", namespace="shop"}"#;
        let quantile = |quantile| {
            format!(
                "histogram_quantile({quantile}, sum(irate(response_latency_ms_bucket{inbound}[30s])) by (le, {by}))"
            )
        };
        assert_eq!(
            queries,
            [
                format!(
                    "sum(increase(response_total{inbound}[30s])) by ({by}, classification, tls)"
                ),
                quantile("0.5"),
                quantile("0.95"),
                quantile("0.99"),
                format!("sum(increase(inbound_http_authz_allow_total{all}[30s])) by ({by})"),
                format!("sum(increase(inbound_http_authz_deny_total{all}[30s])) by ({by})"),
            ]
        );
        let error = parse(&AuthzRequest::default()).unwrap_err();
        assert_eq!(error, "AuthzRequest missing resource");
    }
}
