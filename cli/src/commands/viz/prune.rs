//! `meshctl viz prune`: finds objects of the viz extension in the cluster that are no longer part
//! of its manifests.

use std::collections::HashSet;

use mesh_core::annotation::VIZ;

use super::install;
use crate::cluster::Cluster;
use crate::global::Global;
use crate::install::inventory;
use crate::install::manifest::{self, Manifest, ObjectName};
use crate::install::viz::VizFlags;
use crate::output::manifests::ManifestFormat;

const EXAMPLES: &str = "\
Example, after an upgrade, with the values of the installation:
  meshctl viz prune | kubectl delete -f -

The output is empty if there is nothing to delete.";

/// Print the objects that older versions or other values left in the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: VizFlags,
}

pub(super) async fn run(args: &Args, namespace: &str, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    let manifests = install::render_for(&cluster, namespace, &args.values).await?;
    let wanted: HashSet<ObjectName> = manifests.iter().map(Manifest::name).collect();
    let objects = inventory::list_extension(&cluster, VIZ, namespace).await?;
    let obsolete = inventory::obsolete(objects, &wanted);
    if obsolete.is_empty() {
        return Ok(());
    }
    manifest::print(&obsolete, args.output)
}
