//! `meshctl diagnostics policy`.

use std::net::{IpAddr, SocketAddr};

use mesh_core::policy::outbound::Target;
use mesh_objects::policy::json;

use super::precedence;
use super::query_source::QuerySource;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::{Mesh, controllers};
use crate::output;
use crate::output::manifests::{self, ManifestFormat};

const EXAMPLES: &str = "\
Examples:
  meshctl diagnostics policy po/web-0 8080 -n shop
  meshctl diagnostics policy svc/web 80 -n shop
  meshctl diagnostics policy 203.0.113.1 443 --source-namespace shop -o json";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// pod/[NAMESPACE/]NAME for inbound policy; svc/NAME, NAME.NAMESPACE.svc.cluster.local or an
    /// IP address for outbound policy
    resource: String,
    port: u16,
    /// Namespace that the traffic comes from
    #[arg(long, default_value = "default")]
    source_namespace: String,
    #[arg(short, long, value_enum, default_value_t = ManifestFormat::Yaml)]
    output: ManifestFormat,
    #[command(flatten)]
    source: QuerySource,
}

/// A parsed resource argument.
#[derive(Debug, PartialEq)]
enum Resource<'a> {
    Pod(&'a str),
    Service(&'a str),
    Name(&'a str),
    Address(IpAddr),
}

fn parse(resource: &str) -> Option<Resource<'_>> {
    match resource.split_once('/') {
        Some(("pod" | "pods" | "po", name)) => Some(Resource::Pod(name)),
        Some(("service" | "services" | "svc", name)) => Some(Resource::Service(name)),
        None if resource.contains(".svc") => Some(Resource::Name(resource)),
        None => resource.parse().ok().map(Resource::Address),
        _ => None,
    }
}

pub(super) async fn run(mesh: &Mesh, args: &Args, global: &Global) -> anyhow::Result<()> {
    let resource = parse(&args.resource).ok_or_else(|| {
        Failure::Input(format!(
            "invalid resource {:?}: expected pod/[NAMESPACE/]NAME, svc/NAME, NAME.NAMESPACE.svc.cluster.local or an IP address",
            args.resource
        ))
    })?;
    let source = serde_json::json!({ "ns": args.source_namespace, "pod": "meshctl" }).to_string();
    let query = args.source.query(mesh, &source);
    let outbound = async |target: Target| {
        let authority = match &target {
            Target::Addr(addr) => addr.to_string(),
            Target::Authority(authority) => authority.to_string(),
        };
        let policy = controllers::outbound_policy(&query, &target).await?;
        match controllers::profile(&query, &authority).await {
            Ok(profile) => {
                if let Some(note) = precedence::note(&policy, &profile) {
                    output::note(&note);
                }
            }
            Err(error) => output::note(&format!("the profile is unknown: {error:#}")),
        }
        anyhow::Ok(json::outbound(&policy))
    };
    let named = |name: &str| Target::Authority(format!("{name}:{}", args.port).into());
    let policy = match resource {
        Resource::Pod(name) => {
            let pod = mesh.pod(name, global).await?;
            let workload = serde_json::json!({ "ns": pod.namespace, "pod": pod.name }).to_string();
            json::inbound(&controllers::inbound_policy(&query, &workload, args.port).await?)
        }
        Resource::Service(name) => {
            let scope = mesh.scope(global);
            let namespace = scope.namespace().unwrap_or("default");
            let name = format!("{name}.{namespace}.svc.{}", mesh.cluster_domain().await);
            outbound(named(&name)).await?
        }
        Resource::Name(name) => outbound(named(name)).await?,
        Resource::Address(ip) => outbound(Target::Addr(SocketAddr::new(ip, args.port))).await?,
    };
    output::text(&manifests::render(&[policy], args.output)?)
}

#[cfg(test)]
mod tests {
    use mesh_core::meta::Meta;
    use mesh_core::policy::inbound::{ServerPolicy, ServerProtocol};

    use super::*;

    #[test]
    fn inbound_policy_of_a_pod_that_is_being_deleted_says_so() {
        for is_terminating in [false, true] {
            let policy = ServerPolicy {
                meta: Meta::new_default("deny"),
                protocol: ServerProtocol::Opaque,
                authorizations: [].into(),
                is_terminating,
            };
            let message = mesh_api::inbound::to_proto(&policy);
            let received = mesh_api::inbound::server_policy(message).unwrap();
            let text = manifests::render(&[json::inbound(&received)], ManifestFormat::Yaml);
            let text = text.unwrap();
            assert_eq!(
                text.contains("\nterminating: true\n"),
                is_terminating,
                "{text}"
            );
        }
    }

    #[test]
    fn pods_services_names_and_addresses_are_parsed() {
        assert_eq!(parse("po/a"), Some(Resource::Pod("a")));
        assert_eq!(parse("pod/shop/a"), Some(Resource::Pod("shop/a")));
        assert_eq!(parse("svc/a"), Some(Resource::Service("a")));
        let name = "a.shop.svc.cluster.local";
        assert_eq!(parse(name), Some(Resource::Name(name)));
        let ip = "2001:db8::1".parse().unwrap();
        assert_eq!(parse("2001:db8::1"), Some(Resource::Address(ip)));
        assert_eq!(parse("deploy/a"), None);
        assert_eq!(parse("a"), None);
    }
}
