//! Whole calls: bounds, errors, and the time that a large table takes.

use std::fmt::Write as _;
use std::net::SocketAddr;

use mesh_api::linkerd2::viz::ResourceSelection;
use mesh_api::linkerd2::viz::stat_table::Table;
use mesh_cluster::prometheus::PrometheusClient;
use mesh_cluster::source::Change;
use mesh_objects::model::{Detail, Labels, Object, OwnerRef, PodDetail, PodPhase};
use mesh_runtime::metrics::Registry;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic::Code;

use super::*;
use crate::inventory::apply;
use crate::metrics::ProxyMetrics;

const DEPLOYMENTS: usize = 200;
const PODS: usize = 1_000;

fn listed(kind: ListedKind, name: &str, owner: Option<(&str, String)>, detail: Detail) -> Object {
    let owner = owner.map(|(kind, name)| OwnerRef {
        kind: kind.into(),
        name: name.into(),
    });
    Object::Listed(Arc::new(ListedObject {
        kind,
        name: Name::new("shop", name),
        labels: Labels::new(),
        owner,
        detail,
    }))
}

fn pod() -> PodDetail {
    PodDetail {
        phase: PodPhase::Running,
        status: "Running".into(),
        summary: "Running".into(),
        ip: "10.1.0.1".into(),
        service_account: "default".into(),
        control_plane_ns: "linkerd".into(),
        control_plane: false,
        proxy_ready: true,
        admin_port: None,
        tap_port: None,
        is_tap_enabled: false,
        is_tap_disabled: false,
        proxy_version: "".into(),
        resource_version: "1".into(),
        errors: Vec::new(),
    }
}

/// Returns Deployments with a ReplicaSet each, and pods of these.
fn inventory() -> Inventory {
    let mut objects = Vec::new();
    for at in 0..DEPLOYMENTS {
        let name = format!("web-{at}");
        objects.push(listed(ListedKind::Deployment, &name, None, Detail::None));
        let owner = Some(("deployment", name.clone()));
        objects.push(listed(
            ListedKind::ReplicaSet,
            &format!("{name}-a"),
            owner,
            Detail::None,
        ));
    }
    for at in 0..PODS {
        let owner = Some(("replicaset", format!("web-{}-a", at % DEPLOYMENTS)));
        let detail = Detail::Pod(Box::new(pod()));
        objects.push(listed(ListedKind::Pod, &format!("pod-{at}"), owner, detail));
    }
    let mut inventory = Inventory::new();
    apply(&mut inventory, vec![Change::Replace(objects)]);
    inventory
}

fn service(prometheus: Option<SocketAddr>, inventory: Inventory) -> MetricsApiService {
    let registry = Registry::new();
    let source = prometheus.map(|addr| {
        let client = PrometheusClient::new(&format!("http://{addr}"), None, &registry).unwrap();
        MetricsSource::Prometheus(Box::new(client))
    });
    let settings = MetricsApiSettings {
        cluster_domain: "cluster.local".to_owned(),
        control_namespace: "linkerd".to_owned(),
        ignored_namespaces: vec!["kube-system".to_owned()],
        objects: "Kubernetes",
    };
    let inventory = Arc::new(Mutex::new(inventory));
    MetricsApiService::new(inventory, source, settings, &Calls::new(&registry))
}

/// Responds to every query with samples of all Deployments, four for each.
async fn serve_samples() -> SocketAddr {
    let mut samples = Vec::new();
    for at in 0..DEPLOYMENTS {
        let value = at + 1;
        for classification in ["success", "failure"] {
            for tls in ["true", "no_identity"] {
                samples.push(format!(
                    r#"{{"metric":{{"namespace":"shop","deployment":"web-{at}","classification":"{classification}","tls":"{tls}"}},"value":[1700000000.123,"{value}.25"]}}"#
                ));
            }
        }
    }
    let body = format!(
        r#"{{"status":"success","data":{{"resultType":"vector","result":[{}]}}}}"#,
        samples.join(",")
    );
    let mut response = String::new();
    write!(
        response,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let response: Arc<str> = response.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let response = response.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 8192];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    // Headers and form may arrive separately.
                    let text = String::from_utf8_lossy(&buffer[..read]);
                    let complete = text.starts_with("GET ") || text.contains("query=");
                    if complete && stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

fn stat(kind: &str, namespace: &str) -> StatSummaryRequest {
    StatSummaryRequest {
        selector: Some(ResourceSelection {
            resource: Some(Resource {
                namespace: namespace.to_owned(),
                r#type: kind.to_owned(),
                name: String::new(),
            }),
            label_selector: String::new(),
        }),
        time_window: "1m".to_owned(),
        tcp_stats: true,
        ..StatSummaryRequest::default()
    }
}

/// Returns the processor time of this thread, which runs the runtime of a test.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
    let duration = |time: TimeVal| {
        let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
        Duration::from_micros(u64::try_from(micros).unwrap())
    };
    duration(usage.user_time()) + duration(usage.system_time())
}

/// Processor time, because other tests run at the same time.
#[tokio::test]
async fn table_of_200_workloads_with_1000_pods_takes_200_ms() {
    let service = service(Some(serve_samples().await), inventory());
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = processor_time();
        let ok = service.stat_summary(&stat("deployment", "")).await.unwrap();
        best = best.min(processor_time() - start);
        let Some(Table::PodGroup(group)) = &ok.stat_tables[0].table else {
            panic!();
        };
        assert_eq!(group.rows.len(), DEPLOYMENTS);
        for row in &group.rows {
            assert_eq!((row.meshed_pod_count, row.running_pod_count), (5, 5));
            let name = &row.resource.as_ref().unwrap().name;
            let number: u64 = name.strip_prefix("web-").unwrap().parse().unwrap();
            assert_eq!(row.stats.unwrap().success_count, 2 * (number + 1));
        }
    }
    assert!(best <= Duration::from_millis(200), "{best:?}");
}

#[tokio::test]
async fn tables_without_prometheus_have_pods_only_if_stats_are_skipped() {
    let service = service(None, inventory());
    let mut request = stat("deployment", "shop");
    let Err(Failure::Call(status)) = service.stat_summary(&request).await else {
        panic!();
    };
    assert_eq!(status.code(), Code::FailedPrecondition);
    request.skip_stats = true;
    let ok = service.stat_summary(&request).await.unwrap();
    assert_eq!(ok.stat_tables.len(), 1);
    let checks = service.self_check().await;
    assert_eq!(checks.results.len(), 1);
    let pods = service
        .list_pods(&ListPodsRequest::default())
        .await
        .unwrap();
    assert_eq!(pods.pods.len(), PODS);
}

#[tokio::test]
async fn tables_are_bounded() {
    let mut inventory = inventory();
    let objects = (0..=MAX_OBJECTS).map(|at| {
        let detail = Detail::Service(Labels::new());
        Change::Apply(listed(
            ListedKind::Deployment,
            &format!("more-{at}"),
            None,
            detail,
        ))
    });
    apply(&mut inventory, objects.collect());
    let service = service(None, inventory);
    let Err(Failure::Request(error)) = service.stat_summary(&stat("deployment", "")).await else {
        panic!();
    };
    assert_eq!(
        error,
        "more than 10000 objects of the type deployment are selected; select a namespace or a name"
    );
}

#[tokio::test]
async fn pods_of_ignored_namespaces_are_not_listed() {
    let mut inventory = Inventory::new();
    let objects = ["kube-system", "shop"].map(|namespace| {
        Change::Apply(Object::Listed(Arc::new(ListedObject {
            kind: ListedKind::Pod,
            name: Name::new(namespace, "a"),
            labels: Labels::new(),
            owner: None,
            detail: Detail::Pod(Box::new(pod())),
        })))
    });
    apply(&mut inventory, objects.into());
    let service = service(None, inventory);
    let pods = service
        .list_pods(&ListPodsRequest::default())
        .await
        .unwrap();
    let names: Vec<_> = pods.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["shop/a"]);
}

#[tokio::test]
async fn windows_without_samples_of_proxies_are_errors_of_the_request() {
    let registry = Registry::new();
    let mut service = service(None, inventory());
    service.source = Some(MetricsSource::Proxies(ProxyMetrics::new(&registry)));
    let mut request = stat("deployment", "shop");
    assert!(service.stat_summary(&request).await.is_ok());
    request.time_window = "10m".to_owned();
    let Err(Failure::Request(error)) = service.stat_summary(&request).await else {
        panic!();
    };
    assert!(error.starts_with("invalid time window: "), "{error}");
    let authz = AuthzRequest {
        resource: request.selector.unwrap().resource,
        time_window: request.time_window,
    };
    let Err(Failure::Request(error)) = service.authz(&authz).await else {
        panic!();
    };
    assert!(error.starts_with("invalid time window: "), "{error}");
    let checks = service.self_check().await;
    assert_eq!(checks.results[1].subsystem_name, "proxies");
}
