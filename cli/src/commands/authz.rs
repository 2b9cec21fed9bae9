//! `meshctl authz`: which Servers, routes and authorizations apply to a workload.

mod table;
#[cfg(test)]
mod tests;

use clap::Args as ClapArgs;
use mesh_objects::store::Store;

use self::table::{Row, Workload, external, rows};
use crate::analyze::Objects;
use crate::commands::diagnostics::find_pods;
use crate::exit::Failure;
use crate::gather::policies;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::output::table::Table;
use crate::output::{self, Format};

const EXAMPLES: &str = "\
WITHOUT_EFFECT says why a row is not enforced; docs/reference/access-policy.md has the rules.

Examples:
  meshctl authz deployment/web -n shop
  meshctl authz externalworkload/vm -n shop
  meshctl authz po/web-0 -n shop -o json";

#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// KIND/NAME of a workload, pod/NAME or externalworkload/NAME
    resource: String,
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(serde::Serialize)]
struct Output {
    authorizations: Vec<Row>,
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let mesh = Mesh::find(global).await?;
    let policies = policies(&mesh).await.map_err(anyhow::Error::msg)?;
    // The check `policy-readable` reports the invalid objects.
    let objects: Objects = policies.into_iter().collect();
    let store = objects.store();
    let workloads = match external_name(&args.resource) {
        Some(name) => vec![external_workload(&mesh, global, store, name)?],
        None => {
            let pods = find_pods(&mesh, &args.resource, global).await?;
            pods.iter().map(Workload::from).collect()
        }
    };
    let rows = rows(&workloads, store);
    if rows.is_empty() {
        output::note(&format!(
            "no Server selects {}: its default policy applies",
            args.resource
        ));
    }
    match args.output {
        Format::Json => output::json(
            "Authorizations",
            &Output {
                authorizations: rows,
            },
        ),
        Format::Table if rows.is_empty() => Ok(()),
        Format::Table => {
            let mut table = Table::default().left(
                "ROUTE SERVER PORT AUTHORIZATION_POLICY SERVER_AUTHORIZATION WITHOUT_AUTHORIZATION WITHOUT_EFFECT",
            );
            for row in rows {
                let route = match (row.route_kind, row.route) {
                    (Some(kind), Some(name)) => format!("{kind}/{name}"),
                    _ => "*".to_owned(),
                };
                table.row(vec![
                    route,
                    row.server,
                    row.port,
                    row.authorization_policy.unwrap_or_default(),
                    row.server_authorization.unwrap_or_default(),
                    row.access_policy,
                    row.without_effect.unwrap_or_default(),
                ]);
            }
            output::text(&table.render())
        }
    }
}

/// Returns the name of an ExternalWorkload, if the resource is one.
fn external_name(resource: &str) -> Option<&str> {
    let (kind, name) = resource.split_once('/')?;
    let names = ["externalworkload", "externalworkloads", "ew"];
    names
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known))
        .then_some(name)
}

fn external_workload(
    mesh: &Mesh,
    global: &Global,
    store: &Store,
    name: &str,
) -> anyhow::Result<Workload> {
    let namespace = global.namespace.as_deref();
    let namespace = namespace.unwrap_or_else(|| mesh.default_namespace());
    let message = || {
        Failure::Input(format!(
            "ExternalWorkload {namespace}/{name} does not exist; select the namespace with -n"
        ))
    };
    Ok(external(store, namespace, name).ok_or_else(message)?)
}
