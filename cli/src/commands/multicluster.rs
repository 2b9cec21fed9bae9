//! `meshctl multicluster`: links between clusters, whose Services each cluster can then use. The
//! commands print manifests, or read the state of a cluster; none works on a local node.

mod allow;
pub(crate) mod bundles;
mod check;
mod gateways;
mod install;
mod link;
mod link_gen;
mod linking;
mod names;
mod prune;
mod trust_bundle;
mod trust_gen;
mod uninstall;
mod unlink;

use clap::Subcommand;
use mesh_core::annotation::MULTICLUSTER;

use self::names::DEFAULT_NAMESPACE;
use crate::cluster::Cluster;
use crate::cluster::extension::Extension;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the manifests of the extension
    Install(Box<install::Args>),
    /// Print all objects of the extension, for deletion
    Uninstall(uninstall::Args),
    /// Print the objects that older versions or other values left in the cluster
    Prune(Box<prune::Args>),
    /// Print a Link and credentials, for a cluster that is to use Services of this one
    LinkGen(Box<link_gen::Args>),
    /// Print the trust bundle of this cluster, for a cluster with other trust anchors
    TrustGen(trust_gen::Args),
    /// Print a Link, credentials and a mirror controller (deprecated)
    Link(Box<link::Args>),
    /// Print the objects of a link, for deletion (deprecated)
    Unlink(unlink::Args),
    /// Check whether links to other clusters work
    Check(check::Args),
    /// Show whether the gateways of linked clusters are alive
    Gateways(gateways::Args),
    /// Print the objects that let the mirror controllers of other clusters read this cluster
    Allow(allow::Args),
}

const EXTENSION: Extension = Extension {
    name: MULTICLUSTER,
    flag: "-n",
};

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    match &args.command {
        Command::Install(install) => install::run(install, namespace(global), global).await,
        Command::Uninstall(uninstall) => uninstall::run(uninstall, namespace(global), global).await,
        Command::Prune(prune) => prune::run(prune, namespace(global), global).await,
        Command::LinkGen(link_gen) => link_gen::run(link_gen, global).await,
        Command::TrustGen(trust_gen) => trust_gen::run(trust_gen, global).await,
        Command::Link(link) => link::run(link, global).await,
        Command::Unlink(unlink) => unlink::run(unlink, global).await,
        Command::Check(check) => check::run(check, global).await,
        Command::Gateways(gateways) => gateways::run(gateways, global).await,
        Command::Allow(allow) => allow::run(allow, namespace(global), global).await,
    }
}

/// Returns the namespace of the extension, for commands that print its objects.
fn namespace(global: &Global) -> &str {
    global.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
}

/// Returns the cluster that the flags select.
async fn cluster(global: &Global) -> anyhow::Result<Cluster> {
    match Mesh::find(global).await? {
        Mesh::Cluster(cluster) => Ok(*cluster),
        Mesh::Local(node) => Err(Failure::Input(format!(
            "the local node {} cannot be linked to clusters; --context NAME selects a cluster",
            node.paths.name()
        ))
        .into()),
    }
}

#[cfg(test)]
mod tests;
