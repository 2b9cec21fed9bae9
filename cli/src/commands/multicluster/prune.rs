//! `meshctl multicluster prune`: finds objects of the multicluster extension in the cluster that
//! are no longer part of its manifests.

use std::collections::HashSet;

use mesh_core::annotation::MULTICLUSTER;

use super::{cluster, install};
use crate::global::Global;
use crate::install::manifest::{self, Manifest, ObjectName};
use crate::install::multicluster::MulticlusterFlags;
use crate::install::{Chart, inventory};
use crate::output::manifests::ManifestFormat;

const EXAMPLES: &str = "\
Example, after an upgrade, with the values of the installation:
  meshctl multicluster prune -f links.yaml | kubectl delete -f -

The output is empty if there is nothing to delete. It has no objects of `meshctl multicluster link-gen`, link and
allow.";

/// Print the objects that older versions or other values left in the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: MulticlusterFlags,
}

pub(super) async fn run(args: &Args, namespace: &str, global: &Global) -> anyhow::Result<()> {
    let cluster = cluster(global).await?;
    let manifests = install::render_for(&cluster, namespace, &args.values).await?;
    let wanted: HashSet<ObjectName> = manifests.iter().map(Manifest::name).collect();
    let chart = Chart::Multicluster;
    let objects = inventory::list_chart(&cluster, chart, MULTICLUSTER, namespace).await?;
    let obsolete = inventory::obsolete(objects, &wanted);
    if obsolete.is_empty() {
        return Ok(());
    }
    manifest::print(&obsolete, args.output)
}
