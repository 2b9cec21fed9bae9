//! `meshctl viz edges`: the connections between workloads.

use super::resources;
use super::source::{Extension, Source};
use super::table_format::TableFormat;
use crate::clients::metrics_api::Edge;
use crate::exit::Failure;
use crate::global::Global;
use crate::output;
use crate::output::style::Mark;
use crate::output::table::Table;
use crate::resource::{Resource, ResourceKind, WORKLOADS};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// cj, ds, deploy, job, po, rs, rc or sts
    #[arg(value_name = "KIND")]
    kind: String,
    #[arg(short, long, value_enum, default_value_t = TableFormat::Table)]
    output: TableFormat,
}

const HELP: &str = "\
Shows connections that begin or end in the namespace. SECURED is a check mark, or why a
connection has no mutual TLS.

Examples:
  meshctl viz edges deploy -n shop
  meshctl viz edges po -A -o wide";

pub(super) async fn run(args: &Args, extension: &Extension, global: &Global) -> anyhow::Result<()> {
    let resource = kind(&args.kind)?;
    let Source { api, scope } = extension.source(global).await?;
    let target = resources::target(&resource, &scope, global)?;
    let mut edges = api.edges(&target).await?;
    edges.sort_by(|a, b| key(a).cmp(&key(b)));
    match args.output {
        TableFormat::Json => output::linkerd_json(&edges),
        _ if edges.is_empty() => {
            output::note("No edges found.");
            Ok(())
        }
        TableFormat::Table => output::text(&render(&edges, false)),
        TableFormat::Wide => output::text(&render(&edges, true)),
    }
}

fn kind(text: &str) -> Result<Resource, Failure> {
    let resource = Resource::parse(text)?;
    if resource.name.is_some() {
        return Err(Failure::Input(format!(
            "edges are shown for all objects of a kind: write {} instead of {resource}",
            resource.kind.short()
        )));
    }
    if !WORKLOADS.contains(&resource.kind) && resource.kind != ResourceKind::Pod {
        return Err(Failure::Input(format!(
            "{} have no edges: expected cj, ds, deploy, job, po, rs, rc or sts",
            resource.kind.plural()
        )));
    }
    Ok(resource)
}

fn key(edge: &Edge) -> [&str; 4] {
    [
        &edge.src_namespace,
        &edge.dst_namespace,
        &edge.src,
        &edge.dst,
    ]
}

fn render(edges: &[Edge], is_wide: bool) -> String {
    let mut table = Table::default().left("SRC DST SRC_NS DST_NS");
    if is_wide {
        table = table.left("CLIENT_ID SERVER_ID");
    }
    table = table.left("SECURED");
    for edge in edges {
        let mut cells = vec![
            edge.src.clone(),
            edge.dst.clone(),
            edge.src_namespace.clone(),
            edge.dst_namespace.clone(),
        ];
        if is_wide {
            cells.extend([edge.client_id.clone(), edge.server_id.clone()]);
        }
        cells.push(if edge.no_tls_reason.is_empty() {
            Mark::Ok.show()
        } else {
            edge.no_tls_reason.clone()
        });
        table.row(cells);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(src: &str, server_id: &str, no_tls_reason: &str) -> Edge {
        Edge {
            src_namespace: "shop".to_owned(),
            src: src.to_owned(),
            dst_namespace: "bank".to_owned(),
            dst: "api".to_owned(),
            client_id: "web.shop".to_owned(),
            server_id: server_id.to_owned(),
            no_tls_reason: no_tls_reason.to_owned(),
        }
    }

    #[test]
    fn reason_without_tls_is_shown() {
        let edges = [
            edge("web", "api.bank", ""),
            edge("frontend", "", "Not Provided By Service Discovery"),
        ];
        let table = anstream::adapter::strip_str(&render(&edges, true)).to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(
            lines[0],
            "SRC       DST  SRC_NS  DST_NS  CLIENT_ID  SERVER_ID  SECURED"
        );
        let secured = lines[1].split_whitespace().last().unwrap();
        assert!(["√", "ok"].contains(&secured), "{table}");
        assert_eq!(
            lines[2],
            "frontend  api  shop    bank    web.shop   -          Not Provided By Service Discovery"
        );
        let json = serde_json::to_value(&edges).unwrap();
        assert_eq!(json[0]["no_tls_reason"], "");
        assert_eq!(json[1]["src_namespace"], "shop");
    }

    #[test]
    fn only_kinds_with_proxies_have_edges() {
        for (text, problem) in [
            ("deploy/web", "write deploy instead of deploy/web"),
            ("svc", "services have no edges"),
            ("ns", "namespaces have no edges"),
            ("gadget", "invalid resource"),
        ] {
            let error = kind(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
        }
        assert!(kind("sts").is_ok());
    }
}
