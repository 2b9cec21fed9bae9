//! `meshctl viz`: the viz extension of a cluster, and live traffic from its metrics API and its tap
//! API. The commands that tap, and those that ask the metrics API, also work on a local node.
//! `meshctl stat` shows traffic without the extension.

mod allow_scrapes;
mod authz;
mod cells;
mod check;
mod dashboard;
mod edges;
mod install;
mod list;
mod profile;
mod prune;
mod resources;
mod routes;
mod source;
mod stat;
mod stat_inbound;
mod stat_outbound;
mod table_format;
mod tap;
mod top;
mod traffic;
mod uninstall;

use clap::Subcommand;

use self::source::Extension;
use crate::global::Global;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    extension: Extension,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the manifests of the extension
    Install(Box<install::Args>),
    /// Check whether the extension works
    Check(check::Args),
    /// Print all objects of the extension, for deletion
    Uninstall(uninstall::Args),
    /// Print the objects that older versions or other values left in the cluster
    Prune(Box<prune::Args>),
    /// Open the dashboard
    Dashboard(dashboard::Args),
    /// Show the success rate, requests per second and latency of workloads
    Stat(Box<stat::Args>),
    /// Show the requests that workloads receive, by Server and route
    StatInbound(stat_inbound::Args),
    /// Show the requests that workloads send, by Service, route and backend
    StatOutbound(stat_outbound::Args),
    /// Show the connections between workloads, and whether they have mutual TLS
    Edges(edges::Args),
    /// Show the routes of ServiceProfiles with their success rate, requests per second and latency
    Routes(Box<routes::Args>),
    /// Show which Servers, routes and authorizations admitted or denied requests
    Authz(authz::Args),
    /// Print requests as they happen
    Tap(Box<tap::Args>),
    /// Sum requests as they happen, in a full-screen table
    Top(Box<top::Args>),
    /// List which pods can be tapped
    List,
    /// Print a ServiceProfile with the routes of live requests
    Profile(profile::Args),
    /// Print the policy that lets Prometheus scrape the proxies of a namespace
    AllowScrapes(allow_scrapes::Args),
}

/// Where the extension is installed unless --viz-namespace names another namespace.
const DEFAULT_NAMESPACE: &str = "linkerd-viz";

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let extension = &args.extension;
    if let Some(command) = args.command.name_without_metrics_api() {
        extension.refuse_api_addr(command)?;
    }
    let namespace = extension.namespace().unwrap_or(DEFAULT_NAMESPACE);
    match &args.command {
        Command::Install(install) => install::run(install, namespace, global).await,
        Command::Check(check) => check::run(check, extension.namespace(), global).await,
        Command::Uninstall(uninstall) => uninstall::run(uninstall, namespace, global).await,
        Command::Prune(prune) => prune::run(prune, namespace, global).await,
        Command::Dashboard(dashboard) => {
            dashboard::run(dashboard, extension.namespace(), global).await
        }
        Command::Stat(stat) => stat::run(stat, extension, global).await,
        Command::StatInbound(stat) => Box::pin(stat_inbound::run(stat, extension, global)).await,
        Command::StatOutbound(stat) => Box::pin(stat_outbound::run(stat, extension, global)).await,
        Command::Edges(edges) => edges::run(edges, extension, global).await,
        Command::Routes(routes) => routes::run(routes, extension, global).await,
        Command::Authz(authz) => authz::run(authz, extension, global).await,
        Command::Tap(tap) => tap::run(tap, global).await,
        Command::Top(top) => top::run(top, global).await,
        Command::List => list::run(global).await,
        Command::Profile(profile) => profile::run(profile, global).await,
        Command::AllowScrapes(allow) => allow_scrapes::run(allow, extension.namespace(), global),
    }
}

impl Command {
    /// Returns the name of a command that does not read the metrics API.
    fn name_without_metrics_api(&self) -> Option<&'static str> {
        match self {
            Self::Stat(_) | Self::Edges(_) | Self::Routes(_) | Self::Authz(_) => None,
            Self::Install(_) => Some("install"),
            Self::Check(_) => Some("check"),
            Self::Uninstall(_) => Some("uninstall"),
            Self::Prune(_) => Some("prune"),
            Self::Dashboard(_) => Some("dashboard"),
            Self::StatInbound(_) => Some("stat-inbound"),
            Self::StatOutbound(_) => Some("stat-outbound"),
            Self::Tap(_) => Some("tap"),
            Self::Top(_) => Some("top"),
            Self::List => Some("list"),
            Self::Profile(_) => Some("profile"),
            Self::AllowScrapes(_) => Some("allow-scrapes"),
        }
    }
}
