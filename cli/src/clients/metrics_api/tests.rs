//! Calls over a stream to a server of the metrics API with scripted responses.

use mesh_api::linkerd2::viz::api_server::{Api, ApiServer};
use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::stat_table::{PodGroup, Table};
use mesh_api::linkerd2::viz::*;
use tonic::{Code, Request, Response};

use super::*;
use crate::resource::Resource as CliResource;

/// Responds to StatSummary from the name of the selected object, and to nothing else.
struct Script;

const MISSING: &str = "deployment.apps \"gone\" not found";

#[tonic::async_trait]
impl Api for Script {
    async fn stat_summary(
        &self,
        request: Request<StatSummaryRequest>,
    ) -> Result<Response<StatSummaryResponse>, Status> {
        let request = request.into_inner();
        let resource = request
            .selector
            .and_then(|it| it.resource)
            .unwrap_or_default();
        let response = match &*resource.name {
            "gone" => return Err(Status::not_found(MISSING)),
            "invalid" => stat_summary_response::Response::Error(ResourceError {
                resource: Some(resource),
                error: "invalid time window".to_owned(),
            }),
            "later" => return Ok(Response::new(StatSummaryResponse { response: None })),
            "large" => stat_summary_response::Response::Ok(ok(&"x".repeat(MAX_RESPONSE))),
            _ => stat_summary_response::Response::Ok(ok(&resource.name)),
        };
        Ok(Response::new(StatSummaryResponse {
            response: Some(response),
        }))
    }

    async fn edges(&self, _: Request<EdgesRequest>) -> Result<Response<EdgesResponse>, Status> {
        Err(Status::new(Code::Unimplemented, "scripted"))
    }

    async fn gateways(
        &self,
        _: Request<GatewaysRequest>,
    ) -> Result<Response<GatewaysResponse>, Status> {
        Err(Status::new(Code::Unimplemented, "scripted"))
    }

    async fn top_routes(
        &self,
        _: Request<TopRoutesRequest>,
    ) -> Result<Response<TopRoutesResponse>, Status> {
        Err(Status::new(Code::Unimplemented, "scripted"))
    }

    async fn list_pods(
        &self,
        _: Request<ListPodsRequest>,
    ) -> Result<Response<ListPodsResponse>, Status> {
        Err(Status::new(Code::Unimplemented, "scripted"))
    }

    async fn list_services(
        &self,
        _: Request<ListServicesRequest>,
    ) -> Result<Response<ListServicesResponse>, Status> {
        Err(Status::new(Code::Unimplemented, "scripted"))
    }

    async fn self_check(
        &self,
        _: Request<SelfCheckRequest>,
    ) -> Result<Response<SelfCheckResponse>, Status> {
        Err(Status::new(Code::Unimplemented, "scripted"))
    }

    async fn authz(&self, _: Request<AuthzRequest>) -> Result<Response<AuthzResponse>, Status> {
        Err(Status::new(Code::Unimplemented, "scripted"))
    }
}

fn ok(name: &str) -> stat_summary_response::Ok {
    let row = Row {
        resource: Some(Resource {
            namespace: "shop".to_owned(),
            r#type: "deployment".to_owned(),
            name: name.to_owned(),
        }),
        meshed_pod_count: 2,
        running_pod_count: 3,
        stats: Some(BasicStats {
            success_count: 59,
            failure_count: 1,
            latency_ms_p50: 1,
            ..BasicStats::default()
        }),
        tcp_stats: Some(TcpStats {
            open_connections: 4,
            read_bytes_total: 600,
            write_bytes_total: 1200,
        }),
        ..Row::default()
    };
    stat_summary_response::Ok {
        stat_tables: vec![StatTable {
            table: Some(Table::PodGroup(PodGroup { rows: vec![row] })),
        }],
    }
}

async fn api() -> MetricsApi {
    let (client, server) = tokio::io::duplex(1 << 16);
    let service = hyper_util::service::TowerToHyperService::new(ApiServer::new(Script));
    let io = hyper_util::rt::TokioIo::new(server);
    let executor = hyper_util::rt::TokioExecutor::new();
    let serve = hyper::server::conn::http2::Builder::new(executor).serve_connection(io, service);
    tokio::spawn(serve);
    MetricsApi::new(Connection::new(client), "the test")
        .await
        .unwrap()
}

fn query(name: &str) -> StatQuery {
    StatQuery {
        target: Target {
            resource: CliResource::parse(&format!("deploy/{name}")).unwrap(),
            namespace: Some("shop".to_owned()),
        },
        selector: String::new(),
        window: TimeWindow::parse("1m").unwrap(),
        peer: None,
    }
}

#[tokio::test]
async fn rows_have_rates() {
    let rows = api().await.stat(&query("web")).await.unwrap();
    let expect = StatRow {
        namespace: "shop".to_owned(),
        kind: "deployment".to_owned(),
        name: "web".to_owned(),
        meshed: 2,
        running: 3,
        requests: Some(Requests {
            success_rate: 59.0 / 60.0,
            rps: 1.0,
            latency_ms_p50: 1,
            latency_ms_p95: 0,
            latency_ms_p99: 0,
        }),
        tcp: Some(Tcp {
            open_connections: 4,
            read_bytes_rate: 10.0,
            write_bytes_rate: 20.0,
        }),
        ..StatRow::default()
    };
    assert_eq!(rows, [expect]);
}

#[tokio::test]
async fn errors_of_calls_and_within_responses_are_shown() {
    let api = api().await;
    for (name, problem) in [
        ("gone", MISSING),
        ("invalid", "refused the request: invalid time window"),
        ("later", "without a result"),
        ("large", "the metrics API failed"),
    ] {
        let error = api.stat(&query(name)).await.unwrap_err();
        assert!(format!("{error:#}").contains(problem), "{name}: {error:#}");
    }
    let target = query("web").target;
    let error = api.edges(&target).await.unwrap_err();
    assert!(format!("{error:#}").contains("scripted"), "{error:#}");
}
