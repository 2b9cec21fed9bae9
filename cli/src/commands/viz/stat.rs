//! `meshctl viz stat`: the statistics of workloads from Prometheus.

mod json;
mod table;

use std::time::Duration;

use super::resources::{self, Labels, Window};
use super::source::{Extension, Source};
use super::table_format::TableFormat;
use crate::clients::metrics_api::{Peer, StatQuery, StatRow};
use crate::exit::Failure;
use crate::global::Global;
use crate::resource::{Resource, ResourceKind, Scope};
use crate::{clients, output};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// KIND, KIND NAME…, or several KIND/NAME: all, au, cj, ds, deploy, job, ns, po, rs, rc, sts,
    /// svc, srv, httproute, authzpolicy, saz
    #[arg(required = true, value_name = "RESOURCE")]
    resources: Vec<String>,
    #[command(flatten)]
    window: Window,
    /// Count only requests that the resources send to this resource
    #[arg(long, value_name = "RESOURCE", conflicts_with = "from")]
    to: Option<String>,
    /// Namespace of the resource of --to [default: the namespace of -n]
    #[arg(long, value_name = "NAME", requires = "to")]
    to_namespace: Option<String>,
    /// Count only requests that the resources receive from this resource
    #[arg(long, value_name = "RESOURCE")]
    from: Option<String>,
    /// Namespace of the resource of --from [default: the namespace of -n]
    #[arg(long, value_name = "NAME", requires = "from")]
    from_namespace: Option<String>,
    #[command(flatten)]
    labels: Labels,
    /// Show resources without meshed pods, too
    #[arg(long)]
    unmeshed: bool,
    /// Repeat until interrupted
    #[arg(short, long)]
    watch: bool,
    #[arg(short, long, value_enum, default_value_t = TableFormat::Table)]
    output: TableFormat,
}

const HELP: &str = "\
Completed pods are not counted. MESHED is the number of meshed pods and of all pods.

Examples:
  meshctl viz stat deploy -n shop
  meshctl viz stat deploy/web --from deploy/frontend -n shop
  meshctl viz stat po web-0 web-1 -n shop -o wide
  meshctl viz stat ns --watch";

/// Time between two queries with `--watch`. The numbers change when Prometheus has scraped, by
/// default each 10 s.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

pub(super) async fn run(args: &Args, extension: &Extension, global: &Global) -> anyhow::Result<()> {
    let resources = Resource::parse_all(&args.resources)?;
    let Source { api, scope } = extension.source(global).await?;
    let queries = queries(args, &resources, &scope, global)?;
    loop {
        let results = clients::concurrently(queries.iter().map(|query| api.stat(query))).await;
        let rows = results
            .into_iter()
            .collect::<anyhow::Result<Vec<_>>>()?
            .concat();
        show(args, visible(rows, args), &scope)?;
        if !args.watch {
            return Ok(());
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

fn queries(
    args: &Args,
    resources: &[Resource],
    scope: &Scope,
    global: &Global,
) -> Result<Vec<StatQuery>, Failure> {
    let to = resources::peer(args.to.as_deref(), args.to_namespace.as_deref(), scope)?;
    let from = resources::peer(args.from.as_deref(), args.from_namespace.as_deref(), scope)?;
    let peer = to.map(Peer::To).or(from.map(Peer::From));
    let query = |resource: &Resource| {
        Ok(StatQuery {
            target: resources::target(resource, scope, global)?,
            selector: args.labels.selector.clone(),
            window: args.window.time_window.clone(),
            peer: peer.clone(),
        })
    };
    resources.iter().map(query).collect()
}

/// Removes the rows of objects without meshed pods, unless a flag asks for them. With `--from`
/// their requests are known from the client's proxies.
fn visible(mut rows: Vec<StatRow>, args: &Args) -> Vec<StatRow> {
    let has_pods = |kind: &str| ResourceKind::parse(kind).is_some_and(ResourceKind::has_pods);
    if !args.unmeshed && args.from.is_none() {
        rows.retain(|row| row.meshed > 0 || !has_pods(&row.kind));
    }
    rows
}

fn show(args: &Args, rows: Vec<StatRow>, scope: &Scope) -> anyhow::Result<()> {
    if args.output == TableFormat::Json {
        return output::linkerd_json(&json::entries(&rows));
    }
    if rows.is_empty() {
        output::note("No traffic found.");
    }
    let layout = table::Layout {
        with_namespace: *scope == Scope::All,
        is_wide: args.output == TableFormat::Wide,
    };
    let text = table::render(rows, layout);
    if args.watch && output::is_terminal() {
        output::redraw(&text)
    } else {
        output::text(&text)
    }
}

#[cfg(test)]
mod tests;
