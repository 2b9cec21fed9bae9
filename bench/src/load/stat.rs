//! Requests to the metrics API for the statistics of all Deployments.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Args;
use mesh_api::linkerd2::viz::api_client::ApiClient;
use mesh_api::linkerd2::viz::stat_summary_request::Outbound;
use mesh_api::linkerd2::viz::stat_summary_response::Response;
use mesh_api::linkerd2::viz::stat_table::pod_group::Row;
use mesh_api::linkerd2::viz::stat_table::{PodGroup, Table};
use mesh_api::linkerd2::viz::{Empty, Resource, ResourceSelection, StatSummaryRequest};
use tonic::transport::{Channel, Endpoint};

use super::Outcome;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Address of the metrics API
    #[arg(long)]
    target: SocketAddr,
    #[arg(long)]
    namespace: String,
    /// Number of Deployments; each must have requests
    #[arg(long)]
    workloads: usize,
    /// Number of requests, one after the other
    #[arg(long)]
    calls: u32,
}

/// Larger than any response of the benchmark.
const MAX_RESPONSE: usize = 16 << 20;

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let endpoint = Endpoint::from_shared(format!("http://{}", options.target))?;
    let channel = endpoint.connect().await;
    let channel = channel.with_context(|| format!("connect to {}", options.target))?;
    let mut client = ApiClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
    let mut outcome = Outcome::default();
    let begun = Instant::now();
    for _ in 0..options.calls {
        let from = Instant::now();
        let found = stat(&mut client, &options.namespace).await?;
        outcome.latencies.push(from.elapsed());
        outcome.operations += 1;
        if found != options.workloads {
            outcome.fail(anyhow::anyhow!(
                "{found} of {} workloads have requests",
                options.workloads
            ));
        }
    }
    outcome.print(begun.elapsed())
}

/// Returns the number of workloads with requests.
async fn stat(client: &mut ApiClient<Channel>, namespace: &str) -> anyhow::Result<usize> {
    let resource = Resource {
        namespace: namespace.to_owned(),
        r#type: "deployment".to_owned(),
        name: String::new(),
    };
    let request = StatSummaryRequest {
        selector: Some(ResourceSelection {
            resource: Some(resource),
            label_selector: String::new(),
        }),
        time_window: "1m".to_owned(),
        skip_stats: false,
        tcp_stats: true,
        outbound: Some(Outbound::None(Empty {})),
    };
    let response = client.stat_summary(request).await?.into_inner();
    let tables = match response.response.context("the response is empty")? {
        Response::Ok(ok) => ok.stat_tables,
        Response::Error(error) => bail!("{}", error.error),
    };
    let groups = tables.into_iter().filter_map(|table| table.table);
    let rows = groups.flat_map(|Table::PodGroup(PodGroup { rows })| rows);
    Ok(rows.filter(has_requests).count())
}

fn has_requests(row: &Row) -> bool {
    let stats = row.stats.as_ref();
    stats.is_some_and(|stats| stats.success_count > 0 && stats.latency_ms_p99 > 0)
}
