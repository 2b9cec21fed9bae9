//! `meshctl upgrade [--crds]`: prints the manifests of this version with the values of the
//! installed mesh.

use std::path::PathBuf;

use anyhow::{Context, bail};
use x509_parser::pem::Pem;

use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::global::Global;
use crate::install::flags::ValueFlags;
use crate::install::overrides::Overrides;
use crate::install::{self, RenderRequest, manifest, preflight};
use crate::output::manifests::ManifestFormat;
use crate::{certificate, output};

const EXAMPLES: &str = "\
Examples:
  meshctl upgrade --crds | kubectl apply -f -
  meshctl upgrade | kubectl apply -f -
  meshctl prune | kubectl delete -f -            delete objects of older versions
  meshctl upgrade --set controllerReplicas=3     change a value

Values of the installation are kept; the values of this command override them.";

/// Print the manifests for upgrading the mesh
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print the custom resource definitions, which must be applied first
    #[arg(long)]
    crds: bool,
    /// Read the values from the output of an earlier `meshctl install` or `upgrade`, without
    /// contacting a cluster
    #[arg(long, value_name = "FILE")]
    from_manifests: Option<PathBuf>,
    /// Print the manifests even if running proxies do not trust the new issuer
    #[arg(long)]
    force: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: ValueFlags,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let (stored, cluster_info) = match &args.from_manifests {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
            (Overrides::from_manifests(&text)?, None)
        }
        None => {
            let cluster = Cluster::connect(global).await?;
            let cluster_info = preflight::inspect(&cluster).await?;
            let stored = preflight::stored_overrides(&cluster).await?;
            if !args.crds {
                check_issuer(args, &cluster).await?;
            }
            (stored, Some(cluster_info))
        }
    };
    let (cluster, stored) = (cluster_info.as_ref(), Some(&stored));
    let request = RenderRequest::new(args.crds, global, cluster, stored, &args.values);
    manifest::print(&install::render(&request)?, args.output)
}

/// Rejects an issuer that running proxies do not trust. Connections fail between proxies with
/// certificates of different issuers if they do not trust both.
async fn check_issuer(args: &Args, cluster: &Cluster) -> anyhow::Result<()> {
    let Some(issuer) = args.values.issuer_certificate()? else {
        return Ok(());
    };
    let Some(anchors) = preflight::trust_anchors(cluster).await? else {
        return Ok(());
    };
    if is_signed_by(&issuer, &anchors)? {
        return Ok(());
    }
    let warning = "none of the trust anchors of running proxies signed the new issuer";
    if args.force {
        output::note(&format!("warning: {warning}"));
        return Ok(());
    }
    bail!(
        "{warning}: upgrade first with --identity-trust-anchors-file and a file of both old and new anchors, wait until all proxies have them \
         (meshctl check --proxy), then upgrade with the new issuer; --force prints the manifests anyway"
    )
}

fn is_signed_by(issuer: &str, anchors: &str) -> anyhow::Result<bool> {
    let issuer = pem(issuer)
        .map_err(|error| Failure::Input(format!("the issuer's file is not valid PEM: {error}")))?;
    let chain: Vec<_> = issuer
        .iter()
        .map(Pem::parse_x509)
        .collect::<Result<_, _>>()?;
    if chain.is_empty() {
        bail!(Failure::Input(
            "the issuer's file contains no certificate".to_owned()
        ));
    }
    let anchors = pem(anchors).context("read the cluster's trust anchors")?;
    let anchors: Vec<_> = anchors
        .iter()
        .map(Pem::parse_x509)
        .collect::<Result<_, _>>()?;
    Ok(certificate::is_signed_by(&chain, &anchors))
}

fn pem(text: &str) -> Result<Vec<Pem>, x509_parser::error::PEMError> {
    Pem::iter_from_buffer(text.as_bytes()).collect()
}
