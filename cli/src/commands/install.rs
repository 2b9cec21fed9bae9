//! `meshctl install [--crds]`: prints the manifests of the mesh.

use crate::global::Global;
use crate::install::flags::ValueFlags;
use crate::install::{self, RenderRequest, manifest, preflight};
use crate::output::manifests::ManifestFormat;

const EXAMPLES: &str = "\
Examples:
  meshctl install --crds | kubectl apply -f -     first the custom resource definitions,
  meshctl install | kubectl apply -f -            then the control plane and the node agents
  meshctl install --ha --set proxy.logLevel=info  set values of the chart
  meshctl install --ignore-cluster > mesh.yaml    without contacting a cluster

The charts are rendered by the program helm. docs/reference/values.md describes their values.";

/// Print the manifests of the mesh: with --crds the custom resource definitions, otherwise the
/// control plane
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the custom resource definitions, which must be applied first
    #[arg(long)]
    crds: bool,
    /// Do not check whether the cluster is suitable for the mesh
    #[arg(long)]
    ignore_cluster: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: ValueFlags,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let cluster_info = if args.ignore_cluster {
        None
    } else {
        let cluster = preflight::connect(global).await?;
        let cluster_info = preflight::inspect(&cluster).await?;
        if !args.crds {
            preflight::ensure_installable(&cluster).await?;
        }
        Some(cluster_info)
    };
    let cluster_info = cluster_info.as_ref();
    let request = RenderRequest::new(args.crds, global, cluster_info, None, &args.values);
    manifest::print(&install::render(&request)?, args.output)
}
