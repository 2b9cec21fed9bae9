//! A mesh of a few workloads, as the metrics API and the API server show it. Tests run the
//! dashboard against it, and `examples/scripted_mesh.rs` serves it for the tests in a browser.
//!
//! Requests are a table of edges. All statistics follow from it, so that a page shows the same
//! traffic at both ends of an edge.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use mesh_api::linkerd2::Duration;
use mesh_api::linkerd2::viz::api_server::{Api, ApiServer};
use mesh_api::linkerd2::viz::pod::Owner;
use mesh_api::linkerd2::viz::stat_summary_request::Outbound;
use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::stat_table::{PodGroup, Table};
use mesh_api::linkerd2::viz::{
    AuthzRequest, AuthzResponse, BasicStats, CheckResult, Edge, EdgesRequest, EdgesResponse,
    GatewaysRequest, GatewaysResponse, GatewaysTable, ListPodsRequest, ListPodsResponse,
    ListServicesRequest, ListServicesResponse, Pod, Resource, ResourceError, ResourceSelection,
    RouteTable, SelfCheckRequest, SelfCheckResponse, Service, StatSummaryRequest,
    StatSummaryResponse, StatTable, TcpStats, TopRoutesRequest, TopRoutesResponse, edges_response,
    gateways_response, route_table, stat_summary_response, top_routes_response,
};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, async_trait};

// The attribute is for the example, which includes this file by its path.
#[path = "scripted/cluster.rs"]
pub(crate) mod cluster;

/// How the numbers of the mesh change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// They do not.
    Steady,
    /// By some percent every second.
    Moving,
}

/// The metrics API.
#[derive(Debug)]
pub(crate) struct Mesh {
    pace: Pace,
    started: Instant,
    /// The calls of StatSummary.
    pub(crate) stat_calls: AtomicUsize,
}

/// A workload: namespace, type and name.
type Workload = (&'static str, &'static str, &'static str);

/// A client, a server, requests per second, failures in percent, latency in milliseconds, and
/// whether the connections have mutual TLS.
type Traffic = (Workload, Workload, u64, u64, u64, bool);

const INGRESS: Workload = ("edge", "deployment", "ingress");
const WEB: Workload = ("shop", "deployment", "web");
const CART: Workload = ("shop", "deployment", "cart");
const CATALOG: Workload = ("shop", "deployment", "catalog");
const CHECKOUT: Workload = ("shop", "deployment", "checkout");
const SEARCH: Workload = ("shop", "deployment", "search");
const STOCK: Workload = ("shop", "statefulset", "stock");
const LEDGER: Workload = ("bank", "deployment", "ledger");
const PAYMENTS: Workload = ("bank", "deployment", "payments");
const FRAUD: Workload = ("bank", "deployment", "fraud-detection-of-card-payments");
const LEGACY: Workload = ("bank", "deployment", "legacy");

const WORKLOADS: [Workload; 11] = [
    INGRESS, WEB, CART, CATALOG, CHECKOUT, SEARCH, STOCK, LEDGER, PAYMENTS, FRAUD, LEGACY,
];

const TRAFFIC: [Traffic; 13] = [
    (INGRESS, WEB, 240, 0, 38, true),
    (WEB, CART, 60, 0, 12, true),
    (WEB, CATALOG, 180, 0, 8, true),
    (WEB, SEARCH, 40, 3, 140, true),
    (WEB, CHECKOUT, 12, 0, 95, true),
    (CART, STOCK, 55, 0, 4, true),
    (CATALOG, STOCK, 90, 0, 3, true),
    (CHECKOUT, CART, 12, 0, 9, true),
    (CHECKOUT, PAYMENTS, 12, 8, 210, true),
    (PAYMENTS, FRAUD, 12, 0, 60, true),
    (PAYMENTS, LEDGER, 11, 0, 22, true),
    (LEDGER, LEGACY, 5, 0, 480, false),
    (FRAUD, PAYMENTS, 2, 0, 15, true),
];

const NAMESPACES: [&str; 6] = ["bank", "default", "edge", "linkerd", "linkerd-viz", "shop"];

/// Deployments of the control plane: namespace and name. Each has one pod.
const CONTROLLERS: [(&str, &str); 7] = [
    ("linkerd", "linkerd-destination"),
    ("linkerd", "linkerd-identity"),
    ("linkerd", "linkerd-proxy-injector"),
    ("linkerd-viz", "metrics-api"),
    ("linkerd-viz", "tap"),
    ("linkerd-viz", "tap-injector"),
    ("linkerd-viz", "web"),
];

/// The kinds of `all` that have rows here.
const ALL: [&str; 3] = ["deployment", "statefulset", "pod"];

const WINDOW_SECONDS: u64 = 60;

impl Mesh {
    pub(crate) fn new(pace: Pace) -> Arc<Self> {
        Arc::new(Self {
            pace,
            started: Instant::now(),
            stat_calls: AtomicUsize::new(0),
        })
    }

    /// Serves the metrics API until the process ends.
    pub(crate) async fn serve(self: Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = Server::builder().add_service(ApiServer::from_arc(self));
        tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
        addr
    }

    /// Returns the statistics of edges.
    fn stats<'a>(&self, edges: impl Iterator<Item = &'a Traffic>) -> Option<BasicStats> {
        let percent = match self.pace {
            Pace::Steady => 100,
            Pace::Moving => {
                let phase = self.started.elapsed().as_secs_f64() / 7.0;
                100 + (12.0 * phase.sin()) as i64
            }
        };
        let mut stats: Option<BasicStats> = None;
        for (_, _, rps, failures, latency, _) in edges {
            let stats = stats.get_or_insert_default();
            let requests = rps * WINDOW_SECONDS * percent.unsigned_abs() / 100;
            let failed = requests * failures / 100;
            stats.success_count += requests - failed;
            stats.failure_count += failed;
            stats.latency_ms_p50 = stats.latency_ms_p50.max(latency / 4 + 1);
            stats.latency_ms_p95 = stats.latency_ms_p95.max(latency * 3 / 4 + 1);
            stats.latency_ms_p99 = stats.latency_ms_p99.max(*latency);
        }
        stats
    }

    /// Returns the rows of one type.
    fn rows(&self, request: &StatSummaryRequest, kind: &str) -> Vec<Row> {
        let selected = selected(request.selector.as_ref());
        let is_selected = |resource: &Resource| {
            let matches = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
            matches(&selected.name, &resource.name)
                && (kind == "namespace" || matches(&selected.namespace, &resource.namespace))
        };
        let objects = objects(kind).into_iter().filter(is_selected);
        let rows = objects.filter_map(|object| {
            let is_of = |workload: Workload| is_part(&object, workload);
            let edges = TRAFFIC
                .iter()
                .filter(|(client, server, ..)| match &request.outbound {
                    Some(Outbound::ToResource(to)) => is_of(*client) && is_part(to, *server),
                    Some(Outbound::FromResource(from)) => is_of(*server) && is_part(from, *client),
                    _ => is_of(*server),
                });
            let edges: Vec<&Traffic> = edges.collect();
            let has_peer = !matches!(request.outbound, Some(Outbound::None(_)) | None);
            if has_peer && edges.is_empty() {
                return None;
            }
            let workloads = WORKLOADS
                .iter()
                .filter(|workload| is_of(**workload))
                .count() as u64;
            let pods = if kind == "pod" { 1 } else { 2 * workloads };
            let is_legacy = object.name.starts_with("legacy");
            let stats = self.stats(edges.iter().copied());
            Some(Row {
                time_window: request.time_window.clone(),
                status: if kind == "pod" { "Running" } else { "" }.to_owned(),
                meshed_pod_count: if is_legacy { 0 } else { pods },
                running_pod_count: pods,
                stats: stats.filter(|_| !request.skip_stats),
                tcp_stats: request.tcp_stats.then(|| TcpStats {
                    open_connections: 4 * edges.len() as u64,
                    read_bytes_total: stats.map_or(0, |stats| stats.success_count * 700),
                    write_bytes_total: stats.map_or(0, |stats| stats.success_count * 2_300),
                }),
                resource: Some(object),
                ..Row::default()
            })
        });
        rows.collect()
    }
}

fn selected(selection: Option<&ResourceSelection>) -> Resource {
    selection
        .and_then(|selection| selection.resource.clone())
        .unwrap_or_default()
}

fn resource((namespace, kind, name): (&str, &str, &str)) -> Resource {
    Resource {
        namespace: namespace.to_owned(),
        r#type: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn pod_names((_, kind, name): Workload) -> [String; 2] {
    match kind {
        "statefulset" => [0, 1].map(|at| format!("{name}-{at}")),
        _ => ["7f9c6-x2v4k", "7f9c6-q8zlm"].map(|suffix| format!("{name}-{suffix}")),
    }
}

/// Returns the objects of a type.
fn objects(kind: &str) -> Vec<Resource> {
    match kind {
        "namespace" => NAMESPACES
            .iter()
            .map(|name| resource(("", kind, name)))
            .collect(),
        "pod" => WORKLOADS
            .iter()
            .flat_map(|workload| {
                let pods = pod_names(*workload);
                pods.map(|pod| resource((workload.0, kind, &pod)))
            })
            .collect(),
        _ => WORKLOADS
            .iter()
            .filter(|workload| workload.1 == kind)
            .map(|workload| resource(*workload))
            .collect(),
    }
}

/// Whether a workload is the resource, or is in it, or has it as a pod.
fn is_part(object: &Resource, workload: Workload) -> bool {
    match object.r#type.as_str() {
        "namespace" => object.name == workload.0,
        "pod" => object.namespace == workload.0 && pod_names(workload).contains(&object.name),
        _ => *object == resource(workload),
    }
}

fn identity((namespace, _, name): Workload) -> String {
    format!("{name}.{namespace}.serviceaccount.identity.linkerd.cluster.local")
}

/// Returns the edges of one type, each once.
fn edges_of(kind: &str, namespace: &str) -> Vec<Edge> {
    let end = |workload: Workload| match kind {
        // As the metrics API does, although statistics of namespaces have no namespace.
        "namespace" => Some(resource((workload.0, "namespace", workload.0))),
        _ => (workload.1 == kind).then(|| resource(workload)),
    };
    let mut edges = BTreeMap::new();
    for (client, server, _, _, _, tls) in &TRAFFIC {
        let is_within = namespace.is_empty() || [client.0, server.0].contains(&namespace);
        let (Some(src), Some(dst), true) = (end(*client), end(*server), is_within) else {
            continue;
        };
        let key = [&src.namespace, &src.name, &dst.namespace, &dst.name].map(Clone::clone);
        let (server_id, problem) = if *tls {
            (identity(*server), "")
        } else {
            (String::new(), "Not Provided By Service Discovery")
        };
        edges.entry(key).or_insert(Edge {
            src: Some(src),
            dst: Some(dst),
            client_id: format!("{}.{}", client.2, client.0),
            server_id,
            no_identity_msg: problem.to_owned(),
        });
    }
    edges.into_values().collect()
}

fn error(resource: Resource, text: &str) -> ResourceError {
    ResourceError {
        resource: Some(resource),
        error: text.to_owned(),
    }
}

#[async_trait]
impl Api for Mesh {
    async fn stat_summary(
        &self,
        request: Request<StatSummaryRequest>,
    ) -> Result<Response<StatSummaryResponse>, Status> {
        self.stat_calls.fetch_add(1, Ordering::Relaxed);
        let request = request.into_inner();
        let resource = selected(request.selector.as_ref());
        let response = match resource.r#type.as_str() {
            "job" => stat_summary_response::Response::Error(error(resource, "scripted error")),
            "cronjob" => return Err(Status::unavailable("scripted outage")),
            kind => {
                let kinds = if kind == "all" { &ALL[..] } else { &[kind] };
                let tables = kinds.iter().map(|kind| StatTable {
                    table: Some(Table::PodGroup(PodGroup {
                        rows: self.rows(&request, kind),
                    })),
                });
                stat_summary_response::Response::Ok(stat_summary_response::Ok {
                    stat_tables: tables.collect(),
                })
            }
        };
        Ok(Response::new(StatSummaryResponse {
            response: Some(response),
        }))
    }

    async fn edges(
        &self,
        request: Request<EdgesRequest>,
    ) -> Result<Response<EdgesResponse>, Status> {
        let resource = selected(request.get_ref().selector.as_ref());
        let ok = edges_response::Ok {
            edges: edges_of(&resource.r#type, &resource.namespace),
        };
        Ok(Response::new(EdgesResponse {
            response: Some(edges_response::Response::Ok(ok)),
        }))
    }

    async fn top_routes(
        &self,
        request: Request<TopRoutesRequest>,
    ) -> Result<Response<TopRoutesResponse>, Status> {
        let request = request.into_inner();
        let resource = selected(request.selector.as_ref());
        let has_profile = resource.namespace == WEB.0 && ["", WEB.2].contains(&&*resource.name);
        let row = |route: &str, share: usize| route_table::Row {
            route: route.to_owned(),
            time_window: request.time_window.clone(),
            authority: "web.shop.svc.cluster.local".to_owned(),
            stats: self.stats(TRAFFIC.iter().take(share)),
        };
        let response = if has_profile {
            top_routes_response::Response::Ok(top_routes_response::Ok {
                routes: vec![RouteTable {
                    rows: vec![
                        row("GET /products", 3),
                        row("POST /orders", 1),
                        row("[DEFAULT]", 0),
                    ],
                    resource: "deploy/web".to_owned(),
                }],
            })
        } else {
            let text = "No Service Profiles found for selected resources";
            top_routes_response::Response::Error(error(resource, text))
        };
        Ok(Response::new(TopRoutesResponse {
            response: Some(response),
        }))
    }

    async fn gateways(
        &self,
        _request: Request<GatewaysRequest>,
    ) -> Result<Response<GatewaysResponse>, Status> {
        let ok = gateways_response::Ok {
            gateways_table: Some(GatewaysTable::default()),
        };
        Ok(Response::new(GatewaysResponse {
            response: Some(gateways_response::Response::Ok(ok)),
        }))
    }

    async fn list_pods(
        &self,
        request: Request<ListPodsRequest>,
    ) -> Result<Response<ListPodsResponse>, Status> {
        let namespace = selected(request.get_ref().selector.as_ref()).namespace;
        let pod = |namespace: &str, name: &str, owner: Owner| {
            let is_meshed = !name.starts_with("legacy");
            let controller_namespace = if is_meshed { "linkerd" } else { "" };
            Pod {
                name: format!("{namespace}/{name}"),
                pod_ip: format!("10.1.0.{}", name.len()),
                status: "Running".to_owned(),
                added: is_meshed,
                controller_namespace: controller_namespace.to_owned(),
                control_plane: namespace == "linkerd",
                proxy_ready: is_meshed,
                proxy_version: "v0.1.0".to_owned(),
                uptime: Some(Duration {
                    seconds: 86_400 * 3,
                    nanos: 0,
                }),
                owner: Some(owner),
                ..Pod::default()
            }
        };
        let mut pods = Vec::new();
        for workload in WORKLOADS {
            let owner = format!("{}/{}", workload.0, workload.2);
            let owner = match workload.1 {
                "statefulset" => Owner::StatefulSet(owner),
                _ => Owner::Deployment(owner),
            };
            let names = pod_names(workload);
            pods.extend(
                names
                    .iter()
                    .map(|name| pod(workload.0, name, owner.clone())),
            );
        }
        for (namespace, name) in CONTROLLERS {
            let owner = Owner::Deployment(format!("{namespace}/{name}"));
            pods.push(pod(namespace, &format!("{name}-5d8f7-abcde"), owner));
        }
        let prefix = format!("{namespace}/");
        pods.retain(|pod| namespace.is_empty() || pod.name.starts_with(&prefix));
        Ok(Response::new(ListPodsResponse { pods }))
    }

    async fn list_services(
        &self,
        request: Request<ListServicesRequest>,
    ) -> Result<Response<ListServicesResponse>, Status> {
        let namespace = &request.get_ref().namespace;
        let services = WORKLOADS
            .iter()
            .filter(|workload| namespace.is_empty() || *namespace == workload.0);
        let services: BTreeSet<(&str, &str)> = services.map(|it| (it.0, it.2)).collect();
        let services = services.into_iter().map(|(namespace, name)| Service {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
        });
        Ok(Response::new(ListServicesResponse {
            services: services.collect(),
        }))
    }

    async fn self_check(
        &self,
        _request: Request<SelfCheckRequest>,
    ) -> Result<Response<SelfCheckResponse>, Status> {
        let results = ["Kubernetes", "Prometheus"].map(|name| CheckResult {
            subsystem_name: name.to_lowercase(),
            check_description: format!("linkerd viz can talk to {name}"),
            ..CheckResult::default()
        });
        Ok(Response::new(SelfCheckResponse {
            results: results.to_vec(),
        }))
    }

    async fn authz(
        &self,
        _request: Request<AuthzRequest>,
    ) -> Result<Response<AuthzResponse>, Status> {
        Err(Status::unimplemented("scripted"))
    }
}
