//! The metrics API with a real Prometheus, which scrapes a server with the series of proxies.
//!
//! Counters grow linearly, and each sample has the time of its value: the next full second. So the
//! increase within a window is known exactly, however late a scrape is.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use mesh_api::linkerd2::viz::api_client::ApiClient;
use mesh_api::linkerd2::viz::stat_summary_request::Outbound;
use mesh_api::linkerd2::viz::stat_table::Table;
use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::{
    AuthzRequest, CheckStatus, EdgesRequest, GatewaysRequest, ListPodsRequest, ListServicesRequest,
    Resource, ResourceSelection, SelfCheckRequest, StatSummaryRequest, TopRoutesRequest,
    authz_response, edges_response, gateways_response, stat_summary_response, top_routes_response,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tonic::Code;
use tonic::transport::Channel;

use mesh_test_support::network::free_address;

use mesh_test_support::controller::{Controller, ManifestDir};
use mesh_test_support::eventually::eventually_async as eventually;

const WINDOW: &str = "5s";
const WINDOW_SECONDS: u64 = 5;

/// A counter grows by its rate in each second, starting long ago.
const COUNTERS: [(&str, &str, u64); 13] = [
    (
        "response_total",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-1",classification="success",tls="true",srv_kind="server",srv_name="web-http""#,
        100,
    ),
    (
        "response_total",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-2",classification="success",tls="no_identity",srv_kind="server",srv_name="web-http""#,
        20,
    ),
    (
        "response_total",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-2",classification="failure",tls="true",srv_kind="server",srv_name="web-http""#,
        4,
    ),
    (
        "response_total",
        r#"direction="outbound",namespace="shop",deployment="client",pod="client-1",dst_namespace="shop",dst_deployment="web",dst_service="web",authority="web.shop.svc.cluster.local:8080",classification="success",tls="true""#,
        60,
    ),
    (
        "response_latency_ms_bucket",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-1",le="100""#,
        0,
    ),
    (
        "response_latency_ms_bucket",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-1",le="200""#,
        100,
    ),
    (
        "response_latency_ms_bucket",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-1",le="+Inf""#,
        100,
    ),
    (
        "tcp_read_bytes_total",
        r#"direction="inbound",peer="src",namespace="shop",deployment="web",pod="web-1""#,
        3_000,
    ),
    (
        "tcp_read_bytes_total",
        r#"direction="inbound",peer="dst",namespace="shop",deployment="web",pod="web-1""#,
        9_000,
    ),
    (
        "inbound_http_authz_allow_total",
        r#"namespace="shop",deployment="web",pod="web-1",srv_kind="server",srv_name="web-http",authz_kind="authorizationpolicy",authz_name="allow",route_kind="default",route_name="default""#,
        120,
    ),
    (
        "inbound_http_authz_deny_total",
        r#"namespace="shop",deployment="web",pod="web-1",srv_kind="server",srv_name="web-http",route_kind="default",route_name="default""#,
        8,
    ),
    (
        "route_response_total",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-1",dst="web.shop.svc.cluster.local:8080",rt_route="GET /a",classification="success""#,
        40,
    ),
    (
        "route_response_total",
        r#"direction="inbound",namespace="shop",deployment="web",pod="web-1",dst="web.shop.svc.cluster.local:8080",classification="failure""#,
        2,
    ),
];

const GAUGES: [(&str, &str, u64); 4] = [
    (
        "tcp_open_connections",
        r#"direction="inbound",peer="src",namespace="shop",deployment="web",pod="web-1""#,
        7,
    ),
    (
        "tcp_open_connections",
        r#"direction="outbound",peer="dst",namespace="shop",deployment="client",pod="client-1",dst_namespace="shop",dst_deployment="web",server_id="web.shop.serviceaccount.identity.linkerd.cluster.local",tls="true""#,
        3,
    ),
    (
        "tcp_open_connections",
        r#"direction="outbound",peer="dst",namespace="shop",deployment="client",pod="client-1",dst_namespace="shop",dst_deployment="db",no_tls_reason="not_provided_by_service_discovery""#,
        1,
    ),
    (
        "process_start_time_seconds",
        r#"namespace="shop",deployment="web",pod="web-1""#,
        1_700_000_000,
    ),
];

const OBJECTS: &str = "
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop, labels: {tier: front}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: client, namespace: shop}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, namespace: shop, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: web, uid: a}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{port: 8080}]}
---
{apiVersion: policy.linkerd.io/v1beta3, kind: Server, metadata: {name: web-http, namespace: shop}}
---
apiVersion: linkerd.io/v1alpha2
kind: ServiceProfile
metadata: {name: web.shop.svc.cluster.local, namespace: shop}
spec: {routes: [{name: GET /a, condition: {pathRegex: /a}}, {name: GET /b, condition: {pathRegex: /b}}]}
";

/// A Prometheus, which is killed when the test ends.
pub(crate) struct Prometheus {
    pub(crate) addr: SocketAddr,
    child: Child,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes `target`, or prints why the test is skipped.
    pub(crate) fn start(target: SocketAddr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 250ms}}\nscrape_configs:\n- job_name: linkerd-proxy\n  honor_labels: true\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let addr = free_address();
        let spawned = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={addr}"))
            .arg("--log.level=error")
            .stdout(Stdio::null())
            .spawn();
        match spawned {
            Ok(child) => Some(Self {
                addr,
                child,
                _directory: directory,
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: prometheus is not installed");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves series in the text format of Prometheus.
pub(crate) async fn serve_series(series: fn() -> String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let body = series();
                    let response = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if stream.write_all(response.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    addr
}

/// Returns the series of [`COUNTERS`] and [`GAUGES`].
fn series() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seconds = since.as_secs() + 1;
    let mut body = String::new();
    for (name, labels, rate) in COUNTERS {
        writeln!(body, "{name}{{{labels}}} {} {seconds}000", rate * seconds).unwrap();
    }
    for (name, labels, value) in GAUGES {
        writeln!(body, "{name}{{{labels}}} {value}").unwrap();
    }
    body
}

fn pod(name: &str, owner: &str, phase: &str, more: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: shop\n  labels: {{app: web, linkerd.io/control-plane-ns: linkerd}}\n{owner}spec: {{serviceAccountName: {name}, containers: []}}\nstatus: {{phase: {phase}, podIP: 10.1.0.1{more}}}\n"
    )
}

fn objects() -> String {
    let owner =
        "  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: b}]\n";
    let errors = ", containerStatuses: [{name: app, image: 'app:1', imageID: i, ready: false, restartCount: 2, state: {waiting: {reason: CrashLoopBackOff, message: back-off}}}]";
    [
        OBJECTS.to_owned(),
        pod("web-1", owner, "Running", ""),
        pod("web-2", owner, "Running", errors),
        pod("web-3", owner, "Failed", ""),
        pod("client-1", "", "Running", ""),
    ]
    .concat()
}

fn resource(kind: &str, name: &str) -> Resource {
    Resource {
        namespace: "shop".to_owned(),
        r#type: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn selection(kind: &str, name: &str) -> Option<ResourceSelection> {
    Some(ResourceSelection {
        resource: Some(resource(kind, name)),
        label_selector: String::new(),
    })
}

struct Client(ApiClient<Channel>);

impl Client {
    async fn stat(&mut self, kind: &str, name: &str, outbound: Option<Outbound>) -> Vec<Row> {
        let request = StatSummaryRequest {
            selector: selection(kind, name),
            time_window: WINDOW.to_owned(),
            outbound,
            skip_stats: false,
            tcp_stats: true,
        };
        let response = self.0.stat_summary(request).await.unwrap().into_inner();
        match response.response.unwrap() {
            stat_summary_response::Response::Ok(ok) => ok
                .stat_tables
                .into_iter()
                .flat_map(|table| match table.table.unwrap() {
                    Table::PodGroup(group) => group.rows,
                })
                .collect(),
            stat_summary_response::Response::Error(error) => panic!("{error:?}"),
        }
    }

    /// Returns the successful and failed requests of the first row.
    async fn requests(
        &mut self,
        kind: &str,
        name: &str,
        outbound: Option<Outbound>,
    ) -> Option<(u64, u64)> {
        let rows = self.stat(kind, name, outbound).await;
        let stats = rows.first()?.stats?;
        Some((stats.success_count, stats.failure_count))
    }
}

#[tokio::test]
async fn answers_have_counts_of_scraped_series() {
    let target = serve_series(series).await;
    let Some(prometheus) = Prometheus::start(target) else {
        return;
    };
    let dir = ManifestDir::new();
    dir.write("objects.yaml", &objects());
    let args = [
        format!("--source-dir={}", dir.path().display()),
        format!("--prometheus-url=http://{}", prometheus.addr),
    ];
    let started = Controller::start("metrics-api", "--addr", "--metrics-addr", &args);
    let controller = started.ready().await;
    let mut client = Client(ApiClient::new(controller.channel().await));

    // The first samples must be as old as the window.
    let per_window = |rate: u64| rate * WINDOW_SECONDS;
    eventually("the series of a window", async || {
        let call = client.0.stat_summary(StatSummaryRequest {
            selector: selection("deployment", "web"),
            time_window: WINDOW.to_owned(),
            ..StatSummaryRequest::default()
        });
        // Prometheus may still be starting.
        call.await.ok()?;
        let found = client.requests("deployment", "web", None).await?;
        (found == (per_window(120), per_window(4))).then_some(())
    })
    .await;

    let rows = client.stat("deployment", "", None).await;
    let names: Vec<_> = rows
        .iter()
        .map(|row| row.resource.clone().unwrap().name)
        .collect();
    assert_eq!(names, ["client", "web"]);
    let web = &rows[1];
    assert_eq!(
        (
            web.meshed_pod_count,
            web.running_pod_count,
            web.failed_pod_count
        ),
        (2, 2, 1)
    );
    assert_eq!(web.time_window, WINDOW);
    let stats = web.stats.unwrap();
    assert_eq!(
        (
            stats.latency_ms_p50,
            stats.latency_ms_p95,
            stats.latency_ms_p99
        ),
        (150, 195, 199)
    );
    let tcp = web.tcp_stats.unwrap();
    assert_eq!(
        (tcp.open_connections, tcp.read_bytes_total),
        (7, per_window(3_000))
    );
    let errors: Vec<_> = web.errors_by_pod.keys().collect();
    assert_eq!(errors, ["web-2"]);
    assert_eq!(rows[0].stats, None);

    let to = || Some(Outbound::ToResource(resource("deployment", "web")));
    let from = || Some(Outbound::FromResource(resource("deployment", "client")));
    for (kind, name, outbound, expect) in [
        ("pod", "web-2", None, (20, 4)),
        ("namespace", "shop", None, (120, 4)),
        ("service", "web", None, (60, 0)),
        ("server", "web-http", None, (120, 4)),
        ("deployment", "client", to(), (60, 0)),
        ("deployment", "web", from(), (60, 0)),
        ("authority", "", from(), (60, 0)),
    ] {
        let expect = (per_window(expect.0), per_window(expect.1));
        eventually(&format!("requests of {kind}/{name}"), async || {
            let found = client.requests(kind, name, outbound.clone()).await?;
            (found == expect).then_some(())
        })
        .await;
    }
    let servers = client.stat("server", "", None).await;
    let server = servers[0].srv_stats.as_ref().unwrap();
    assert_eq!(
        (server.allowed_count, server.denied_count),
        (per_window(120), per_window(8))
    );

    // All types at once have a table each.
    assert_eq!(client.stat("all", "", None).await.len(), 8);

    check_edges(&mut client).await;
    check_routes_and_authorizations(&mut client).await;
    check_lists(&mut client).await;
    check_errors(&mut client).await;
}

async fn check_edges(client: &mut Client) {
    let request = EdgesRequest {
        selector: selection("deployment", ""),
    };
    let response = client.0.edges(request).await.unwrap().into_inner();
    let edges_response::Response::Ok(ok) = response.response.unwrap() else {
        panic!();
    };
    let edges: Vec<_> = ok
        .edges
        .iter()
        .map(|edge| {
            (
                edge.dst.as_ref().unwrap().name.as_str(),
                edge.client_id.as_str(),
                edge.server_id.as_str(),
                edge.no_identity_msg.as_str(),
            )
        })
        .collect();
    assert_eq!(
        edges,
        [
            (
                "db",
                "client-1.shop",
                "",
                "Not Provided By Service Discovery"
            ),
            (
                "web",
                "client-1.shop",
                "web.shop.serviceaccount.identity.linkerd.cluster.local",
                ""
            ),
        ]
    );
}

async fn check_routes_and_authorizations(client: &mut Client) {
    let request = TopRoutesRequest {
        selector: selection("deployment", "web"),
        time_window: WINDOW.to_owned(),
        outbound: None,
    };
    let response = client.0.top_routes(request).await.unwrap().into_inner();
    let top_routes_response::Response::Ok(ok) = response.response.unwrap() else {
        panic!();
    };
    assert_eq!(ok.routes[0].resource, "deployment/web");
    let routes: Vec<_> = ok.routes[0]
        .rows
        .iter()
        .map(|row| {
            let stats = row.stats.unwrap();
            (
                row.route.as_str(),
                row.authority.as_str(),
                stats.success_count,
                stats.failure_count,
            )
        })
        .collect();
    assert_eq!(
        routes,
        [
            ("[DEFAULT]", "web", 0, 2 * WINDOW_SECONDS),
            ("GET /a", "web", 40 * WINDOW_SECONDS, 0),
            ("GET /b", "web", 0, 0),
        ]
    );

    let request = AuthzRequest {
        resource: Some(resource("deployment", "web")),
        time_window: WINDOW.to_owned(),
    };
    let response = client.0.authz(request).await.unwrap().into_inner();
    let authz_response::Response::Ok(ok) = response.response.unwrap() else {
        panic!();
    };
    let Table::PodGroup(group) = ok.stat_table.unwrap().table.unwrap();
    let counts: Vec<_> = group
        .rows
        .iter()
        .map(|row| {
            let server = row.srv_stats.as_ref().unwrap();
            let authz = server.authz.as_ref().unwrap();
            (
                authz.name.as_str(),
                server.allowed_count,
                server.denied_count,
            )
        })
        .filter(|(_, allowed, denied)| allowed + denied > 0)
        .collect();
    assert_eq!(
        counts,
        [
            ("", 0, 8 * WINDOW_SECONDS),
            ("allow", 120 * WINDOW_SECONDS, 0)
        ]
    );
}

async fn check_lists(client: &mut Client) {
    let request = ListPodsRequest {
        selector: selection("deployment", "web"),
    };
    let pods = client.0.list_pods(request).await.unwrap().into_inner().pods;
    let summary: Vec<_> = pods
        .iter()
        .map(|pod| (pod.name.as_str(), pod.status.as_str(), pod.added))
        .collect();
    assert_eq!(
        summary,
        [
            ("shop/web-1", "Running", true),
            ("shop/web-2", "Running", false),
            ("shop/web-3", "Failed", false)
        ]
    );
    assert!(pods[0].uptime.unwrap().seconds > 0);
    let request = ListServicesRequest::default();
    let services = client.0.list_services(request).await.unwrap().into_inner();
    assert_eq!(services.services[0].name, "web");
    let checks = client
        .0
        .self_check(SelfCheckRequest {})
        .await
        .unwrap()
        .into_inner();
    let statuses: Vec<_> = checks
        .results
        .iter()
        .map(|it| (it.subsystem_name.as_str(), it.status()))
        .collect();
    assert_eq!(
        statuses,
        [
            ("kubernetes", CheckStatus::Ok),
            ("prometheus", CheckStatus::Ok)
        ]
    );
    let request = GatewaysRequest::default();
    let response = client.0.gateways(request).await.unwrap().into_inner();
    let Some(gateways_response::Response::Ok(ok)) = response.response else {
        panic!();
    };
    assert_eq!(ok.gateways_table.unwrap().rows, []);
}

async fn check_errors(client: &mut Client) {
    for (kind, window, expect) in [
        ("gadget", WINDOW, "unimplemented resource type: gadget"),
        (
            "pod",
            "200ms",
            "invalid time window: time window (200ms) must be at least as long as the Prometheus scrape interval (250ms)",
        ),
    ] {
        let request = StatSummaryRequest {
            selector: selection(kind, ""),
            time_window: window.to_owned(),
            ..StatSummaryRequest::default()
        };
        let response = client.0.stat_summary(request).await.unwrap().into_inner();
        let Some(stat_summary_response::Response::Error(error)) = response.response else {
            panic!("{response:?}");
        };
        assert_eq!(error.error, expect);
        assert_eq!(error.resource, Some(resource(kind, "")));
    }
    let request = StatSummaryRequest {
        selector: selection("deployment", "gone"),
        ..StatSummaryRequest::default()
    };
    let status = client.0.stat_summary(request).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "deployment.apps \"gone\" not found")
    );
}
