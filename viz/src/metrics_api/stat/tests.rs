//! The text of queries, and rows from results, as tables.

use mesh_api::linkerd2::viz;
use mesh_api::linkerd2::viz::ResourceSelection;
use mesh_cluster::prometheus::Sample;
use mesh_objects::model::Detail;

use super::super::samples::Metric;
use super::*;

fn resource(kind: &str, namespace: &str, name: &str) -> viz::Resource {
    viz::Resource {
        namespace: namespace.to_owned(),
        r#type: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn request(resource: viz::Resource, outbound: Option<Outbound>, tcp: bool) -> StatSummaryRequest {
    StatSummaryRequest {
        selector: Some(ResourceSelection {
            resource: Some(resource),
            label_selector: String::new(),
        }),
        time_window: "1m".to_owned(),
        outbound,
        skip_stats: false,
        tcp_stats: tcp,
    }
}

fn plan(request: &StatSummaryRequest) -> Vec<String> {
    let request = StatRequest::parse(request).unwrap();
    let plan = request.plan(&request.targets[0], "cluster.local");
    plan.queries
        .into_iter()
        .map(|(_, query)| query.to_string())
        .collect()
}

/// Returns the queries for requests and latencies.
fn requests(matchers: &str, by: &str) -> Vec<String> {
    let mut queries = vec![format!(
        "sum(increase(response_total{matchers}[1m])) by ({by}, classification, tls)"
    )];
    for quantile in ["0.5", "0.95", "0.99"] {
        queries.push(format!(
            "histogram_quantile({quantile}, sum(irate(response_latency_ms_bucket{matchers}[1m])) by (le, {by}))"
        ));
    }
    queries
}

fn connections(open: &str, transferred: &str, by: &str) -> Vec<String> {
    vec![
        format!("sum(tcp_open_connections{open}) by ({by})"),
        format!("sum(increase(tcp_read_bytes_total{transferred}[1m])) by ({by})"),
        format!("sum(increase(tcp_write_bytes_total{transferred}[1m])) by ({by})"),
    ]
}

fn authorizations(matchers: &str, by: &str) -> Vec<String> {
    vec![
        format!("sum(increase(inbound_http_authz_allow_total{matchers}[1m])) by ({by})"),
        format!("sum(increase(inbound_http_authz_deny_total{matchers}[1m])) by ({by})"),
    ]
}

#[test]
fn queries_of_workloads_have_text_of_linkerd() {
    let inbound = r#"{deployment="web", direction="inbound", namespace="shop"}"#;
    let by = "namespace, deployment";
    let web = || resource("deployment", "shop", "web");
    assert_eq!(plan(&request(web(), None, false)), requests(inbound, by));
    assert_eq!(
        plan(&request(web(), None, false))[0],
        r#"sum(increase(response_total{deployment="web", direction="inbound", namespace="shop"}[1m])) by (namespace, deployment, classification, tls)"#
    );
    let source = r#"{deployment="web", direction="inbound", namespace="shop", peer="src"}"#;
    assert_eq!(
        plan(&request(web(), None, true)),
        [requests(inbound, by), connections(inbound, source, by)].concat()
    );

    let to = Some(Outbound::ToResource(resource("service", "bank", "pay")));
    let outbound = r#"{deployment="web", direction="outbound", dst_namespace="bank", dst_service="pay", namespace="shop"}"#;
    let dialed = r#"{deployment="web", direction="outbound", dst_namespace="bank", dst_service="pay", namespace="shop", peer="dst"}"#;
    assert_eq!(
        plan(&request(web(), to, true)),
        [requests(outbound, by), connections(outbound, dialed, by)].concat()
    );

    let from = Some(Outbound::FromResource(resource("pod", "bank", "pay-1")));
    let outbound = r#"{direction="outbound", dst_deployment="web", dst_namespace="shop", namespace="bank", pod="pay-1"}"#;
    assert_eq!(
        plan(&request(web(), from, false)),
        requests(outbound, "dst_namespace, dst_deployment")
    );
}

#[test]
fn queries_of_other_kinds_have_text_of_linkerd() {
    for (resource, matchers, by) in [
        (
            resource("namespace", "", "shop"),
            r#"{direction="inbound", namespace="shop"}"#,
            "namespace",
        ),
        (
            resource("pod", "", ""),
            r#"{direction="inbound"}"#,
            "namespace, pod",
        ),
        (
            resource("job", "shop", "once"),
            r#"{direction="inbound", k8s_job="once", namespace="shop"}"#,
            "namespace, k8s_job",
        ),
        (
            resource("authority", "shop", ""),
            r#"{direction="inbound", namespace="shop"}"#,
            "namespace, authority",
        ),
        (
            resource("service", "shop", "web"),
            r#"{authority=~"^web\\.shop\\.svc\\.cluster\\.local.*", direction="outbound"}"#,
            "dst_namespace, dst_service",
        ),
        (
            resource("service", "", ""),
            r#"{authority=~"^.+\\..+\\.svc\\.cluster\\.local.*", direction="outbound"}"#,
            "dst_namespace, dst_service",
        ),
    ] {
        let queries = plan(&request(resource, None, false));
        assert_eq!(queries, requests(matchers, by));
    }
    let service = request(resource("service", "shop", "web"), None, true);
    let dialed =
        r#"{authority=~"^web\\.shop\\.svc\\.cluster\\.local.*", direction="outbound", peer="dst"}"#;
    assert_eq!(
        plan(&service)[4..],
        connections(dialed, dialed, "dst_namespace, dst_service")
    );
}

#[test]
fn queries_of_policies_have_text_of_linkerd() {
    let matchers = r#"{namespace="shop", srv_kind="server", srv_name="web"}"#;
    let inbound = r#"{direction="inbound", namespace="shop", srv_kind="server", srv_name="web"}"#;
    let accepted =
        r#"{direction="inbound", namespace="shop", peer="src", srv_kind="server", srv_name="web"}"#;
    let by = "srv_kind, namespace, srv_name";
    assert_eq!(
        plan(&request(resource("server", "shop", "web"), None, true)),
        [
            requests(inbound, by),
            connections(accepted, accepted, by),
            authorizations(matchers, by)
        ]
        .concat()
    );
    let by = "srv_name, srv_kind, route_name, route_kind, authz_kind, namespace, authz_name";
    assert_eq!(
        plan(&request(
            resource("authorizationpolicy", "", ""),
            None,
            true
        )),
        [
            requests(
                r#"{authz_kind="authorizationpolicy", direction="inbound"}"#,
                by
            ),
            authorizations(r#"{authz_kind="authorizationpolicy"}"#, by)
        ]
        .concat()
    );
    let by = "srv_name, srv_kind, route_name, route_kind, authz_name, authz_kind, namespace";
    assert_eq!(
        plan(&request(resource("httproute", "shop", "get"), None, false)),
        [
            requests(
                r#"{direction="inbound", namespace="shop", route_name="get"}"#,
                by
            ),
            authorizations(r#"{namespace="shop", route_name="get"}"#, by)
        ]
        .concat()
    );
}

#[test]
fn invalid_requests_have_errors_of_linkerd() {
    let web = || resource("deployment", "shop", "web");
    let to = |kind: &str| Some(Outbound::ToResource(resource(kind, "shop", "a")));
    let from = |kind: &str| Some(Outbound::FromResource(resource(kind, "shop", "a")));
    let mut bad_window = request(web(), None, false);
    bad_window.time_window = "1m]) or vector(1".to_owned();
    let mut bad_selector = request(web(), None, false);
    bad_selector.selector.as_mut().unwrap().label_selector = "a b".to_owned();
    for (request, expect) in [
        (
            StatSummaryRequest::default(),
            "StatSummary request missing Selector Resource",
        ),
        (
            request(web(), from("service"), false),
            "service is not supported as a target on 'from' queries, or as a target with 'to' queries",
        ),
        (
            request(web(), to("all"), false),
            "resource type 'all' is not supported as a filter",
        ),
        (
            request(resource("server", "shop", ""), to("pod"), false),
            "'to' queries are not supported with policy resources, as they have inbound metrics only",
        ),
        (
            request(web(), from("server"), false),
            "'from' queries are not supported with policy resources, as they have inbound metrics only",
        ),
        (
            request(resource("gadget", "", ""), None, false),
            "unimplemented resource type: gadget",
        ),
        (bad_window, "invalid time window"),
        (bad_selector, "invalid label selector \"a b\""),
    ] {
        let error = StatRequest::parse(&request).unwrap_err();
        assert!(error.starts_with(expect), "{error}");
    }
    let all = StatRequest::parse(&request(resource("all", "shop", ""), None, false)).unwrap();
    let kinds: Vec<&str> = all
        .targets
        .iter()
        .map(|it| it.kind.resource_type())
        .collect();
    assert_eq!(
        kinds,
        [
            "daemonset",
            "statefulset",
            "job",
            "deployment",
            "replicationcontroller",
            "pod",
            "service",
            "cronjob",
            "replicaset"
        ]
    );
}

fn sample(labels: &[(&str, &str)], value: f64) -> Sample {
    Sample {
        labels: labels
            .iter()
            .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
            .collect(),
        time: 0.0,
        value,
    }
}

fn object(kind: ListedKind, name: &str) -> Arc<ListedObject> {
    Arc::new(ListedObject {
        kind,
        name: Name::new("shop", name),
        labels: BTreeMap::new(),
        owner: None,
        detail: Detail::None,
    })
}

fn key(request: &StatRequest) -> Grouping {
    request.plan(&request.targets[0], "cluster.local").key
}

#[test]
fn rows_of_objects_have_sums_of_their_series() {
    let parsed = |outbound| {
        StatRequest::parse(&request(resource("deployment", "shop", ""), outbound, true)).unwrap()
    };
    let request = parsed(None);
    let web = |more: &[(&str, &str)], value| {
        let labels = [("namespace", "shop"), ("deployment", "web")];
        sample(&[&labels, more].concat(), value)
    };
    let results = vec![
        (
            Metric::Requests,
            vec![
                web(&[("classification", "success"), ("tls", "true")], 100.4),
                web(
                    &[("classification", "success"), ("tls", "no_identity")],
                    9.6,
                ),
                web(&[("classification", "failure")], 3.0),
                web(&[("classification", "other")], 70.0),
                sample(&[("namespace", "other"), ("deployment", "web")], 5.0),
            ],
        ),
        (Metric::Latency(0), vec![web(&[], 4.5)]),
        (Metric::Latency(2), vec![web(&[], f64::NAN)]),
        (Metric::OpenConnections, vec![web(&[], 7.0)]),
        (
            Metric::ReadBytes,
            vec![sample(
                &[("namespace", "shop"), ("deployment", "idle")],
                0.0,
            )],
        ),
    ];
    let counts = PodCounts {
        running: 3,
        meshed: 2,
        failed: 1,
        with_errors: Vec::new(),
    };
    let pods = HashMap::from([(Name::new("shop", "web"), counts)]);
    let objects = ["idle", "none", "web"].map(|name| object(ListedKind::Deployment, name));
    let key = key(&request);
    let rows = request.object_rows(&request.targets[0], &objects, &pods, results.clone(), &key);
    assert_eq!(rows.len(), 3);
    let row = &rows[2];
    assert_eq!(row.resource, Some(resource("deployment", "shop", "web")));
    assert_eq!(row.time_window, "1m");
    let basic = row.stats.unwrap();
    assert_eq!((basic.success_count, basic.failure_count), (110, 3));
    assert_eq!((basic.latency_ms_p50, basic.latency_ms_p99), (5, 0));
    assert_eq!(row.tcp_stats.unwrap().open_connections, 7);
    assert_eq!(
        (
            row.meshed_pod_count,
            row.running_pod_count,
            row.failed_pod_count
        ),
        (2, 3, 1)
    );
    assert_eq!((rows[0].stats, rows[1].stats), (None, None));
    assert!(rows[0].tcp_stats.is_some() && rows[1].tcp_stats.is_none());

    // With a peer, only objects with requests have rows.
    let to = parsed(Some(Outbound::ToResource(resource("pod", "shop", "a"))));
    let rows = to.object_rows(&to.targets[0], &objects, &pods, results, &key);
    assert_eq!(rows.len(), 1);
}

#[test]
fn rows_of_services_have_weights_of_profile() {
    let request =
        StatRequest::parse(&request(resource("service", "shop", "web"), None, false)).unwrap();
    let to = |service: &str, value| {
        let labels = [
            ("dst_namespace", "shop"),
            ("dst_service", service),
            ("classification", "success"),
        ];
        sample(&labels, value)
    };
    let results = vec![(Metric::Requests, vec![to("web", 9.0), to("web-2", 1.0)])];
    let profile = ProfileDetail {
        routes: Vec::new(),
        overrides: vec![
            (
                "web-2.shop.svc.cluster.local:80".to_owned(),
                "500m".to_owned(),
            ),
            ("web-3.shop.svc.cluster.local".to_owned(), "1".to_owned()),
        ],
    };
    let key = key(&request);
    let rows = request.service_rows(&request.targets[0], Some(&profile), results, &key);
    let summary: Vec<_> = rows
        .iter()
        .map(|row| {
            let split = row.ts_stats.as_ref();
            (
                row.resource.as_ref().unwrap().name.as_str(),
                row.stats.map(|stats| stats.success_count),
                split.map(|split| (split.leaf.as_str(), split.weight.as_str())),
            )
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("web", Some(9), None),
            ("web", Some(1), Some(("web-2", "500m"))),
            ("web", None, Some(("web-3", "1"))),
        ]
    );
}

#[test]
fn rows_of_policies_have_sums_and_highest_latencies() {
    let request = StatRequest::parse(&request(
        resource("authorizationpolicy", "shop", ""),
        None,
        false,
    ))
    .unwrap();
    let allow = |route: &str, value| {
        let labels = [
            ("namespace", "shop"),
            ("authz_name", "allow"),
            ("authz_kind", "authorizationpolicy"),
            ("srv_name", "web"),
            ("srv_kind", "server"),
            ("route_name", route),
        ];
        sample(&labels, value)
    };
    let results = vec![
        (Metric::Allowed, vec![allow("a", 5.0), allow("b", 6.0)]),
        (Metric::Denied, vec![allow("a", 1.0)]),
        (Metric::Latency(1), vec![allow("a", 90.0), allow("b", 20.0)]),
    ];
    let objects = [object(ListedKind::AuthorizationPolicy, "allow")];
    let key = key(&request);
    let rows = request.object_rows(
        &request.targets[0],
        &objects,
        &HashMap::new(),
        results,
        &key,
    );
    let server = rows[0].srv_stats.as_ref().unwrap();
    assert_eq!((server.allowed_count, server.denied_count), (11, 1));
    assert_eq!(server.srv.as_ref().unwrap().name, "web");
    assert_eq!(rows[0].stats.unwrap().latency_ms_p95, 90);
}
