//! `mesh-bench collector`: a collector of spans, which receives them over gRPC by the OpenTelemetry
//! protocol and counts them. The command `count` on standard input prints how many it has received.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use clap::Args;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use mesh_api::trace::trace_service_server::{TraceService, TraceServiceServer};
use mesh_api::trace::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tonic::{Request, Response, Status};

use crate::{print_error, print_event};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address to listen on
    #[arg(long)]
    listen: SocketAddr,
}

/// Counts the spans of all connections.
#[derive(Clone, Debug, Default)]
struct Collector {
    spans: Arc<AtomicU64>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.spans
            .fetch_add(number_of_spans(request.get_ref()), Ordering::Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Serves until the process exits.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let listener = TcpListener::bind(options.listen)
        .await
        .with_context(|| format!("listen on {}", options.listen))?;
    let collector = Collector::default();
    let counting = collector.clone();
    // Reads of a pipe block and need a thread.
    std::thread::spawn(move || execute_commands(&counting));
    print_event(&json!({ "listening": options.listen.to_string() }))?;
    loop {
        let (tcp, _) = listener.accept().await.context("accept a proxy")?;
        tokio::spawn(serve(tcp, collector.clone()));
    }
}

/// Serves a connection until the proxy closes it.
async fn serve(tcp: TcpStream, collector: Collector) {
    let service = TowerToHyperService::new(TraceServiceServer::new(collector));
    let served = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(tcp), service)
        .await;
    if let Err(error) = served {
        print_error(&anyhow::Error::new(error).context("serve a proxy"));
    }
}

fn execute_commands(collector: &Collector) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let executed = match line.as_str() {
            "count" => print_event(&json!({ "spans": collector.spans.load(Ordering::Relaxed) })),
            _ => Err(anyhow::anyhow!("expected `count`, got {line:?}")),
        };
        if let Err(error) = executed {
            print_error(&error);
        }
    }
}

fn number_of_spans(request: &ExportTraceServiceRequest) -> u64 {
    let scopes = request
        .resource_spans
        .iter()
        .flat_map(|resource| &resource.scope_spans);
    scopes.map(|scope| scope.spans.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use mesh_api::opentelemetry::trace::v1::{ResourceSpans, ScopeSpans};

    use super::*;

    #[tokio::test]
    async fn spans_of_all_resources_are_counted() {
        let resource = |spans: usize| ResourceSpans {
            scope_spans: vec![ScopeSpans {
                spans: vec![Vec::new(); spans],
            }],
            ..ResourceSpans::default()
        };
        let collector = Collector::default();
        for spans in [2, 3] {
            let request = ExportTraceServiceRequest {
                resource_spans: vec![resource(spans), resource(1)],
            };
            collector.export(Request::new(request)).await.unwrap();
        }
        assert_eq!(collector.spans.load(Ordering::Relaxed), 7);
    }
}
