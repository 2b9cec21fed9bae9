//! `meshctl diagnostics`: what the controllers and the proxies believe, asked over their own interfaces.

use clap::Subcommand;
use mesh_core::{
    endpoint::{Endpoint, EndpointUpdate, ProtocolHint},
    node::PodStatus,
    policy::outbound::Target,
};
use serde::Serialize;

use crate::{
    args::Global,
    exit::Failure,
    node::{Node, agent, controllers, http},
    output::{
        self, Format,
        table::{Align, Table},
    },
};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The endpoints that the destination controller gives to proxies
    Endpoints {
        /// NAME.NAMESPACE.svc.cluster.local:PORT
        #[arg(required = true)]
        authorities: Vec<String>,
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// The profile that the destination controller gives for a name or an address
    Profile {
        /// NAME.NAMESPACE.svc.cluster.local:PORT, or IP:PORT
        target: String,
    },
    /// The policy that the policy controller gives: of a pod's port inbound, or of a service outbound
    Policy {
        /// pod/[NAMESPACE/]NAME for inbound policy; NAME.NAMESPACE.svc.cluster.local for outbound policy
        resource: String,
        port: u16,
        /// The namespace that the traffic comes from
        #[arg(long, default_value = "default")]
        source_namespace: String,
    },
    /// The enrolled pods, the tier each was enrolled on, and where its connections went
    Redirection {
        #[arg(short, long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// The metrics of a pod's proxy
    ProxyMetrics {
        /// NAME or NAMESPACE/NAME
        pod: String,
    },
}

pub(crate) async fn run(args: &Args, global: &Global) -> anyhow::Result<()> {
    let node = Node::find(global.local.as_deref())?;
    match &args.what {
        What::Endpoints {
            authorities,
            output,
        } => endpoints(&node, authorities, *output).await,
        What::Profile { target } => output::line(&format!(
            "{:#?}",
            controllers::profile(&node, target).await?
        )),
        What::Policy {
            resource,
            port,
            source_namespace,
        } => policy(&node, resource, *port, source_namespace).await,
        What::Redirection { output } => redirection(&node, *output).await,
        What::ProxyMetrics { pod } => {
            output::text(&http::get_ok(node.pod(pod)?.admin()?, "/metrics").await?)
        }
    }
}

#[derive(Serialize)]
struct Endpoints {
    endpoints: Vec<Row>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    authority: String,
    ip: String,
    port: u16,
    pod: String,
    namespace: String,
    protocol: &'static str,
    identity: String,
}

async fn endpoints(node: &Node, authorities: &[String], format: Format) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for authority in authorities {
        match controllers::endpoints(node, authority).await? {
            EndpointUpdate::Add {
                endpoints,
                set_labels,
            } => {
                let namespace = set_labels.get("namespace").cloned().unwrap_or_default();
                rows.extend(
                    endpoints
                        .iter()
                        .map(|endpoint| row(authority, &namespace, endpoint)),
                );
            }
            EndpointUpdate::Empty { .. } | EndpointUpdate::Remove(_) => {
                output::note(&format!("{authority} has no endpoints"));
            }
        }
    }
    rows.sort_by(|a, b| (&a.authority, &a.ip).cmp(&(&b.authority, &b.ip)));
    match format {
        Format::Json => output::json("Endpoints", &Endpoints { endpoints: rows }),
        Format::Table => {
            let left = Align::Left;
            let mut table = Table::new(&[
                ("NAMESPACE", left),
                ("IP", left),
                ("PORT", Align::Right),
                ("POD", left),
                ("PROTOCOL", left),
                ("IDENTITY", left),
                ("SERVICE", left),
            ]);
            for row in rows {
                table.row(vec![
                    row.namespace,
                    row.ip,
                    row.port.to_string(),
                    row.pod,
                    row.protocol.to_owned(),
                    row.identity,
                    row.authority,
                ]);
            }
            output::text(&table.render())
        }
    }
}

fn row(authority: &str, namespace: &str, endpoint: &Endpoint) -> Row {
    Row {
        authority: authority.to_owned(),
        ip: endpoint.addr.ip().to_string(),
        port: endpoint.addr.port(),
        pod: endpoint.labels.get("pod").cloned().unwrap_or_default(),
        namespace: namespace.to_owned(),
        protocol: match endpoint.hint {
            ProtocolHint::Unknown => "",
            ProtocolHint::Http2 => "h2",
            ProtocolHint::Opaque => "opaque",
        },
        identity: endpoint
            .tls
            .as_ref()
            .map(|tls| tls.id.to_string())
            .unwrap_or_default(),
    }
}

async fn policy(
    node: &Node,
    resource: &str,
    port: u16,
    source_namespace: &str,
) -> anyhow::Result<()> {
    let text = match resource
        .strip_prefix("pod/")
        .or(resource.strip_prefix("po/"))
    {
        Some(name) => {
            let pod = node.pod(name)?;
            let workload = serde_json::json!({ "ns": pod.namespace, "pod": pod.name }).to_string();
            format!(
                "{:#?}",
                controllers::inbound_policy(node, &workload, port).await?
            )
        }
        None if resource.contains(".svc") => {
            let source =
                serde_json::json!({ "ns": source_namespace, "pod": "meshctl" }).to_string();
            let target = Target::Authority(format!("{resource}:{port}").into());
            format!(
                "{:#?}",
                controllers::outbound_policy(node, &source, &target).await?
            )
        }
        None => {
            let message = format!(
                "{resource:?} is neither pod/[NAMESPACE/]NAME nor NAME.NAMESPACE.svc.cluster.local"
            );
            return Err(Failure::Input(message).into());
        }
    };
    output::line(&text)
}

#[derive(Serialize)]
struct Redirection {
    pods: Vec<PodStatus>,
}

async fn redirection(node: &Node, format: Format) -> anyhow::Result<()> {
    let mut pods = agent::pods(&node.instance.agent_socket()).await?;
    pods.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
    if format == Format::Json {
        return output::json("Redirection", &Redirection { pods });
    }
    let left = Align::Left;
    let mut table = Table::new(&[
        ("NAMESPACE", left),
        ("POD", left),
        ("TIER", left),
        ("CONNECTIONS", left),
    ]);
    for pod in pods {
        let counted = pod.connections.iter().filter(|(_, count)| **count > 0);
        let counted: Vec<String> = counted
            .map(|(verdict, count)| format!("{verdict}={count}"))
            .collect();
        table.row(vec![
            pod.pod.namespace,
            pod.pod.name,
            pod.tier.to_string(),
            counted.join(" "),
        ]);
    }
    output::text(&table.render())
}
