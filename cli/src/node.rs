//! The local node that a command talks to: its objects, its agent, its control plane and its proxies.
//!
//! Objects are read from the node's folder as the controllers read them; everything else is asked at its own door. A node that is a Kubernetes cluster
//! would answer the same questions.

pub(crate) mod agent;
pub(crate) mod controllers;
pub(crate) mod http;
pub(crate) mod metrics;
pub(crate) mod tls;

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use anyhow::Context;
use mesh_core::annotation;
use mesh_k8s::{
    kinds::{ObjectMeta, Pod, ReplicaSet, ResourceExt},
    pod::{self, owner::Owner},
};
use mesh_local::instance::{FindError, Instance, Name};

use crate::exit::Failure;

pub(crate) struct Node {
    pub(crate) instance: Instance,
}

/// A pod, as far as commands care.
#[derive(Clone, Debug)]
pub(crate) struct MeshPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) owner: Owner,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) ready: bool,
    /// The proxy's admin port, of a pod that has a proxy.
    pub(crate) admin_port: Option<u16>,
    /// The control-plane component, of a pod that is one.
    pub(crate) component: Option<String>,
    pub(crate) service_account: String,
    pub(crate) control_namespace: Option<String>,
}

impl Node {
    /// The node of that name, or the only one there is.
    pub(crate) fn find(name: Option<&str>) -> Result<Self, Failure> {
        let name = name
            .map(str::parse::<Name>)
            .transpose()
            .map_err(|error| Failure::Input(error.to_string()))?;
        let instance = Instance::find(name).map_err(|error| match error {
            FindError::Several(_) => Failure::Input(error.to_string()),
            FindError::None | FindError::Read { .. } => Failure::Unreachable(error.to_string()),
        })?;
        if instance.state().exists() {
            return Ok(Self { instance });
        }
        let all = Instance::all().unwrap_or_default();
        let names: Vec<&str> = all.iter().map(|node| node.name().as_str()).collect();
        Err(Failure::Unreachable(format!(
            "no local node is named {:?}; those of this machine: {}",
            instance.name().as_str(),
            names.join(", ")
        )))
    }

    /// Every pod of the node, by namespace and name.
    pub(crate) fn pods(&self) -> anyhow::Result<Vec<MeshPod>> {
        let (mut pods, mut sets) = (Vec::new(), Vec::new());
        let folder = self.instance.objects();
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("read the node's objects in {}", folder.display()))?;
        for entry in entries {
            match read_object(&entry?.path())? {
                Some(Object::Pod(pod)) => pods.push(*pod),
                Some(Object::ReplicaSet(meta)) => sets.push(*meta),
                None => {}
            }
        }
        let mut pods: Vec<MeshPod> = pods.iter().map(|pod| summarize(pod, &sets)).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(pods)
    }

    /// The pod that a user means by `NAME` or `NAMESPACE/NAME`.
    pub(crate) fn pod(&self, wanted: &str) -> anyhow::Result<MeshPod> {
        let (namespace, name) = match wanted.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, wanted),
        };
        let mut found = self.pods()?;
        found.retain(|pod| {
            pod.name == name && namespace.is_none_or(|namespace| pod.namespace == namespace)
        });
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(Failure::Input(format!(
                "there is no pod {wanted:?}; `meshctl local status` lists the pods"
            ))
            .into()),
            _ => {
                let namespaces: Vec<&str> =
                    found.iter().map(|pod| pod.namespace.as_str()).collect();
                Err(Failure::Input(format!(
                    "several namespaces have a pod {name:?} ({}): write NAMESPACE/{name}",
                    namespaces.join(", ")
                ))
                .into())
            }
        }
    }
}

impl MeshPod {
    pub(crate) fn is_meshed(&self) -> bool {
        self.admin_port.is_some()
    }

    /// Where the proxy's metrics are.
    pub(crate) fn admin(&self) -> anyhow::Result<SocketAddr> {
        let port = self
            .admin_port
            .with_context(|| format!("pod {self} has no proxy: it is not in the mesh"))?;
        Ok(SocketAddr::new(self.address()?, port))
    }

    pub(crate) fn address(&self) -> anyhow::Result<IpAddr> {
        self.ip
            .with_context(|| format!("pod {self} has no address yet"))
    }
}

impl std::fmt::Display for MeshPod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

enum Object {
    Pod(Box<Pod>),
    ReplicaSet(Box<ObjectMeta>),
}

fn read_object(path: &Path) -> anyhow::Result<Option<Object>> {
    let text = match std::fs::read_to_string(path) {
        // The node replaces and removes files while we look.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.with_context(|| format!("read {}", path.display()))?,
    };
    let value: serde_norway::Value =
        serde_norway::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    let object = match value.get("kind").and_then(|kind| kind.as_str()) {
        Some("Pod") => Object::Pod(serde_norway::from_value(value)?),
        Some("ReplicaSet") => Object::ReplicaSet(Box::new(
            serde_norway::from_value::<ReplicaSet>(value)?.metadata,
        )),
        _ => return Ok(None),
    };
    Ok(Some(object))
}

fn summarize(pod: &Pod, sets: &[ObjectMeta]) -> MeshPod {
    let find_set = |_kind: &str, name: &str| {
        sets.iter().find(|set| {
            set.name.as_deref() == Some(name) && set.namespace == pod.metadata.namespace
        })
    };
    MeshPod {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        owner: pod::owner::of(pod, find_set),
        ip: pod::ips(pod).first().copied(),
        ready: pod::is_ready(pod),
        admin_port: pod::ports::of_proxy(pod).map(|ports| ports.admin),
        component: pod::label(pod, annotation::CONTROL_PLANE_COMPONENT).map(str::to_owned),
        service_account: pod::service_account(pod).to_owned(),
        control_namespace: pod::control_plane_namespace(pod).map(str::to_owned),
    }
}
