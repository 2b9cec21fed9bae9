//! `meshctl prune`: finds objects of the mesh in the cluster that are no longer part of its
//! manifests.

use std::collections::HashSet;

use crate::cluster::Cluster;
use crate::global::Global;
use crate::install::flags::ValueFlags;
use crate::install::manifest::{self, Manifest, ObjectName};
use crate::install::{self, RenderRequest, inventory, preflight};
use crate::output::manifests::ManifestFormat;

const EXAMPLES: &str = "\
Example, after an upgrade:
  meshctl prune | kubectl delete -f -

The output is empty if there is nothing to delete.";

/// Print the objects that older versions or other values left in the cluster
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: ValueFlags,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let cluster = Cluster::connect(global).await?;
    let cluster_info = preflight::inspect(&cluster).await?;
    let stored = preflight::stored_overrides(&cluster).await?;
    let none = ValueFlags::default();
    let mut wanted: HashSet<ObjectName> = HashSet::new();
    for (crds, flags) in [(false, &args.values), (true, &none)] {
        let cluster = Some(&cluster_info);
        let request = RenderRequest::new(crds, global, cluster, Some(&stored), flags);
        let manifests = install::render(&request)?;
        wanted.extend(manifests.iter().map(Manifest::name));
    }
    let objects = inventory::list_objects(&cluster).await?;
    let obsolete = inventory::obsolete(objects, &wanted);
    if obsolete.is_empty() {
        return Ok(());
    }
    manifest::print(&obsolete, args.output)
}
