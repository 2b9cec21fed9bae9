//! A local node: its objects, pods and agent. Objects are read from the node's directory, as the
//! controllers read them. Pods are reached at their addresses, the agent on its Unix socket.

pub(crate) mod agent;
pub(crate) mod api_server;
pub(crate) mod tap;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use mesh_k8s::kinds::{ObjectMeta, Pod, ReplicaSet, ResourceExt, Service};
use mesh_local::client::ClientError;
use mesh_local::control_plane::viz;
use mesh_local::node_paths::{FindError, Name, NodePaths};
use mesh_local::objects::file_prefix;
use mesh_local::settings::Settings;
use serde::de::DeserializeOwned;
use serde_norway::Value;
use tokio::net::TcpStream;

use crate::clients::connection::Connection;
use crate::exit::Failure;
use crate::resource::{AgentReport, MeshPod};

#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) paths: NodePaths,
}

impl Node {
    /// Returns the node of that name, or the only node of this machine.
    pub(crate) fn find(name: Option<&str>) -> Result<Self, Failure> {
        let name = name
            .map(str::parse::<Name>)
            .transpose()
            .map_err(|error| Failure::Input(error.to_string()))?;
        let paths = NodePaths::find(name).map_err(|error| match error {
            FindError::Several(_) => Failure::Input(error.to_string()),
            FindError::None | FindError::Read(_) => Failure::Unreachable(error.to_string()),
        })?;
        if paths.state().exists() {
            return Ok(Self { paths });
        }
        let all = NodePaths::all().unwrap_or_default();
        let names: Vec<&str> = all.iter().map(|node| node.name().as_str()).collect();
        Err(Failure::Unreachable(format!(
            "local node {:?} does not exist; this machine has: {}",
            paths.name().as_str(),
            names.join(", ")
        )))
    }

    /// Returns the directory of the manifests that the node runs.
    pub(crate) fn manifests(&self) -> anyhow::Result<PathBuf> {
        Ok(Settings::read(&self.paths)?.manifests)
    }

    pub(crate) fn pods(&self) -> anyhow::Result<Vec<MeshPod>> {
        let sets: Vec<ReplicaSet> = self.objects("ReplicaSet")?;
        let sets: Vec<ObjectMeta> = sets.into_iter().map(|set| set.metadata).collect();
        let pods: Vec<Pod> = self.objects("Pod")?;
        Ok(pods.iter().map(|pod| MeshPod::new(pod, &sets)).collect())
    }

    /// Returns the objects of a kind that the node wrote for the controllers.
    pub(crate) fn objects<T: DeserializeOwned>(&self, kind: &str) -> anyhow::Result<Vec<T>> {
        let directory = self.paths.objects();
        let entries = std::fs::read_dir(&directory)
            .with_context(|| format!("read the node's objects in {}", directory.display()))?;
        let prefix = file_prefix(kind);
        let mut objects = Vec::new();
        for entry in entries {
            let entry = entry?;
            // Only the files of the kind are read.
            if !entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(prefix.as_bytes())
            {
                continue;
            }
            let path = entry.path();
            if let Some(value) = read(&path)?.filter(|value| kind_of(value) == Some(kind)) {
                let object = serde_norway::from_value(value)
                    .with_context(|| format!("read {} as {kind}", path.display()))?;
                objects.push(object);
            }
        }
        Ok(objects)
    }

    /// Returns the object of that kind, namespace and name.
    pub(crate) fn object<T: DeserializeOwned + ResourceExt>(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> anyhow::Result<Option<T>> {
        let objects: Vec<T> = self.objects(kind)?;
        Ok(objects.into_iter().find(|object| {
            object.name_any() == name && object.namespace().as_deref() == Some(namespace)
        }))
    }

    /// Returns the address of the node's metrics API.
    pub(crate) fn metrics_api(&self) -> anyhow::Result<SocketAddr> {
        let service: Option<Service> = self.object("Service", viz::NAMESPACE, viz::METRICS_API)?;
        let address = service.and_then(|service| {
            let ip: IpAddr = service.spec?.cluster_ip?.parse().ok()?;
            Some(SocketAddr::new(ip, viz::METRICS_API_PORT))
        });
        let missing = || {
            Failure::Unreachable(format!(
                "local node {} has no metrics API: it was started with --no-mesh or by another version of meshctl",
                self.paths.name()
            ))
        };
        Ok(address.ok_or_else(missing)?)
    }

    pub(crate) async fn connect(&self, pod: &MeshPod, port: u16) -> anyhow::Result<Connection> {
        let address = (pod.address()?, port);
        let stream = TcpStream::connect(address).await.map_err(|error| {
            Failure::Unreachable(format!(
                "cannot connect to pod {pod} at {}:{port}: {error}; is the pod running? `meshctl local status` shows it",
                address.0
            ))
        })?;
        Ok(Connection::new(stream))
    }

    pub(crate) async fn agent(&self) -> AgentReport {
        let socket = self.paths.agent_socket();
        AgentReport {
            node: self.paths.name().to_string(),
            status: agent::status(&socket).await,
            pods: agent::pods(&socket).await,
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Option<Value>> {
    match std::fs::read_to_string(path) {
        // The node replaces and deletes files concurrently.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        Ok(text) => {
            let value = serde_norway::from_str(&text);
            Ok(Some(
                value.with_context(|| format!("parse {}", path.display()))?,
            ))
        }
    }
}

/// Converts an error of mesh-local to an error with a suitable exit code.
pub(crate) fn failed(error: ClientError) -> anyhow::Error {
    let kind = match &error {
        ClientError::Unreachable { .. } => Failure::Unreachable,
        ClientError::Find(_) | ClientError::Manifests(_) => Failure::Input,
        _ => return error.into(),
    };
    let text = format!("{:#}", anyhow::Error::from(error));
    kind(text).into()
}

fn kind_of(value: &Value) -> Option<&str> {
    value.get("kind")?.as_str()
}
