//! The mesh that a command talks to: a local node or a cluster, behind the same questions.
//!
//! Commands ask for pods and for streams to their ports and need not know more. What only one of
//! the two can answer (the files of a node, the objects of a cluster) is asked of that one.

pub(crate) mod agent;
mod choice;
pub(crate) mod connection;
pub(crate) mod pod;
pub(crate) mod scope;

use mesh_k8s::values::Values;

use self::choice::{Choice, Given};
pub(crate) use self::{
    agent::AgentAnswer,
    connection::{Connection, Io},
    pod::MeshPod,
    scope::Scope,
};
use crate::{
    cluster::Cluster,
    exit::Failure,
    global::{CONTROL_NAMESPACE, Global},
    node::Node,
    output,
};

pub(crate) enum Mesh {
    Local(Node),
    Cluster(Box<Cluster>),
}

impl Mesh {
    /// The one that the flags name, or else the one that is there; the latter is said on standard
    /// error.
    pub(crate) async fn find(global: &Global) -> anyhow::Result<Self> {
        match choice::choose(&Given::of(global)) {
            Choice::Node(name) => Ok(Self::Local(Node::find(name.as_deref())?)),
            Choice::Cluster => Ok(Self::Cluster(Box::new(Cluster::connect(global).await?))),
            Choice::NodeThatRuns => {
                let node = Node::find(None)?;
                output::note(&format!(
                    "local node {} (--context NAME chooses a cluster)",
                    node.instance.name()
                ));
                Ok(Self::Local(node))
            }
            Choice::ClusterOfKubeconfig => {
                let cluster = Cluster::connect(global).await?;
                output::note(&format!(
                    "cluster of context {} ({})",
                    cluster.context, cluster.server
                ));
                Ok(Self::Cluster(Box::new(cluster)))
            }
            Choice::Nothing => Err(Failure::Unreachable(NOTHING.to_owned()).into()),
        }
    }

    /// The pods of a scope, by namespace and name.
    pub(crate) async fn pods(&self, scope: &Scope) -> anyhow::Result<Vec<MeshPod>> {
        let mut pods = match self {
            Self::Local(node) => node.pods()?,
            Self::Cluster(cluster) => cluster.pods(scope).await?,
        };
        pods.retain(|pod| scope.contains(&pod.namespace));
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(pods)
    }

    /// The pod that a user means by `NAME` or `NAMESPACE/NAME`.
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
        Ok(pod::choose(pods, wanted, name)?)
    }

    /// The namespaces that the flags mean. Without flags: all of a node, which has few; of a
    /// cluster, the context's own as kubectl takes it.
    pub(crate) fn scope(&self, global: &Global) -> Scope {
        match (&global.namespace, self) {
            _ if global.all_namespaces => Scope::All,
            (Some(namespace), _) => Scope::Namespace(namespace.clone()),
            (None, Self::Local(_)) => Scope::All,
            (None, Self::Cluster(cluster)) => Scope::Namespace(cluster.namespace.clone()),
        }
    }

    pub(crate) fn control_namespace(&self) -> &str {
        match self {
            Self::Local(_) => CONTROL_NAMESPACE,
            Self::Cluster(cluster) => &cluster.control_namespace,
        }
    }

    /// The domain that identities end in; Linkerd's default where it cannot be read.
    pub(crate) async fn trust_domain(&self) -> String {
        let values = match self {
            Self::Local(_) => None,
            Self::Cluster(cluster) => cluster.values().await.ok(),
        };
        values.unwrap_or_default().trust_domain().to_owned()
    }

    /// The domain of the cluster's names.
    pub(crate) async fn cluster_domain(&self) -> String {
        match self {
            Self::Local(_) => Values::default().cluster_domain,
            Self::Cluster(cluster) => cluster.values().await.map_or_else(
                |_| Values::default().cluster_domain,
                |values| values.cluster_domain,
            ),
        }
    }

    pub(crate) async fn connect(&self, pod: &MeshPod, port: u16) -> anyhow::Result<Connection> {
        match self {
            Self::Local(node) => node.connect(pod, port).await,
            Self::Cluster(cluster) => cluster.forward(&pod.namespace, &pod.name, port).await,
        }
    }

    /// What the agent of each node says, by the nodes' names.
    pub(crate) async fn agents(&self) -> anyhow::Result<Vec<AgentAnswer>> {
        match self {
            Self::Local(node) => Ok(vec![node.agent().await]),
            Self::Cluster(cluster) => cluster.agents().await,
        }
    }
}

const NOTHING: &str = "there is nothing to talk to: no local node is up, and there is no kubeconfig; start a node with `meshctl local up DIR`, or name a cluster with --kubeconfig FILE or KUBECONFIG";
