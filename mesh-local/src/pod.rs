//! The lifecycle of a pod: creates cgroup, network, volumes and containers, and removes them. The
//! order is the kubelet's: cgroup, network namespace, CNI chain, then containers. Init containers
//! run one after the other; a sidecar only has to have started before the next one starts. When the
//! pod stops, its containers exit before its sidecars.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use mesh_k8s::pod as accessors;
use mesh_runtime::log::chain;
use nix::mount::{MntFlags, umount2};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::group::run_containers;
use self::set_up::{renew_tokens, set_up};
use crate::cni::{CniChain, PortMapping, Sandbox};
use crate::container::state::ContainerState;
use crate::manifest::{Manifests, ObjectKey};
use crate::node_paths::NodePaths;
use crate::pki::TokenSigner;
use crate::settings::Settings;
use crate::{cgroup, digest, netns};

mod group;
mod set_up;
pub mod status;

/// The properties of the node that all pods share.
pub struct NodeContext {
    pub paths: NodePaths,
    pub settings: Settings,
    pub chain: CniChain,
    /// The parent of the cgroups of all pods.
    pub cgroup: PathBuf,
    pub signer: TokenSigner,
}

/// A pod to run.
#[derive(Clone)]
pub struct PodTask {
    pub context: Arc<NodeContext>,
    pub key: ObjectKey,
    pub uid: String,
    /// The pod with uid and node name.
    pub pod: Pod,
    /// The manifests at the start of the pod, with its ConfigMaps and Secrets.
    pub manifests: Arc<Manifests>,
}

/// The state of a pod, which its task reports to the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    pub started: Option<Timestamp>,
    pub ips: Vec<IpAddr>,
    /// The states by container name.
    pub containers: BTreeMap<String, ContainerState>,
    /// Why the pod cannot start, if so.
    pub message: String,
    pub terminating: bool,
    pub outcome: Option<PodOutcome>,
}

/// The outcome of a pod whose containers have exited and are not restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    Succeeded,
    Failed,
}

/// Delay between two attempts to set up a pod.
const RETRY_DELAY: Duration = Duration::from_secs(3);
/// Runs the pod until it is stopped, and removes it.
pub async fn run(task: PodTask, state: watch::Sender<PodState>, stop: CancellationToken) {
    state.send_modify(|state| state.started = Some(Timestamp::now()));
    let ready = loop {
        if stop.is_cancelled() {
            break None;
        }
        match set_up(&task, &state).await {
            Ok(ready) => break Some(ready),
            Err(error) => {
                let message = chain(&error);
                tracing::error!(pod = %task.key, "Cannot set up the pod: {message}");
                state.send_modify(|state| state.message = message);
                tear_down(&task).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY_DELAY) => {}
            () = stop.cancelled() => {}
        }
    };
    if let Some(ready) = ready {
        state.send_modify(|state| state.message.clear());
        let renewal = renew_tokens(&task, &ready.tokens);
        tokio::select! {
            () = run_containers(&task, ready.containers, &state, &stop) => {}
            never = renewal => never,
        }
    }
    state.send_modify(|state| state.terminating = true);
    tear_down(&task).await;
}

/// The file in the pod's directory with the inputs of the CNI chain.
pub const SANDBOX_FILE: &str = "sandbox.json";

/// Removes the resources of the pod from the machine. Failures are logged; stopping the node cleans
/// up the rest.
async fn tear_down(task: &PodTask) {
    let warn = |error: &dyn std::error::Error| {
        let message = chain(error);
        tracing::warn!(pod = %task.key, "Cannot remove a resource of the pod: {message}");
    };
    if let Err(error) = cgroup::remove(&task.cgroup()).await {
        warn(&error);
    }
    if let Some(netns) = task.netns() {
        if netns.exists()
            && let Err(error) = task.context.chain.delete(&task.sandbox(&netns)).await
        {
            warn(&error);
        }
        if let Err(error) = netns::remove(&netns) {
            warn(&error);
        }
    }
    if let Err(error) = remove_directory(&task.context.paths.pod(&task.uid)) {
        warn(&error);
    }
}

/// Removes a pod's directory, after unmounting the file systems in its volumes.
pub fn remove_directory(directory: &Path) -> io::Result<()> {
    if let Ok(volumes) = fs::read_dir(directory.join(VOLUMES)) {
        for volume in volumes {
            match umount2(&volume?.path(), MntFlags::MNT_DETACH) {
                // Most volumes are plain directories.
                Ok(()) | Err(nix::Error::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

const VOLUMES: &str = "volumes";

impl PodTask {
    fn cgroup(&self) -> PathBuf {
        self.context.cgroup.join(format!("pod{}", self.uid))
    }

    /// Returns `None` for a pod in the host network.
    fn netns(&self) -> Option<PathBuf> {
        let ObjectKey { namespace, name } = &self.key;
        let own = !accessors::is_host_network(&self.pod);
        own.then(|| self.context.paths.netns(namespace, name))
    }

    fn sandbox(&self, netns: &Path) -> Sandbox {
        let spec = self.pod.spec.iter();
        let ports = spec.flat_map(accessors::ports::declared);
        let mapped = ports.filter_map(|(_, port)| {
            Some(PortMapping {
                host_port: accessors::ports::port_number(port.host_port?)?,
                container_port: accessors::ports::port_number(port.container_port)?,
                protocol: port.protocol.as_deref().unwrap_or("TCP").to_lowercase(),
            })
        });
        Sandbox {
            // A pod has one sandbox, so that the digest of its uid is a unique ID.
            container_id: digest::of_text(&self.uid),
            netns: netns.to_owned(),
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
            uid: self.uid.clone(),
            annotations: self.pod.metadata.annotations.clone().unwrap_or_default(),
            port_mappings: mapped.collect(),
        }
    }
}

fn is_sidecar(spec: &PodSpec, name: &str) -> bool {
    let mut init = spec.init_containers.iter().flatten();
    init.any(|container| {
        container.name == name && container.restart_policy.as_deref() == Some("Always")
    })
}
