//! `meshctl viz uninstall`: prints the objects of the viz extension in the order of their deletion.

use anyhow::bail;
use mesh_core::annotation::VIZ;

use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::global::Global;
use crate::install::{inventory, manifest, preflight};
use crate::output::manifests::ManifestFormat;

const EXAMPLES: &str = "\
Example:
  meshctl viz uninstall | kubectl delete -f -

To remove an extension that Helm installed, use `helm uninstall`.";

/// Print all objects of the viz extension, for deletion
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the objects even if Helm installed them
    #[arg(short, long)]
    force: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

pub(super) async fn run(args: &Args, namespace: &str, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    if !args.force && preflight::is_helm_release(&cluster, namespace, "linkerd-viz").await? {
        bail!(
            "namespace {namespace} has an extension that Helm installed: use `helm uninstall`, or --force to print its objects anyway"
        );
    }
    let objects = inventory::list_extension(&cluster, VIZ, namespace).await?;
    let manifests = inventory::for_deletion(objects, false);
    if manifests.is_empty() {
        let text = "no object of the cluster has the label linkerd.io/extension=viz: the viz extension is not installed";
        return Err(Failure::Input(text.to_owned()).into());
    }
    manifest::print(&manifests, args.output)
}
