//! `meshctl multicluster install`: prints the manifests of the multicluster extension.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::global::Global;
use crate::install::manifest::{self, Manifest};
use crate::install::multicluster::{self, MulticlusterFlags};
use crate::install::preflight;
use crate::output::manifests::ManifestFormat;

/// The chart, which is also the release of an installation by Helm.
const CHART: &str = "linkerd-multicluster";

const EXAMPLES: &str = "\
Examples:
  meshctl multicluster install | kubectl apply -f -
  meshctl multicluster install --gateway=false    for clusters whose pods connect to each other directly
  meshctl multicluster install -f links.yaml      with the value controllers, an item for each Link
  meshctl multicluster install --ignore-cluster > multicluster.yaml

The same command upgrades the extension; `meshctl multicluster prune` then prints what is left over.
docs/reference/multicluster-values.md describes the values.";

/// Print the manifests of the multicluster extension
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Do not check whether the mesh is installed and do not read its configuration
    #[arg(long)]
    ignore_cluster: bool,
    /// Wait this long for the controllers of the mesh, without which pods get no proxy
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = mesh_core::units::parse_duration, conflicts_with = "ignore_cluster")]
    wait: Duration,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: MulticlusterFlags,
}

pub(super) async fn run(args: &Args, namespace: &str, global: &Global) -> anyhow::Result<()> {
    let manifests = if args.ignore_cluster {
        multicluster::render(namespace, None, None, &args.values)?
    } else {
        let cluster = preflight::connect(global).await?;
        preflight::ensure_no_helm_release(&cluster, namespace, CHART).await?;
        let manifests = render_for(&cluster, namespace, &args.values).await?;
        preflight::wait_for_controllers(&cluster, args.wait).await?;
        manifests
    };
    manifest::print(&manifests, args.output)
}

/// Renders the manifests for the mesh of a cluster.
pub(super) async fn render_for(
    cluster: &Cluster,
    namespace: &str,
    flags: &MulticlusterFlags,
) -> anyhow::Result<Vec<Manifest>> {
    let version = preflight::inspect(cluster).await?.version;
    let values = cluster.values().await?;
    multicluster::render(namespace, Some(&version), Some(&values), flags)
}
