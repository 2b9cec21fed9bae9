//! `meshctl diagnostics`: queries controllers, agents and proxies over their own interfaces.

mod endpoints;
mod heartbeat;
mod metrics;
mod policy;
mod precedence;
mod profile;
mod query_source;
mod redirection;
mod sysdump;

use clap::Subcommand;

use crate::global::Global;
use crate::mesh::Mesh;

pub(crate) use self::metrics::find_pods;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the endpoints that the destination controller sends to proxies
    #[command(visible_alias = "ep")]
    Endpoints(endpoints::Args),
    /// Show the profile that the destination controller sends for a name or an address
    Profile(profile::Args),
    /// Show the policy that the policy controller sends: inbound of a pod's port, or outbound of a
    /// Service
    Policy(policy::Args),
    /// Show the enrolled pods with tier and connection counters
    Redirection(redirection::Args),
    /// Print the metrics of a pod's proxy, or of the proxies of a workload
    ProxyMetrics(metrics::ProxyMetricsArgs),
    /// Print the metrics of all controllers
    #[command(visible_alias = "cp-metrics")]
    ControllerMetrics,
    /// Show the report that the mesh sends, or would send, to the URL of the value heartbeatUrl
    Heartbeat(heartbeat::Args),
    /// Write an archive for a bug report, without secrets
    Sysdump(sysdump::Args),
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    match &args.command {
        Command::Endpoints(args) => endpoints::run(&mesh, args).await,
        Command::Profile(args) => profile::run(&mesh, args).await,
        Command::Policy(args) => policy::run(&mesh, args, global).await,
        Command::Redirection(args) => redirection::run(&mesh, args, global).await,
        Command::ProxyMetrics(args) => metrics::print_proxy_metrics(&mesh, args, global).await,
        Command::ControllerMetrics => metrics::print_controller_metrics(&mesh).await,
        Command::Heartbeat(args) => Box::pin(heartbeat::run(mesh, args)).await,
        Command::Sysdump(args) => Box::pin(sysdump::run(&mesh, args, global)).await,
    }
}
