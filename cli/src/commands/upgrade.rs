//! `meshctl upgrade [--crds]`: the manifests of the mesh that is there, as this version has them,
//! with the values it was installed with.

use std::path::PathBuf;

use anyhow::{Context, bail};
use x509_parser::pem::Pem;

use crate::{
    check::certificate,
    cluster::Cluster,
    exit::Failure,
    global::Global,
    install::{self, Chart, Order, flags::ValueFlags, manifest, overrides::Overrides, preflight},
    output::{self, manifests::ManifestFormat},
};

const EXAMPLES: &str = "\
Examples:
  meshctl upgrade --crds | kubectl apply -f -
  meshctl upgrade | kubectl apply -f -
  meshctl prune | kubectl delete -f -            what older versions left behind
  meshctl upgrade --set controllerReplicas=3     with another value than before

Values of the installation are kept; those given here go over them.";

/// Print the manifests for upgrading the mesh
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The custom resources, which must be there first
    #[arg(long)]
    crds: bool,
    /// Take the values from the output of an earlier `meshctl install` or `upgrade`, and ask no
    /// cluster
    #[arg(long, value_name = "FILE")]
    from_manifests: Option<PathBuf>,
    /// Render even an issuer that running proxies do not trust
    #[arg(long)]
    force: bool,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    values: ValueFlags,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let (stored, found) = match &args.from_manifests {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
            (Overrides::of_manifests(&text)?, None)
        }
        None => {
            let cluster = Cluster::connect(global).await?;
            let found = preflight::survey(&cluster).await?;
            let stored = preflight::stored(&cluster).await?;
            if !args.crds {
                check_issuer(args, &cluster).await?;
            }
            (stored, Some(found))
        }
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
        stored: (!args.crds).then_some(&stored),
        found: values.filter(|_| !args.crds),
        flags: &args.values,
    })?;
    manifest::print(&manifests, args.output)
}

/// A new issuer is of no use to proxies that do not trust it, and of harm to all connections
/// between those that have its certificates and those that have not.
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
    let trouble = "the new issuer is signed by none of the trust anchors that running proxies have";
    if args.force {
        output::note(&format!("warning: {trouble}"));
        return Ok(());
    }
    bail!(
        "{trouble}: upgrade first with --identity-trust-anchors-file naming the old and the new anchors together, wait until every proxy has them \
         (meshctl check --proxy), then upgrade with the new issuer; --force renders all the same"
    )
}

fn is_signed_by(issuer: &str, anchors: &str) -> anyhow::Result<bool> {
    let issuer =
        pem(issuer).map_err(|error| Failure::Input(format!("the issuer's file: {error}")))?;
    let chain: Vec<_> = issuer
        .iter()
        .map(Pem::parse_x509)
        .collect::<Result<_, _>>()?;
    if chain.is_empty() {
        bail!(Failure::Input(
            "the issuer's file holds no certificate".to_owned()
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
