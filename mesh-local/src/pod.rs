//! One pod from start to end: cgroup, network, volumes, containers, and all of it removed again.
//!
//! The order is the kubelet's: the pod's cgroup, its network namespace, the CNI chain, then
//! containers. Init containers run one after the other; those that stay (sidecars) only have to
//! have started before the next. When the pod is stopped its containers end before its sidecars.

use std::{
    collections::BTreeMap,
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use mesh_k8s::pod as accessors;
use nix::mount::{MntFlags, umount2};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{
    group::run_containers,
    set_up::{keep_tokens, set_up},
};
use crate::{
    cgroup,
    cni::{Chain, PortMapping, Sandbox},
    container::state::ContainerState,
    digest,
    instance::Instance,
    manifest::{Key, Manifests},
    netns,
    pki::TokenSigner,
    settings::Settings,
};

mod group;
mod set_up;
pub mod status;

/// What every pod of a node shares.
pub struct Context {
    pub instance: Instance,
    pub settings: Settings,
    pub chain: Chain,
    /// The parent of all pods' cgroups.
    pub cgroup: PathBuf,
    pub signer: TokenSigner,
}

/// A pod that is to run.
#[derive(Clone)]
pub struct Task {
    pub context: Arc<Context>,
    pub key: Key,
    pub uid: String,
    /// With uid and node name.
    pub pod: Pod,
    /// As they were when the pod was started; ConfigMaps and Secrets are read from them.
    pub manifests: Arc<Manifests>,
}

/// What the pod is doing, as its task tells the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodState {
    pub started: Option<Timestamp>,
    pub ips: Vec<IpAddr>,
    /// In the order of the pod's spec, init containers first.
    pub containers: BTreeMap<String, ContainerState>,
    /// Why the pod is not getting on, if it is not.
    pub message: String,
    pub terminating: bool,
    pub outcome: Option<Outcome>,
}

/// How a pod ended whose containers are not started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    Failed,
}

/// Between two attempts to set a pod up.
const RETRY: Duration = Duration::from_secs(3);
/// Runs the pod until it is told to stop, and removes it.
pub async fn run(task: Task, state: watch::Sender<PodState>, stop: CancellationToken) {
    state.send_modify(|state| state.started = Some(Timestamp::now()));
    let ready = loop {
        if stop.is_cancelled() {
            break None;
        }
        match set_up(&task, &state).await {
            Ok(ready) => break Some(ready),
            Err(error) => {
                let message = crate::container::stub::describe(&error);
                tracing::error!(pod = %task.key, "cannot set the pod up: {message}");
                state.send_modify(|state| state.message = message);
                tear_down(&task).await;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = stop.cancelled() => {}
        }
    };
    if let Some(ready) = ready {
        state.send_modify(|state| state.message.clear());
        let renewal = keep_tokens(&task, &ready.tokens);
        tokio::select! {
            () = run_containers(&task, ready.containers, &state, &stop) => {}
            never = renewal => never,
        }
    }
    state.send_modify(|state| state.terminating = true);
    tear_down(&task).await;
}

/// How the CNI chain was called, in the pod's folder.
pub const SANDBOX_FILE: &str = "sandbox.json";

/// Removes what the pod had on the machine. What cannot be removed is logged, and cleared with the
/// node at the latest.
async fn tear_down(task: &Task) {
    let warn = |error: &dyn std::error::Error| {
        let message = crate::container::stub::describe(error);
        tracing::warn!(pod = %task.key, "left behind for now: {message}");
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
    if let Err(error) = remove_folder(&task.context.instance.pod(&task.uid)) {
        warn(&error);
    }
}

/// Removes a pod's folder with the file systems mounted in its volumes.
pub fn remove_folder(folder: &Path) -> io::Result<()> {
    if let Ok(volumes) = fs::read_dir(folder.join(VOLUMES)) {
        for volume in volumes {
            match umount2(&volume?.path(), MntFlags::MNT_DETACH) {
                // Most volumes are plain folders.
                Ok(()) | Err(nix::Error::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

const VOLUMES: &str = "volumes";

impl Task {
    fn cgroup(&self) -> PathBuf {
        self.context.cgroup.join(format!("pod{}", self.uid))
    }

    /// Nothing for a pod in the host's network.
    fn netns(&self) -> Option<PathBuf> {
        let Key { namespace, name } = &self.key;
        let own = !accessors::is_host_network(&self.pod);
        own.then(|| self.context.instance.netns(namespace, name))
    }

    fn sandbox(&self, netns: &Path) -> Sandbox {
        let spec = self.pod.spec.iter();
        let ports = spec.flat_map(accessors::ports::declared);
        let mapped = ports.filter_map(|(_, port)| {
            Some(PortMapping {
                host_port: accessors::ports::number(port.host_port?)?,
                container_port: accessors::ports::number(port.container_port)?,
                protocol: port.protocol.as_deref().unwrap_or("TCP").to_lowercase(),
            })
        });
        Sandbox {
            // A sandbox has an id of its own; with one sandbox in a pod's life the uid's digest
            // will do.
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
