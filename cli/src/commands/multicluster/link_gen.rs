//! `meshctl multicluster link-gen`: prints the objects that another cluster needs to link to this
//! one. A controller for the Link is a value of the other cluster's chart.

use super::linking::{self, LinkFlags};
use super::{cluster, namespace};
use crate::global::Global;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

const EXAMPLES: &str = "\
Example:
  meshctl --context east multicluster link-gen --cluster-name east | kubectl --context west apply -f -

Services of cluster east with the label mirror.linkerd.io/exported=true are then mirrored to cluster
west, if the values of its chart linkerd-multicluster have a controller for the Link east. Each
direction has a Link of its own.

Clusters with different trust anchors and trust domains:
  meshctl --context east multicluster link-gen --cluster-name east --trust-bundle \\
      --trusting-context west | kubectl --context west apply -f -
  meshctl --context west multicluster trust-gen --cluster-name west --trusting-context east |
      kubectl --context east apply -f -";

/// Print a Link and credentials, for a cluster that is to use Services of this one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    link: LinkFlags,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let cluster = cluster(global).await?;
    let documents = linking::documents(&args.link, namespace(global), &cluster, global);
    let documents = Box::pin(documents).await?;
    output::text(&manifests::render(&documents, args.output)?)
}
