//! `meshctl diagnostics`: what the controllers and the proxies believe, asked over their own
//! interfaces.

mod endpoints;
mod metrics;
mod policy;
mod redirection;
mod sysdump;

use clap::Subcommand;

pub(crate) use self::metrics::find;

use crate::{
    clients::controllers::{self, QueryContext},
    global::Global,
    mesh::Mesh,
    output,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The endpoints that the destination controller gives to proxies
    #[command(visible_alias = "ep")]
    Endpoints(endpoints::Args),
    /// The profile that the destination controller gives for a name or an address
    Profile {
        /// NAME.NAMESPACE.svc.cluster.local:PORT, or IP:PORT
        target: String,
        #[command(flatten)]
        as_whom: QuerySource,
    },
    /// The policy that the policy controller gives: of a pod's port inbound, or of a Service
    /// outbound
    Policy(policy::Args),
    /// The enrolled pods, the tier each was enrolled on, and where its connections went
    Redirection(redirection::Args),
    /// The metrics of a pod's proxy, or of the proxies of a workload
    ProxyMetrics(metrics::OfProxies),
    /// The metrics of every controller
    #[command(visible_alias = "cp-metrics")]
    ControllerMetrics,
    /// Everything that a bug report needs, in one archive, without secrets
    Sysdump(sysdump::Args),
}

/// On whose behalf a controller is asked.
#[derive(Debug, clap::Args)]
pub(crate) struct QuerySource {
    /// The pod of the destination controller to ask, instead of any ready one
    #[arg(long, value_name = "POD")]
    destination_pod: Option<String>,
    /// The context token, as proxies say who they are: {"ns":"shop","nodeName":"a"}
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
}

impl QuerySource {
    fn query<'a>(&'a self, mesh: &'a Mesh, default_token: &'a str) -> QueryContext<'a> {
        QueryContext {
            mesh,
            pod: self.destination_pod.as_deref(),
            token: self.token.as_deref().unwrap_or(default_token),
        }
    }
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    match &args.what {
        What::Endpoints(args) => endpoints::run(&mesh, args).await,
        What::Profile { target, as_whom } => {
            let profile = controllers::profile(&as_whom.query(&mesh, ""), target).await?;
            output::line(&format!("{profile:#?}"))
        }
        What::Policy(args) => policy::run(&mesh, args, global).await,
        What::Redirection(args) => redirection::run(&mesh, args, global).await,
        What::ProxyMetrics(args) => metrics::of_proxies(&mesh, args, global).await,
        What::ControllerMetrics => metrics::of_controllers(&mesh).await,
        What::Sysdump(args) => Box::pin(sysdump::run(&mesh, args, global)).await,
    }
}
