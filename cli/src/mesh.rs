//! The mesh that a command operates on: a local node or a cluster, behind one interface. Commands
//! list pods and connect to their ports through [`Mesh`]. Operations that only one kind supports
//! (files of a node, objects of a cluster) are methods of [`Node`] and [`Cluster`].

pub(crate) mod agent_process;
pub(crate) mod controllers;
pub(crate) mod prometheus_server;
mod selection;
pub(crate) mod tap;

use anyhow::Context as _;
use mesh_k8s::values::Values;

use self::selection::{Selection, SelectionInputs};
use crate::clients::connection::Connection;
use crate::clients::{http, tls};
use crate::cluster::Cluster;
use crate::exit::Failure;
use crate::global::{CONTROL_NAMESPACE, Global};
use crate::node::Node;
use crate::output;
use crate::resource::{AgentReport, MeshPod, Scope, pod};

pub(crate) enum Mesh {
    Local(Node),
    Cluster(Box<Cluster>),
}

impl Mesh {
    /// Returns the mesh that the flags select, or else the default one. The latter is printed to
    /// standard error, because the user did not choose it.
    pub(crate) async fn find(global: &Global) -> anyhow::Result<Self> {
        match selection::select(&SelectionInputs::from_global(global)) {
            Selection::LocalNode(name) => Ok(Self::Local(Node::find(name.as_deref())?)),
            Selection::Cluster => Ok(Self::Cluster(Box::new(Cluster::connect(global).await?))),
            Selection::RunningNode => {
                let node = Node::find(None)?;
                output::note(&format!(
                    "local node {} (--context NAME selects a cluster)",
                    node.paths.name()
                ));
                Ok(Self::Local(node))
            }
            Selection::DefaultCluster => {
                let cluster = Cluster::connect(global).await?;
                output::note(&format!(
                    "cluster of context {} ({})",
                    cluster.context, cluster.server
                ));
                Ok(Self::Cluster(Box::new(cluster)))
            }
            Selection::None => Err(Failure::Unreachable(NO_TARGET.to_owned()).into()),
        }
    }

    /// Returns the pods of a scope, sorted by namespace and name.
    pub(crate) async fn pods(&self, scope: &Scope) -> anyhow::Result<Vec<MeshPod>> {
        let mut pods = match self {
            Self::Local(node) => node.pods()?,
            Self::Cluster(cluster) => cluster.pods(scope).await?,
        };
        pods.retain(|pod| scope.contains(&pod.namespace));
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(pods)
    }

    /// Returns the pod that `NAME` or `NAMESPACE/NAME` identifies.
    pub(crate) async fn pod(&self, wanted: &str, global: &Global) -> anyhow::Result<MeshPod> {
        let wanted = wanted
            .strip_prefix("pod/")
            .or(wanted.strip_prefix("po/"))
            .unwrap_or(wanted);
        let (scope, name) = match wanted.split_once('/') {
            Some((namespace, name)) => (Scope::Namespace(namespace.to_owned()), name),
            None => (self.scope(global), wanted),
        };
        let pods = self.pods(&scope).await?;
        Ok(pod::find(pods, wanted, name)?)
    }

    /// Returns the namespaces that the flags select. Without flags: all of a node, which has few;
    /// of a cluster, the namespace of the context, as in kubectl.
    pub(crate) fn scope(&self, global: &Global) -> Scope {
        match (&global.namespace, self) {
            _ if global.all_namespaces => Scope::All,
            (Some(namespace), _) => Scope::Namespace(namespace.clone()),
            (None, Self::Local(_)) => Scope::All,
            (None, Self::Cluster(cluster)) => Scope::Namespace(cluster.namespace.clone()),
        }
    }

    /// Returns the namespace of a command that is about one and has no flag.
    pub(crate) fn default_namespace(&self) -> &str {
        match self {
            Self::Local(_) => "default",
            Self::Cluster(cluster) => &cluster.namespace,
        }
    }

    pub(crate) fn control_namespace(&self) -> &str {
        match self {
            Self::Local(_) => CONTROL_NAMESPACE,
            Self::Cluster(cluster) => &cluster.control_namespace,
        }
    }

    /// Returns the values of the installation, or the chart's defaults if they cannot be read. A
    /// local node has the defaults.
    pub(crate) async fn values(&self) -> Values {
        let values = match self {
            Self::Local(_) => None,
            Self::Cluster(cluster) => cluster.values().await.ok(),
        };
        values.unwrap_or_default()
    }

    /// Returns the suffix of identities.
    pub(crate) async fn trust_domain(&self) -> String {
        self.values().await.trust_domain().to_owned()
    }

    /// Returns the DNS domain of the cluster.
    pub(crate) async fn cluster_domain(&self) -> String {
        self.values().await.cluster_domain
    }

    pub(crate) async fn connect(&self, pod: &MeshPod, port: u16) -> anyhow::Result<Connection> {
        match self {
            Self::Local(node) => node.connect(pod, port).await,
            Self::Cluster(cluster) => cluster.forward(&pod.namespace, &pod.name, port).await,
        }
    }

    /// Returns the chain that the proxy of a pod presents, leaf first and in DER.
    pub(crate) async fn presented_chain(
        &self,
        pod: &MeshPod,
        trust_domain: &str,
    ) -> anyhow::Result<Vec<Vec<u8>>> {
        let port = pod.admin_port()?;
        let name = pod.identity(trust_domain)?;
        let connection = self.connect(pod, port).await?;
        tls::fetch_chain(connection, &name)
            .await
            .with_context(|| format!("fetch the certificate of the proxy of {pod}"))
    }

    /// Returns the body of a 200 response from a port of a pod.
    pub(crate) async fn get(&self, pod: &MeshPod, port: u16, path: &str) -> anyhow::Result<String> {
        let connection = self.connect(pod, port).await?;
        http::get(connection, &format!("{pod} port {port}"), path).await
    }

    /// Returns the report of each node's agent, sorted by node.
    pub(crate) async fn agents(&self) -> anyhow::Result<Vec<AgentReport>> {
        match self {
            Self::Local(node) => Ok(vec![node.agent().await]),
            Self::Cluster(cluster) => cluster.agents().await,
        }
    }
}

const NO_TARGET: &str = "no mesh to connect to: no local node is up, and there is no kubeconfig; start a node with `meshctl local up DIR`, or select a cluster with --kubeconfig FILE or KUBECONFIG";
