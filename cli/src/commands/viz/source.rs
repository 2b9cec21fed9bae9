//! Where the commands of `meshctl viz` read from.

use std::net::SocketAddr;

use mesh_local::control_plane::viz::NAMESPACE;

use crate::clients::metrics_api::MetricsApi;
use crate::clients::prometheus_api;
use crate::cluster::Cluster;
use crate::cluster::service::PodPort;
use crate::exit::Failure;
use crate::global::Global;
use crate::mesh::Mesh;
use crate::mesh::prometheus_server::Prometheus;
use crate::node::Node;
use crate::resource::Scope;

/// The flags of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Options of the viz extension")]
pub(super) struct Extension {
    /// Namespace of the viz extension [default: the one with label linkerd.io/extension=viz]; the
    /// API server finds the tap API without it
    #[arg(long, global = true, value_name = "NAME")]
    viz_namespace: Option<String>,
    /// Address of the metrics API, which is then reached without the API server; the default
    /// namespace is then `default`
    #[arg(long, global = true, value_name = "IP:PORT")]
    api_addr: Option<SocketAddr>,
}

/// The metrics API and the namespaces that the flags select.
pub(super) struct Source {
    pub(super) api: MetricsApi,
    pub(super) scope: Scope,
}

impl Extension {
    /// Returns the namespace that the flag names.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.viz_namespace.as_deref()
    }

    /// Refuses the address of the metrics API for a command that does not read it.
    pub(super) fn refuse_api_addr(&self, command: &str) -> Result<(), Failure> {
        match self.api_addr {
            None => Ok(()),
            Some(_) => Err(Failure::Input(format!(
                "--api-addr has no effect on `meshctl viz {command}`, which does not read the metrics API: leave it out"
            ))),
        }
    }

    pub(super) async fn source(&self, global: &Global) -> anyhow::Result<Source> {
        if let Some(addr) = self.api_addr {
            let api = MetricsApi::connect(addr).await?;
            let scope = scope_without_cluster(global);
            return Ok(Source { api, scope });
        }
        let mesh = Mesh::find(global).await?;
        let scope = mesh.scope(global);
        let api = match mesh {
            Mesh::Cluster(cluster) => cluster.metrics_api(self.namespace()).await?,
            Mesh::Local(node) => {
                self.refuse_namespace(&node)?;
                MetricsApi::connect(node.metrics_api()?).await?
            }
        };
        Ok(Source { api, scope })
    }

    fn refuse_namespace(&self, node: &Node) -> Result<(), Failure> {
        match self.viz_namespace {
            None => Ok(()),
            Some(_) => Err(Failure::Input(format!(
                "--viz-namespace has no effect on the local node {}, whose metrics API is in namespace {NAMESPACE}: leave it out",
                node.paths.name()
            ))),
        }
    }

    /// Returns Prometheus and the namespaces that the flags select.
    pub(super) async fn prometheus(&self, global: &Global) -> anyhow::Result<(Prometheus, Scope)> {
        let (cluster, scope) = cluster(global).await?;
        let (namespace, name) = cluster.prometheus_pod(self.namespace()).await?;
        let prometheus = Prometheus::Pod {
            cluster: Box::new(cluster),
            pod: PodPort {
                namespace,
                name,
                port: prometheus_api::PORT,
            },
            prefix: String::new(),
        };
        Ok((prometheus, scope))
    }
}

/// Returns the namespaces that the flags select for a server that is reached directly.
pub(super) fn scope_without_cluster(global: &Global) -> Scope {
    match &global.namespace {
        _ if global.all_namespaces => Scope::All,
        Some(namespace) => Scope::Namespace(namespace.clone()),
        None => Scope::Namespace("default".to_owned()),
    }
}

/// Returns the cluster and the namespaces that the flags select, for a command that needs something
/// which a local node lacks: a Prometheus, a dashboard in a pod, or objects of the extension.
pub(super) async fn cluster(global: &Global) -> anyhow::Result<(Cluster, Scope)> {
    let mesh = Mesh::find(global).await?;
    let scope = mesh.scope(global);
    match mesh {
        Mesh::Cluster(cluster) => Ok((*cluster, scope)),
        Mesh::Local(node) => Err(Failure::Input(format!(
            "the local node {} has no Prometheus and no dashboard in a pod: use `meshctl local dashboard`, or `meshctl viz stat`, `edges`, `routes`, `authz` or `tap`, which read its proxies; --context NAME selects a cluster",
            node.paths.name()
        ))
        .into()),
    }
}
