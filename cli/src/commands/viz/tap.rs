//! `meshctl viz tap`: prints requests as proxies report them.

mod filter;
mod json;
mod line;

use clap::ValueEnum;

use crate::global::Global;
use crate::mesh::Mesh;
use crate::mesh::tap::TapStream;
use crate::output;

pub(super) use self::filter::Filter;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// Form of the events [default: a line each]
    #[arg(short, long, value_enum)]
    output: Option<TapFormat>,
}

const HELP: &str = "\
Prints a line when a request is sent (req), when the header section of its response arrives
(rsp), and when the response ends (end).

Examples:
  meshctl viz tap deploy/web -n shop
  meshctl viz tap ns/shop --method POST --path /api
  meshctl viz tap po/web-0 -n shop --to svc/db -o json";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TapFormat {
    /// Lines with the resources and the route, too
    Wide,
    /// A JSON document each, with header fields
    Json,
}

pub(super) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let mut query = args.filter.query(&mesh, global)?;
    query.with_headers = args.output == Some(TapFormat::Json);
    let kind = query.kind();
    let mut stream = TapStream::start(&mesh, &query).await?;
    while let Some(event) = stream.next().await? {
        match args.output {
            Some(TapFormat::Json) => output::linkerd_json(&json::document(&event))?,
            Some(TapFormat::Wide) => output::line(&line::render(&event, Some(kind)))?,
            None => output::line(&line::render(&event, None))?,
        }
    }
    output::note(&format!(
        "the tap of {query} has ended: none of its pods is left"
    ));
    Ok(())
}
