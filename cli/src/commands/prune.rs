//! `meshctl prune`: finds objects of the mesh in the cluster that are no longer part of its
//! manifests.

use std::collections::HashSet;

use crate::cluster::Cluster;
use crate::global::Global;
use crate::install::flags::ValueFlags;
use crate::install::manifest::{self, ObjectName};
use crate::install::{self, Chart, RenderRequest, inventory, preflight};
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
    let mut request = RenderRequest {
        chart: Chart::ControlPlane,
        namespace: &global.linkerd_namespace,
        kubernetes_version: Some(&cluster_info.version),
        stored: Some(&stored),
        detected: cluster_info.values.as_ref(),
        flags: &args.values,
    };
    let mut wanted: HashSet<ObjectName> = names(&install::render(&request)?);
    let none = ValueFlags::default();
    request = RenderRequest {
        chart: Chart::Crds,
        stored: None,
        detected: None,
        flags: &none,
        ..request
    };
    wanted.extend(names(&install::render(&request)?));
    let objects = inventory::list_objects(&cluster).await?;
    let obsolete = inventory::obsolete(objects, &wanted);
    if obsolete.is_empty() {
        return Ok(());
    }
    manifest::print(&obsolete, args.output)
}

fn names(manifests: &[manifest::Manifest]) -> HashSet<ObjectName> {
    manifests.iter().map(manifest::Manifest::name).collect()
}
