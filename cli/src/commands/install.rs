//! `meshctl install [--crds]`: the manifests of a mesh, on standard output.

use crate::{
    global::Global,
    install::{self, Chart, Order, flags::ValueFlags, manifest, preflight},
    output::manifests::ManifestFormat,
};

const EXAMPLES: &str = "\
Examples:
  meshctl install --crds | kubectl apply -f -     first the custom resources,
  meshctl install | kubectl apply -f -            then the control plane and the node agents
  meshctl install --ha --set proxy.logLevel=info  with values of the chart
  meshctl install --ignore-cluster > mesh.yaml    without query a cluster

The program helm renders the charts. Values are described in docs/reference/values.md.";

/// Print the manifests of a mesh: the custom resources with --crds, the control plane without
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The custom resources, which must be there first
    #[arg(long)]
    crds: bool,
    /// Ask no cluster whether it is fit for the mesh
    #[arg(long)]
    ignore_cluster: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: ValueFlags,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let found = if args.ignore_cluster {
        None
    } else {
        let cluster = preflight::connect(global).await?;
        let found = preflight::survey(&cluster).await?;
        if !args.crds {
            preflight::free(&cluster).await?;
        }
        Some(found)
    };
    let values = found.as_ref().and_then(|found| found.values.as_ref());
    let manifests = install::render(&Order {
        chart: if args.crds {
            Chart::Crds
        } else {
            Chart::ControlPlane
        },
        namespace: &global.linkerd_namespace,
        kubernetes: found.as_ref().map(|found| found.version.as_str()),
        stored: None,
        found: values.filter(|_| !args.crds),
        flags: &args.values,
    })?;
    manifest::print(&manifests, args.output)
}
