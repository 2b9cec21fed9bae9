//! `meshctl multicluster trust-gen`: prints the ConfigMap by which another cluster, which has other
//! trust anchors and no Link to this one, trusts its identities.

use super::cluster;
use super::trust_bundle::{self, TrustFlags};
use crate::global::Global;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

const EXAMPLES: &str = "\
Example:
  meshctl --context west multicluster trust-gen --cluster-name west --trusting-context east |
      kubectl --context east apply -f -

Cluster east then accepts clients of cluster west, from where a Link leads to east. A cluster with a
Link to this one gets the same from link-gen --trust-bundle, and its trust ends with the Link.";

/// Print the trust bundle of this cluster, for a cluster with other trust anchors
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Name of this cluster in the one that is to trust it
    #[arg(long, value_name = "NAME")]
    cluster_name: String,
    #[command(flatten)]
    trust: TrustFlags,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let cluster = cluster(global).await?;
    let name = &args.cluster_name;
    let config_map = trust_bundle::config_map(&cluster, global, name, &args.trust, None);
    let document = serde_json::to_value(Box::pin(config_map).await?)?;
    output::text(&manifests::render(&[document], args.output)?)
}
