//! `meshctl uninject`: removes from manifests what `inject` or the cluster's injector added.

use std::path::PathBuf;

use mesh_k8s::manifest;

use super::inject::{read, report};
use crate::exit::Failure;
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

const EXAMPLES: &str = "\
Examples:
  kubectl get deploy -o yaml | meshctl uninject - | kubectl apply -f -";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Files, directories, URLs (http:// or https://), or - for standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let documents = read(&args.files).await?;
    let (documents, reports) = manifest::uninject(documents)
        .map_err(|error| Failure::Input(format!("{:#}", anyhow::Error::from(error))))?;
    output::text(&manifests::render(&documents, args.output)?)?;
    output::note(&report(&reports));
    Ok(())
}
