//! `meshctl viz install`: prints the manifests of the viz extension.

use crate::cluster::Cluster;
use crate::global::Global;
use crate::install::viz::{self, VizFlags};
use crate::install::{manifest, preflight};
use crate::output::manifests::ManifestFormat;

const EXAMPLES: &str = "\
Examples:
  meshctl viz install | kubectl apply -f -
  meshctl viz install --set prometheus.enabled=false,prometheusUrl=http://prometheus.monitoring:9090
  meshctl viz install --ignore-cluster > viz.yaml    without contacting a cluster

The same command upgrades the extension; `meshctl viz prune` then prints what is left over.
docs/reference/viz-values.md describes the values.";

/// Print the manifests of the viz extension
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Do not check whether the mesh is installed and do not read its configuration
    #[arg(long)]
    ignore_cluster: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: VizFlags,
}

pub(super) async fn run(args: &Args, namespace: &str, global: &Global) -> anyhow::Result<()> {
    let manifests = if args.ignore_cluster {
        viz::render(namespace, None, None, &args.values)?
    } else {
        let cluster = preflight::connect(global).await?;
        preflight::ensure_no_helm_release(&cluster, namespace, "linkerd-viz").await?;
        render_for(&cluster, namespace, &args.values).await?
    };
    manifest::print(&manifests, args.output)
}

/// Renders the manifests for the mesh of a cluster.
pub(super) async fn render_for(
    cluster: &Cluster,
    namespace: &str,
    flags: &VizFlags,
) -> anyhow::Result<Vec<manifest::Manifest>> {
    let version = preflight::inspect(cluster).await?.version;
    let values = cluster.values().await?;
    viz::render(namespace, Some(&version), Some(&values), flags)
}
