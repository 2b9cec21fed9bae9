//! `meshctl version`.

use serde::Serialize;

use crate::output::{self, Format};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    client_version: &'static str,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let version = Version {
        client_version: env!("CARGO_PKG_VERSION"),
    };
    match args.output {
        Format::Table => output::line(&format!("Client version: {}", version.client_version)),
        Format::Json => output::json("Version", &version),
    }
}
