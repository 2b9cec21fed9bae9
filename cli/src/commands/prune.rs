//! `meshctl prune`: what is in the cluster of the mesh and no more in its manifests.

use std::collections::HashSet;

use crate::{
    cluster::Cluster,
    global::Global,
    install::{
        self, Chart, Order,
        flags::ValueFlags,
        inventory,
        manifest::{self, Name},
        preflight,
    },
    output::manifests::ManifestFormat,
};

const EXAMPLES: &str = "\
Example, after an upgrade:
  meshctl prune | kubectl delete -f -

Nothing is printed when there is nothing to delete.";

/// Print what older versions, or other values, left in the cluster
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
    let found = preflight::survey(&cluster).await?;
    let stored = preflight::stored(&cluster).await?;
    let mut order = Order {
        chart: Chart::ControlPlane,
        namespace: &global.linkerd_namespace,
        kubernetes: Some(&found.version),
        stored: Some(&stored),
        found: found.values.as_ref(),
        flags: &args.values,
    };
    let mut wanted: HashSet<Name> = names(&install::render(&order)?);
    let none = ValueFlags::default();
    order = Order {
        chart: Chart::Crds,
        stored: None,
        found: None,
        flags: &none,
        ..order
    };
    wanted.extend(names(&install::render(&order)?));
    let objects = inventory::take(&cluster).await?;
    let left = inventory::left_over(objects, &wanted);
    if left.is_empty() {
        return Ok(());
    }
    manifest::print(&left, args.output)
}

fn names(manifests: &[manifest::Manifest]) -> HashSet<Name> {
    manifests.iter().map(manifest::Manifest::name).collect()
}
