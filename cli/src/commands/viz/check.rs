//! `meshctl viz check`: whether the viz extension works.

use super::source;
use crate::commands::check::{self, Reporting};
use crate::exit::Failure;
use crate::facts::Mode;
use crate::global::Global;
use crate::mesh::Mesh;

const EXAMPLES: &str = "\
Examples:
  meshctl viz check
  meshctl viz check --proxy -n shop    include what it sees of the pods of namespace shop
  meshctl viz check --wait 2m";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Check what the extension sees of meshed pods, too: of -n NAMESPACE, or of all namespaces
    #[arg(long)]
    proxy: bool,
    #[command(flatten)]
    reporting: Reporting,
}

pub(super) async fn run(
    args: &Args,
    namespace: Option<&str>,
    global: &Global,
) -> anyhow::Result<()> {
    if namespace.is_some() {
        let text = "--viz-namespace has no effect on `meshctl viz check`, which finds the namespace by its label: leave it out";
        return Err(Failure::Input(text.to_owned()).into());
    }
    let (cluster, _scope) = source::cluster(global).await?;
    let mesh = Mesh::Cluster(Box::new(cluster));
    let mode = Mode::Viz {
        proxies: args.proxy,
    };
    Box::pin(check::report(Some(&mesh), mode, &args.reporting, global)).await
}
